"""The formats of a cache: names, sizes of heads, bytes of a position, and what a checkpoint was calibrated for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specgate.backends.eagle3.lib.kv.modes import (
    MODES,
    KvMode,
    KvModes,
    calibrated_for,
    calibration_warnings,
    check_head,
    kv_mode,
    position_bytes,
)
from specgate.backends.eagle3.lib.pair import load_draft, load_target
from specgate.backends.eagle3.lib.traffic import pair_traffic
from specgate.backends.eagle3.reference.cache import KVCache
from specgate.contract.traffic import Slot, pass_bytes
from specgate.errors import CheckpointError, UsageError
from tests.pairs.tiny import write_random_pair


def test_a_format_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(UsageError, match=r"(?s)option draft_kv = 'int8'.*known: bf16, fp8, nvfp4"):
        kv_mode("int8", "draft_kv")


def test_a_head_that_nvfp4_cannot_be_cut_into_is_refused_with_what_would_do() -> None:
    for mode in MODES:
        check_head(mode, 64, "config.json")
    check_head("fp8", 40, "config.json")
    with pytest.raises(
        UsageError, match=r"(?s)kv = 'nvfp4': a/config.json: head_dim = 40 .*16.*kv = bf16, fp8 would do"
    ):
        check_head("nvfp4", 40, "a/config.json")


@pytest.mark.parametrize(("mode", "expected"), [(None, 8192), ("bf16", 4096), ("fp8", 2052), ("nvfp4", 1152)], ids=str)
def test_a_position_of_eight_heads_of_128_takes_so_many_bytes(mode: KvMode | None, expected: int) -> None:
    assert position_bytes(mode, 8, 128, 4) == expected


@pytest.mark.parametrize("mode", [None, *MODES], ids=str)
def test_a_cache_holds_as_many_bytes_as_its_positions_are_said_to(mode: KvMode | None) -> None:
    positions, layers, heads, size = 1024, 2, 3, 64
    cache = KVCache.allocate(layers, 1, heads, positions, size, torch.float32, "cpu", mode)
    of_slots = 2 * layers * heads * 4 if mode == "nvfp4" else 0  # its float32 scales, of each plane, slot and head
    expected = layers * positions * position_bytes(mode, heads, size, 4)
    # a position's share of the scales is rounded up to whole bytes
    assert 0 <= expected - (cache.bytes - of_slots) < layers * positions


def test_the_floors_of_a_pass_know_the_formats_of_both_caches(tmp_path: Path) -> None:
    folders = write_random_pair(tmp_path, seed=1)
    target = load_target(folders[0], torch.float32, "cpu").geometry
    draft = load_draft(folders[1], target, torch.float32, "cpu").geometry
    plain, narrow = (pair_traffic(target, draft, torch.float32, kv) for kv in (KvModes(), KvModes("fp8", "nvfp4")))
    one = [Slot(100, 1)]
    assert plain.draft and narrow.draft
    for mine, theirs, g, mode in (
        (narrow.target, plain.target, target, "fp8"),
        (narrow.draft.step, plain.draft.step, draft, "nvfp4"),
    ):
        less = position_bytes(mode, g.kv_heads, g.head_dim, 4) / position_bytes(None, g.kv_heads, g.head_dim, 4)  # type: ignore[arg-type]
        assert pass_bytes(mine, one).kv_read == pytest.approx(less * pass_bytes(theirs, one).kv_read)
        assert pass_bytes(mine, one).kv_written == pytest.approx(less * pass_bytes(theirs, one).kv_written)
        assert replace(mine, attention=()) == replace(theirs, attention=())


@pytest.mark.parametrize(
    ("message", "mode"), [("FP8", "fp8"), ("NVFP4", "nvfp4"), ("INT8", "INT8"), (None, None)], ids=str
)
def test_what_a_checkpoint_was_calibrated_for_is_read_from_the_optimizers_file(
    message: str | None, mode: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "hf_quant_config.json"
    assert calibrated_for(tmp_path) is None
    file.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": {"kv_cache_quant_algo": message}}))
    assert calibrated_for(tmp_path) == mode
    warned = [list(calibration_warnings(tmp_path, m, "the draft", "draft_kv")) for m in (None, *MODES)]
    assert [not w for w in warned] == [mode is None or m == mode for m in (None, *MODES)]
    if mode == "fp8":
        assert f"{file}: the draft was calibrated for a KV cache in fp8, and draft_kv is not given" in warned[0][0]
        assert "and draft_kv = nvfp4" in warned[3][0]


def test_a_calibration_file_that_is_no_object_is_named(tmp_path: Path) -> None:
    (tmp_path / "hf_quant_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"hf_quant_config\.json"):
        calibrated_for(tmp_path)
