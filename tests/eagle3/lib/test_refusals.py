"""Pairs of options that do not go together: refused by both names through the doors of both engines."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from specgate.backends.eagle3.cupy.engine.open import OPTIONS as CUPY
from specgate.backends.eagle3.cupy.engine.open import open_engine as open_cupy
from specgate.backends.eagle3.lib.refusals import EXPERTS, PAIRS, SAMPLING, Pair, refuse_pairs, refused_by
from specgate.backends.eagle3.reference.open import OPTIONS as REFERENCE
from specgate.backends.eagle3.reference.open import open_engine as open_reference
from specgate.contract import PairRef, Sampling
from specgate.contract.protocols import OpenRequest
from specgate.errors import UsageError

VALUES = {"kv": "fp8", "draft_kv": "fp8", "tp": "2", "tile_stats": "on", "drafter": "none", "tree": "dynamic:8"}
VALUES |= {"prefix_cache": "on"}
DOORS: dict[str, tuple[Callable[[OpenRequest], object], tuple[str, ...]]] = {
    "cupy": (open_cupy, tuple(CUPY)),
    "reference": (open_reference, REFERENCE),
}
REFUSED = [(engine, pair) for engine, (_, options) in DOORS.items() for pair in refused_by(engine, options)]


def asked(pair: Pair, only: str | None = None) -> dict[str, str]:
    """The options of `pair`, or one of them."""
    names = [pair.first, pair.second] if only is None else [only]
    values = VALUES | ({pair.second: pair.values[0]} if pair.values else {})
    return {name: values.get(name, "lossy") for name in names if name not in (SAMPLING, EXPERTS)}


@pytest.mark.parametrize(("engine", "pair"), REFUSED, ids=[f"{e}, {p.first} and {p.second}" for e, p in REFUSED])
def test_a_pair_is_refused_by_both_names_before_anything_is_read_and_each_alone_is_not(engine: str, pair: Pair) -> None:
    rejected = SAMPLING in (pair.first, pair.second)
    sampling = Sampling(method="rejection" if pair.values else "coupled") if rejected else None
    where = PairRef("none", Path("gone"), Path("gone"))
    request = OpenRequest(where, "bfloat16", 1, 64, 2, False, asked(pair), sampling=sampling)
    with pytest.raises(UsageError) as error:
        if EXPERTS in (pair.first, pair.second):
            refuse_pairs(request.options, engine, sampling, experts=True)
        DOORS[engine][0](request)
    both = r" with ".join(rf".*{re.escape(name.replace(EXPERTS, 'experts'))}.*" for name in (pair.first, pair.second))
    assert re.fullmatch(rf"option {both}: {re.escape(pair.why)}", error.value.message) and error.value.hint
    for name in (pair.first, pair.second):
        refuse_pairs(asked(pair, name), engine, Sampling() if name == SAMPLING else None, experts=name == EXPERTS)


def test_a_value_that_is_as_good_as_none_and_another_cache_are_not_refused() -> None:
    refuse_pairs({"tree": "dynamic:8", "tp": "1", "kv": "fp8", "drafter": "eagle3"}, "cupy")
    refuse_pairs({"tree": "dynamic:8", "kv": "nvfp4", "draft_kv": "nvfp4"}, "cupy")
    refuse_pairs({"specpv": "lossy", "kv": "bf16", "draft_kv": "nvfp4"}, "cupy")


def test_no_pair_is_declared_twice() -> None:
    declared = [{pair.first, pair.second} for pair in PAIRS]
    assert all(declared.count(pair) == 1 for pair in declared)
