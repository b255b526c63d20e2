"""`specgate engine tune`: search what is fastest on this GPU.

drafts.py     `specgate engine tune drafts`: how many tokens to draft at each batch size?
fmha.py       `specgate engine tune fmha`: which tiling of attention decodes fastest? Kept for engines
steps.py      `specgate engine tune steps`: which configurations of products make whole steps fastest?
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.backends.eagle3.commands.tune.drafts import drafts
from specgate.backends.eagle3.commands.tune.fmha import fmha
from specgate.backends.eagle3.commands.tune.steps import BACKEND, BUDGET, steps
from specgate.commands.door import Group
from specgate.commands.numbers import BATCHES, DRAFTED
from specgate.errors import ExitCode
from specgate.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specgate.backends.eagle3.nouns.gemms import GemmShape, TunedGemm, TunedWgmma
    from specgate.contract import PairRef

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
PAIR = click.option(
    "--pair", "pairs", multiple=True, metavar="NAME|DIR", help="Pair whose products are meant; may be repeated."
)
TARGET = click.option("--target", type=FOLDER, metavar="DIR", help="Target checkpoint (HF folder).")
DRAFT = click.option("--draft", type=FOLDER, metavar="DIR", help="EAGLE-3 draft checkpoint (HF folder).")
BATCH = click.option(
    "--batch",
    "batches",
    type=BATCHES,
    multiple=True,
    default=(1, 4),
    show_default="1 and 4",
    metavar="N",
    help="Sequences of a batch; may be repeated.",
)
SPEC = click.option(
    "--spec",
    "specs",
    type=DRAFTED,
    multiple=True,
    default=(3,),
    show_default="3",
    metavar="K",
    help="Draft tokens per cycle; may be repeated.",
)


@click.group(cls=Group)
def tune() -> None:
    """Find the fastest kernel configurations on this GPU, and the best draft length at each batch size.

    \b
    Example: specgate engine tune gemm --missing --pair NAME
    """


tune.add_command(drafts)
tune.add_command(fmha)
tune.add_command(steps)


@tune.command(short_help="List the matrix products that a pair runs, in a file.")
@PAIR
@TARGET
@DRAFT
@BATCH
@SPEC
@BACKEND
@click.option("--out", type=FILE, metavar="FILE", help="Default: gemm_shapes_<pair>.json in the current folder.")
def shapes(
    pairs: tuple[str, ...],
    target: Path | None,
    draft: Path | None,
    batches: tuple[int, ...],
    specs: tuple[int, ...],
    backend: str | None,
    out: Path | None,
) -> None:
    """List every matrix product (tag, N, K, M) that the steps of a pair run, and write the file that `tune gemm` reads.

    \b
    Example: specgate engine tune shapes --pair NAME --out shapes.json

    N and K are the rows and columns of a weight, M is the largest number of tokens in a step. Of a mixture of experts,
    whose two products are among them, each expert has such a weight. Only configs are read, and no GPU is needed.
    """
    from specgate.backends.eagle3.nouns.gemms import write_shapes
    from specgate.backends.eagle3.tuning.gemm_tuning import tuning_backend, wanted

    named = named_pairs(pairs, target, draft)
    products = wanted(tuning_backend(backend, here=False), (), named, batches, specs)
    file = out or Path(f"gemm_shapes_{'_'.join(pair.name for pair in named)}.json")
    write_shapes(file, products)
    for shape in products:
        of = f", {shape.per_token} of {shape.experts} experts" if shape.experts else ""
        echo(f"{shape.tag:<24}{shape.n:>7} x {shape.k:<6} M {shape.m}{of}")
    echo(f"{len(products)} products of {len({shape.key for shape in products})} weights: {file}")


@tune.command(short_help="Find the fastest configuration of every matrix product.")
@click.option(
    "--shapes",
    "files",
    type=FILE,
    multiple=True,
    metavar="FILE",
    help="File of `tune shapes`, or TurboMind's list of products; may be repeated.",
)
@PAIR
@TARGET
@DRAFT
@click.option(
    "--missing",
    is_flag=True,
    help="Only weights that an engine would find untuned here; with --out, those that FILE lacks.",
)
@BUDGET
@BACKEND
@click.option("--out", type=FILE, metavar="FILE", help="Default: the file for this device in the user's cache.")
def gemm(
    files: tuple[Path, ...],
    pairs: tuple[str, ...],
    target: Path | None,
    draft: Path | None,
    missing: bool,
    budget_seconds: float,
    backend: str | None,
    out: Path | None,
) -> None:
    """Find the fastest configuration of every weight that the shape files and pairs name, and store it.

    \b
    Example: specgate engine tune gemm --missing --pair NAME

    The result of every candidate is first compared with cuBLAS and with float64, of a mixture of experts with float64
    alone. Each row must also be the same, bit for bit, as when it is computed alone. Then the candidate is timed at 1,
    4 and 8 rows, which choose their experts independently. What the file holds for other weights is kept.

    Shapes of 24 and more rows are also tried by wgmma, at 24 to 64 rows, on a GPU of compute capability 9.0.

    Exit code 3 if the budget was spent before every weight was tuned.
    """
    from specgate.backends.eagle3.tuning.gemm_tuning import default_file, tune_into, tuning_backend, wanted

    engine = tuning_backend(backend, here=True)
    shapes = wanted(engine, files, named_pairs(pairs, target, draft), (1,), (1,))
    tuner = engine.gemm_tuner()
    if missing and (out is None or out.exists()):
        shapes = tuple(tuner.untuned(shapes, out))
    file = out or default_file(tuner)
    echo(f"{tuner.device}: {len({shape.key for shape in shapes})} weights to tune")
    done: list[TunedGemm] = []
    for tuned in tune_into(file, tuner, shapes, budget_seconds):
        if not done or {*done[-1].config} != {*tuned.config}:
            echo(header(tuned))
        done.append(tuned)
        echo(line(tuned))
    sys.exit(conclude(shapes, done, file))


def named_pairs(pairs: Sequence[str], target: Path | None, draft: Path | None) -> list[PairRef]:
    from specgate.pairs.resolve import resolve_pair

    named = [resolve_pair(pair, None, None) for pair in pairs]
    return named if target is None and draft is None else [*named, resolve_pair(None, target, draft)]


def header(tuned: TunedGemm) -> str:
    """The two lines above the table."""
    rows = "".join(f"{f'us at {m}':>8}" for m in shown(tuned))
    names = f"configurations are {'/'.join(tuned.config)}; us at so many rows"
    return f"{names}\n{'product':<21}{'weight':^16}{'':13}{rows}{'read':>5}   gain"


def line(tuned: TunedGemm) -> str:
    """The line of one weight, at most 80 columns wide.

    The column `read` is the share of a plain read's bandwidth. The gain is over the default configuration, summed over
    all numbers of rows.
    """
    more = f" +{len(tuned.tags) - 1}" if len(tuned.tags) > 1 else f" of {tuned.experts}" if tuned.experts else ""
    tag = tuned.tags[0].removesuffix("_SMALLVOC").removeprefix("TARGET_" if tuned.experts else "") + more
    config = "/".join(str(value) for value in tuned.config.values())
    times = "".join(f"{tuned.us[m]:>8.2f}" for m in shown(tuned))
    gain = sum(tuned.default_us.values()) / sum(tuned.us.values())
    text = f"{tag:<21}{tuned.n:>7} x {tuned.k:<6}{config:<13}{times}{tuned.share:>5.0%}  {gain:.2f}x"
    return f"{text}\n  {of_wgmma(tuned.wgmma)}" if tuned.wgmma else text


def of_wgmma(wgmma: TunedWgmma) -> str:
    """Its own line: which configuration, from which rows on, and its times in those of cuBLAS."""
    config = "/".join(str(value) for value in wgmma.config.values())
    ratios = " ".join(f"{ratio:.2f}" for ratio in wgmma.of_cublas.values())
    return f"wgmma {config} from {wgmma.from_rows} rows: {ratios} of cuBLAS at {' '.join(map(str, wgmma.of_cublas))}"


def shown(tuned: TunedGemm) -> tuple[int, int]:
    """The numbers of rows whose times are shown: the smallest and the largest."""
    return min(tuned.us), max(tuned.us)


def conclude(shapes: Sequence[GemmShape], done: Sequence[TunedGemm], file: Path) -> ExitCode:
    """Print what was stored and what was not reached. Returns INCONCLUSIVE if something was not reached, else PASS."""
    if left_out := [why for tuned in done for why in tuned.left_out.values()]:
        echo(f"{len(left_out)} configurations left out, for example: {left_out[0]}")
    if done:
        echo(f"{len(done)} weights in {file}")
    reached = {tuned.key for tuned in done}
    late = list(dict.fromkeys(str(shape) for shape in shapes if shape.key not in reached))
    if not late:
        return ExitCode.PASS
    named = ", ".join(late[:3]) + (", …" if late[3:] else "")
    echo(f"budget spent before {len(late)} products: {named}: go on with --missing", err=True)
    return ExitCode.INCONCLUSIVE
