"""gpt-oss in the reference engine, against transformers' own: logits, greedy tokens, what a draft
is fed with, and the experts that tokens are sent to.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specgate.analysis.checks.identities import check_block
from specgate.analysis.cycle_accounting import moved_by
from specgate.backends.eagle3.lib.pair import load_draft, load_target
from specgate.backends.eagle3.lib.traffic import target_traffic
from specgate.backends.eagle3.reference import gpt_oss
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.gpt_oss import GptOssTarget
from specgate.checkpoints.geometry import DraftGeometry
from specgate.contract import BASELINE, Budget, Role
from specgate.contract.routing import counts_of
from specgate.run.point_blocks import make_block
from tests.checkpoints.gpt_oss_folders import WINDOW, write_gpt_oss, write_quantised
from tests.pairs.tiny import write_draft
from tests.support.factories import plan_of, scenario

LENGTHS = (1, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW, 300)
"""Prompts below, at and across the window of the sliding layers, and one longer than a pass of the prefill."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same weights with their experts as floats and in MXFP4, and a draft."""
    root = tmp_path_factory.mktemp("gpt-oss")
    target = write_gpt_oss(root / "float", seed=3)
    quantised = write_quantised(root / "mxfp4", target)
    g = load_target(target, torch.float32, "cpu").geometry
    draft = DraftGeometry(g.hidden, g.hidden, 3, 96, 4, 2, 16, g.vocab, 96, g.rms_eps, g.rope, g.max_positions)
    write_draft(root / "draft", draft, (1, 2, 3), torch.Generator().manual_seed(5))
    return {"float": target, "mxfp4": quantised, "draft": root / "draft"}


@pytest.fixture(scope="module")
def oracle(folders: dict[str, Path]) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folders["float"], dtype=torch.float32, attn_implementation="eager")


def open_engine(
    folders: dict[str, Path], kind: str, *, draft: bool = False, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> ReferenceEngine:
    target = load_target(folders[kind], dtype, device)
    drafts = load_draft(folders["draft"], target.geometry, dtype, device) if draft else None
    return ReferenceEngine(target, drafts, max_batch=3, max_positions=400, device=device)


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 250, (length,), generator=torch.Generator().manual_seed(seed + length)).tolist()


def logits_of(engine: ReferenceEngine, tokens: list[int], rows: int = 400) -> torch.Tensor:
    """The logits of all `tokens`, which are prefilled `rows` at a time."""
    with torch.inference_mode():
        device = engine.model.device
        ids, at = torch.tensor([tokens], device=device), torch.arange(len(tokens), device=device)[None]
        passes = [slice(start, start + rows) for start in range(0, len(tokens), rows)]
        streams = [engine.model.forward(slice(0, 1), ids[:, part], at[:, part], ())[0] for part in passes]
        return engine.model.logits(torch.cat(streams, dim=1))[0].cpu()


@pytest.mark.parametrize("kind", ["float", "mxfp4"])
@pytest.mark.parametrize("length", LENGTHS)
def test_logits_agree_with_transformers(folders: dict[str, Path], oracle: Any, kind: str, length: int) -> None:
    tokens = prompt(length)
    with torch.inference_mode():
        expected = oracle(torch.tensor([tokens])).logits[0]
    logits = logits_of(open_engine(folders, kind), tokens)
    assert (logits - expected).abs().max() <= 1e-3
    assert expected.abs().max() > 2  # the tolerance is far below what is compared


def test_experts_in_mxfp4_give_the_very_same_logits_as_the_numbers_that_they_stand_for(
    folders: dict[str, Path],
) -> None:
    tokens = prompt(40)
    assert torch.equal(*(logits_of(open_engine(folders, kind), tokens) for kind in ("float", "mxfp4")))


@pytest.mark.parametrize("kind", ["float", "mxfp4"])
def test_experts_decoded_ahead_give_the_very_same_logits(folders: dict[str, Path], kind: str) -> None:
    engine, tokens = open_engine(folders, kind), prompt(WINDOW + 1)
    as_stored = logits_of(engine, tokens)
    assert isinstance(engine.model, GptOssTarget)
    assert engine.model.decode_ahead(spare=0)
    assert all(layer.gate_up.blocks is None and layer.down.floats is None for layer in engine.model.weights.layers)
    assert torch.equal(logits_of(engine, tokens), as_stored)


