"""A side that was measured on a busier machine, because the other side is never idle, is not compared."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from specgate.analysis.two_builds.reduce import load_trouble
from specgate.contract.conditions import CpuUse
from tests.support.factories import block, plan_of

CPU = CpuUse(1_000_000_000, 4, 4.0, busy_ns=1_000_000_000, ours_ns=1_000_000_000)


def side(name: str, others: float, blocks: int = 3, **changes: Any) -> Any:
    """A side beside whose blocks others used so many of four CPUs."""
    cpu = replace(CPU, busy_ns=1_000_000_000 + round(others * 1e9), **changes)
    round_ = next(r for r in plan_of().rounds if not r.warmup)
    return SimpleNamespace(name=name, blocks=[replace(block(round_, round_.order[0]), cpu=cpu)] * blocks)


@pytest.mark.parametrize("busy", ["old", "new"])
def test_a_side_that_loads_the_cpus_while_the_other_is_measured_is_named(busy: str) -> None:
    shares = {"old": 0.0, "new": 0.0, busy: 2.0}
    (why,) = load_trouble(*(side(name, share) for name, share in shares.items()))
    assert f"50% beside {busy}'s blocks" in why and "--apart" in why


@pytest.mark.parametrize(("old", "new"), [(0.0, 0.3), (2.0, 2.2), (0.0, 0.0)])
def test_a_machine_that_is_alike_busy_on_both_sides_compares_them(old: float, new: float) -> None:
    assert list(load_trouble(side("old", old), side("new", new))) == []


def test_what_was_not_counted_or_hardly_says_nothing() -> None:
    assert list(load_trouble(side("old", 0.0), side("new", 3.0, ours_ns=None))) == []
    assert list(load_trouble(side("old", 0.0), side("new", 3.0, blocks=0))) == []
    assert list(load_trouble(side("old", 0.0, wall_ns=1000), side("new", 3.0))) == []
