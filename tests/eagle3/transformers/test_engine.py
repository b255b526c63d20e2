"""The back end transformers beside `generate` of transformers, and beside the reference engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from specgate.backends.eagle3.reference.open import open_engine as open_reference
from specgate.contract import BASELINE, Budget, PairRef, Role
from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.protocols import LED
from specgate.errors import BackendError, EnvironmentRefused
from tests.eagle3.transformers.pairs import BOUNDARIES, CONFIGS, PROMPTS, generated, opened, request, write_pair
from tests.pairs.tiny import write_random_pair

NEW = 12


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PairRef]:
    return {name: write_pair(tmp_path_factory.mktemp(name), name) for name in CONFIGS}


@pytest.mark.parametrize(
    ("architecture", "attention"),
    [("llama", "sdpa"), ("gpt_oss", "eager"), ("mistral", "sdpa"), ("mistral", "eager"), ("qwen3", "sdpa")],
)
def test_every_role_emits_what_generate_emits(pairs: dict[str, PairRef], architecture: str, attention: str) -> None:
    engine = opened(pairs[architecture], attention=attention)
    expected = tuple(generated(pairs[architecture], prompt, NEW) for prompt in PROMPTS)
    for role in (BASELINE, Role(3), BASELINE):
        decoded = engine.decode(role, Budget(new_tokens=NEW), ())
        assert decoded.tokens == expected
        if role.k:
            emitted = sum(len(t) - 1 for t in decoded.tokens)
            cut = sum(decoded.truncated)
            AcceptanceRecord.from_steps(role.k, decoded.accepted, decoded.drafted, emitted, cut).check()


def test_one_request_alone_gets_the_text_that_it_gets_among_others(pairs: dict[str, PairRef]) -> None:
    whole = opened(pairs["qwen3"]).decode(Role(2), Budget(new_tokens=NEW), ()).tokens
    alone = opened(pairs["qwen3"], prompts=PROMPTS[:1]).decode(Role(2), Budget(new_tokens=NEW), ()).tokens
    assert alone == whole[:1]


@pytest.mark.parametrize("architecture", ["mistral", "llama"])
def test_a_prompt_in_pieces_gives_what_a_whole_one_gives(pairs: dict[str, PairRef], architecture: str) -> None:
    whole, pieces = opened(pairs[architecture]), opened(pairs[architecture], prefill_rows="4")
    one, other = (engine.decode(Role(3), Budget(new_tokens=NEW), ()) for engine in (whole, pieces))
    assert (one.tokens, one.accepted) == (other.tokens, other.accepted)


@pytest.mark.parametrize(("window", "seed"), [(None, 8), (6, 19)])
def test_drafts_are_accepted_as_by_the_reference_engine(tmp_path: Path, window: int | None, seed: int) -> None:
    # Of a draft vocabulary this small even random drafts are accepted now and then.
    pair = PairRef("random", *write_random_pair(tmp_path, seed=seed, vocab=300, draft_vocab=8, window=window))
    reference = open_reference(request(pair))
    reference.prefill(PROMPTS, draft=True)
    engine, budget = opened(pair), Budget(steps=10)
    for k in (1, 5):
        mine, theirs = engine.decode(Role(k), budget, ()), reference.decode(Role(k), budget, ())
        assert (mine.tokens, mine.accepted, mine.drafted) == (theirs.tokens, theirs.accepted, theirs.drafted)
        assert sum(max(count, 0) for row in mine.accepted for count in row) > 0


def test_drafts_of_a_target_with_experts_are_accepted_as_by_the_reference_engine(pairs: dict[str, PairRef]) -> None:
    reference = open_reference(request(pairs["gpt_oss"]))
    reference.prefill(PROMPTS, draft=True)
    engine = opened(pairs["gpt_oss"])
    mine, theirs = (e.decode(Role(4), Budget(steps=10), ()) for e in (engine, reference))
    assert (mine.tokens, mine.accepted, mine.drafted) == (theirs.tokens, theirs.accepted, theirs.drafted)


@pytest.mark.parametrize("architecture", ["gpt_oss", "mistral"])
def test_the_target_itself_as_its_draft_is_always_right(pairs: dict[str, PairRef], architecture: str) -> None:
    decoded = opened(pairs[architecture], drafter="oracle").decode(Role(4), Budget(steps=6), ())
    assert set(decoded.accepted) == {(4, 4, 4)}


@pytest.mark.parametrize("architecture", ["gpt_oss", "llama"])
def test_captured_features_are_the_hidden_states_of_transformers(pairs: dict[str, PairRef], architecture: str) -> None:
    engine = opened(pairs[architecture])
    model = AutoModelForCausalLM.from_pretrained(pairs[architecture].target, dtype=torch.float32)
    tokens = torch.tensor([PROMPTS[2]])
    boundaries = BOUNDARIES[:-1]  # the last entry of `hidden_states` is normed, which boundary 4 is not
    with torch.inference_mode():
        at = torch.arange(tokens.shape[1])[None]
        logits, features = engine.model.forward(slice(1, 2), tokens, at, boundaries, [2, -1])
        expected = model(tokens, output_hidden_states=True)
        _, last = engine.model.forward(slice(1, 2), tokens, at, [4])
    assert features is not None and last is not None
    states = torch.cat([expected.hidden_states[b] for b in boundaries], dim=-1)
    torch.testing.assert_close(features, states, rtol=1e-4, atol=1e-4)
    with torch.inference_mode():
        torch.testing.assert_close(model.lm_head(model.model.norm(last)), expected.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(engine.model.logits(logits), expected.logits[:, [2, -1]], rtol=1e-4, atol=1e-4)


def test_what_is_shown_of_a_place_is_what_transformers_has_there(pairs: dict[str, PairRef]) -> None:
    engine, continuation = opened(pairs["qwen3"]), (4, 5, 6)
    model = AutoModelForCausalLM.from_pretrained(pairs["qwen3"].target, dtype=torch.float32)
    with torch.inference_mode():
        best = model(torch.tensor([[*PROMPTS[1], *continuation]])).logits[0, -1].topk(5)
    shown = engine.ranked(1, continuation, 5)
    assert shown.tokens == tuple(best.indices.tolist())
    assert shown.values == pytest.approx(best.values.tolist(), abs=1e-4)
    assert engine.top2(1, continuation) == pytest.approx(shown.values[:2], abs=1e-6)
    (score,) = engine.score(PROMPTS[1], (*continuation, shown.tokens[1]), [3])
    assert (score.best, score.best_logit, score.logit) == pytest.approx((shown.tokens[0], *shown.values[:2]), abs=1e-4)


def test_a_second_pass_shows_the_same_place_with_its_last_tokens_decoded(pairs: dict[str, PairRef]) -> None:
    engine = opened(pairs["qwen3"])
    for continuation in [(4,), (4, 5, 6), tuple(range(4, 4 + LED + 3))]:
        first, again = engine.ranked(1, continuation, 5), engine.ranked_again(1, continuation, 5)
        assert again is not None and again.tokens == first.tokens
        assert again.values == pytest.approx(first.values, abs=1e-4)
    assert engine.ranked_again(1, (), 5) is None


def test_a_text_is_followed_as_generate_goes_on(pairs: dict[str, PairRef]) -> None:
    engine, continuation = opened(pairs["mistral"]), (4, 5, 6)
    expected = generated(pairs["mistral"], [*PROMPTS[0], *continuation], 9)
    assert engine.follow(0, continuation, 9) == expected
    again = engine.decode(BASELINE, Budget(new_tokens=NEW), ()).tokens
    assert again == opened(pairs["mistral"]).decode(BASELINE, Budget(new_tokens=NEW), ()).tokens
    with pytest.raises(BackendError, match="positions asked for"):
        engine.follow(0, continuation, 200)


def test_an_extended_text_is_that_of_one_longer_run(pairs: dict[str, PairRef]) -> None:
    engine = opened(pairs["gpt_oss"])
    engine.decode(BASELINE, Budget(steps=4), ())
    extended = engine.extend(6)
    assert extended.tokens == engine.decode(BASELINE, Budget(steps=10), ()).tokens


def test_a_pass_that_overflows_the_memory_is_no_fault_of_the_engine(
    pairs: dict[str, PairRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nmore")

    engine = opened(pairs["llama"])
    monkeypatch.setattr(engine.model, "forward", full)
    with pytest.raises(EnvironmentRefused, match=r"spec-3: a pass over 4 rows of 3 requests: .* 9 GiB"):
        engine.decode(Role(3), Budget(steps=1), ())
    with pytest.raises(EnvironmentRefused, match=r"prefill: .* 9 GiB") as refused:
        engine.prefill(PROMPTS, draft=False)
    assert "prefill_rows" in str(refused.value.hint)


def test_a_rope_scaling_is_that_of_the_reference_engine(tmp_path: Path) -> None:
    rope: dict[str, float | str] = {"rope_type": "yarn", "factor": 4.0}
    pair = PairRef("random", *write_random_pair(tmp_path, seed=1, positions=64), rope=rope)
    reference = open_reference(request(pair))
    reference.prefill([[7] * 90], draft=True)
    engine = opened(pair, prompts=[[7] * 90])
    assert engine.top2(0, (1, 2)) == pytest.approx(reference.top2(0, (1, 2)), abs=1e-3)
