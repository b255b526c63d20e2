"""Protocol of a gate, and further declarations that it may make.

A gate says itself which question it answers. The harness asks by `isinstance` for each declaration below, and never
looks at a gate's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Literal, Protocol, runtime_checkable

from specgate.contract import Cell, Floor, Kind, NearTies, Rule, RunView, Scenario, Verdict
from specgate.contract.comparisons import Contrast
from specgate.contract.conditions import MachineLimits
from specgate.contract.draws import Allowance


@runtime_checkable
class Gate(Protocol):
    """A judge of cells. It must be pure: the same run and rule give the same verdicts, so that a stored run can be
    judged again offline.
    """

    name: str
    params: Mapping[str, type | UnionType]
    """The parameters of a rule, with their types. One of type `T | None` may be left out; all others must be set. A
    policy with any other parameter is refused when it is read.
    """

    def judges(self, rule: Rule) -> tuple[Kind, ...]:
        """Return the kinds of judgement that verdicts of `rule` are.

        A verdict of kind `validity`, `tokens`, `acceptance` or `speed` is one that every run needs. A kind of the
        gate's own is needed of the cells that a required rule of it selects: if all its verdicts on one are SKIPPED,
        the run is NOT_JUDGED. A gate without a kind returns ().
        """

    def judge(self, rule: Rule, run: RunView) -> Iterator[Verdict]:
        """Yield one verdict per cell that the rule's `scenario` and `role` patterns select."""


# ── what more a gate may declare ─────────────────────────────────────────────────────────────────────────────────────


@runtime_checkable
class ChecksRules(Protocol):
    """A gate, of one run or of two, some of whose parameters cannot be meant."""

    def problems(self, rule: Rule) -> Iterator[tuple[str, str]]:
        """Yield (key, reason) for each parameter of `rule` that contradicts another one or is useless. The key `gate`
        stands for the rule as a whole. A policy with such a rule is refused when it is read.
        """


@runtime_checkable
class Sequential(Protocol):
    """Marks a gate whose verdict rests on samples and is INCONCLUSIVE as long as there are too few.

    Such a gate is asked at the interim looks of a scenario (`stats.planned_interim_looks`). A point ends early at the
    first look where every such gate has decided. A cell then has its figures, its comparison and its drift. What only
    pages show of it (`series_ms`, `distributions`) is empty.
    """

    sequential: Literal[True]


@runtime_checkable
class Counting(Sequential, Protocol):
    """A `Sequential` gate that does not decide exactly one thing of every spec cell."""

    def decisions(self, rule: Rule, cell: Cell, scenario: Scenario) -> int:
        """Number of decisions that `rule` takes by the samples of `cell`. The required decisions of a run share the
        error of a FAIL.
        """


@runtime_checkable
class SetsFloor(Protocol):
    """A gate that demands a least figure of each cell.

    The harness says beforehand which floors no run can reach, shows each floor beside the figure, and says what a
    speed-up takes that is demanded.
    """

    def floor(self, rule: Rule) -> Floor:
        """Return the floor that `rule` sets."""


@runtime_checkable
class GrantsNearTies(Protocol):
    """A gate under which tokens may differ at near ties. Engines are asked for their largest logits there."""

    def near_ties(self, rule: Rule) -> NearTies:
        """Return the gaps that `rule` takes for near ties. Of several rules the strictest counts."""


@runtime_checkable
class RefusesForGood(Protocol):
    """A gate that can tell, while a run measures, that nothing measured later makes a cell pass.

    A point that is measured until it is decided waits for no rule on such a cell.
    """

    def refused_for_good(self, rule: Rule, run: RunView) -> Iterator[Verdict]:
        """Yield the verdicts of `rule` that neither more samples nor a second engine change."""


@runtime_checkable
class MarksLossy(Protocol):
    """A gate one of whose rules can say that a method's tokens may differ from the baseline's."""

    def lossy(self, rule: Rule) -> bool:
        """Return whether the spec cells that `rule` selects are lossy, whatever their engine says."""


@runtime_checkable
class GrantsRounding(Protocol):
    """A gate that tests drawn texts against a distribution, and allows for rounding in it."""

    def allowance(self, rule: Rule) -> Allowance:
        """Return the rounding that `rule` allows for. Of several rules the strictest counts."""


@runtime_checkable
class LimitsMachine(Protocol):
    """A gate that rejects a disturbed machine. `specgate machine doctor` checks its limits before a run."""

    def machine_limits(self, rule: Rule) -> MachineLimits:
        """Return what `rule` allows of the machine."""


@runtime_checkable
class NeedsEarlierRun(Protocol):
    """Marks a gate that holds a run against the last green one. The run then keeps the times of its blocks."""

    needs_earlier_run: Literal[True]


@runtime_checkable
class NeedsBuilds(Protocol):
    """A gate that rests on finished comparisons of builds (`specgate ab`)."""

    def base(self, rule: Rule) -> str:
        """Return the git revision that the old build must have been made from."""


@runtime_checkable
class StatesNeeds(Protocol):
    """A gate that says what it looks at. A result file of another tool, which lacks it, cannot be judged."""

    needs: str
    """A noun phrase, such as `the generated text`."""


# ── two runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@runtime_checkable
class ContrastGate(Protocol):
    """A judge of one run compared with another; otherwise like `Gate`."""

    name: str
    params: Mapping[str, type | UnionType]

    def judge(self, rule: Rule, contrast: Contrast) -> Iterator[Verdict]:
        """The verdicts of one rule on the two runs of `contrast`."""
