"""A measured speed-up as a product of factors. `docs/results.md` explains them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from specgate.contract import Block
from specgate.contract.cycle_budget import CycleBudget, Factor, PartName, Waterfall

IN_ORDER: tuple[PartName, ...] = ("verify", "draft", "accept", "commit", "gap")
"""The order in which the parts of the baseline's step are replaced by the cycle's."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over the blocks of one cell.

    `emitted`: tokens that decode steps emitted.
    `tokens`: tokens that the cell's speed counts.
    `prefill_ns`: 0 in a micro run, whose speed leaves prefill out.
    """

    emitted: int
    tokens: int
    steps: int
    decode_ns: int
    prefill_ns: int

    @property
    def prefill_share(self) -> float:
        """The share of prefill in the time that the cell's speed counts."""
        return self.prefill_ns / (self.prefill_ns + self.decode_ns)


def sums_of(blocks: Sequence[Block], whole_requests: bool) -> Sums:
    """The sums over `blocks`.

    `whole_requests`: speed is that of whole requests, which includes prefill and its token.
    """
    emitted = sum(b.emitted for b in blocks)
    return Sums(
        emitted=emitted,
        tokens=sum(len(t) for b in blocks for t in b.tokens) if whole_requests else emitted,
        steps=sum(len(b.step_ns) for b in blocks),
        decode_ns=sum(b.elapsed_ns for b in blocks),
        prefill_ns=sum(b.prefill_ns for b in blocks) if whole_requests else 0,
    )


def waterfall(
    speedup: float, length: float, base: CycleBudget, spec: CycleBudget, base_sums: Sums, spec_sums: Sums
) -> Waterfall:
    """The factors of `speedup`, as measured over the pairs. `length` is the acceptance length, 1 where there is
    none.
    """
    b, s = base_sums, spec_sums
    emitted = (s.emitted / s.steps) / (b.emitted / b.steps)
    factors = [Factor("acceptance", length), Factor("slots", emitted / length), *cost_factors(base, spec)]
    if b.prefill_ns or s.prefill_ns:
        decode = (s.emitted / s.decode_ns) / (b.emitted / b.decode_ns)
        whole = (s.tokens / (s.prefill_ns + s.decode_ns)) / (b.tokens / (b.prefill_ns + b.decode_ns))
        factors.append(Factor("prefill", whole / decode))
    factors.append(Factor("pairing", speedup / prod(f.ratio for f in factors)))
    return Waterfall(speedup, tuple(factors), s.prefill_share)


def cost_factors(base: CycleBudget, spec: CycleBudget) -> Iterator[Factor]:
    """The time of the baseline's step over that of the spec cycle, part by part.

    The baseline's parts are replaced by the cycle's one after the other. Each factor is the total before over the total
    after.
    """
    old, new = ({p.name: p.ms for p in budget.parts} for budget in (base, spec))
    names = [name for name in IN_ORDER if name in old or name in new]
    replaced = [old | {name: new.get(name, 0.0) for name in names[:n]} for n in range(len(names) + 1)]
    totals = [sum(parts.values()) for parts in replaced]
    if not old or not new or min(totals) <= 0:
        yield Factor("cost", base.cycle_ms / spec.cycle_ms)
    else:
        yield from (Factor(name, a / b) for name, (a, b) in zip(names, pairwise(totals), strict=True))
