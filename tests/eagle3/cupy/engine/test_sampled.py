"""The engine at a temperature: coupled speculation is plain sampling, token by token; on a GPU, a planted pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from specgate.analysis.draws.fit_tests import check_draws, often_drawn
from specgate.backends.eagle3.cupy.engine.decode_run import StopRule
from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.backends.eagle3.cupy.engine.sampled import as_left, law_of, name_requests, top2_of_draw
from specgate.backends.eagle3.cupy.memory.sampling import SamplingBuffers
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.contract import BASELINE, Budget, Role, Sampling
from specgate.contract.draws import DrawnTexts
from specgate.errors import BackendError
from specgate.sampling.distributions import over_target
from specgate.sampling.history import History
from specgate.sampling.keys import Keys, requests_of
from specgate.sampling.rejection import draft_sample, sample, verify_by_rejection
from specgate.sampling.target import penalised, softmax, target_distribution
from tests.eagle3.cupy.engine.tracing import check_speculation, tokens, trace
from tests.eagle3.cupy.gpu_pairs import RAGGED, checkpoints, engine, engine_of, random_prompts, shape
from tests.eagle3.cupy.kernels.faults import REJECTION

PLAIN = Sampling(temperature=0.8, seed=2**40)
RICH = Sampling(temperature=1.2, top_k=200, top_p=0.97, min_p=1e-4, logit_bias=((5, -2.0), (77, 3.0)))
PENALISED = Sampling(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.3, seed=8)
STEERED = replace(RICH, repetition_penalty=1.1, frequency_penalty=0.2)
"""Everything at once."""
PEAKED = Sampling(temperature=1.5, top_k=12)
"""Few enough tokens that draws say something of each beginning."""
VOCAB = 2048
SIZES = Sizes(slots=8, positions=2048, max_rows=8)
PROMPTS = random_prompts(RAGGED, seed=1)


@cache
def sampled(sampling: Sampling) -> CupyEngine:
    return engine_of(*checkpoints(shape(8, 2, 64)), replace(SIZES, sampling=sampling))


# ── without a GPU ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_requests_are_named_by_their_prompts_bit_by_bit() -> None:
    b = SamplingBuffers.allocate(PLAIN, VOCAB, 8, 8, "cpu")
    name_requests(b, PROMPTS)
    assert b.requests.numpy().view(np.uint64).tolist() == requests_of(PROMPTS).tolist()
    assert (b.requests < 0).any()  # all 64 bits count


@pytest.mark.parametrize("sampling", [PLAIN, RICH, STEERED])
def test_the_largest_score_is_the_token_that_is_drawn_and_bias_and_penalties_count_once(sampling: Sampling) -> None:
    raw = 3 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(2))
    history = History.of(PROMPTS[0], [1, 2, 3], VOCAB)
    left = torch.from_numpy(
        penalised(raw.double().numpy().copy(), sampling, history)
    ).float()  # as the device leaves it
    law = target_distribution(raw.numpy(), sampling, history)
    keys = Keys(sampling.seed, requests_of([PROMPTS[0]]), np.array([len(PROMPTS[0]) + 3]))
    drawn = int(sample(law[None], keys)[0])
    first, second = top2_of_draw(left, sampling, PROMPTS[0], [1, 2, 3])
    assert first > second
    without = left.clone()
    without[drawn] = -1e6
    assert top2_of_draw(without, sampling, PROMPTS[0], [1, 2, 3])[0] < first
    shown = law_of(left, sampling, (4, 5), 1e-3)
    kept = np.flatnonzero(law >= 1e-3)
    assert list(shown.tokens) == kept.tolist()


def test_at_temperature_0_scores_are_logits() -> None:
    logits = torch.tensor([1.0, 5.0, -2.0, 4.5])
    assert top2_of_draw(logits, Sampling(temperature=0.0), [1], []) == (5.0, 4.5)


# ── on a GPU ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.gpu
@pytest.mark.parametrize(
    "sampling", [PLAIN, RICH, PENALISED, STEERED], ids=["temperature", "filters", "penalties", "everything"]
)
def test_coupled_speculation_emits_plain_samplings_tokens_over_ten_thousand(sampling: Sampling) -> None:
    made, compared, accepted = sampled(sampling), 0, 0
    made.prefill(PROMPTS, draft=True)
    plain = tokens(made, 0, Budget(new_tokens=500))
    assert len({*plain[0]}) > 100  # no loop
    for batch, ks in ((8, (1, 2, 3, 4, 5, 6, 7)), (4, (1, 3, 7)), (1, (1, 2, 3, 4, 5, 6, 7))):
        made.prefill(PROMPTS[:batch], draft=True)
        for k in ks:
            block = made.decode(Role(k), Budget(new_tokens=400), ())
            assert block.tokens == tuple(text[:400] for text in plain[:batch]), (batch, k)
            compared += batch * 400
            accepted += sum(max(a, 0) for row in block.accepted for a in row)
    assert compared >= 10_000 and accepted > compared // 20


@pytest.mark.gpu
@pytest.mark.parametrize("batch", range(1, 9))
def test_with_penalties_it_does_so_at_every_batch(batch: int) -> None:
    made = sampled(STEERED)
    made.prefill(PROMPTS[:batch], draft=True)
    plain = tokens(made, 0, Budget(new_tokens=120))
    for k in (1, 3, 7):
        assert tokens(made, k, Budget(new_tokens=120)) == plain
    assert tokens(made, 0, Budget(new_tokens=120)) == plain  # what was counted is forgotten


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", [PLAIN, STEERED], ids=["temperature", "everything"])
def test_logits_along_a_drawn_text_are_the_baselines_bit_for_bit(sampling: Sampling) -> None:
    made = sampled(sampling)
    made.prefill(PROMPTS[:3], draft=True)
    check_speculation(made, (3, 7), 20)


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", [PLAIN, RICH, STEERED], ids=["temperature", "filters", "everything"])
def test_drawn_tokens_are_those_that_the_reference_draws_of_the_same_logits(sampling: Sampling) -> None:
    """But where its float64 and the device's part, at about one draw of 10 ** 10."""
    made = sampled(sampling)
    prompts = PROMPTS[:2]
    made.prefill(prompts, draft=True)
    text, rows = tokens(made, 0, Budget(steps=100)), trace(made, 0, 100, StopRule((), (), SIZES.positions))
    requests = requests_of(prompts)
    for (slot, position), row in rows.items():
        law = target_distribution(row.double().cpu().numpy(), as_left(sampling))
        keys = Keys(sampling.seed, requests[slot : slot + 1], np.array([position + 1]))
        emitted = position + 1 - len(prompts[slot])
        assert text[slot][emitted] == int(sample(law[None], keys)[0])


