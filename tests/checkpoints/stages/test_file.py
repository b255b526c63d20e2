"""Dumps as files: what was written is read; what is wrong is named with file, tensor and what would be right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from specgate.checkpoints.stages.dump import StageDump, check_same_question
from specgate.checkpoints.stages.file import read_dump, write_dump
from specgate.checkpoints.stages.names import STAGES, TARGET_IDS, hidden, in_order, part_of
from specgate.errors import UsageError

Tensors = dict[str, Any]
WIDTHS = {
    "target hidden size": 4, "vocabulary": 12, "auxiliary hidden states": 8, "draft hidden size": 3,
    "draft vocabulary": 5,
}  # fmt: skip


def whole(tokens: int = 6, rows: int = 4, layers: int = 2) -> Tensors:
    """A complete dump of random numbers."""
    rng = np.random.default_rng(1)

    def noise(part: str, width: int) -> Any:
        return rng.standard_normal((1 if part == "step" else rows, width)).astype(np.float32)

    tensors: Tensors = {hidden(b): noise("target", 4) for b in range(layers + 1)}
    tensors |= {stage.name: noise(stage.part, WIDTHS[stage.width]) for stage in STAGES}
    return tensors | {"prompt_ids": np.arange(tokens), TARGET_IDS: np.array([0, 2, 4, 6, 8])}


def as_dump(tensors: Tensors, source: str = "A") -> StageDump:
    stages = {name: tensor for name, tensor in tensors.items() if part_of(name) and name != TARGET_IDS}
    return StageDump(source, "float32", tuple(tensors["prompt_ids"].tolist()), stages, tensors.get(TARGET_IDS))


@settings(max_examples=20)
@given(tokens=st.integers(3, 9), layers=st.integers(0, 3), dtype=st.sampled_from(["float32", "bfloat16", "float16"]))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, tokens: int, layers: int, dtype: Any
) -> None:
    file = tmp_path_factory.mktemp("dump") / "a.safetensors"
    tensors = whole(tokens, rows=2, layers=layers)
    dump = as_dump(tensors)
    write_dump(file, StageDump("A", dtype, dump.prompt_ids, dump.tensors, dump.target_ids))
    back = read_dump(file)
    assert (back.prompt_ids, back.dtype, back.layers, back.source) == (dump.prompt_ids, dtype, layers, str(file))
    assert in_order(back.tensors) == in_order(dump.tensors) and back.parts == ("target", "draft", "step")
    assert all(np.array_equal(back.tensors[name], dump.tensors[name]) for name in dump.tensors)
    assert back.target_ids is not None and dump.target_ids is not None
    assert np.array_equal(back.target_ids, dump.target_ids)


def test_tensors_of_16_bits_say_what_was_computed_in(tmp_path: Path) -> None:
    mixed = {name: torch.from_numpy(tensor) for name, tensor in whole().items()}
    mixed["draft.fc_out"] = mixed["draft.fc_out"].bfloat16()
    save_torch(mixed, tmp_path / "a.safetensors")
    assert read_dump(tmp_path / "a.safetensors").dtype == "bfloat16"
    save_torch(mixed, tmp_path / "b.safetensors", metadata={"dtype": "torch.float16"})
    assert read_dump(tmp_path / "b.safetensors").dtype == "float16"


def without(*names: str) -> Callable[[Tensors], object]:
    return lambda t: [t.pop(name) for name in names]


def put(name: str, value: Any) -> Callable[[Tensors], object]:
    return lambda t: t.update({name: value})


def nan(tensors: Tensors) -> None:
    tensors["draft.attn_out"][2, 1] = np.nan


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without("draft.ffn_out", "draft.logits"), "missing draft.ffn_out, draft.logits"),
        (without("target.hidden.1"), "missing target.hidden.1"),
        (without("prompt_ids"), "missing prompt_ids"),
        (without("target.logits"), "missing target.logits"),
        (put("draft.atn_out", zeros(4, 3)), "tensor draft.atn_out is no stage\n  draft.attn_out?"),
        (put("draft.attn_out", zeros(4, 4)), "draft.attn_out is 4 wide, but draft.fc_out is 3"),
        (put("draft.attn_out", zeros(3, 3)), "draft.attn_out is [3, 3]: 3 rows\n  rows: 4 as draft.features"),
        (put("draft.attn_out", zeros(1, 4, 3)), "draft.attn_out is [1, 4, 3]\n  [rows, width], without a batch axis"),
        (put("step.hidden", zeros(2, 3)), "step.hidden is [2, 3]: 2 rows\n  rows: at most 1, for 6 tokens"),
        (put("draft.features", zeros(4, 7)), "draft.features is 7 wide\n  a multiple of the target's hidden size, 4"),
        (put("draft.fc_out", np.zeros((4, 3), np.int32)), "draft.fc_out is of type I32"),
        (put("prompt_ids", zeros(6)), "prompt_ids is of type F32"),
        (put("prompt_ids", np.arange(6)[None]), "prompt_ids is [1, 6]"),
        (put("prompt_ids", np.array([0, 1, 2, 3, 4, 12])), "prompt_ids[5] = 12\n  ids are 0 to 11"),
        (put("prompt_ids", np.array([0, -1, 2, 3, 4, 5])), "prompt_ids[1] = -1"),
        (put("prompt_ids", np.array([0, 1])), "target.hidden.0 is [4, 4]: 4 rows\n  rows: at most 2, for 2 tokens"),
        (put(TARGET_IDS, np.arange(4)), "draft.target_ids is [4]\n  [5], as draft.logits is wide"),
        (nan, "draft.attn_out[2, 1] = nan"),
    ],
)
def test_a_dump_that_is_wrong_is_named(tmp_path: Path, spoil: Callable[[Tensors], object], message: str) -> None:
    tensors = whole()
    spoil(tensors)
    save_file(tensors, file := tmp_path / "a.safetensors")
    with pytest.raises(UsageError) as error:
        read_dump(file)
    assert str(error.value).startswith(f"{file}: {message}")


@pytest.mark.parametrize("content", [b"", b"x" * 40, b"\x10\0\0\0\0\0\0\0{}"])
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (file := tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match="not a whole safetensors file"):
        read_dump(file)


def test_a_dtype_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    save_file(whole(), file := tmp_path / "a.safetensors", metadata={"dtype": "int8"})
    with pytest.raises(UsageError, match="metadata dtype = 'int8'\n  one of float32, bfloat16, float16"):
        read_dump(file)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (put("prompt_ids", np.array([0, 1, 9, 3, 4, 5])), "B: another prompt than A: prompt_ids[2] = 9, not 2"),
        (put("prompt_ids", np.arange(7)), "B: another prompt than A: 7 tokens, not 6"),
        (without("target.hidden.2"), "B: hidden states of 1 layers, not 2 as in A"),
        (put("target.logits", zeros(4, 13)), "B: target.logits is 13 wide, not 12 as in A\n  the same vocabulary"),
        (
            lambda t: t.update({"draft.logits": zeros(4, 6), "step.logits": zeros(1, 6), TARGET_IDS: np.arange(6)}),
            "B: draft.logits is 6 wide, not 5 as in A\n  the same draft vocabulary",
        ),
    ],
)
def test_another_prompt_or_model_is_named(spoil: Callable[[Tensors], object], message: str) -> None:
    tensors = whole()
    spoil(tensors)
    with pytest.raises(UsageError) as error:
        check_same_question(as_dump(whole()), as_dump(tensors, "B"))
    assert str(error.value).startswith(message)
