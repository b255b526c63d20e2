"""What a gate implements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, Protocol, runtime_checkable

from specgate.core import Rule, Run, Verdict
from specgate.core.contrast import Contrast


@runtime_checkable
class Gate(Protocol):
    """A judge. Pure: the same run and rule give the same verdicts, so that a verdict can be recomputed offline."""

    name: str
    params: Mapping[str, type]
    """Parameters a rule may set, with their types; unknown ones are refused when the policy is read."""

    def judge(self, rule: Rule, run: Run) -> Iterator[Verdict]:
        """One verdict per cell that the rule's `scenario` and `role` patterns select."""


@runtime_checkable
class Sequential(Protocol):
    """What a gate has besides where its verdict rests on samples, and is INCONCLUSIVE while these are too few.

    It is asked at the looks of a scenario (`stats.planned_looks`); a point ends early once no such gate is open.
    """

    sequential: Literal[True]


@runtime_checkable
class ContrastGate(Protocol):
    """A judge of one run beside another; otherwise as `Gate`."""

    name: str
    params: Mapping[str, type]

    def judge(self, rule: Rule, contrast: Contrast) -> Iterator[Verdict]: ...
