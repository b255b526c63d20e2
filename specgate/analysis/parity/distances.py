"""Distances of two tensors row by row, and the leading tokens of two rows of logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specgate.analysis.parity.tolerances import step_of
from specgate.checkpoints.stages.dump import Dtype

Matrix = NDArray[np.float32]
Row = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Distance:
    """Two tensors [rows, width] beside each other.

    `mean_abs` and `max_abs` are over all entries. A row's relative error is |a − b| / max(|a|, |b|) in Euclidean norms,
    and its cosine a·b / (|a| |b|); rows of zeros count as equal. `error` is the root mean square of the relative
    errors, `worst_error` the largest, that of `worst_row`.
    """

    mean_abs: float
    max_abs: float
    error: float
    worst_error: float
    worst_row: int
    mean_cosine: float
    last_cosine: float
    worst_cosine: float


def distance(a: Matrix, b: Matrix) -> Distance:
    """Distance between `a` and `b`, of one shape; computed in float64."""
    sums, largest, errors, cosines = 0.0, 0.0, list[float](), list[float]()
    for x, y in zip(a, b, strict=True):
        u, v = x.astype(np.float64), y.astype(np.float64)
        apart = np.abs(u - v)
        sums, largest = sums + float(apart.sum()), max(largest, float(apart.max()))
        error, cosine = of_rows(u, v)
        errors.append(error)
        cosines.append(cosine)
    return Distance(
        mean_abs=sums / a.size,
        max_abs=largest,
        error=float(np.sqrt(np.mean(np.square(errors)))),
        worst_error=max(errors),
        worst_row=int(np.argmax(errors)),
        mean_cosine=float(np.mean(cosines)),
        last_cosine=cosines[-1],
        worst_cosine=min(cosines),
    )


def of_rows(u: Row, v: Row) -> tuple[float, float]:
    """(relative error, cosine) of two rows."""
    long, short = sorted((float(np.linalg.norm(u)), float(np.linalg.norm(v))), reverse=True)
    if long == 0:
        return 0.0, 1.0
    cosine = float(u @ v) / (long * short) if short else 0.0
    return float(np.linalg.norm(u - v)) / long, min(1.0, max(-1.0, cosine))


@dataclass(frozen=True, slots=True)
class Leading:
    """The `k` leading tokens of each row in two tensors of logits, compared.

    `overlap` is the mean share that both have, `worst_overlap` that of the worst row. `beyond_one_step` counts the
    tokens that only one side has, and that the other side's logits hold more than one step of the dtype behind its own
    k-th: these are no near ties.
    """

    k: int
    overlap: float
    worst_overlap: float
    beyond_one_step: int


def leading(a: Matrix, b: Matrix, k: int, dtype: Dtype) -> Leading:
    """The `k` leading tokens of every row; all of them where a row has no more."""
    k = min(k, a.shape[1])
    shares, beyond = list[float](), 0
    for x, y in zip(a, b, strict=True):
        of_a, of_b = first(x, k), first(y, k)
        shares.append(len(of_a & of_b) / k)
        beyond += behind(y, of_b, of_a - of_b, dtype) + behind(x, of_a, of_b - of_a, dtype)
    return Leading(k, float(np.mean(shares)), min(shares), beyond)


def first(row: Matrix, k: int) -> set[int]:
    """The `k` largest entries; the lowest index wins an exact tie."""
    kth = np.partition(row, -k)[-k]
    above, ties = np.flatnonzero(row > kth), np.flatnonzero(row == kth)
    return {*above.tolist(), *ties[: k - len(above)].tolist()}


def behind(row: Matrix, own: set[int], others: set[int], dtype: Dtype) -> int:
    """Number of `others` that lie more than one step of `dtype` behind the last of `own`."""
    last = min(float(row[i]) for i in own)
    return sum(last - float(row[i]) > step_of(last, dtype) for i in others)