def test_rows_that_look_a_few_at_a_time_give_the_very_same_logits(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, tokens = open_engine(folders, "mxfp4"), prompt(3 * WINDOW + 1)
    at_once = logits_of(engine, tokens)
    monkeypatch.setattr(gpt_oss, "MASK_ROWS", WINDOW)
    assert len(gpt_oss.views(torch.arange(len(tokens))[None], None)) > 3
    assert torch.equal(logits_of(engine, tokens), at_once)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [66, 150, 300])
def test_a_gpu_gives_the_logits_of_a_cpu_however_many_rows_a_pass_has(folders: dict[str, Path], rows: int) -> None:
    tokens = prompt(300)
    expected = logits_of(open_engine(folders, "mxfp4"), tokens)
    exact = logits_of(open_engine(folders, "mxfp4", device="cuda"), tokens, rows)
    assert (exact - expected).abs().max() <= 1e-3
    rounded = logits_of(open_engine(folders, "mxfp4", dtype=torch.bfloat16, device="cuda"), tokens, rows)
    on_cpu = logits_of(open_engine(folders, "mxfp4", dtype=torch.bfloat16), tokens, rows)
    assert (rounded - expected).abs().mean() <= 1.5 * (on_cpu - expected).abs().mean()


def test_experts_are_not_decoded_ahead_where_that_leaves_too_little_memory(folders: dict[str, Path]) -> None:
    engine = open_engine(folders, "mxfp4")
    assert isinstance(engine.model, GptOssTarget)
    before = engine.model.weights
    assert not engine.model.decode_ahead(spare=1 << 60)
    assert engine.model.weights is before


def test_bfloat16_agrees_with_transformers_as_far_as_bfloat16_goes(folders: dict[str, Path], oracle: Any) -> None:
    from transformers import AutoModelForCausalLM

    tokens = prompt(24)
    theirs = AutoModelForCausalLM.from_pretrained(folders["float"], dtype=torch.bfloat16, attn_implementation="eager")
    with torch.inference_mode():
        exact = oracle(torch.tensor([tokens])).logits[0]
        rounded = (theirs(torch.tensor([tokens])).logits[0].float() - exact).abs().mean()
    ours = (logits_of(open_engine(folders, "mxfp4", dtype=torch.bfloat16), tokens) - exact).abs().mean()
    assert ours <= 1.5 * rounded


@pytest.mark.parametrize("kind", ["float", "mxfp4"])
def test_ragged_requests_give_the_tokens_of_transformers_in_every_role(
    folders: dict[str, Path], oracle: Any, kind: str
) -> None:
    prompts = [prompt(length) for length in (WINDOW - 2, 3 * WINDOW, 120)]
    expected = []
    for tokens in prompts:
        ids = list(tokens)
        with torch.inference_mode():
            for _ in range(20):
                ids.append(int(oracle(torch.tensor([ids])).logits[0, -1].argmax()))
        expected.append(tuple(ids[len(tokens) :]))
    engine = open_engine(folders, kind, draft=True)
    engine.prefill(prompts, draft=True)
    for role in (BASELINE, Role(1), Role(3)):
        assert engine.decode(role, Budget(new_tokens=20, ignore_eos=True), ()).tokens == tuple(expected), role


def test_a_token_does_not_depend_on_the_rows_beside_it(folders: dict[str, Path]) -> None:
    """Bit for bit: a row of a verification is the row of a plain step, whichever experts the others choose."""
    engine, tokens = open_engine(folders, "mxfp4"), prompt(64)
    ids, at = torch.tensor([tokens]), torch.arange(64)[None]
    with torch.inference_mode():
        engine.model.forward(slice(0, 1), ids[:, :60], at[:, :60], ())
        together, _ = engine.model.forward(slice(0, 1), ids[:, 60:], at[:, 60:], ())
        for row in range(4):
            alone, _ = engine.model.forward(slice(0, 1), ids[:, 60 + row, None], at[:, 60 + row, None], ())
            assert torch.equal(alone[0, 0], together[0, row])


