"""The reference's stages, against a statement of EAGLE-3 that shares no code with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.checkpoints.stages.names import TARGET_IDS, hidden, in_order
from specgate.contract import Budget, Role
from specgate.errors import BackendError
from tests.eagle3.reference.by_hand import Eagle3ByHand
from tests.eagle3.reference.test_engine import PROMPTS, open_engine

PROMPT = PROMPTS[2]


@pytest.fixture(scope="module")
def by_hand(pair: tuple[Path, Path]) -> Eagle3ByHand:
    return Eagle3ByHand(pair)


@pytest.fixture(scope="module")
def engine(pair: tuple[Path, Path]) -> ReferenceEngine:
    return open_engine(pair)


class StagesByHand:
    """The draft's stages row by row, without a cache: every row recomputes all before it."""

    def __init__(self, hand: Eagle3ByHand) -> None:
        self.hand, self.w, self.g = hand, hand.w, hand.g

    def attn_out(self, tokens: list[int], states: Tensor) -> Tensor:
        """Of the last row, before the residual is added."""
        # The oracle's layer adds both branches; without its feed-forward part and residual, what is left is attention.
        down = self.w["midlayer.mlp.down_proj.weight"]
        self.w["midlayer.mlp.down_proj.weight"] = torch.zeros_like(down)
        try:
            return self.hand.layer(tokens, states) - states[-1]
        finally:
            self.w["midlayer.mlp.down_proj.weight"] = down

    def row(self, tokens: list[int], states: Tensor) -> dict[str, Tensor]:
        stream = self.hand.layer(tokens, states)
        attention = self.attn_out(tokens, states)
        normed = self.hand.norm(stream, "norm.weight")
        return {
            "attn_out": attention,
            "ffn_out": stream - states[-1] - attention,
            "pre_head_hidden": normed,
            "logits": self.w["lm_head.weight"] @ normed,
            "stream": stream,
        }

    @torch.inference_mode()
    def all(self, prompt: list[int]) -> dict[str, Tensor]:
        states = self.hand.model(torch.tensor([prompt]), output_hidden_states=True).hidden_states
        features = torch.cat([states[b][0] for b in self.hand.boundaries], dim=-1)[:-1]
        projected = features @ self.w["fc.weight"].t()
        rows = [self.row(prompt[1 : p + 2], projected[: p + 1]) for p in range(len(prompt) - 1)]
        names = ("attn_out", "ffn_out", "pre_head_hidden", "logits")
        data = {f"draft.{name}": torch.stack([row[name] for row in rows]) for name in names}
        own = rows[-2]["stream"]
        step = self.row(prompt[1:], torch.cat((projected[:-1], own[None])))
        data |= {f"step.{name}": step[name][None] for name in names}
        return data | {"draft.features": features, "draft.fc_out": projected, "step.hidden": own[None]}


def test_every_stage_of_the_draft_is_that_of_a_cacheless_eagle3(engine: ReferenceEngine, by_hand: Eagle3ByHand) -> None:
    shown, expected = engine.stages(PROMPT, 64), StagesByHand(by_hand).all(PROMPT)
    assert set(expected) == {name for name in in_order(shown) if not name.startswith("target")}
    for name, tensor in expected.items():
        np.testing.assert_allclose(shown[name], tensor.numpy(), rtol=2e-4, atol=2e-4, err_msg=name)


def test_hidden_states_are_those_of_transformers_but_for_the_last_before_its_norm(
    engine: ReferenceEngine, by_hand: Eagle3ByHand
) -> None:
    shown = engine.stages(PROMPT, 64)
    with torch.inference_mode():
        out = by_hand.model(torch.tensor([PROMPT]), output_hidden_states=True)
        last = by_hand.model.model.norm(torch.from_numpy(shown[hidden(4)]))
    for b in range(4):
        np.testing.assert_allclose(shown[hidden(b)], out.hidden_states[b][0].numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(last.numpy(), out.hidden_states[4][0].numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(shown["target.logits"], out.logits[0].numpy(), rtol=1e-4, atol=1e-4)


def test_rows_are_the_last_ones_in_whatever_chunks_the_prompt_is_run(
    engine: ReferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = engine.stages(PROMPT, 64)
    monkeypatch.setattr(engine.model, "prefill_rows", 4)
    tail = engine.stages(PROMPT, 3)
    assert set(whole) == set(tail)
    for name, tensor in tail.items():
        if name != TARGET_IDS:
            assert len(tensor) == (1 if name.startswith("step") else 3)
            np.testing.assert_allclose(tensor, whole[name][-len(tensor) :], rtol=1e-4, atol=1e-4, err_msg=name)


def test_a_prompt_too_short_for_a_part_has_the_others(engine: ReferenceEngine) -> None:
    assert not [name for name in engine.stages([5], 8) if not name.startswith("target.")]
    assert not [name for name in engine.stages([5, 6], 8) if name.startswith("step.")]


def test_a_prompt_longer_than_the_cache_is_refused(engine: ReferenceEngine) -> None:
    with pytest.raises(BackendError, match="161 tokens for an engine of 160 positions"):
        engine.stages([1] * 161, 8)


def test_decoding_needs_a_prefill_after_the_stages_were_shown(engine: ReferenceEngine) -> None:
    engine.prefill([PROMPT], draft=True)
    before = engine.decode(Role(2), Budget(new_tokens=6), ()).tokens
    engine.stages(PROMPT, 4)
    with pytest.raises(BackendError, match="decode before prefill"):
        engine.decode(Role(2), Budget(new_tokens=6), ())
    engine.prefill([PROMPT], draft=True)
    assert engine.decode(Role(2), Budget(new_tokens=6), ()).tokens == before