@pytest.mark.gpu
def test_penalties_count_prompt_and_output_as_the_reference_does() -> None:
    """Of logits with and without them: the engine without penalties decodes the same text, forced by what was drawn."""
    made, plain = sampled(PENALISED), sampled(Sampling(seed=8))
    made.prefill(PROMPTS[:2], draft=False)
    plain.prefill(PROMPTS[:2], draft=False)
    text = tokens(made, 0, Budget(new_tokens=40))
    for slot in range(2):
        for n in (0, 1, 5, 39):
            with torch.inference_mode():
                left = made._logits_after(slot, text[slot][:n]).double().cpu().numpy()
                raw = plain._logits_after(slot, text[slot][:n]).double().cpu().numpy()
            history = History.of(PROMPTS[slot], text[slot][:n], VOCAB)
            assert (left == penalised(raw, PENALISED, history).astype(np.float32)).all(), (slot, n)


@pytest.mark.gpu
def test_a_text_depends_on_its_prompt_and_the_seed_alone() -> None:
    made, budget = sampled(PLAIN), Budget(steps=40)
    made.prefill(PROMPTS, draft=True)
    together = tokens(made, 0, budget)
    made.prefill(PROMPTS[::-1], draft=True)
    assert tokens(made, 0, budget) == together[::-1]
    made.prefill(PROMPTS[2:3], draft=False)
    assert tokens(made, 0, budget) == together[2:3]
    assert tokens(made, 0, budget) == together[2:3]  # a replay
    other = sampled(replace(PLAIN, seed=1))
    other.prefill(PROMPTS[2:3], draft=False)
    assert tokens(other, 0, budget) != together[2:3]


