"""The commands of this bench."""

from __future__ import annotations

import click

from bench.tensor_parallel.exchange import exchange
from bench.tensor_parallel.shapes import shapes
from bench.tensor_parallel.steps import steps


@click.group()
def main() -> None:
    """GPUs that share a target."""


for command in (exchange, steps, shapes):
    main.add_command(command)

if __name__ == "__main__":
    main()
