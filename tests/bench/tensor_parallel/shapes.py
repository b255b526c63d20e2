"""The products of a split pair, for `specgate tune gemm --shapes`.

How the products of experts move their work is not searched for: it follows from their sizes. They are listed all the
same, with that. `python -m tests.bench.gpt_oss --sweep --tp N` times those of a part in many ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import click

from specgate.backends.cupy_eagle3.bench.synthetic import Geometry
from specgate.backends.cupy_eagle3.kernels.experts.expert_down import ExpertDown
from specgate.backends.cupy_eagle3.kernels.experts.expert_gate_up import ExpertGateUp
from specgate.backends.cupy_eagle3.tuned.shape_log import ShapeLog
from specgate.backends.cupy_eagle3.tuning.shapes import gemm_shapes
from specgate.eagle3.geometry import TargetGeometry
from specgate.eagle3.parallel.shard import Shard
from tests.bench.tensor_parallel.pairs import pair_of


@click.command()
@click.option("--pair", default="planted-llama-3.1-8b-al3.0")
@click.option("--tp", "ranks", default=2)
@click.option("--batch", multiple=True, type=int, default=(1, 4))
@click.option("--spec", multiple=True, type=int, default=(0, 3))
@click.option("--whole-draft", is_flag=True, help="The draft is whole on each GPU.")
@click.option("--out", type=Path, required=True)
def shapes(pair: str, ranks: int, batch: tuple[int, ...], spec: tuple[int, ...], whole_draft: bool, out: Path) -> None:
    """Write the shapes of all products of one GPU that can be tuned, and print them with those of experts."""
    with pair_of(pair, overlap=0.5) as meant:
        whole = Geometry.of(meant, drafts=any(spec))
    shard = Shard(0, ranks)
    part = replace(whole, target=shard.geometry(whole.target))
    if whole.draft and not whole_draft and not shard.unfit(whole.draft):
        part = replace(part, draft=shard.of_draft(whole.draft))
    ShapeLog(out).add(gemm_shapes(part, batch, spec))
    click.echo(out.read_text())
    for line in of_experts(part.target, batch, spec):
        click.echo(line)


def of_experts(g: TargetGeometry, batch: tuple[int, ...], spec: tuple[int, ...]) -> Iterator[str]:
    """The products of experts with how their work is divided, a line for each number of rows."""
    if g.experts is None:
        return
    about = f"of {g.experts.count} experts, {g.experts.per_token} of a row, in MXFP4"
    for rows in sorted({slots * (k + 1) for slots in batch for k in spec}):
        for name, kernel, n, k in (
            ("gate and up", ExpertGateUp(g.intermediate, g.hidden, g.experts, rows), 2 * g.intermediate, g.hidden),
            ("down", ExpertDown(g.hidden, g.intermediate, g.experts, rows), g.hidden, g.intermediate),
        ):
            knobs = ", ".join(f"{knob} {value}" for knob, value in asdict(kernel.config).items())
            yield f"{name}: {rows} x {n} x {k} {about}: {knobs}"
