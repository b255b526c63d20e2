"""A draft in TurboMind's layout: the same values as the Hugging Face export's, where the engine looks for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specgate.backends.eagle3.pair_tools.export.command import Wish, export
from specgate.checkpoints.spec_config.contents import other_content
from specgate.checkpoints.turbomind import converted_weights
from specgate.errors import UsageError
from specgate.pairs.resolve import resolve_pair
from specgate.run.smoke.pair_check import check_pair
from tests.eagle3.pair_tools.export.textual import change, textual_pair


@pytest.mark.parametrize("draft_vocab", [96, 320])
def test_every_file_holds_the_tensor_that_turbomind_reads_there(tmp_path: Path, draft_vocab: int) -> None:
    ref = textual_pair(tmp_path, draft_vocab=draft_vocab)
    done = export(ref, Wish("turbomind", tmp_path / "tm", torch.bfloat16))
    export(ref, Wish("hf", tmp_path / "hf", torch.bfloat16))
    draft, head = tmp_path / "tm" / "draft", load_file(tmp_path / "hf" / "draft" / "model.safetensors")
    assert converted_weights(draft) == draft and "micro --backend lmdeploy" in done.commands[-1][1]
    assert other_content(str(draft), str(tmp_path / "hf" / "draft")) == ""
    assert check_pair(resolve_pair(str(tmp_path / "tm"), None, None), 64, 3).exit_code == 0

    def raw(name: str, *shape: int) -> torch.Tensor:
        return torch.from_file(str(draft / name), size=torch.Size(shape).numel(), dtype=torch.bfloat16).view(shape)

    q, k, v = (head[f"midlayer.self_attn.{name}_proj.weight"] for name in "qkv")
    fused = raw("layers.0.attention.w_qkv.weight", 128, 128)
    assert torch.equal(fused[:, :64], q.T) and torch.equal(fused[:, 64:96], k.T) and torch.equal(fused[:, 96:], v.T)
    name = "output.weight" if draft_vocab == 320 else "lm_head_draft.weight"
    assert torch.equal(raw(name, 64, draft_vocab), head["lm_head.weight"].T)
    if draft_vocab == 96:
        ids = torch.from_file(str(draft / "draft_id_to_target_id"), size=96, dtype=torch.int32)
        assert torch.equal(ids.long(), head["d2t"] + torch.arange(96)) and not (draft / "output.weight").exists()


def test_what_turbomind_would_compute_in_another_way_is_refused_or_said(tmp_path: Path) -> None:
    ref = textual_pair(tmp_path, window=32)
    with pytest.raises(UsageError, match="weights are float32: TurboMind's have 16 bits"):
        export(ref, Wish("turbomind", tmp_path / "out"))
    done = export(ref, Wish("turbomind", tmp_path / "out", torch.float16))
    texts = " ".join(done.differences)
    assert "TurboMind has no window" in texts and "a build that knows no draft vocabulary" in texts
    assert ref.draft is not None
    change(ref.draft / "config.json", norm_before_residual=True)
    with pytest.raises(UsageError, match="TurboMind has no norm_before_residual"):
        export(ref, Wish("turbomind", tmp_path / "other", torch.float16))
