"""The reference engine against transformers (target) and a from-scratch statement of EAGLE-3 (draft and loop)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.lib.pair import load_draft, load_target
from specgate.backends.eagle3.reference.draft import EagleDrafter
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.kv_planes import plain
from specgate.backends.eagle3.reference.state import Slots
from specgate.backends.eagle3.reference.target import target_forward, target_logits
from specgate.contract import BASELINE, Budget, Role
from specgate.contract.acceptance import AcceptanceRecord
from specgate.errors import BackendError
from tests.eagle3.reference.by_hand import Eagle3ByHand
from tests.pairs.tiny import write_random_pair

PROMPTS = [[5, 9, 2, 7, 7, 1, 30, 12], [3, 3, 8], [40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52]]


KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama": {},
    "qwen3": {"head_norms": True, "heads": 6, "head_dim": 32, "tied": True},
}
OF_EVERY_KIND = pytest.mark.parametrize("folders", KINDS, indirect=True, scope="module")


@pytest.fixture(scope="module")
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A random Llama; of a test `OF_EVERY_KIND`, a Qwen3, too."""
    kind = getattr(request, "param", "llama")
    folder = tmp_path_factory.mktemp(kind)
    return write_random_pair(folder, seed=1, layers=3, boundaries=(0, 1, 2), **KINDS[kind])


def open_engine(folders: tuple[Path, Path], *, batch: int = 3, positions: int = 160) -> ReferenceEngine:
    target = load_target(folders[0], torch.float32, "cpu")
    draft = load_draft(folders[1], target.geometry, torch.float32, "cpu")
    return ReferenceEngine(target, draft, max_batch=batch, max_positions=positions, device="cpu")


