"""Blocks and processes of two builds → quantities, each with its word."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from specgate.analysis.grouping import collected
from specgate.analysis.prompt_acceptance import length_counts
from specgate.analysis.requests.arrivals import step_ms, step_unit
from specgate.analysis.two_builds.estimates import LEAST, Difference, over_processes, over_prompts
from specgate.analysis.two_builds.outcomes import MOST_PROCESSES, MOST_PROMPTS, log_margin, needed, within_pct, words_of
from specgate.contract import Block, Role
from specgate.contract.references import StepUnit
from specgate.contract.two_builds import (
    ACCEPTANCE,
    HOST_MEMORY,
    MEMORY,
    PREFILL,
    START_UP,
    STEP,
    TELLING_PCT,
    Margins,
    Process,
    Quantity,
    Word,
)

MIB: Final = 1 << 20
DECIDING_MS: Final = 50.0
"""A prefill that takes less per prompt on both sides is shown and decides nothing: much of its time is the host's. It
scattered by 8 % between processes where it took 20 ms; eight prompts of 1K took 195 to 258 ms, one after the other, on
a host with neighbours. A margin that the command line states makes it decide. So it is with several
requests at a server: its scheduler gathers them into one step or two, by the moment at which each arrives. vLLM took 38
to 142 ms for eight prompts of 1K, from block to block of one process.
"""


@dataclass(frozen=True, slots=True)
class Pairing:
    """How the times of both sides were taken together.

    `firsts`: process pair → the side that was started first.
    `assumed`: see `Difference.assumed`. `unit`: what is counted, in words.
    """

    firsts: Mapping[int, str]
    assumed: float = 0.0
    unit: str = "process pairs"


@dataclass(frozen=True, slots=True)
class Both:
    """The blocks of one cell on both sides, of rounds that both have: equally many, in the same order."""

    cell: str
    point: str
    role: Role
    old: Sequence[Block]
    new: Sequence[Block]

    @property
    def pairs(self) -> list[tuple[Block, Block]]:
        """(old, new) of every round."""
        return list(zip(self.old, self.new, strict=True))


@dataclass(frozen=True, slots=True)
class Raw:
    """A quantity that has no word yet. `difference` is ln(new / old); None where there are too few samples.

    `means`: the geometric means of the old and the new side.
    `unit_of_n`: what `n` counts, in words. `exact`: both sides are the same by count, whatever an interval says.
    `unit`: of a step time, what it is the time of.
    """

    name: str
    cell: str
    decides: bool
    better: Literal["lower", "higher"]
    means: tuple[float | None, float | None]
    difference: Difference | None
    n: int
    unit_of_n: str = "process pairs"
    exact: bool = False
    unit: StepUnit = StepUnit.STEP

    @property
    def key(self) -> str:
        return f"{self.name} {self.cell}"

    @property
    def loss(self) -> Difference | None:
        """The difference turned so that more is worse."""
        return self.difference and (self.difference if self.better == "lower" else self.difference.mirrored())


def raw_of_cells(cells: Sequence[Both], pairing: Pairing, margins: Margins) -> Iterator[Raw]:
    """Step times, acceptance lengths, and prefill times (once per point, with its first role)."""
    firsts = {cell.point: cell for cell in reversed(cells)}
    for cell in cells:
        live = [(a, b) for a, b in cell.pairs if a.emitted and b.emitted]
        unit = step_unit([block for pair in live for block in pair])
        steps = timed(STEP, cell.cell, live, partial(step_ms, unit=unit), pairing)
        yield replace(steps, unit=unit)
        if cell is firsts[cell.point]:
            prefill = timed(PREFILL, cell.point, first_of_each_visit(cell.pairs), lambda b: b.prefill_ns / 1e6, pairing)
            if prefill.n:
                known = max((mean for mean in prefill.means if mean is not None), default=0.0)
                prompts = min(len(old.tokens) for old, _ in cell.pairs)
                steady = known >= DECIDING_MS * prompts and not any(gathered(old) for old, _ in cell.pairs)
                yield replace(prefill, decides=steady or margins.prefill_pct is not None)
        if cell.role.speculative:
            yield from acceptance(cell)


def gathered(block: Block) -> bool:
    """True if a server's scheduler chose which requests of `block` are prefilled together."""
    return block.served is not None and len(block.served.requests) > 1


def acceptance(cell: Both) -> Iterator[Raw]:
    """The acceptance length of a cell, where something was drafted."""
    counts = length_counts(cell.old, cell.new)
    if not all(counts):
        return
    lengths = [sum(n for n, _ in side.values()) / sum(d for _, d in side.values()) for side in counts]
    difference = over_prompts(counts[0], counts[1])
    same = all(a.tokens == b.tokens and a.accepted == b.accepted for a, b in cell.pairs) and counts[0] == counts[1]
    yield Raw(
        ACCEPTANCE,
        cell.cell,
        True,
        "higher",
        (lengths[0], lengths[1]),
        difference,
        len(counts[0]),
        "prompts",
        exact=same,
    )


def timed(
    name: str, cell: str, pairs: Sequence[tuple[Block, Block]], of: Callable[[Block], float], pairing: Pairing
) -> Raw:
    """A time of both sides, paired by process."""
    usable = [(a.worker_generation, of(a), of(b)) for a, b in pairs]
    usable = [(number, x, y) for number, x, y in usable if x > 0 and y > 0]
    ratios = collected((number, math.log(y / x)) for number, x, y in usable)
    means = geometric([x for _, x, _ in usable]), geometric([y for _, _, y in usable])
    difference = over_processes(ratios, pairing.firsts, pairing.assumed)
    return Raw(name, cell, True, "lower", means, difference, len(ratios), pairing.unit)


