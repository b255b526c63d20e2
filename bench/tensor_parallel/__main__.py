"""The commands of this bench."""

from __future__ import annotations

import click

from bench.tensor_parallel.exchange import exchange
from bench.tensor_parallel.shapes import shapes


@click.group()
def main() -> None:
    """GPUs that share a target."""


for command in (exchange, shapes):
    main.add_command(command)

if __name__ == "__main__":
    main()