@pytest.mark.gpu
def test_temperature_0_is_the_greedy_engine() -> None:
    greedy, cold = engine(), sampled(Sampling(temperature=0.0))
    texts = []
    for made in (greedy, cold):
        made.prefill(PROMPTS[:3], draft=True)
        texts.append([tokens(made, k, Budget(new_tokens=40)) for k in (0, 3)])
    assert texts[0] == texts[1]


@pytest.mark.gpu
def test_top2_tells_the_draw_after_any_beginning() -> None:
    made = sampled(PLAIN)
    made.prefill(PROMPTS[:2], draft=True)
    text = tokens(made, 0, Budget(steps=12))
    for slot in range(2):
        for n in (0, 1, 7):
            first, second = made.top2(slot, text[slot][:n])
            assert first > second
    assert tokens(made, 0, Budget(steps=12)) == text


def drawn(made: CupyEngine, role: Role, texts: int, given: Sequence[int]) -> DrawnTexts:
    counts = Counter(made.draw(role, given, 4, 10**6 * role.k, texts))
    both = {role.name: tuple(sorted(counts.items()))}
    laws = tuple(made.distribution(given, beginning, 0.1 / texts) for beginning in often_drawn(both))
    return DrawnTexts("p", tuple(given), both, laws, "cupy", None, None, (0, 1))


@pytest.mark.gpu
@pytest.mark.parametrize("role", [BASELINE, Role(3)], ids=["baseline", "spec-3"])
def test_twenty_thousand_draws_have_the_targets_distribution_and_no_other(role: Role) -> None:
    made = sampled(PEAKED)
    counts = drawn(made, role, 20_000, PROMPTS[0])
    check = check_draws(counts, role)
    assert check.draws == 20_000 and len(check.tests) >= 2
    assert check.p > 1e-4, check.worst
    warmer = sampled(replace(PEAKED, temperature=1.7))
    laws = tuple(warmer.distribution(PROMPTS[0], law.given, 0.1 / 20_000) for law in counts.laws)
    assert check_draws(replace(counts, laws=laws), role).p < 1e-9


@pytest.mark.gpu
def test_a_draw_does_not_depend_on_how_requests_are_grouped() -> None:
    made = sampled(PLAIN)
    whole = made.draw(Role(3), PROMPTS[0], 5, 7, 20)
    assert made.draw(Role(3), PROMPTS[0], 5, 11, 2) == whole[4:6]
    assert made.draw(BASELINE, PROMPTS[0], 5, 7, 20) == whole


@pytest.mark.gpu
def test_a_greedy_engine_draws_nothing() -> None:
    with pytest.raises(BackendError, match="opened to decode greedily"):
        engine().draw(BASELINE, PROMPTS[0], 3, 0, 5)


# ── by rejection, on a GPU ───────────────────────────────────────────────────────────────────────────────────────────

REJECTED = replace(PLAIN, method="rejection")
STEERED_AND_REJECTED = replace(STEERED, method="rejection")
DRAWN = replace(PEAKED, method="rejection")


