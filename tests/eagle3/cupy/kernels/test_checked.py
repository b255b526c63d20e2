"""Launches that are checked once: each gives what a check of its own would give, whatever was launched before it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.checked import MOST, CheckedLaunches
from specgate.backends.eagle3.cupy.kernels.operands import Operands, with_fields

SOURCE = """
struct SumArguments {  // launched on [R + LENGTH, N / 2] with 32 * S threads for ROWS rows of a slot where R <= MOST
    const float* x;  // [LENGTH, count]
    float* out;  // [R, 5]
    const int* some;  // [count]
    const int* more;  // [2] if WIDE
    int* places;  // [S] or null
    void* room;
    int count;
    int LENGTH;
    int step;
    float eps;
};
__global__ void sum(const SumArguments args) {}
"""
ROWS, MOST_ROWS = 2, 6


def declared(wide: int) -> Operands:
    return Operands.of("sum", with_fields(SOURCE, ()), (("WIDE", str(wide)), ("ROWS", str(ROWS))))


@dataclass(frozen=True, slots=True)
class Slots:
    some: Any = None
    places: Any = None
    R: Any = 4
    S: Any = 2

    @property
    def sizes(self) -> dict[str, Any]:
        return {"R": self.R, "S": self.S}


@dataclass
class Room:
    room: Any = None
    more: Any = None
    some: Any = None


def good(wide: int, length: int = 3, count: int = 2, slots: int = 2) -> dict[str, Any]:
    return {
        "x": torch.zeros(length, count),
        "out": torch.zeros(ROWS * slots, 5),
        "some": torch.zeros(count, dtype=torch.int32),
        "more": torch.zeros(2, dtype=torch.int32) if wide else None,
        "places": torch.zeros(slots, dtype=torch.int32),
        "room": torch.zeros(7, dtype=torch.float64),
        "count": count,
        "LENGTH": None,
        "step": 1,
        "eps": 0.5,
        "R": ROWS * slots,
        "S": slots,
        "N": 4,
    }


def spoiled(value: Any, chance: random.Random) -> Any:
    """Something else: of another shape, dtype, layout or class, or nothing."""
    others: list[Any] = [None, 0, 1, 2, 3, 1.0, True, 0.5, [1], "text", torch.zeros(())]
    if isinstance(value, Tensor):
        grown = torch.zeros(value.shape[0] + 1, *value.shape[1:], dtype=value.dtype)
        apart = torch.zeros(*value.shape, 2, dtype=value.dtype)[..., 0]
        others += 3 * [grown, grown[:-1], apart, value.double(), value.to(torch.int64), value[None], value[:-1]]
    elif isinstance(value, int):
        others += [value + 1, value - 1, float(value)]
    return chance.choice(others)


def result_of(launch: Callable[..., tuple[Mapping[str, Any], Any]], *given: Any, **keywords: Any) -> tuple[Any, Any]:
    """Return what it gives, each tensor as its identity; or the class and the text of the error."""
    try:
        arguments, blocks = launch(*given, **keywords)
    except Exception as error:
        return type(error), str(error)
    return [(name, id(a) if isinstance(a, Tensor) else (type(a), a)) for name, a in arguments.items()], repr(blocks)


def launches(operands: Operands, named: Sequence[str], groups: int) -> CheckedLaunches:
    return CheckedLaunches(operands, {"MOST": MOST_ROWS}, named, groups)


def by_itself(
    operands: Operands, groups: tuple[object, ...], named: Mapping[str, Any], *, divided: bool
) -> tuple[dict[str, Any], object]:
    arguments, sizes = operands.arguments(groups, {"MOST": MOST_ROWS, **named})
    return arguments, None if divided else operands.blocks(sizes)


@pytest.mark.parametrize("wide", [0, 1])
@pytest.mark.parametrize("in_groups", [(), ("some", "places", "R", "S"), ("places", "R", "S", "room", "more")])
def test_a_launch_gives_what_its_own_check_gives_whatever_was_launched_before(
    wide: int, in_groups: tuple[str, ...]
) -> None:
    chance, operands = random.Random(7), declared(wide)
    made, taken = dict[tuple[str, ...], CheckedLaunches](), 0
    for _ in range(1500):
        given = good(wide, *(chance.randint(1, 3) for _ in range(3)))
        for name in chance.sample([*given], chance.choice([0, 0, 1, 1, 2])):
            given[name] = spoiled(given[name], chance)
        named = {name: value for name, value in given.items() if name not in in_groups}
        for name in chance.sample([*named], chance.choice([0, 0, 0, 1])):
            del named[name]
        if chance.random() < 0.1:
            named["foreign"] = chance.choice([None, 1])
        groups: tuple[object, ...] = ()
        if in_groups:
            both = {name: given[name] for name in in_groups}
            groups = tuple(
                kind(**{f.name: both[f.name] for f in fields(kind) if f.name in both}) for kind in (Slots, Room)
            )
        divided = chance.random() < 0.3
        if (form := tuple(named)) not in made:
            made[form] = launches(operands, form, len(groups))
        expected = result_of(by_itself, operands, groups, named, divided=divided)
        assert result_of(made[form], groups, named, divided=divided) == expected
        taken += isinstance(expected[0], list)
    assert 500 < taken < 1300
    assert sum(len(checked.results) for checked in made.values()) < taken / 2


def test_a_launch_that_differs_in_one_thing_that_is_checked_is_refused_after_one_that_is_not() -> None:
    good_ones, operands = good(1), declared(1)
    checked = launches(operands, [*good_ones], 0)
    wrong = [
        *((name, good_ones[name].t()) for name in ("x", "out")),
        *((name, good_ones[name].double()) for name in ("x", "out", "some", "more", "places")),
        *[
            ("x", good_ones["x"][:, :1]),
            ("some", None),
            ("count", 3),
            ("LENGTH", 4),
            ("step", None),
            ("R", 5),
            ("S", 1),
        ],
    ]
    for name, value in wrong:
        checked((), good_ones, divided=False)
        with pytest.raises(ValueError, match=r"^sum: "):
            checked((), good_ones | {name: value}, divided=False)
    assert len(checked.results) == 1


def test_known_launches_are_of_other_tensors_too_and_are_not_kept_without_end() -> None:
    given, operands = good(0), declared(0)
    checked = launches(operands, [*given], 0)
    for step in range(MOST + 3):
        other = torch.zeros(4, 5)
        arguments, blocks = checked((), given | {"out": other, "step": step}, divided=False)
        assert arguments["out"] is other and arguments["step"] == step and arguments["LENGTH"] == 3
        assert blocks == ((7, 2), 64)
    assert len(checked.results) == 3
