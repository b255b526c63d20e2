"""The products of a split pair, for `specgate engine tune gemm --shapes`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from bench.tensor_parallel.pairs import pair_of
from specgate.backends.eagle3.cupy.bench.synthetic import Geometry
from specgate.backends.eagle3.cupy.tuned.required import ShapeLog
from specgate.backends.eagle3.cupy.tuning.search import gemm_shapes
from specgate.backends.eagle3.lib.shard import Shard


@click.command()
@click.option("--pair", default="planted-llama-3.1-8b-al3.0")
@click.option("--tp", "ranks", default=2)
@click.option("--batch", multiple=True, type=int, default=(1, 4))
@click.option("--spec", multiple=True, type=int, default=(0, 3))
@click.option("--whole-draft", is_flag=True, help="The draft is whole on each GPU.")
@click.option("--out", type=Path, required=True)
def shapes(pair: str, ranks: int, batch: tuple[int, ...], spec: tuple[int, ...], whole_draft: bool, out: Path) -> None:
    """Write the shapes of all products of one GPU, and print them."""
    with pair_of(pair, overlap=0.5) as meant:
        whole = Geometry.of(meant, drafts=any(spec))
    shard = Shard(0, ranks)
    part = replace(whole, target=shard.geometry(whole.target))
    if whole.draft and not whole_draft and not shard.unfit(whole.draft):
        part = replace(part, draft=shard.of_draft(whole.draft))
    ShapeLog(out).add(gemm_shapes(part, batch, spec))
    click.echo(out.read_text())
