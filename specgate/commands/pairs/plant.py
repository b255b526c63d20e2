"""`specgate pairs plant` and `specgate pairs check`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from specgate.pair_tools.plant.check import Measured

DEVICE = click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
DTYPE = click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    help="Arithmetic (default: bfloat16 on a GPU, float32 on a CPU). Weights are bfloat16 either way.",
)


def dtype_for(asked: str | None, device: str) -> str:
    return asked or ("bfloat16" if device == "cuda" else "float32")


@click.command("plant", short_help="Make a pair of any geometry, with a known acceptance length.")
@click.option("--geometry", required=True, metavar="NAME", help="tiny, llama-3.1-8b, …; see docs/planted-pairs.md.")
@click.option("--accept-length", "length", type=float, required=True, metavar="AL", help="Tokens per cycle, e.g. 3.0.")
@click.option("--spec", type=int, default=3, show_default=True, help="Chain length at which that holds.")
@click.option(
    "--recipe", type=click.Choice(["A", "B"]), default="A", show_default=True, help="A: for speed. B: needs features."
)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--draft-error", type=float, default=0.0, show_default=True, help="Share of tokens the draft has wrong.")
@click.option("--context", type=int, help="Tokens at which to calibrate (default: the geometry's).")
@click.option("--write/--no-write", "written", default=None, help="Weights in files, or made when loaded.")
@DTYPE
@DEVICE
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
def plant(
    geometry: str,
    length: float,
    spec: int,
    recipe: str,
    seed: int,
    draft_error: float,
    context: int | None,
    written: bool | None,
    dtype: str | None,
    device: str,
    out: Path,
) -> None:
    """Make a target and an EAGLE-3 draft from a seed, so that the draft's acceptance length is AL.

    The folder OUT gets `target` and `draft`, for --pair OUT or --target/--draft. Small geometries are written as
    safetensors; large ones hold configs only, and their weights are made, always the same, when they are loaded.
    """
    from specgate.backends.reference.open import pick_device
    from specgate.eagle3.memory import refusing_overflow
    from specgate.pair_tools.plant.command import Wish
    from specgate.pair_tools.plant.command import plant as run

    place = pick_device(device)
    wish = Wish(
        geometry=geometry,
        length=length,
        spec=spec,
        recipe="B" if recipe == "B" else "A",
        seed=seed,
        draft_error=draft_error,
        context=context,
        dtype=dtype_for(dtype, place),
        written=written,
    )
    with refusing_overflow(f"geometry {geometry}"):
        measured = run(wish, out, place, click.echo)
    click.echo(f"asked {length:g}, measured {measured.acceptance_length:.3f} over {measured.cycles} cycles")
    click.echo(f"pair: {out}")


@click.command("check", short_help="Measure a planted pair against its prediction.")
@click.argument("pair", metavar="PAIR")
@click.option("--context", "contexts", type=int, multiple=True, default=(1024,), show_default=True)
@click.option("--spec", "specs", type=click.IntRange(1), multiple=True, default=(1, 2, 3, 4, 5), show_default="1 to 5")
@click.option("--prompts", type=click.IntRange(1), default=8, show_default=True, help="Decoded together, in one batch.")
@click.option("--steps", type=click.IntRange(1), default=128, show_default=True, help="Cycles per prompt.")
@DTYPE
@DEVICE
def check(
    pair: str,
    contexts: tuple[int, ...],
    specs: tuple[int, ...],
    prompts: int,
    steps: int,
    dtype: str | None,
    device: str,
) -> None:
    """Decode random prompts with the reference engine and compare acceptance with what PAIR, a folder or a name,
    predicts.

    `planted` is the share of tokens that were the planted ones, `faithful` the share of drafts that were what the
    tokens themselves imply; `loop` the shortest period that a text ran into.
    """
    from specgate.backends.reference.open import pick_device
    from specgate.eagle3.memory import refusing_overflow
    from specgate.pair_tools.plant.check import Load, predictions
    from specgate.pair_tools.plant.check import check as run
    from specgate.pairs.resolve import resolve_pair

    place = pick_device(device)
    found, kind = resolve_pair(pair, None, None), dtype_for(dtype, place)
    expected = predictions(found)
    click.echo(f"pair {found.name}, {kind} on {place}: {prompts} prompts, {steps} cycles each")
    click.echo(fingerprint(place))
    click.echo("context  spec  predicted  measured  difference  planted  faithful  loop  repeats")
    with refusing_overflow(f"pair {found.name}"):
        for context in contexts:
            for m in run(found, specs, Load(context, prompts, steps), kind, place):
                click.echo(row(m, expected.get(m.k)))


def fingerprint(device: str) -> str:
    """What measured, on what, when."""
    import torch

    from specgate import __version__
    from specgate.machine import inventory

    where = torch.cuda.get_device_name() if device == "cuda" else inventory.cpu_model() or "CPU"
    tree, day = inventory.source_tree_sha256()[:8], datetime.now(UTC).date()
    return f"specgate {__version__} (source tree {tree}), torch {torch.__version__}, {where}, {day}"


def row(m: Measured, said: float | None) -> str:
    """`said`: the predicted acceptance length."""
    ahead = f"{said:9.3f}" if said else f"{'–':>9}"
    off = f"{m.acceptance_length / said - 1:+10.1%}" if said else f"{'–':>10}"
    return (
        f"{m.context:>7}  {m.k:>4}  {ahead}  {m.acceptance_length:8.3f}  {off}  {m.planted_share:7.3f}  "
        f"{m.faithful_share:8.4f}  {m.shortest_period or 'none':>4}  {m.repeated_share:7.1%}"
    )