def test_the_draft_is_fed_with_the_hidden_states_of_transformers(folders: dict[str, Path], oracle: Any) -> None:
    tokens = prompt(20)
    with torch.inference_mode():
        hidden = oracle(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        engine = open_engine(folders, "float")
        _, features = engine.model.forward(slice(0, 1), torch.tensor([tokens]), torch.arange(20)[None], (0, 1, 3))
    assert features is not None
    torch.testing.assert_close(features, torch.cat([hidden[b] for b in (0, 1, 3)], dim=-1), rtol=1e-4, atol=1e-4)


# ── experts touched ──────────────────────────────────────────────────────────────────────────────────────────────────


def chosen_by_transformers(oracle: Any, tokens: list[int]) -> list[list[set[int]]]:
    """Layer → position → the experts that transformers' router sends the token there to."""
    with torch.inference_mode():
        routed = oracle(torch.tensor([tokens]), output_router_logits=True).router_logits
    return [[set(row.topk(2).indices.tolist()) for row in layer] for layer in routed]


@pytest.mark.parametrize("k", [0, 3])
def test_experts_touched_are_those_of_transformers_router(folders: dict[str, Path], oracle: Any, k: int) -> None:
    """With a draft that is always right, the rows of a pass are tokens of the text."""
    target = load_target(folders["float"], torch.float32, "cpu")
    engine = ReferenceEngine(target, "oracle", max_batch=3, max_positions=400, device="cpu")
    prompts, steps = [prompt(5), prompt(WINDOW), prompt(40)], 4
    engine.prefill(prompts, draft=True)
    decoded = engine.decode(Role(k), Budget(steps=steps), ())
    routed = [chosen_by_transformers(oracle, [*p, *t]) for p, t in zip(prompts, decoded.tokens, strict=True)]
    touched, fresh = [], [0] * (k + 1)
    for step in range(steps):
        by_layer = []
        for layer in range(4):
            of_all: set[int] = set()
            for tokens, of in zip(prompts, routed, strict=True):
                mine: set[int] = set()
                for row in range(k + 1):
                    sent = of[layer][len(tokens) + step * (k + 1) + row]
                    fresh[row] += len(sent - mine)
                    mine |= sent
                of_all |= mine
            by_layer.append(len(of_all))
        touched.append(by_layer)
    assert decoded.experts == counts_of(touched, fresh)


def test_slots_that_have_ended_touch_nothing(folders: dict[str, Path]) -> None:
    engine = open_engine(folders, "mxfp4")
    engine.prefill([prompt(5), prompt(9)], draft=False)
    texts = engine.decode(BASELINE, Budget(steps=8), ()).tokens
    end = texts[0][2]
    assert end not in texts[1] and end not in texts[0][:2]
    decoded = engine.decode(BASELINE, Budget(steps=8, ignore_eos=False), (end,))
    assert [row[0] for row in decoded.accepted] == [0, 0, *[-1] * 6]
    assert decoded.experts is not None
    assert decoded.experts.touched[2:] == (8,) * 6  # one token: two experts in each of four layers


def test_a_block_with_experts_holds_by_its_counts(folders: dict[str, Path]) -> None:
    engine = open_engine(folders, "mxfp4", draft=True)
    engine.prefill([prompt(7), prompt(30)], draft=True)
    (round_, *_) = plan_of(scenario(context=(30,), batch=(2,), steps=9)).rounds
    decoded = engine.decode(Role(3), Budget(steps=9), ())
    made = make_block(round_, 1, Role(3), 0, 0, decoded)
    check_block(made, Budget(steps=9), engine.facts())
    assert made.experts is not None
    moved, expected = (moved_by([b], engine.facts().traffic)["verify"] for b in (made, replace(made, experts=None)))
    experts = target_traffic(engine.target.geometry, torch.float32).experts
    assert experts is not None
    saved = 9 * 4 * experts.distinct(8) - sum(made.experts.touched)
    assert expected.weights - moved.weights == pytest.approx(saved * experts.expert_bytes)
