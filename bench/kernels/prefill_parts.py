"""Every part of a prefill in the engine's way and in every other, in turn, in one process.

    python -m bench.kernels.prefill_parts --out FOLDER --pair planted-llama-3.1-8b-al3.0 \
        --length 8192 --length 32000

`specgate bench kernels --prefill` times one way after the other: a clock that falls meanwhile favours the first. Here
the two ways of a pair take turns, A B · B A, and what is printed is the median of the rounds' ratios with its
quartiles: above 1 the engine's way is faster. FOLDER/prefill_parts.json has every time. A result is checked before.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import torch

from specgate.backends.eagle3.cupy.bench.peers import FAILURES, first_line
from specgate.backends.eagle3.cupy.bench.prefill.floors import whole, works
from specgate.backends.eagle3.cupy.bench.prefill.stage import PrefillStage, Variant
from specgate.backends.eagle3.cupy.bench.prefill.timing import repeated
from specgate.backends.eagle3.cupy.bench.synthetic import Geometry, random_pair
from specgate.backends.eagle3.cupy.device import first_gpu
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.files.writing import write_json
from specgate.pairs.resolve import resolve_pair

VISIT_US = 20_000.0
"""How long a visit is, in microseconds, where a part is shorter: it is then repeated."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Microseconds of one time of a part, round by round; `times`: how often a prefill needs it. `reason`: why the
    other way, or either, was not timed.
    """

    length: int
    part: str
    times: int
    engine: str
    other: str
    engine_us: tuple[float, ...] = ()
    other_us: tuple[float, ...] = ()
    reason: str = ""

    def ratios(self) -> list[float]:
        return [b / a for a, b in zip(self.engine_us, self.other_us, strict=True)]

    def line(self) -> str:
        """A row of a Markdown table."""
        head = f"| {self.length} | {self.part} | {self.engine} | {self.other} "
        if self.reason:
            return f"{head}| | | {self.reason} |"
        a, b = (statistics.median(us) * self.times / 1e3 for us in (self.engine_us, self.other_us))
        low, ratio, high = statistics.quantiles(self.ratios(), n=4)
        return f"{head}| {a:.3f} | {b:.3f} | {ratio:.3f} ({low:.3f} … {high:.3f}) |"


def in_turn(a: Callable[[], float], b: Callable[[], float], rounds: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What `a` and `b` give in each round; in every other round `b` comes first."""
    found: list[tuple[float, float]] = []
    for number in range(rounds):
        if number % 2 == 0:
            found.append((a(), b()))
        else:
            later = b()
            found.append((a(), later))
    first, second = zip(*found, strict=True)
    return tuple(first), tuple(second)


def visit(variant: Variant, stream: Stream) -> Callable[[], float]:
    """Checks the variant, and returns what times a visit to it: microseconds of one run. Raises ValueError where its
    result is wrong.
    """
    error, tolerance = variant.worst()
    if not error <= tolerance:
        raise ValueError(f"wrong: relative error {error:.3g}, at most {tolerance:g} is right")
    (once, _), _ = repeated(variant.run, 2, stream, lambda: None)
    runs = max(1, round(VISIT_US / once))
    return lambda: statistics.fmean(repeated(variant.run, runs, stream, lambda: None)[0])


def compared(stage: PrefillStage, geometry: Geometry, rounds: int, stream: Stream) -> Iterator[Compared]:
    parts, variants = works(geometry, stage.positions), stage.variants()
    ways = [(work, variants[work.part]) for work in parts]
    for work, known in [*ways, (whole(parts, stage.positions), list(stage.wholes()))]:
        engine = next(variant for variant in known if variant.used)
        for other in (variant for variant in known if not variant.used):
            pair = Compared(stage.positions, work.part, work.times, engine.how, other.how)
            try:
                mine, theirs = in_turn(visit(engine, stream), visit(other, stream), rounds)
            except FAILURES as failure:
                yield Compared(**{**asdict(pair), "reason": f"{type(failure).__name__}: {first_line(failure)}"})
            else:
                yield Compared(**{**asdict(pair), "engine_us": mine, "other_us": theirs})


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder for the times.")
@click.option("--pair", default="planted-llama-3.1-8b-al3.0", show_default=True)
@click.option("--length", "lengths", multiple=True, default=(8192, 32000), show_default=True, type=click.IntRange(2))
@click.option("--rounds", default=12, show_default=True, type=click.IntRange(2))
def main(out: Path, pair: str, lengths: Sequence[int], rounds: int) -> None:
    """Print a Markdown table of milliseconds of a prefill."""
    device, stream, found = first_gpu(), Stream(), list[Compared]()
    geometry = Geometry.of(resolve_pair(pair, None, None), drafts=True)
    click.echo(f"{torch.cuda.get_device_name()}, {pair}, {rounds} rounds\n")
    click.echo(
        "| tokens | part | engine | other | ms | ms | other / engine (quartiles) |\n|---|---|---|---|---|---|---|"
    )
    with torch.inference_mode(), stream.current():
        weights = random_pair(geometry, max(lengths), device)
        for length in lengths:
            for row in compared(PrefillStage(geometry, weights, length, device), geometry, rounds, stream):
                found.append(row)
                click.echo(row.line())
            torch.cuda.empty_cache()
    write_json(out / "prefill_parts.json", {"device": torch.cuda.get_device_name(), "rows": [asdict(r) for r in found]})


if __name__ == "__main__":
    main()
