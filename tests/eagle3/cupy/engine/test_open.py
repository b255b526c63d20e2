"""Requests that the built-in engine refuses to open; everything here is refused before a GPU is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specgate.backends.eagle3.cupy.backend import BACKEND
from specgate.backends.eagle3.cupy.device import Multiprocessors, first_gpu
from specgate.backends.eagle3.cupy.engine import limits, prefill
from specgate.backends.eagle3.cupy.engine import open as opening
from specgate.backends.eagle3.cupy.engine.open import check_target, usable_draft
from specgate.backends.eagle3.cupy.engine.prefill import PACKED_ROWS
from specgate.backends.eagle3.lib.hf_write import target_config
from specgate.backends.eagle3.lib.kv.modes import KvModes
from specgate.backends.eagle3.lib.pair import load_target
from specgate.checkpoints.geometry import ExpertGeometry, TargetGeometry
from specgate.contract import PairRef, Sampling
from specgate.contract.protocols import OpenRequest
from specgate.errors import BackendError, CheckpointError, EnvironmentRefused, SpecgateError, UsageError
from tests.eagle3.cupy.pairs import MIXTURE, TARGET
from tests.pairs.tiny import write_random_pair

ROOT = Path(__file__).parents[4]
POSITIONS = 512
SUPPORTED: dict[str, Any] = {
    "layers": 4,
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 64,
    "intermediate": 96,
    "positions": POSITIONS,
}


def written(folder: Path, **sizes: int) -> OpenRequest:
    """A request for a random pair of these sizes, written to `folder`."""
    target, draft = write_random_pair(folder, seed=5, **{**SUPPORTED, **sizes})
    pair = PairRef("random", target, draft)
    return OpenRequest(pair, "bfloat16", max_batch=2, max_positions=256, max_k=3, perf_mode=False)


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> OpenRequest:
    return written(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def cpu_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let loading go on without a GPU, for what is refused of the checkpoint."""
    monkeypatch.setattr(opening, "first_gpu", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA T4")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"device": "cpu"},
            r"option device: not known\n  back end cupy knows: capture, draft_kv, draft_tp, fmha, graphs",
        ),
        ({"graphs": "of"}, r"option graphs = 'of'\n  known: on, off"),
        ({"fmha": "kv_tile:100"}, "kv_tile must be a multiple of 64"),
        ({"fmha": "tile:512"}, r"attention has no knob 'tile'\n  known: kv_tile, warps"),
        ({"fmha": "512"}, "write KNOB:NUMBER,KNOB:NUMBER"),
        ({"on_draft_error": "ignore"}, r"option on_draft_error = 'ignore'\n  known: fail, baseline"),
        ({"kv": "int8"}, r"option kv = 'int8'\n  known: bf16, fp8, nvfp4"),
        ({"kv": "fp8", "draft_kv": "fp4"}, r"option draft_kv = 'fp4'\n  known: bf16, fp8, nvfp4"),
        ({"confidence": "0.3"}, "option confidence: not known"),
        ({"k_by_batch": "four"}, r"option k_by_batch = 'four': 'four' is no pair of numbers"),
        ({"tape": "gone.json"}, r"gone\.json: not readable as a tape"),
        ({"prefill": "slow"}, r"option prefill = 'slow'\n  known: fused, torch"),
        ({"prefill_attention": "fa4"}, r"option prefill_attention = 'fa4'\n  known: best, torch, cudnn, flash"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(
    request_: OpenRequest, options: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        BACKEND.open(replace(request_, options=options))


def test_what_is_asked_of_caches_is_in_words_a_warning_where_a_checkpoint_says_otherwise(tmp_path: Path) -> None:
    request = written(tmp_path)
    assert opening.kv_warnings(request, KvModes("fp8"), drafts=True) == ()
    config = {"quantization": {"kv_cache_quant_algo": "NVFP4"}}
    for folder in (request.pair.target, request.pair.draft):
        assert folder is not None
        (folder / "hf_quant_config.json").write_text(json.dumps(config), encoding="utf-8")
    of_target, of_draft = opening.kv_warnings(request, KvModes("fp8"), drafts=True)
    assert "the target was calibrated for a KV cache in nvfp4, and kv = fp8" in of_target
    assert "the draft was calibrated for a KV cache in nvfp4, and draft_kv is not given" in of_draft
    assert opening.kv_warnings(request, KvModes("fp8"), drafts=False) == (of_target,)


BEST = ("cudnn", "flash", "torch")


@pytest.mark.parametrize(
    ("options", "fused", "order", "of_experts"),
    [
        ({}, True, BEST, BEST),
        ({"prefill": "fused", "prefill_attention": "best"}, True, BEST, BEST),
        ({"prefill_attention": "torch"}, True, ("torch",), ("torch",)),
        ({"prefill_attention": "flash"}, True, ("flash",), ("flash",)),
        ({"prefill": "torch"}, False, BEST, ("torch",)),
        ({"prefill": "torch", "prefill_attention": "best"}, False, BEST, BEST),
        ({"prefill": "torch", "prefill_attention": "flash"}, False, ("flash",), ("flash",)),
    ],
)
def test_options_say_how_prompts_are_prefilled(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    fused: bool,
    order: tuple[str, ...],
    of_experts: tuple[str, ...],
) -> None:
    """By kernels unless torch is asked for, and on a CPU, where no kernel runs."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91700)
    dense, chosen = replace(MIXTURE, experts=None), opening.chosen_prefill_mode
    mode = chosen(options, dense, torch.device("cuda"))
    assert (mode.fused, mode.attention.order) == (fused, order)
    assert not chosen(options, dense, torch.device("cpu")).fused
    ways = {None: PACKED_ROWS, "decoded": 0, "packed": PACKED_ROWS} if fused else {None: 0, "decoded": 0}
    for way, rows in ways.items():
        mode = chosen({**options, **({"prefill_experts": way} if way else {})}, MIXTURE, torch.device("cuda"))
        assert (mode.fused, mode.attention.order, mode.grouped) == (fused, of_experts, fused)
        assert (mode.packed_rows, mode.wgmma) == (rows, rows > 0)


def test_a_plan_beyond_the_kernels_is_refused_before_anything_is_loaded(request_: OpenRequest) -> None:
    """`test_limits.py` has every limit."""
    with pytest.raises(UsageError, match="batch 43 at spec-5 makes 258 rows"):
        BACKEND.open(replace(request_, max_batch=43, max_k=5))


def test_without_a_gpu_one_sentence_says_so(request_: OpenRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EnvironmentRefused) as refused:
        BACKEND.open(request_)
    assert str(refused.value) == (
        "back end cupy: torch sees no CUDA GPU here (no GPU, no driver, or a torch build without CUDA)\n"
        "  --backend reference runs on a CPU"
    )


def test_a_gpu_that_is_too_old_is_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA T4")
    with pytest.raises(EnvironmentRefused, match=r"NVIDIA T4 has compute capability 7\.5\n  8\.0 \(sm_80\) or later"):
        first_gpu()


def test_the_command_line_ends_with_one_sentence_and_code_4(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "specgate", "micro", "--backend", "cupy"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 4
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("error: back end 'cupy' cannot run here: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("cpu_for_a_gpu")
def test_a_spec_role_needs_a_draft(request_: OpenRequest) -> None:
    with pytest.raises(BackendError, match=r"pair 'random' has no draft, but spec-3 was asked for"):
        BACKEND.open(replace(request_, pair=replace(request_.pair, draft=None)))


def test_a_target_with_experts_in_mxfp4_is_taken(tmp_path: Path, request_: OpenRequest) -> None:
    check_target(with_experts(tmp_path, request_, MIXTURE))


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        (ExpertGeometry(8, 2, mxfp4=False), "quantization_config = none is not supported .*: experts in MXFP4"),
        (ExpertGeometry(300, 2, mxfp4=True), "num_local_experts = 300 is not supported .*: at most 256"),
        (ExpertGeometry(32, 9, mxfp4=True), "num_experts_per_tok = 9 is not supported .*: at most 8"),
    ],
)
def test_a_mixture_that_no_kernel_is_made_for_is_refused(
    tmp_path: Path, request_: OpenRequest, experts: ExpertGeometry, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        check_target(with_experts(tmp_path, request_, replace(MIXTURE, experts=experts)))


def test_more_rows_than_experts_take_are_refused(tmp_path: Path, request_: OpenRequest) -> None:
    request = replace(with_experts(tmp_path, request_, MIXTURE), max_batch=10, max_k=7)
    with pytest.raises(
        UsageError, match=r"batch 10 at spec-7 makes 80 rows per step, at most 64 .*experts\n  a batch of 8"
    ):
        check_target(request)


@pytest.mark.parametrize(
    ("options", "geometry", "why"),
    [
        ({"prefill_experts": "packed"}, TARGET, "packed: the target has no experts"),
        ({"prefill_experts": "decoded"}, TARGET, "decoded: the target has no experts"),
        ({"prefill_experts": "packed", "prefill": "torch"}, MIXTURE, "packed with prefill = torch"),
    ],
)
def test_a_way_for_experts_is_refused_where_there_are_none_or_torch_multiplies(
    options: dict[str, str], geometry: TargetGeometry, why: str
) -> None:
    with pytest.raises(UsageError, match=f"option prefill_experts = {why}"):
        opening.chosen_prefill_mode(options, geometry, torch.device("cpu"))


def test_warps_multiply_experts_on_a_gpu_without_warpgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (12, 0))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91700)
    monkeypatch.setattr(prefill, "multiprocessors", lambda: Multiprocessors(188, 100 * 1024, (12, 0)))
    mode = opening.chosen_prefill_mode({}, MIXTURE, torch.device("cuda"))
    assert (mode.packed_rows, mode.wgmma) == (PACKED_ROWS, False)


def with_experts(folder: Path, request: OpenRequest, geometry: TargetGeometry) -> OpenRequest:
    """A request for a target of which only the config is there."""
    config = target_config(geometry, "bfloat16")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return replace(request, pair=replace(request.pair, target=folder))


@pytest.mark.usefixtures("cpu_for_a_gpu")
def test_a_context_beyond_the_target_is_refused_with_both_numbers(request_: OpenRequest) -> None:
    message = rf"max_position_embeddings = {POSITIONS}, but the plan needs {POSITIONS + 1} positions"
    with pytest.raises(UsageError, match=message):
        BACKEND.open(replace(request_, max_positions=POSITIONS + 1))


@pytest.mark.usefixtures("cpu_for_a_gpu")
@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ({"hidden": 96}, CheckpointError, r"target/config\.json: hidden_size = 96 .*a multiple of 64"),
        ({"window": 2}, UsageError, r"draft: num_speculative_tokens = 3 in a draft window of 2"),
    ],
)
def test_a_pair_that_no_kernel_is_made_for_is_refused(
    tmp_path: Path, sizes: dict[str, int], error: type[SpecgateError], message: str
) -> None:
    with pytest.raises(error, match=message):
        BACKEND.open(written(tmp_path, **sizes))


def test_a_draft_that_cannot_be_used_ends_the_run_unless_asked_otherwise(tmp_path: Path) -> None:
    request = written(tmp_path, window=513)
    target, cpu = check_target(request), torch.device("cpu")
    for options in ({}, {"on_draft_error": "fail"}):
        with pytest.raises(CheckpointError, match="sliding_window = 513"):
            usable_draft(replace(request, options=options), target, cpu)
    draft, reason = usable_draft(replace(request, options={"on_draft_error": "baseline"}), target, cpu)
    assert draft is None
    assert reason is not None
    assert "sliding_window = 513" in reason


def test_a_gpu_too_small_for_weights_and_plan_is_refused_with_the_numbers_before_a_weight_is_read(
    request_: OpenRequest, cpu_for_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = sum(t.nbytes for t in load_target(request_.pair.target, torch.bfloat16, "cpu").tensors.values())
    monkeypatch.setattr(limits, "free_bytes", lambda device: weights + 1000)
    monkeypatch.setattr(opening, "load_target_parts", pytest.fail)
    message = (
        rf"2 slots of 256 positions need 0\.\d\d GB \(weights {weights / 1e9:.2f} GB, key/value cache .*"
        rf"but {(weights + 1000) / 1e9:.2f} GB are free on cpu\n  a smaller batch, a shorter context"
    )
    with pytest.raises(EnvironmentRefused, match=message):
        BACKEND.open(request_)


def test_a_good_draft_is_used_with_the_boundaries_asked_for(request_: OpenRequest) -> None:
    target, cpu = check_target(request_), torch.device("cpu")
    draft, reason = usable_draft(replace(request_, options={"capture": "0,1,3"}), target, cpu)
    assert reason is None
    assert draft is not None
    assert draft.capture.boundaries == (0, 1, 3)


def test_a_setting_of_sampling_that_makes_no_sense_is_refused_by_name(request_: OpenRequest) -> None:
    with pytest.raises(UsageError, match=r"sampling\.temperature = -1\.0\n  must be at least 0; 0 is greedy"):
        BACKEND.open(replace(request_, sampling=Sampling(temperature=-1.0)))


def test_a_bias_of_a_token_that_the_target_has_not_is_refused(request_: OpenRequest) -> None:
    biased = Sampling(logit_bias=((5, 1.0), (320, -2.0)))
    with pytest.raises(UsageError, match=r"sampling\.logit_bias: token 320\n  the target has 320 tokens, from 0 on"):
        check_target(replace(request_, sampling=biased))


def test_more_tokens_than_can_be_drawn_from_are_refused(monkeypatch: pytest.MonkeyPatch, request_: OpenRequest) -> None:
    monkeypatch.setattr("specgate.backends.eagle3.cupy.engine.limits.MOST_COLUMNS", 300)
    check_target(request_)
    message = r"vocab_size = 320 is not supported by back end cupy with sampling: at most 300"
    with pytest.raises(CheckpointError, match=message):
        check_target(replace(request_, sampling=Sampling()))
