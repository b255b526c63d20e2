"""`-o specpv=…`: what is read from it, and what it is refused for before any weight is loaded."""

from __future__ import annotations

import pytest

from specgate.backends.eagle3.lib.specpv import PartialPlan, plan_partial
from specgate.errors import UsageError


def test_nothing_is_verified_in_part_unless_it_is_asked_for() -> None:
    assert plan_partial({"kv": "fp8", "device": "cpu"}) is None


def test_without_more_the_numbers_are_the_authors() -> None:
    assert plan_partial({"specpv": "lossy"}) == PartialPlan(2, 256, 8, 20)
    assert plan_partial({"specpv": "lossless", "specpv_retrieval": "0"}) == PartialPlan(2, 0, 8, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"specpv_sink": "2"}, "option specpv_sink without specpv"),
        ({"specpv": "on"}, "option specpv = 'on'"),
        ({"specpv": "lossy", "specpv_window": "0"}, "option specpv_window = 0: not a number of blocks of 16 positions"),
        ({"specpv": "lossy", "specpv_sink": "-1"}, "option specpv_sink = -1"),
        ({"specpv": "lossy", "specpv_retrieval": "1e3"}, "option specpv_retrieval = 1e3"),
        ({"specpv": "lossy", "specpv_retrieval": "9" * 5000}, "option specpv_retrieval = 999"),
        ({"specpv": "lossy", "specpv_window": "65537"}, "option specpv_window = 65537"),
        ({"specpv": "lossy", "specpv_refresh": "0"}, "option specpv_refresh = 0: not a number of tokens"),
        ({"specpv": "lossy", "specpv_refresh": "513"}, "option specpv_refresh = 513"),
        ({"specpv": "lossless", "specpv_refresh": "20"}, "option specpv_refresh with specpv = lossless"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        plan_partial(options)
    assert message in str(error.value)
    assert error.value.hint
