"""The products of a split pair, for `specgate tune gemm --shapes`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from specgate.backends.cupy_eagle3.bench.synthetic import Geometry
from specgate.backends.cupy_eagle3.tuned.shape_log import ShapeLog
from specgate.backends.cupy_eagle3.tuning.shapes import gemm_shapes
from specgate.eagle3.parallel.shard import Shard
from specgate.pairs.resolve import resolve_pair


@click.command()
@click.option("--pair", default="planted-llama-3.1-8b-al3.0")
@click.option("--tp", "ranks", default=2)
@click.option("--batch", multiple=True, type=int, default=(1, 4))
@click.option("--spec", multiple=True, type=int, default=(0, 3))
@click.option("--out", type=Path, required=True)
def shapes(pair: str, ranks: int, batch: tuple[int, ...], spec: tuple[int, ...], out: Path) -> None:
    """Write the shapes of all products of one GPU."""
    whole = Geometry.of(resolve_pair(pair, None, None), drafts=any(spec))
    part = replace(whole, target=Shard(0, ranks).geometry(whole.target))
    ShapeLog(out).add(gemm_shapes(part, batch, spec))
    click.echo(out.read_text())