@cache
def of_transformers(folder: Path) -> Any:
    """The target that transformers loads."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def transformers_greedy(folder: Path, prompt: list[int], new_tokens: int) -> list[int]:
    model, ids = of_transformers(folder), list(prompt)
    with torch.inference_mode():
        for _ in range(new_tokens):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@OF_EVERY_KIND
def test_logits_and_captured_features_agree_with_transformers(folders: tuple[Path, Path]) -> None:
    engine = open_engine(folders)
    tokens, boundaries, geometry = torch.tensor([PROMPTS[2]]), (0, 1, 2), engine.target.geometry
    positions = torch.arange(tokens.shape[1])[None]
    with torch.inference_mode():
        stream, features = target_forward(
            engine.tw, geometry, engine.table, engine.cache.slots(0, 1), tokens, positions, boundaries
        )
        expected = of_transformers(folders[0])(tokens, output_hidden_states=True)
    torch.testing.assert_close(target_logits(engine.tw, geometry, stream), expected.logits, rtol=1e-4, atol=1e-4)
    assert features is not None
    hidden = torch.cat([expected.hidden_states[b] for b in boundaries], dim=-1)
    torch.testing.assert_close(features, hidden, rtol=1e-4, atol=1e-4)


@OF_EVERY_KIND
def test_ragged_baseline_emits_what_transformers_emits(folders: tuple[Path, Path]) -> None:
    engine = open_engine(folders)
    engine.prefill(PROMPTS, draft=False)
    decoded = engine.decode(BASELINE, Budget(new_tokens=12), ())
    for prompt, tokens in zip(PROMPTS, decoded.tokens, strict=True):
        assert list(tokens) == transformers_greedy(folders[0], prompt, 12)


@pytest.mark.parametrize(("folders", "k"), [*(("llama", k) for k in (1, 2, 3, 5)), ("qwen3", 3)], indirect=["folders"])
def test_every_spec_n_emits_the_baselines_tokens(folders: tuple[Path, Path], k: int) -> None:
    engine = open_engine(folders)
    engine.prefill(PROMPTS, draft=True)
    baseline = engine.decode(BASELINE, Budget(new_tokens=20), ())
    assert engine.decode(Role(k), Budget(new_tokens=20), ()).tokens == baseline.tokens
    assert engine.decode(BASELINE, Budget(new_tokens=20), ()).tokens == baseline.tokens


@OF_EVERY_KIND
def test_verify_logits_do_not_depend_on_the_rows_beside_them(folders: tuple[Path, Path]) -> None:
    engine = open_engine(folders)
    engine.prefill([PROMPTS[2]], draft=False)
    tokens = torch.tensor([[7, 8, 9, 10, 11, 12]])
    positions = len(PROMPTS[2]) + torch.arange(6)[None]
    cache, geometry = engine.cache.slots(0, 1), engine.target.geometry
    with torch.inference_mode():
        together, _ = target_forward(engine.tw, geometry, engine.table, cache, tokens, positions, ())
        for i in range(6):
            row = slice(i, i + 1)
            alone, _ = target_forward(engine.tw, geometry, engine.table, cache, tokens[:, row], positions[:, row], ())
            one = target_logits(engine.tw, geometry, alone)[0, 0]
            assert torch.equal(one, target_logits(engine.tw, geometry, together)[0, i])


def test_the_records_identities_hold_with_eos_inside_a_run(folders: tuple[Path, Path]) -> None:
    engine = open_engine(folders)
    engine.prefill(PROMPTS, draft=True)
    free = engine.decode(BASELINE, Budget(new_tokens=30), ())
    stop = free.tokens[0][7]
    for k in (1, 3, 5):
        decoded = engine.decode(Role(k), Budget(new_tokens=30, ignore_eos=False), (stop,))
        plain = engine.decode(BASELINE, Budget(new_tokens=30, ignore_eos=False), (stop,))
        assert decoded.tokens == plain.tokens
        assert decoded.finish == plain.finish
        assert "stop" in decoded.finish
        emitted = sum(len(t) - 1 for t in decoded.tokens)
        record = AcceptanceRecord.from_steps(k, decoded.accepted, decoded.drafted, emitted, sum(decoded.truncated))
        record.check()


def test_a_step_budget_runs_that_many_steps(folders: tuple[Path, Path]) -> None:
    engine = open_engine(folders)
    engine.prefill(PROMPTS, draft=True)
    decoded = engine.decode(Role(2), Budget(steps=6), ())
    assert len(decoded.step_ns) == len(decoded.accepted) == 6
    assert all(1 + 6 <= len(t) <= 1 + 6 * 3 for t in decoded.tokens)
    assert set(decoded.finish) == set(engine.decode(BASELINE, Budget(steps=6), ()).finish) == {"steps"}


@pytest.mark.parametrize(("window", "seed"), [(None, 8), (6, 8), (6, 19)])
def test_every_draft_and_accept_count_equals_a_cacheless_eagle3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int | None, seed: int
) -> None:
    # With a draft vocabulary this small even random drafts are accepted now and then, so extending over them is walked.
    folders = write_random_pair(tmp_path, seed=seed, vocab=300, draft_vocab=8, window=window)
    by_hand = Eagle3ByHand(folders)
    engine = open_engine(folders)
    drafted: list[list[list[int]]] = []
    assert engine.drafter is not None
    chain = engine.drafter.chain

    def recorded(slots: Slots, k: int) -> Tensor:
        tokens = chain(slots, k)
        drafted.append(tokens.tolist())
        return tokens

    monkeypatch.setattr(engine.drafter, "chain", recorded)
    engine.prefill(PROMPTS, draft=True)
    decoded = engine.decode(Role(3), Budget(steps=10), ())
    assert sum(a for row in decoded.accepted for a in row) > 0
    for slot, prompt in enumerate(PROMPTS):
        seen = [(drafts[slot], row[slot]) for drafts, row in zip(drafted, decoded.accepted, strict=True)]
        assert seen == by_hand.cycles(prompt, 3, 10)


def test_a_slot_that_finished_early_stays_within_its_cache(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    k, new_tokens, length = 5, 16, 8
    monkeypatch.setattr("specgate.backends.eagle3.reference.loop.accept", lambda drafts, targets: torch.tensor([k, 0]))
    monkeypatch.setattr("specgate.backends.eagle3.reference.cache.KEY_BLOCK", 1)
    engine = open_engine(folders, batch=2, positions=length + new_tokens + k + 2)
    engine.prefill([PROMPTS[0][:length], PROMPTS[2][:length]], draft=True)
    assert engine.decode(Role(k), Budget(new_tokens=new_tokens), ()).finish == ("length", "length")


@pytest.mark.parametrize(("which", "tensor"), [(0, "model.norm.weight"), (1, "fc.weight")], ids=["target", "draft"])
def test_a_checkpoint_of_nan_is_refused(tmp_path: Path, which: int, tensor: str) -> None:
    from safetensors.torch import load_file, save_file

    folders = write_random_pair(tmp_path, seed=1)
    file = folders[which] / "model.safetensors"
    save_file({k: t * float("nan") if k == tensor else t for k, t in load_file(file).items()}, file)
    with pytest.raises(BackendError, match="not finite"):
        engine = open_engine(folders)
        engine.prefill(PROMPTS, draft=True)
        engine.decode(Role(2), Budget(steps=2), ())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("tensor", ["fc", "feature_norm", "norm", "lm_head"])
def test_a_draft_whose_activations_are_not_finite_is_no_bad_draft(
    folders: tuple[Path, Path], tensor: str, value: float
) -> None:
    engine = open_engine(folders)
    assert isinstance(engine.drafter, EagleDrafter)
    getattr(engine.drafter.weights, tensor).view(-1)[0] = value
    with pytest.raises(BackendError, match=r"the draft's .* are not finite"):
        engine.prefill(PROMPTS, draft=True)
        engine.decode(Role(2), Budget(steps=2), ())


def test_a_cached_value_of_nan_ends_a_run_and_does_not_reach_the_next_prompts(folders: tuple[Path, Path]) -> None:
    engine, budget = open_engine(folders), Budget(new_tokens=12)
    engine.prefill(PROMPTS, draft=True)
    sound = engine.decode(Role(2), budget, ()).tokens
    plain(engine.cache.v[0])[1, :, 2] = float("nan")
    with pytest.raises(BackendError, match="the target's logits are not finite"):
        engine.decode(Role(2), budget, ())
    with pytest.raises(BackendError, match="decode before prefill"):
        engine.decode(BASELINE, budget, ())
    # What the failed pass wrote lies behind these prompts, where it is masked and still enters products.
    engine.prefill(PROMPTS, draft=True)
    for role in (BASELINE, Role(2)):
        assert engine.decode(role, budget, ()).tokens == sound


def test_top2_are_the_two_largest_logits_of_transformers(folders: tuple[Path, Path]) -> None:
    engine = open_engine(folders)
    engine.prefill(PROMPTS, draft=False)
    for continuation in ([], [4, 5, 6]):
        with torch.inference_mode():
            logits = of_transformers(folders[0])(torch.tensor([[*PROMPTS[1], *continuation]])).logits[0, -1]
        assert engine.top2(1, continuation) == pytest.approx(tuple(logits.topk(2).values.tolist()), abs=1e-4)


def test_decode_without_a_prefilled_draft_is_refused(folders: tuple[Path, Path]) -> None:
    engine = open_engine(folders)
    engine.prefill(PROMPTS, draft=False)
    with pytest.raises(BackendError, match="spec-2"):
        engine.decode(Role(2), Budget(steps=1), ())


def test_a_prompt_that_does_not_fit_is_refused_with_numbers(folders: tuple[Path, Path]) -> None:
    engine = open_engine(folders, positions=16)
    with pytest.raises(BackendError, match="15 cached positions"):
        engine.prefill([[1] * 16], draft=False)


def test_a_chunked_prefill_gives_the_tokens_of_a_whole_one(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(folders)
    engine.prefill(PROMPTS, draft=True)
    whole = engine.decode(Role(3), Budget(new_tokens=16), ())
    monkeypatch.setattr(engine.model, "prefill_rows", 4)
    engine.prefill(PROMPTS, draft=True)
    chunked = engine.decode(Role(3), Budget(new_tokens=16), ())
    assert (chunked.tokens, chunked.accepted) == (whole.tokens, whole.accepted)


def test_an_engine_that_is_dropped_gives_its_memory_back_at_once(folders: tuple[Path, Path]) -> None:
    """Without waiting for the garbage collector: two models of 64 GB do not fit side by side."""
    gc.collect()
    gc.disable()
    try:
        engine = open_engine(folders)
        weights = weakref.ref(engine.tw.embed)
        del engine
        assert weights() is None
    finally:
        gc.enable()


# ── what tokens are checked by ───────────────────────────────────────────────────────────────────────────────────────


def test_an_extended_text_is_that_of_one_longer_run(folders: tuple[Path, Path]) -> None:
    engine = open_engine(folders)
    engine.prefill(PROMPTS, draft=True)
    begun = engine.decode(BASELINE, Budget(steps=5), ())
    extended = engine.extend(9)
    whole = engine.decode(BASELINE, Budget(steps=14), ())
    assert (extended.tokens, extended.finish) == (whole.tokens, whole.finish)
    assert begun.tokens == tuple(t[:6] for t in extended.tokens)


def test_a_text_is_extended_only_right_after_its_plain_decode(folders: tuple[Path, Path]) -> None:
    engine = open_engine(folders)
    engine.prefill(PROMPTS, draft=True)
    for between in (
        lambda: engine.decode(Role(2), Budget(steps=4), ()),
        lambda: engine.top2(0, ()),
        lambda: engine.extend(4),
    ):
        engine.decode(BASELINE, Budget(steps=4), ())
        between()
        with pytest.raises(BackendError, match="a plain decode has to come before"):
            engine.extend(4)
    engine.decode(BASELINE, Budget(steps=4), ())
    with pytest.raises(BackendError, match="exceed 160 positions"):
        engine.extend(200)


def test_shown_logits_are_those_of_transformers_and_equal_in_every_role(folders: tuple[Path, Path]) -> None:
    engine = open_engine(folders)
    engine.prefill(PROMPTS, draft=True)
    positions = (1, 3, 7)
    baseline = engine.logits(BASELINE, positions)
    text = engine.decode(BASELINE, Budget(steps=7), ()).tokens
    assert [[token for token, _ in slot] for slot in baseline] == [[row[p] for p in positions] for row in text]
    for k in (1, 2, 4):
        assert engine.logits(Role(k), positions) == baseline
    assert len({digest for slot in baseline for _, digest in slot}) == 9
    first = engine.decode(BASELINE, Budget(steps=1), ())
    engine.logits(BASELINE, (1,))
    assert int(engine._logits[0, 0].argmax()) == first.tokens[0][1]


def test_scores_are_the_logits_of_transformers(folders: tuple[Path, Path]) -> None:
    engine = open_engine(folders)
    prompt, text = PROMPTS[0], [3, 1, 4, 1, 5, 9, 2, 6]
    positions = (0, 2, 5, 7)
    scores = engine.score(prompt, text, positions)
    with torch.inference_mode():
        logits = of_transformers(folders[0])(torch.tensor([[*prompt, *text]])).logits[0]
    for position, score in zip(positions, scores, strict=True):
        row = logits[len(prompt) + position - 1]
        assert score.best == int(row.argmax())
        assert score.best_logit == pytest.approx(float(row.max()), abs=1e-4)
        assert score.logit == pytest.approx(float(row[text[position]]), abs=1e-4)
    with pytest.raises(BackendError, match="decode before prefill"):
        engine.decode(BASELINE, Budget(steps=1), ())


def test_what_greedy_decoding_emits_scores_as_its_own_choice(folders: tuple[Path, Path]) -> None:
    engine = open_engine(folders)
    engine.prefill(PROMPTS, draft=False)
    text = engine.decode(BASELINE, Budget(steps=20), ()).tokens[2]
    scores = engine.score(PROMPTS[2], text, range(21))
    assert [s.best for s in scores] == list(text)
    with pytest.raises(BackendError, match="outside 1"):
        engine.score(PROMPTS[2], [1] * 300, (299,))


def test_the_logits_of_a_requests_last_token_fit_where_the_request_did(folders: tuple[Path, Path]) -> None:
    """As many steps as tokens would need room for K + 1 times as many."""
    longest = max(map(len, PROMPTS))
    engine = open_engine(folders, positions=longest + 24 + 3 + 2)
    engine.prefill(PROMPTS, draft=True)
    engine.decode(Role(3), Budget(new_tokens=24), ())
    assert engine.logits(Role(3), [1, 23]) == engine.logits(BASELINE, [1, 23])
