"""What a gate implements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Literal, Protocol, runtime_checkable

from specgate.contract import Cell, Rule, Run, Scenario, Verdict
from specgate.contract.contrast import Contrast


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

    def judge(self, rule: Rule, run: Run) -> Iterator[Verdict]:
        """One verdict per cell that the rule's `scenario` and `role` patterns select."""


@runtime_checkable
class Sequential(Protocol):
    """Marks a gate whose verdict rests on samples and is INCONCLUSIVE as long as there are too few.

    Such a gate is asked at the interim looks of a scenario (`stats.planned_looks`). A point ends early at the first
    look where every such gate has decided.
    """

    sequential: Literal[True]


@runtime_checkable
class Counting(Sequential, Protocol):
    """A `Sequential` gate that does not decide exactly one thing of every spec cell."""

    def decisions(self, rule: Rule, cell: Cell, scenario: Scenario) -> int:
        """How many decisions `rule` takes by the samples of `cell`. The required decisions of a run share the error of
        a FAIL.
        """


@runtime_checkable
class ContrastGate(Protocol):
    """A judge of one run compared with another; otherwise like `Gate`."""

    name: str
    params: Mapping[str, type | UnionType]

    def judge(self, rule: Rule, contrast: Contrast) -> Iterator[Verdict]:
        """The verdicts of one rule on the two runs of `contrast`."""
