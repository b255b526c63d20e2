"""A side that was measured on a busier machine, because the other side is never idle, is not compared."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from specgate.analysis.two_builds.reduce import load_trouble
from specgate.contract.conditions import CpuUse
from tests.support.factories import block, plan_of

ERROR = 0.004
CPU = CpuUse(1_000_000_000, 4, 4.0, busy_ns=1_000_000_000, ours_ns=1_000_000_000)


def side(name: str, *others: float, processes: int = 3, **changes: Any) -> Any:
    """A side beside whose processes others used so many of four CPUs: one for all, or one for each."""
    round_ = next(r for r in plan_of().rounds if not r.warmup)
    used = others if len(others) > 1 else others * processes
    cpus = [replace(CPU, busy_ns=1_000_000_000 + round(of_one * 1e9), **changes) for of_one in used]
    blocks = [replace(block(round_, round_.order[0]), cpu=cpu, worker_generation=n) for n, cpu in enumerate(cpus)]
    return SimpleNamespace(name=name, blocks=blocks)


@pytest.mark.parametrize("busy", ["old", "new"])
def test_a_side_that_loads_the_cpus_while_the_other_is_measured_is_named(busy: str) -> None:
    shares = {"old": 0.0, "new": 0.0, busy: 2.0}
    (why,) = load_trouble(side("old", shares["old"]), side("new", shares["new"]), ERROR)
    assert f"50% beside {busy}'s blocks" in why and "--apart" in why


@pytest.mark.parametrize(("old", "new"), [(0.0, 0.3), (2.0, 2.2), (0.0, 0.0)])
def test_a_machine_that_is_alike_busy_on_both_sides_compares_them(old: float, new: float) -> None:
    assert list(load_trouble(side("old", old), side("new", new), ERROR)) == []


def test_neighbours_that_came_beside_one_side_by_chance_are_no_property_of_a_build() -> None:
    old, new = (1.0, 3.0, 2.0, 1.0, 3.0), (3.0, 2.0, 3.0, 3.0, 2.0)
    assert list(load_trouble(side("old", *old), side("new", *new), ERROR)) == []
    assert list(load_trouble(side("old", *old), side("new", *(share + 0.8 for share in old)), ERROR))


def test_what_was_not_counted_or_hardly_says_nothing() -> None:
    assert list(load_trouble(side("old", 0.0), side("new", 3.0, ours_ns=None), ERROR)) == []
    assert list(load_trouble(side("old", 0.0), side("new", 3.0, processes=0), ERROR)) == []
    assert list(load_trouble(side("old", 0.0, wall_ns=1000), side("new", 3.0), ERROR)) == []
