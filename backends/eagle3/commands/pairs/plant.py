"""`specgate engine plant` and `specgate engine pairs check`: make a planted pair, and measure it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.commands.door import command
from specgate.commands.numbers import BATCHES, CONTEXT, DRAFTED, SEEDS, SHARE, Real, count
from specgate.contract.types import DRAFT_TOKENS
from specgate.errors import EnvironmentRefused
from specgate.terminal import echo

if TYPE_CHECKING:
    from specgate.backends.eagle3.pair_tools.plant.check import Measured
    from specgate.backends.eagle3.pair_tools.plant.overlap import Touched

DEVICE = click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
DTYPE = click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    help="Type of the arithmetic (default: bfloat16 on a GPU, float32 on a CPU). Weights are always bfloat16.",
)


def dtype_for(name: str | None, device: str) -> str:
    """The type of the arithmetic: what was asked for, else bfloat16 on a GPU and float32 on a CPU."""
    return name or ("bfloat16" if device == "cuda" else "float32")


@command("plant", short_help="Make a pair of any geometry, with a known acceptance length.")
@click.option(
    "--geometry",
    required=True,
    metavar="NAME",
    help="tiny, llama-3.1-8b, …; see backends/eagle3/docs/planted-pairs.md.",
)
@click.option(
    "--accept-length",
    "length",
    type=Real(0, DRAFT_TOKENS + 1),
    required=True,
    metavar="AL",
    help="Tokens per cycle, e.g. 3.0.",
)
@click.option("--spec", type=DRAFTED, default=3, show_default=True, help="Draft tokens per cycle for which AL holds.")
@click.option(
    "--recipe",
    type=click.Choice(["A", "B"]),
    default="A",
    show_default=True,
    help="A: for measuring speed. B: for finding faults in features.",
)
@click.option("--seed", type=SEEDS, default=1, show_default=True)
@click.option(
    "--draft-error", type=SHARE, default=0.0, show_default=True, help="Share of tokens that the draft gets wrong."
)
@click.option(
    "--expert-overlap",
    type=SHARE,
    metavar="SHARE",
    help="How far neighbouring tokens choose the same experts, 0 (independent) to 1 (equal); geometries with experts.",
)
@click.option("--context", type=CONTEXT, help="Context to calibrate at, in tokens (default: the geometry's).")
@click.option(
    "--write/--no-write",
    "written",
    default=None,
    help="Write the weights to files, or make them when they are loaded (default: by size).",
)
@DTYPE
@DEVICE
@click.option(
    "--backend",
    default="reference",
    show_default=True,
    metavar="NAME",
    help="Engine that decodes the pair's own text.",
)
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
def plant(
    geometry: str,
    length: float,
    spec: int,
    recipe: str,
    seed: int,
    draft_error: float,
    expert_overlap: float | None,
    context: int | None,
    written: bool | None,
    dtype: str | None,
    device: str,
    backend: str,
    out: Path,
) -> None:
    """Make a target and an EAGLE-3 draft from a seed, such that the draft's acceptance length is AL.

    \b
    Example: specgate engine plant --geometry tiny --accept-length 3.0 OUT

    They are written to OUT/target and OUT/draft; use them with --pair OUT, or with --target and --draft. Small
    geometries are written as safetensors. Of large ones only the configs are written: their weights are made from the
    seed, always the same, when they are loaded.
    """
    from specgate import plugins
    from specgate.backends.eagle3.lib.memory import refusing_overflow
    from specgate.backends.eagle3.pair_tools.plant.command import Wish
    from specgate.backends.eagle3.pair_tools.plant.command import plant as run
    from specgate.backends.eagle3.pair_tools.plant.decoder import Decoder
    from specgate.backends.eagle3.reference.open import pick_device

    place = pick_device(device)
    engine = plugins.backend_here(backend)
    if not (here := engine.available()).usable:
        raise EnvironmentRefused(f"back end {backend}: {here.reason}")
    decoder = Decoder(dtype_for(dtype, place), place, engine)
    wish = Wish(
        geometry=geometry,
        length=length,
        spec=spec,
        recipe="B" if recipe == "B" else "A",
        seed=seed,
        draft_error=draft_error,
        context=context,
        written=written,
        expert_overlap=expert_overlap,
    )
    with refusing_overflow(f"geometry {geometry}"):
        measured = run(wish, out, decoder, echo)
    echo(f"asked {length:g}, measured {measured.acceptance_length:.3f} over {measured.cycles} cycles")
    echo(f"pair: {out}")


@command("check", short_help="Measure a planted pair against its prediction.")
@click.argument("pair", metavar="PAIR")
@click.option("--context", "contexts", type=CONTEXT, multiple=True, default=(1024,), show_default=True, help="Tokens.")
@click.option(
    "--spec",
    "specs",
    type=DRAFTED,
    multiple=True,
    default=(1, 2, 3, 4, 5),
    show_default="1 to 5",
    help="Draft tokens.",
)
@click.option("--prompts", type=BATCHES, default=8, show_default=True, help="Prompts, decoded together in one batch.")
@click.option("--steps", type=count(), default=128, show_default=True, help="Cycles per prompt.")
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
    """Decode random prompts with the reference engine, and compare the acceptance with what PAIR predicts.

    \b
    Example: specgate engine pairs check DIR --context 8192

    PAIR is a folder or a name. In the table, `planted` is the share of tokens that were the planted ones, `faithful`
    the share of drafts that were what the tokens themselves imply, and `loop` the shortest period that a text ran into.

    Of a target with experts, a second table has the distinct experts per layer that neighbouring tokens touch: as many
    as independent tokens would, as the pair's overlap implies, and as the router chooses.
    """
    from specgate.backends.eagle3.lib.memory import refusing_overflow
    from specgate.backends.eagle3.pair_tools.plant.check import Load, pair_recipe, predictions
    from specgate.backends.eagle3.pair_tools.plant.check import check as run
    from specgate.backends.eagle3.pair_tools.plant.decoder import Decoder, release
    from specgate.backends.eagle3.pair_tools.plant.overlap import touched
    from specgate.backends.eagle3.reference.open import pick_device
    from specgate.pairs.resolve import resolve_pair

    place = pick_device(device)
    ref, kind = resolve_pair(pair, None, None), dtype_for(dtype, place)
    expected = predictions(ref)
    decoder = Decoder(kind, place)
    echo(f"pair {ref.name}, {kind} on {place}: {prompts} prompts, {steps} cycles each")
    echo(fingerprint(place))
    echo("context  spec  predicted  measured  difference  planted  faithful  loop  repeats")
    with refusing_overflow(f"pair {ref.name}"):
        for context in contexts:
            for m in run(ref, specs, Load(context, prompts, steps), decoder):
                echo(row(m, expected.get(m.k)))
        release(place)
        for line in expert_table(touched(ref, pair_recipe(ref), kind, place)):
            echo(line)


def fingerprint(device: str) -> str:
    """One line that says which version measured, on which device, and when."""
    import torch

    from specgate import __version__
    from specgate.machine import inventory

    where = torch.cuda.get_device_name() if device == "cuda" else inventory.cpu_model() or "CPU"
    tree, day = inventory.source_tree_sha256()[:8], datetime.now(UTC).date()
    return f"specgate {__version__} (source tree {tree}), torch {torch.__version__}, {where}, {day}"


def row(m: Measured, predicted: float | None) -> str:
    """One row of the table. `predicted`: the predicted acceptance length, or None."""
    ahead = f"{predicted:9.3f}" if predicted else f"{'–':>9}"
    off = f"{m.acceptance_length / predicted - 1:+10.1%}" if predicted else f"{'–':>10}"
    return (
        f"{m.context:>7}  {m.k:>4}  {ahead}  {m.acceptance_length:8.3f}  {off}  {m.planted_share:7.3f}  "
        f"{m.faithful_share:8.4f}  {m.shortest_period or 'none':>4}  {m.repeated_share:7.1%}"
    )


def expert_table(counts: Sequence[Touched]) -> Iterator[str]:
    """Lines of the table of touched experts; none for a dense target."""
    if counts:
        yield "neighbours  independent  predicted  experts touched  overlap"
    for t in counts:
        overlap = "–" if t.overlap is None else f"{t.overlap:.3f}"
        yield f"{t.tokens:>10}  {t.independent:>11.3f}  {t.predicted:9.3f}  {t.measured:15.3f}  {overlap:>7}"
