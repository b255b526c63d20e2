"""What the kernels cannot do is refused with key, value and what would be right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specgate.backends.eagle3.cupy.engine.limits import (
    check_geometry,
    check_lengths,
    check_request,
    check_window,
    chosen_lengths,
)
from specgate.backends.eagle3.lib.chains.lengths import ChainLengths
from specgate.backends.eagle3.lib.chains.table import table_of
from specgate.backends.eagle3.pair_tools.plant.geometries import GEOMETRIES
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry
from specgate.contract import PairRef, Sampling
from specgate.contract.protocols import OpenRequest
from specgate.errors import CheckpointError, UsageError
from tests.eagle3.cupy.pairs import DRAFT, MIXTURE, TARGET

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
    ("request_", "said"),
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
def test_a_request_beyond_the_kernels_is_refused(request_: OpenRequest, said: str) -> None:
    with pytest.raises(UsageError, match=f"back end cupy: {said}"):
        check_request(request_)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_geometry_of_the_zoo_is_supported(name: str) -> None:
    pair = GEOMETRIES[name]()
    check_geometry(pair.target, FILE)
    check_geometry(pair.draft, FILE)
    check_window(pair.draft, FILE)


@pytest.mark.parametrize(
    ("geometry", "said"),
    [
        (replace(TARGET, head_dim=96), r"head_dim = 96 is not supported by back end cupy: 64 or 128"),
        (replace(DRAFT, head_dim=32), r"head_dim = 32 is not supported by back end cupy: 64 or 128"),
        (replace(TARGET, heads=9, kv_heads=1), r"num_key_value_heads = 1 .*as many, 1 to 8, of the 9 query heads"),
        (replace(TARGET, heads=8, kv_heads=3), r"num_key_value_heads = 3 .*as many, 1 to 8, of the 8 query heads"),
        (replace(TARGET, hidden=96), r"hidden_size = 96 .*: a multiple of 64"),
        (replace(DRAFT, intermediate=80), r"intermediate_size = 80 .*: a multiple of 32"),
    ],
)
def test_a_geometry_beyond_the_kernels_is_refused(geometry: TargetGeometry | DraftGeometry, said: str) -> None:
    with pytest.raises(CheckpointError, match=rf"{FILE}: {said}\n  use --backend reference"):
        check_geometry(geometry, FILE)


def test_a_window_is_at_most_what_the_draft_has_positions_for() -> None:
    check_window(replace(DRAFT, window=DRAFT.max_positions), FILE)
    with pytest.raises(
        CheckpointError, match=r"sliding_window = 513 .*max_position_embeddings = 512\n  a window of at"
    ):
        check_window(replace(DRAFT, window=513), FILE)


def test_chains_end_where_the_options_say() -> None:
    assert chosen_lengths(REQUEST) is None
    both = {"confidence": "0.3", "k_by_batch": "1:5,4:3"}
    assert chosen_lengths(replace(REQUEST, options=both)) == ChainLengths(0.3, table_of("1:5,4:3", "here"))


@pytest.mark.parametrize(
    ("options", "sampling", "said"),
    [
        ({"confidence": "1"}, None, r"option confidence = 1: not a probability\n  above 0 and below 1, such as 0.3"),
        ({"confidence": "0"}, None, "option confidence = 0: not a probability"),
        ({"confidence": "nan"}, None, "option confidence = nan: not a probability"),
        (
            {"confidence": "0.3", "tree": "dynamic:8"},
            None,
            r"option confidence with tree = dynamic:8: it has its own shape\n  leave one of them out",
        ),
        ({"k_by_batch": "1:3", "tree": "t.yaml"}, None, r"option k_by_batch with tree = t\.yaml: it has its own shape"),
        (
            {"confidence": "0.3"},
            Sampling(),
            r"option confidence with sampling: it is a chain of greedy tokens\n  leave one out",
        ),
        (
            {"confidence": "0.3", "tp": "2"},
            None,
            "option confidence with tp = 2: GPUs that share a target verify whole",
        ),
        ({"k_by_batch": "1:3,1:4"}, None, "a number of requests twice"),
    ],
)
def test_what_chains_cannot_end_by_is_refused(options: dict[str, str], sampling: Sampling | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        chosen_lengths(replace(REQUEST, options=options, sampling=sampling))


def test_a_table_goes_with_sampling_and_with_several_gpus() -> None:
    table = {"k_by_batch": "1:5,4:3"}
    assert chosen_lengths(replace(REQUEST, options=table, sampling=Sampling()))
    assert chosen_lengths(replace(REQUEST, options={**table, "tp": "2"}))


def test_a_confidence_is_refused_for_a_target_with_experts_and_a_table_is_not() -> None:
    check_lengths(ChainLengths(0.3), TARGET)
    check_lengths(ChainLengths(table=table_of("1:5,4:3", "here")), MIXTURE)
    with pytest.raises(UsageError, match=r"option confidence: .* this one has experts\n  --backend reference has it"):
        check_lengths(ChainLengths(0.3), MIXTURE)
