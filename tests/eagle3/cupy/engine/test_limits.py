"""Requests beyond the kernels' limits are refused with key, value and the right value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specgate.backends.eagle3.cupy.engine.limits import check_geometry, check_request, check_window
from specgate.backends.eagle3.pair_tools.plant.geometries import GEOMETRIES
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry
from specgate.contract import PairRef
from specgate.contract.protocols import OpenRequest
from specgate.errors import CheckpointError, UsageError
from tests.eagle3.cupy.pairs import DRAFT, TARGET

FILE = Path("pair/config.json")
REQUEST = OpenRequest(
    PairRef("some", Path("target"), Path("draft")),
    dtype="bfloat16",
    max_batch=8,
    max_positions=256,
    max_k=7,
    perf_mode=False,
)


def test_the_largest_step_is_allowed() -> None:
    check_request(replace(REQUEST, max_batch=32))
    check_request(replace(REQUEST, max_k=0, max_batch=256))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            replace(REQUEST, dtype="float16"),
            r"dtype = float16: it computes in bfloat16 only\n  use dtype: bfloat16 in the scenario",
        ),
        (replace(REQUEST, max_k=8, max_batch=1), r"spec-8: at most spec-7 is supported"),
        (
            replace(REQUEST, max_batch=33),
            r"batch 33 at spec-7 makes 264 rows per step, at most 256 are supported\n  a batch of 32",
        ),
        (
            replace(REQUEST, max_k=0, max_batch=257),
            r"batch 257 at spec-0 makes 257 rows per step, at most 256 are supported",
        ),
    ],
)
def test_a_request_beyond_the_kernels_is_refused(request_: OpenRequest, message: str) -> None:
    with pytest.raises(UsageError, match=f"back end cupy: {message}"):
        check_request(request_)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_geometry_of_the_zoo_is_supported(name: str) -> None:
    pair = GEOMETRIES[name]()
    check_geometry(pair.target, FILE)
    check_geometry(pair.draft, FILE)
    check_window(pair.draft, FILE)


@pytest.mark.parametrize(
    ("geometry", "message"),
    [
        (replace(TARGET, head_dim=96), r"head_dim = 96 is not supported by back end cupy: 64 or 128"),
        (replace(DRAFT, head_dim=32), r"head_dim = 32 is not supported by back end cupy: 64 or 128"),
        (replace(TARGET, heads=9, kv_heads=1), r"num_key_value_heads = 1 .*as many, 1 to 8, of the 9 query heads"),
        (replace(TARGET, heads=8, kv_heads=3), r"num_key_value_heads = 3 .*as many, 1 to 8, of the 8 query heads"),
        (replace(TARGET, hidden=96), r"hidden_size = 96 .*: a multiple of 64"),
        (replace(DRAFT, intermediate=80), r"intermediate_size = 80 .*: a multiple of 32"),
    ],
)
def test_a_geometry_beyond_the_kernels_is_refused(geometry: TargetGeometry | DraftGeometry, message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"{FILE}: {message}\n  use --backend reference"):
        check_geometry(geometry, FILE)


def test_a_window_is_at_most_what_the_draft_has_positions_for() -> None:
    check_window(replace(DRAFT, window=DRAFT.max_positions), FILE)
    with pytest.raises(
        CheckpointError, match=r"sliding_window = 513 .*max_position_embeddings = 512\n  a window of at"
    ):
        check_window(replace(DRAFT, window=513), FILE)
