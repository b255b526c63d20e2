"""`-o specpv=…`: what is read from it, and what it is refused for before any weight is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specgate.backends.eagle3.lib.specpv import PartialPlan, check_target, plan_partial
from specgate.backends.eagle3.reference.open import open_engine
from specgate.checkpoints.geometry import ExpertGeometry, RopeSpec, TargetGeometry
from specgate.contract import PairRef, Sampling
from specgate.contract.protocols import OpenRequest
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
        ({"specpv": "lossy", "tree": "dynamic:8"}, "option specpv with tree = dynamic:8"),
        ({"specpv": "lossy", "tape": "t.json"}, "option specpv with tape = t.json"),
        ({"specpv": "lossy", "confidence": "0.3"}, "option specpv with confidence = 0.3"),
        ({"specpv": "lossy", "k_by_batch": "1:3"}, "option specpv with k_by_batch = 1:3"),
        ({"specpv": "lossy", "kv": "fp8"}, "option specpv with kv = fp8"),
        ({"specpv": "lossless", "kv": "nvfp4"}, "option specpv with kv = nvfp4"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        plan_partial(options)
    assert message in str(error.value)
    assert error.value.hint


def test_sampling_is_refused(tmp_path: Path) -> None:
    pair = PairRef("none", tmp_path, tmp_path)
    request = OpenRequest(pair, "float32", 1, 64, 2, False, {"device": "cpu", "specpv": "lossy"})
    request = replace(request, sampling=Sampling())
    with pytest.raises(UsageError, match="option specpv with sampling: it verifies greedily"):
        open_engine(request)


def test_a_target_with_experts_is_refused_with_its_file() -> None:
    dense = TargetGeometry(2, 64, 128, 4, 2, 16, 320, 1e-5, RopeSpec("default", 10000.0, 16), 4096, False, (1,), 0)
    plan, routed = PartialPlan(2, 4, 4, 20), replace(dense, experts=ExpertGeometry(8, 2, False))
    with pytest.raises(UsageError, match=r"config\.json: option specpv with a target that has experts"):
        check_target(plan, routed, "config.json")
    check_target(plan, dense, "config.json")
    check_target(None, routed, "config.json")
