"""Parameters of a test that runs on a GPU, and on a CPU, where every combination compiles kernels of its own."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Row = tuple[Hashable, ...]


def crossed(**choices: Sequence[Hashable]) -> pytest.MarkDecorator:
    """Run a test on `device` with these parameters: on a GPU with all combinations, on a CPU with a selection that has
    every two choices together.
    """
    every = [*product(*choices.values())]
    return on_device(", ".join(choices), cpu=pairwise(every), gpu=every)


def on_device(names: str, *, cpu: Sequence[tuple[Any, ...]], gpu: Sequence[tuple[Any, ...]]) -> pytest.MarkDecorator:
    """Run a test on `device` with the rows of parameters that each device has."""
    on_gpu = [pytest.param("cuda", *row, marks=pytest.mark.gpu) for row in gpu]
    return pytest.mark.parametrize(f"device, {names}", [*(("cpu", *row) for row in cpu), *on_gpu], indirect=["device"])


def pairwise(rows: Sequence[Row]) -> list[Row]:
    """Return as many of `rows` as it takes until every two values that stand in one stand in one of those returned."""
    pairs = {row: {*combinations(enumerate(row), 2)} for row in rows}
    missing, selected = {pair for of_row in pairs.values() for pair in of_row}, list[Row]()
    while missing:
        selected.append(max(rows, key=lambda row: len(pairs[row] & missing)))
        missing -= pairs[selected[-1]]
    return selected
