"""Refusals of `-o tp=N`, each by its name, before weights are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from specgate.backends.eagle3.cupy import device
from specgate.backends.eagle3.cupy.backend import BACKEND
from specgate.backends.eagle3.cupy.engine import open as opening
from specgate.backends.eagle3.cupy.engine.ranks import option
from specgate.backends.eagle3.pair_tools.plant.geometries import EXPERT_GEOMETRIES
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry
from specgate.contract import PairRef
from specgate.contract.protocols import OpenRequest
from specgate.errors import EnvironmentRefused, UsageError
from tests.eagle3.cupy.pairs import DRAFT, MIXTURE, TARGET

WHERE = Path("folder/config.json")
REQUEST = OpenRequest(
    PairRef("none", Path("target"), None), "bfloat16", max_batch=2, max_positions=256, max_k=0, perf_mode=False
)


def gpu(name: str = "NVIDIA H200", processors: int = 132) -> SimpleNamespace:
    return SimpleNamespace(name=name, major=9, minor=0, multi_processor_count=processors)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """Two equal GPUs that reach each other; a test changes them."""
    values = [gpu(), gpu()]
    monkeypatch.setattr(device, "first_gpu", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(device, "open_peer_access", lambda count: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(values))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: values[i])
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda i, j: True)
    return values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3", r"option tp = '3'\n  known: 1, 2, 4"),
        ("two", r"option tp = 'two'\n  known: 1, 2, 4"),
        ("0", r"option tp = '0'"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        option.chosen_ranks(replace(REQUEST, options={"tp": text}))


def test_without_the_option_there_is_one_gpu() -> None:
    assert option.chosen_ranks(REQUEST) == option.chosen_ranks(replace(REQUEST, options={"tp": "1"})) == 1
    assert option.chosen_ranks(replace(REQUEST, options={"tp": "4"})) == 4


def test_the_door_refuses_another_number_too() -> None:
    with pytest.raises(UsageError, match=r"option tp = '3'\n  known: 1, 2, 4"):
        BACKEND.open(replace(REQUEST, options={"tp": "3"}))
    assert opening.OPTIONS["tp"] == opening.OPTIONS["draft_tp"] == tuple(map(str, option.RANKS))


@pytest.mark.parametrize(
    ("g", "message"),
    [
        (TARGET, r"num_key_value_heads = 1 cannot be divided by 2\n  tp=1"),
        (replace(TARGET, kv_heads=2, heads=4, vocab=321), r"vocab_size = 321 cannot be divided by 2"),
        (
            replace(TARGET, kv_heads=2, heads=4, intermediate=96),
            r"intermediate_size = 96: each GPU needs a multiple of",
        ),
    ],
)
def test_sizes_that_cannot_be_divided_are_refused_with_their_key(g: TargetGeometry, message: str) -> None:
    with pytest.raises(UsageError, match=f"option tp = 2: folder/config.json: {message}"):
        option.check_target(2, g, WHERE)
    option.check_target(1, g, WHERE)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gpt-oss-120b"])
def test_two_gpus_share_the_published_mixtures_and_four_would_cut_their_blocks(name: str) -> None:
    g = EXPERT_GEOMETRIES[name]().target
    option.check_target(1, g, WHERE)
    option.check_target(2, g, WHERE)
    message = (
        r"option tp = 4: folder/config.json: intermediate_size = 2880: each GPU needs a multiple of 32 of it, whole "
        r"blocks of MXFP4 numbers of every expert\n  tp=1 or 2$"
    )
    with pytest.raises(UsageError, match=message):
        option.check_target(4, g, WHERE)


def test_a_mixture_whose_width_four_can_have_is_not_refused() -> None:
    option.check_target(4, replace(MIXTURE, heads=8, kv_heads=4, intermediate=128), WHERE)
    with pytest.raises(UsageError, match=r"num_key_value_heads = 2 cannot be divided by 4\n  tp=1$"):
        option.check_target(4, MIXTURE, WHERE)


def test_a_draft_without_a_head_is_refused() -> None:
    borrowing = replace(DRAFT, own_lm_head=False)
    with pytest.raises(UsageError, match=r"the draft has no lm_head.weight and borrows the target's"):
        option.chosen_draft_ranks(2, 1, borrowing, WHERE)
    assert option.chosen_draft_ranks(1, None, borrowing, WHERE) == 1
    assert option.chosen_draft_ranks(2, 1, DRAFT, WHERE) == 1
    assert option.chosen_draft_ranks(2, None, DRAFT, WHERE, tree=True) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_tp": "2"}, r"option draft_tp = '2' with tp = 1: .*\n  draft_tp=1$"),
        ({"tp": "4", "draft_tp": "2"}, r"option draft_tp = '2' with tp = 4: .*\n  draft_tp=1 or 4$"),
        ({"tp": "2", "draft_tp": "all"}, r"option draft_tp = 'all' with tp = 2: .*\n  draft_tp=1 or 2$"),
    ],
)
def test_a_draft_is_on_all_gpus_of_its_target_in_parts_or_whole(options: dict[str, str], message: str) -> None:
    changed = replace(REQUEST, options=options)
    with pytest.raises(UsageError, match=message):
        option.asked_draft_ranks(changed, option.chosen_ranks(changed))
    assert option.asked_draft_ranks(replace(changed, options={"draft_tp": "4"}), 4) == 4
    assert option.asked_draft_ranks(REQUEST, 4) is None


@pytest.mark.parametrize(
    ("g", "message"),
    [
        (replace(DRAFT, kv_heads=1), r"num_key_value_heads = 1 cannot be divided by 2"),
        (replace(DRAFT, draft_vocab=321), r"draft_vocab_size = 321 cannot be divided by 2"),
        (replace(DRAFT, intermediate=96), r"intermediate_size = 96: each GPU needs a multiple of 32"),
    ],
)
def test_a_draft_that_cannot_be_divided_stays_whole_and_is_refused_where_parts_are_asked_for(
    g: DraftGeometry, message: str
) -> None:
    with pytest.raises(UsageError, match=rf"option draft_tp = 2: folder/config.json: {message}(.|\n)*\n  draft_tp=1$"):
        option.chosen_draft_ranks(2, 2, g, WHERE)
    assert option.chosen_draft_ranks(2, None, g, WHERE) == option.chosen_draft_ranks(2, 1, g, WHERE) == 1


def test_a_draft_is_divided_as_its_target_is_unless_something_else_is_asked_for() -> None:
    wide = replace(DRAFT, intermediate=128)
    assert [option.chosen_draft_ranks(ranks, None, wide, WHERE) for ranks in (1, 2)] == [1, 2]
    assert [option.chosen_draft_ranks(2, request, wide, WHERE) for request in (1, 2)] == [1, 2]


def test_two_equal_gpus_that_reach_each_other_will_do(gpus: list[SimpleNamespace]) -> None:
    assert device.shared_gpus(2) == (torch.device("cuda", 0), torch.device("cuda", 1))


def test_more_gpus_than_there_are_is_refused(gpus: list[SimpleNamespace]) -> None:
    with pytest.raises(
        EnvironmentRefused, match=r"-o tp=4: CUDA shows 2 GPUs here\n  CUDA_VISIBLE_DEVICES must name 4"
    ):
        device.shared_gpus(4)
    gpus.pop()
    with pytest.raises(EnvironmentRefused, match=r"-o tp=2: CUDA shows 1 GPU here"):
        device.shared_gpus(2)


@pytest.mark.parametrize("other", [gpu("NVIDIA H100 80GB HBM3"), gpu(processors=114)])
def test_unequal_gpus_are_refused(gpus: list[SimpleNamespace], other: SimpleNamespace) -> None:
    gpus[1] = other
    with pytest.raises(EnvironmentRefused, match=r"GPU 0 is NVIDIA H200 \(9.0, 132 SMs\), GPU 1 is NVIDIA H"):
        device.shared_gpus(2)


def test_gpus_without_peer_access_are_refused(gpus: list[SimpleNamespace], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda i, j: (i, j) != (1, 0))
    with pytest.raises(EnvironmentRefused, match="GPU 1 cannot reach the memory of GPU 0"):
        device.shared_gpus(2)
