"""Number of tokens to draft at each batch size, from the speed-ups of measured runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specgate.analysis.speculation.drafting import decoding_of
from specgate.backends.eagle3.lib.chains import SCHEMA, ChainTable
from specgate.contract import Comparison, Point, Run
from specgate.errors import UsageError


@dataclass(frozen=True, slots=True)
class Measured:
    """The speed-up of `drafts` draft tokens at a batch of `batch`, with its 95 % interval, in `run`."""

    batch: int
    drafts: int
    speedup: float
    low: float
    high: float
    run: str


@dataclass(frozen=True, slots=True)
class Choice:
    """`best` has the greatest speed-up of all that were measured at its batch; `others` follow by their speed-ups."""

    best: Measured
    others: tuple[Measured, ...]

    @property
    def is_told(self) -> bool:
        """True if no other's interval reaches the best's."""
        return all(other.high < self.best.low for other in self.others)

    @property
    def pays(self) -> bool:
        """True if speculation is proven to be faster than plain decoding."""
        return self.best.low > 1


def choices(runs: Sequence[Run], context: int | None) -> tuple[Choice, ...]:
    """One choice per batch size, ascending, of the comparisons at `context` positions; None: there is but one context.

    Raises UsageError for runs that differ in what `measured_with` names, several contexts, or without any speed-up.
    """
    refuse_unlike(runs)
    quotable = [(run.id, c) for run in runs for c in run.comparisons if is_quotable(c)]
    contexts = sorted({c.cell.point.context for _, c in quotable})
    if context is None and len(contexts) > 1:
        raise UsageError(f"contexts {', '.join(map(str, contexts))}: one table is of one", hint="--context N")
    by_batch: dict[int, list[Measured]] = defaultdict(list)
    for run, comparison in quotable:
        if context in (None, comparison.cell.point.context):
            by_batch[comparison.cell.point.batch].append(measured(run, comparison))
    if not by_batch:
        at = "" if context is None else f" at context {context}"
        raise UsageError(f"no speed-up may be quoted from these runs{at}", hint="specgate runs verify RUN says why")
    return tuple(choice(by_batch[batch]) for batch in sorted(by_batch))


def refuse_unlike(runs: Iterable[Run]) -> None:
    first: dict[str, str] | None = None
    for run in runs:
        for point in {c.cell.point: None for c in run.comparisons}:
            own = measured_with(run, point)
            first = first or own
            if unlike := [key for key in own if own[key] != first[key]]:
                differences = "; ".join(f"{key} {first[key]} and {own[key]}" for key in unlike)
                raise UsageError(f"{run.id}: {differences}: a table is of one", hint="give runs of one of them")


def measured_with(run: Run, point: Point) -> dict[str, str]:
    """Return the settings that all speed-ups of one table must share."""
    facts = run.engines.get(point.key)
    return {
        "pair": run.pair.name,
        "target": (facts and facts.target) or "unknown",
        "draft": (facts and facts.draft_sha256) or "unknown",
        "engine": point.backend,
        "device": facts.device if facts else "unknown",
        "dtype": facts.dtype if facts else "unknown",
        "decoding": decoding_of(run, point) or "greedy, whole chains",
        "kind": run.kind,
    }


def is_quotable(comparison: Comparison) -> bool:
    value = comparison.speedup
    return None not in (value.value, value.ci_low, value.ci_high) and comparison.cell.point.rate is None


def measured(run: str, comparison: Comparison) -> Measured:
    value, cell = comparison.speedup, comparison.cell
    assert value.value is not None and value.ci_low is not None and value.ci_high is not None
    return Measured(cell.point.batch, cell.role.k, value.value, value.ci_low, value.ci_high, run)


def choice(measurements: Sequence[Measured]) -> Choice:
    """Of several measurements of one chain, that with the narrowest interval counts."""
    narrowest: dict[int, Measured] = {}
    for one in sorted(measurements, key=lambda m: m.high - m.low, reverse=True):
        narrowest[one.drafts] = one
    best, *others = sorted(narrowest.values(), key=lambda m: (-m.speedup, m.drafts))
    return Choice(best, tuple(others))


def table_of(chosen: Iterable[Choice]) -> ChainTable:
    return ChainTable(tuple((one.best.batch, one.best.drafts) for one in chosen))


def as_record(chosen_lengths: Sequence[Choice]) -> Mapping[str, Any]:
    """The file of the table, with what it rests on."""
    return {
        "schema": SCHEMA,
        "drafts": [{"requests": requests, "drafts": drafts} for requests, drafts in table_of(chosen_lengths).rows],
        "measured": [
            {
                "batch": one.batch,
                "drafts": one.drafts,
                "speedup": round(one.speedup, 4),
                "ci_low": round(one.low, 4),
                "ci_high": round(one.high, 4),
                "run": one.run,
            }
            for chosen in chosen_lengths
            for one in (chosen.best, *chosen.others)
        ],
    }
