"""What of `-o specpv=…` the built-in engine takes, and how it refuses the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specgate.backends.eagle3.cupy.engine.open import check_options, sizes_of
from specgate.backends.eagle3.cupy.engine.partial import asked_plan, used_plan
from specgate.backends.eagle3.lib.specpv import PartialPlan
from specgate.contract import LOSSY, PairRef
from specgate.contract.protocols import OpenRequest
from specgate.errors import UsageError

LOSSY_SMALL = {"specpv": "lossy", "specpv_sink": "1", "specpv_retrieval": "4", "specpv_window": "2"}
REQUEST = OpenRequest(
    *(PairRef("some", Path("target"), Path("draft")), "bfloat16", 4, 400, 3), perf_mode=False, options=LOSSY_SMALL
)


def test_the_lossy_way_is_taken_with_rows_and_positions_for_what_a_full_verification_runs_again() -> None:
    check_options(REQUEST.options)
    plan = asked_plan(REQUEST)
    assert plan == PartialPlan(1, 4, 2, 20) and used_plan(REQUEST, plan) == plan
    sizes = sizes_of(REQUEST, None, plan)
    assert (sizes.max_rows, sizes.most_drafts, sizes.rows) == (4, 3, 16)
    assert [sizes.full_rows_of(k) for k in range(4)] == [1, 22, 24, 24] and sizes.most_rows == 24
    assert sizes.positions == 400 + 24 - 4
    assert LOSSY in plan.details(REQUEST.max_positions)


def test_where_no_request_is_long_enough_the_engine_is_one_that_verifies_in_full() -> None:
    short = replace(REQUEST, max_positions=112 + 15)
    plan = asked_plan(short)
    assert plan is not None and used_plan(short, plan) is None
    assert sizes_of(short, None, None).most_rows == 4
    assert LOSSY not in plan.details(short.max_positions) and "every verification is full" in plan.warnings(127)[0]
    assert used_plan(replace(REQUEST, max_k=0), plan) is None
    assert asked_plan(replace(REQUEST, options={})) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"specpv": "lossless"},
            r"option specpv = lossless: back end cupy verifies in part with specpv = lossy alone\n"
            r"  specpv=lossy; --backend reference has it",
        ),
        ({"specpv_window": "2"}, r"option specpv_window without specpv\n"),
    ],
)
def test_what_it_does_not_do_is_refused_by_name(options: dict[str, str], message: str) -> None:
    check_options(options)
    with pytest.raises(UsageError, match=message):
        asked_plan(replace(REQUEST, options=options))


def test_more_rows_than_products_take_are_refused_with_what_would_be_right() -> None:
    many = replace(REQUEST, max_batch=8, options={**LOSSY_SMALL, "specpv_refresh": "40"})
    with pytest.raises(UsageError) as error:
        used_plan(many, asked_plan(many))
    assert "option specpv_refresh = 40: a full verification of batch 8 runs up to 360 rows, 45 of each" in str(
        error.value
    )
    right = str(error.value.hint).rsplit(maxsplit=1)[-1]
    fewer = replace(many, options={**LOSSY_SMALL, "specpv_refresh": right})
    assert used_plan(fewer, asked_plan(fewer)) is not None


@pytest.mark.parametrize(("batch", "k"), [(8, 3), (16, 3), (64, 3), (25, 7), (31, 3)])
def test_what_is_said_to_be_right_of_a_refresh_is_right_and_nothing_is_said_where_none_is(batch: int, k: int) -> None:
    many = replace(REQUEST, max_batch=batch, max_k=k, options={**LOSSY_SMALL, "specpv_refresh": "500"})
    with pytest.raises(UsageError) as error:
        used_plan(many, asked_plan(many))
    hint = str(error.value.hint)
    least = replace(many, options={**LOSSY_SMALL, "specpv_refresh": "1"})
    if hint == "a smaller batch, or fewer draft tokens":
        with pytest.raises(UsageError):
            used_plan(least, asked_plan(least))
        return
    right = replace(many, options={**LOSSY_SMALL, "specpv_refresh": hint.rsplit(maxsplit=1)[-1]})
    assert used_plan(right, asked_plan(right)) is not None