def first_of_each_visit(pairs: Sequence[tuple[Block, Block]]) -> list[tuple[Block, Block]]:
    """One pair of blocks per prefill: those of a visit to a prompt set share it, and bear its time alike."""
    by_prefill: dict[tuple[int, int, int, int], tuple[Block, Block]] = {}
    for a, b in pairs:
        by_prefill.setdefault((a.worker_generation, a.prompt_set, a.prefill_ns, b.prefill_ns), (a, b))
    return list(by_prefill.values())


def raw_of_processes(processes: Sequence[Process]) -> Iterator[Raw]:
    """Start-up time and memory. They are shown and judged, but do not decide: a shared host makes them vary."""
    pairs = [
        (sides["old"], sides["new"])
        for number in sorted({p.number for p in processes})
        if len(sides := {p.side: p for p in processes if p.number == number}) == 2
    ]
    figures: tuple[tuple[str, Callable[[Process], float | None]], ...] = (
        (START_UP, lambda p: p.start_ns / 1e9),
        (MEMORY, lambda p: p.device_bytes and p.device_bytes / MIB),
        (HOST_MEMORY, lambda p: p.host_bytes and p.host_bytes / MIB),
    )
    for name, of in figures:
        known = {old.number: (a, b) for old, new in pairs if (a := of(old)) and (b := of(new))}
        if known:
            difference = over_processes(
                {number: [math.log(b / a)] for number, (a, b) in known.items()}, firsts_of(processes)
            )
            means = geometric([a for a, _ in known.values()]), geometric([b for _, b in known.values()])
            yield Raw(name, "", False, "lower", means, difference, len(known))


def firsts_of(processes: Sequence[Process]) -> dict[int, str]:
    """Process pair → the side that was started first."""
    return {p.number: p.side for p in processes if p.first}


def geometric(values: Sequence[float]) -> float | None:
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None


def with_words(raws: Sequence[Raw], margins: Margins, then: float | None = None) -> tuple[Quantity, ...]:
    """The quantities with their words. Those that decide form one family, the others another.

    `then`: the error on each side at which more samples would be judged. None in a comparison that cannot be extended:
        it would be judged like this one, and no number of prompts beyond MOST_PROCESSES is named.
    """
    words: dict[str, Word] = {}
    sizes: dict[bool, int] = {}
    for decides in (True, False):
        family = {r.key: r.loss for r in raws if r.decides is decides and r.loss is not None and not r.exact}
        scale = {r.key: log_margin(margins.percent(r.name)) for r in raws}
        words |= words_of(family, scale, margins.error)
        sizes[decides] = len(family)
    return tuple(quantity(r, words.get(r.key), margins, sizes[r.decides], then) for r in raws)


def quantity(raw: Raw, word: Word | None, margins: Margins, family: int, then: float | None) -> Quantity:
    percent, (old, new) = margins.percent(raw.name), raw.means
    bare = Quantity(
        name=raw.name,
        cell=raw.cell,
        decides=raw.decides,
        better=raw.better,
        margin_pct=percent,
        old=old,
        new=new,
        ratio=new / old if old and new else None,
        low=None,
        high=None,
        sd=None,
        n=raw.n,
        word=Word.CANNOT_TELL,
        reason=f"{raw.n} {raw.unit_of_n}: at least {LEAST} are needed",
        needed=LEAST if raw.n < LEAST else None,
    )
    if raw.exact:
        same = f"the same texts, step by step, over {raw.n} {raw.unit_of_n}"
        equal = replace(bare, ratio=1.0, low=1.0, high=1.0, sd=0.0, within_pct=0.0)
        return replace(equal, word=Word.SAME, reason=same, needed=None)
    difference, loss = raw.difference, raw.loss
    if difference is None or loss is None or word is None:
        return bare
    half = difference.half_width(margins.error)
    low, high = math.exp(difference.mean - half), math.exp(difference.mean + half)
    more = None
    if word is Word.CANNOT_TELL:
        most = MOST_PROMPTS if then is not None and raw.unit_of_n == "prompts" else MOST_PROCESSES
        more = needed(loss, log_margin(percent), then or margins.error, family, most)
    within = within_pct(difference, margins.error)
    interval = f"({low - 1:+.2%} … {high - 1:+.2%})" if within <= TELLING_PCT else f"(± more than {TELLING_PCT} %)"
    figures = f"{math.exp(difference.mean) - 1:+.2%} {interval}{raw.unit.words}"
    return replace(
        bare,
        ratio=math.exp(difference.mean),
        low=low,
        high=high,
        sd=difference.sd,
        word=word,
        reason=reason_of(word, figures, percent, raw, more),
        needed=more,
        within_pct=within,
    )


def reason_of(word: Word, figures: str, percent: float, raw: Raw, more: int | None) -> str:
    """A word's reason. `figures`: the difference with its interval."""
    if word is Word.SAME:
        return f"{figures}: within ± {percent:g} %"
    if word is not Word.CANNOT_TELL:
        return figures
    would = f"{more} {raw.unit_of_n} would tell" if more else "more would hardly tell"
    return f"{figures}: neither a difference nor less than {percent:g} % is proven; {would}"