def by_reference(made: CupyEngine, k: int, steps: int) -> tuple[list[list[int]], list[list[int]], int]:
    """(texts, those that `specgate.sampling` emits of the same logits, drafts accepted), over single steps."""
    sampling, prefilled = made.sizes.sampling, made.prefilled
    assert sampling is not None and prefilled is not None and made.draft is not None and made.b.sampling is not None
    count, slots, taken = len(prefilled.prompts), made.b.slots, 0
    ids, requests = made.draft.target_ids.long().cpu().numpy(), requests_of(prefilled.prompts)
    with made.stream.current(), torch.inference_mode():
        step = made.step(k, count)
        prefilled.rewind(made.b, StopRule((), (), made.sizes.positions))
        wanted = [[token] for token in prefilled.first.tokens]
        for _ in range(steps):
            lengths = slots.length[:count].tolist()
            step()
            made.stream.wait()
            rows = made.b.target.layer.logits[: count * (k + 1)].view(count, k + 1, -1).double().cpu().numpy()
            drawn_from = made.b.sampling.draft_logits[:k, :count].double().cpu().numpy()
            drafts = slots.drafts[:count, :k].cpu().numpy().astype(np.int64)
            for slot in range(count):
                law = np.stack([target_distribution(row, as_left(sampling)) for row in rows[slot]])
                shares = np.stack([softmax(drawn_from[t, slot] / sampling.temperature) for t in range(k)])
                draft = over_target(shares, ids, rows.shape[-1])
                keys = Keys(sampling.seed, requests[slot : slot + 1], np.array([lengths[slot] + 1]))
                own = [int(draft_sample(draft[None, t], keys.after(t), coupled=False)[0]) for t in range(k)]
                assert own == drafts[slot].tolist()
                verified = verify_by_rejection(law[None], draft[None], drafts[slot : slot + 1], keys)
                assert int(slots.accepted[slot]) == verified.accepted[0]
                wanted[slot] += verified.tokens[0, : verified.accepted[0] + 1].tolist()
                taken += int(verified.accepted[0])
        assert not slots.fault.any()
        texts = [row[:n] for row, n in zip(slots.out.tolist(), slots.emitted.tolist(), strict=True)][:count]
    return texts, wanted, taken


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", [REJECTED, STEERED_AND_REJECTED], ids=["temperature", "everything"])
@pytest.mark.parametrize(("batch", "k"), [(1, 3), (3, 1), (8, 3), (2, 7)])
def test_by_rejection_every_token_is_the_references_of_the_same_logits(sampling: Sampling, batch: int, k: int) -> None:
    made = sampled(sampling)
    made.prefill(PROMPTS[:batch], draft=True)
    texts, wanted, taken = by_reference(made, k, 30)
    assert texts == wanted
    assert 0 < taken < 30 * batch * k


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", [REJECTED, STEERED_AND_REJECTED], ids=["temperature", "everything"])
def test_by_rejection_a_text_does_not_depend_on_what_shares_its_step(sampling: Sampling) -> None:
    made, budget = sampled(sampling), Budget(new_tokens=60)
    made.prefill(PROMPTS, draft=True)
    together = tokens(made, 3, budget)
    assert tokens(made, 3, budget) == together  # a replay
    made.prefill(PROMPTS[::-1], draft=True)
    assert tokens(made, 3, budget) == together[::-1]
    for slot in (0, 6):
        made.prefill(PROMPTS[slot : slot + 1], draft=True)
        assert tokens(made, 3, budget) == together[slot : slot + 1]


@pytest.mark.gpu
def test_plain_decoding_is_the_same_by_either_method() -> None:
    texts = []
    for sampling in (STEERED, STEERED_AND_REJECTED):
        made = sampled(sampling)
        made.prefill(PROMPTS[:4], draft=True)
        texts.append(tokens(made, 0, Budget(new_tokens=60)))
    assert texts[0] == texts[1]


@pytest.mark.gpu
def test_at_temperature_0_rejection_is_greedy_speculation() -> None:
    texts = []
    for method in ("coupled", "rejection"):
        made = sampled(Sampling(temperature=0.0, method="rejection" if method == "rejection" else "coupled"))
        made.prefill(PROMPTS[:3], draft=True)
        texts.append(tokens(made, 3, Budget(new_tokens=40)))
    assert texts[0] == texts[1]


@pytest.mark.gpu
@pytest.mark.parametrize("k", [1, 3])
def test_twenty_thousand_draws_by_rejection_have_the_targets_distribution(k: int) -> None:
    made, role = sampled(DRAWN), Role(k)
    check = check_draws(drawn(made, role, 20_000, PROMPTS[0]), role)
    assert check.draws == 20_000 and len(check.tests) >= 2
    assert check.p > 1e-4, check.worst


# Draft and target of this pair hardly overlap where a text begins. What a fault does with the residual would not be
# seen here: the kernel's own tests draw over two distributions that do.
@pytest.mark.gpu
@pytest.mark.parametrize("fault", ["accepts whatever is drafted", "is always greedy"])
def test_twenty_thousand_draws_of_a_faulty_verify_have_not(fault: str) -> None:
    made, role = engine_of(*checkpoints(shape(8, 2, 64)), replace(SIZES, sampling=DRAWN)), Role(3)
    rejection = made._cycle(3, SIZES.slots).verify.choice.rejection
    assert rejection is not None
    REJECTION[fault](rejection)
    assert check_draws(drawn(made, role, 20_000, PROMPTS[0]), role).p < 1e-9
