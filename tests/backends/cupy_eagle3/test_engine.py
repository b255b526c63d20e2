"""The whole engine on a GPU: bit-exact speculation, rewind, active slots, faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import pytest
import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.engine import CupyEngine
from specgate.backends.cupy_eagle3.kernels.heads import BLOCK, CHUNK
from specgate.backends.cupy_eagle3.sizes import Sizes
from specgate.backends.cupy_eagle3.stretch import StopRule
from specgate.backends.reference.engine import ReferenceEngine
from specgate.core import BASELINE, Budget, Role
from specgate.errors import BackendError
from tests.backends.cupy_eagle3.pairs import RECIPE_A, RECIPE_B, checkpoints, engine_of, random_prompts, shape

pytestmark = pytest.mark.gpu

GEOMETRIES = {"4:1 of 64": (8, 2, 64), "3:1 of 64": (9, 3, 64), "2:1 of 128": (8, 4, 128), "8:1 of 128": (16, 2, 128)}
SIZES = Sizes(slots=8, positions=2048, max_rows=6)
RAGGED = [5, BLOCK - 1, BLOCK, BLOCK + 1, CHUNK - 2, CHUNK, 700, 1]
STEPS = 24


@cache
def engine(name: str = "4:1 of 64", recipe: str = "A") -> CupyEngine:
    return engine_of(*checkpoints(shape(*GEOMETRIES[name]), {"A": RECIPE_A, "B": RECIPE_B}[recipe]), SIZES)


def trace(made: CupyEngine, k: int, steps: int, rule: StopRule) -> dict[tuple[int, int], Tensor]:
    """(slot, position) → logits [V] of every row whose context is the emitted text, over `steps` single steps."""
    assert made.prompted is not None
    slots, found = made.b.slots, dict[tuple[int, int], Tensor]()
    with made.stream.current():
        step = made.step(k, len(made.prompted.prompts))
        made.prompted.rewind(made.b, rule)
        for _ in range(steps):
            active, lengths = slots.active[: int(slots.active_count)].tolist(), slots.length.tolist()
            step()
            made.stream.wait()
            for a, slot in enumerate(active):
                for t in range(int(slots.accepted[slot]) + 1):
                    found[slot, lengths[slot] + t] = made.b.target.layer.logits[a * (k + 1) + t].clone()
        assert not slots.fault.any()
    return found


def tokens(made: CupyEngine, k: int, budget: Budget, stop: Sequence[int] = ()) -> tuple[tuple[int, ...], ...]:
    return made.decode(Role(k), budget, stop).tokens


def same_prefixes(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> bool:
    return all(list(a)[: len(b)] == list(b)[: len(a)] for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("recipe", ["A", "B"])
@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_tokens_and_logits_of_every_draft_length_equal_the_baselines_bit_for_bit(
    name: str, recipe: str, batch: int
) -> None:
    made = engine(name, recipe)
    made.prefill(random_prompts(RAGGED[-batch:], seed=batch), draft=True)
    rule = StopRule((), (), SIZES.positions)
    plain = trace(made, 0, STEPS * 3, rule)
    baseline, accepted = tokens(made, 0, Budget(steps=STEPS * 3)), 0
    for k in (1, 2, 3, 4, 5):
        got = trace(made, k, STEPS, rule)
        common = [at for at in got if at in plain]
        assert len(common) >= STEPS * batch
        assert all(torch.equal(got[at], plain[at]) for at in common)
        block = made.decode(Role(k), Budget(steps=STEPS), ())
        assert same_prefixes(block.tokens, baseline)
        accepted += sum(a for row in block.accepted for a in row)
    assert accepted > STEPS  # else nothing but the first row was ever compared


def test_slots_that_end_leave_the_others_bits_alone() -> None:
    made = engine()
    made.prefill(random_prompts(RAGGED), draft=True)
    free_run = tokens(made, 0, Budget(steps=60))
    # Stop ids that some slots meet early and some never.
    stop = sorted({text[3 + 4 * slot] for slot, text in enumerate(free_run[:5])})
    budget = Budget(new_tokens=50, ignore_eos=False)
    baseline = made.decode(BASELINE, budget, stop)
    assert len({len(t) for t in baseline.tokens}) > 2
    assert same_prefixes(baseline.tokens, free_run)
    assert all((t[-1] in stop) == (f == "stop") for t, f in zip(baseline.tokens, baseline.finish, strict=True))
    rule = StopRule((), tuple(stop), 50)
    plain = trace(made, 0, 50, rule)
    for k in (1, 3, 5):
        block = made.decode(Role(k), budget, stop)
        assert (block.tokens, block.finish) == (baseline.tokens, baseline.finish)
        got = trace(made, k, 50, rule)
        assert all(torch.equal(got[at], plain[at]) for at in got if at in plain)
        counts = [sum(a >= 0 for a in row) for row in block.accepted]
        assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1] > 0


def test_a_long_context_is_bit_exact_too() -> None:
    made = engine_of(*checkpoints(shape(8, 2, 128)), Sizes(slots=2, positions=33400, max_rows=6))
    made.prefill(random_prompts([32768, 16384 + 7]), draft=True)
    baseline, rule = tokens(made, 0, Budget(steps=60)), StopRule((), (), 33000)
    plain = trace(made, 0, 60, rule)
    for k in (1, 2, 3, 4, 5):
        assert same_prefixes(tokens(made, k, Budget(steps=20)), baseline)
        got = trace(made, k, 20, rule)
        assert all(torch.equal(got[at], plain[at]) for at in got if at in plain)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_logits_and_drafts_agree_with_the_float32_reference(name: str) -> None:
    lengths = [300, 70]
    made = engine(name, "B")
    made.prefill(random_prompts(lengths), draft=True)
    rule = StopRule((), (), SIZES.positions)
    plain, text = trace(made, 0, 40, rule), tokens(made, 0, Budget(steps=40))
    target, draft = checkpoints(shape(*GEOMETRIES[name]), RECIPE_B, torch.float32)
    oracle = ReferenceEngine(target, draft, max_batch=2, max_positions=1024, device="cuda")
    oracle.prefill(random_prompts(lengths), draft=True)
    block = made.decode(Role(3), Budget(steps=40), ())
    want = oracle.decode(Role(3), Budget(steps=40), ())
    assert sum(map(sum, block.accepted)) == pytest.approx(sum(map(sum, want.accepted)), rel=0.1)
    for (slot, position), logits in plain.items():
        if text[slot][: position - lengths[slot] + 1] != want.tokens[slot][: position - lengths[slot] + 1]:
            continue
        exact = reference_logits(oracle, slot, text[slot][: position - lengths[slot] + 1])
        assert float(torch.cosine_similarity(logits, exact, dim=0)) >= 0.9999


def reference_logits(oracle: ReferenceEngine, slot: int, continuation: Sequence[int]) -> Tensor:
    from specgate.backends.reference.target import target_forward, target_logits

    start = len(oracle.prompts[slot])
    row = torch.tensor([list(continuation)], device="cuda")
    positions = torch.arange(start, start + row.shape[1], device="cuda")[None]
    cache, geometry = oracle.cache.slots(slot, slot + 1), oracle.target.geometry
    stream, _ = target_forward(oracle.tw, geometry, oracle.table, cache, row, positions, ())
    return target_logits(oracle.tw, geometry, stream[:, -1])[0]


def test_a_stretch_begins_where_the_prompt_ended_however_often_it_is_repeated() -> None:
    made = engine()
    made.prefill(random_prompts(RAGGED), draft=True)
    first = made.decode(Role(3), Budget(steps=STEPS), ())
    made.decode(BASELINE, Budget(steps=100), ())
    again = made.decode(Role(3), Budget(steps=STEPS), ())
    assert (first.tokens, first.accepted) == (again.tokens, again.accepted)


def test_graphs_and_single_launches_give_the_same_tokens() -> None:
    made = engine()
    made.prefill(random_prompts(RAGGED), draft=True)
    replayed = made.decode(Role(4), Budget(steps=STEPS), ())
    made.use_graphs = False
    launched = made.decode(Role(4), Budget(steps=STEPS), ())
    made.use_graphs = True
    assert (replayed.tokens, replayed.accepted) == (launched.tokens, launched.accepted)


def test_equal_prompts_share_blocks_and_emit_equal_tokens() -> None:
    made = engine()
    short, long = random_prompts([100, 3 * BLOCK])
    made.prefill([long, short, long, long], draft=True)
    assert made.prompted is not None and made.prompted.layout.reused_positions == 2 * 2 * BLOCK
    block = made.decode(Role(3), Budget(steps=STEPS), ())
    assert block.tokens[0] == block.tokens[2] == block.tokens[3] != block.tokens[1]
    made.prefill([long], draft=True)
    alone = made.decode(Role(3), Budget(steps=STEPS), ())
    assert alone.tokens[0] == block.tokens[0]
    assert [row[0] for row in alone.accepted] == [row[2] for row in block.accepted]


def test_one_damaged_cache_block_changes_the_tokens() -> None:
    made = engine()
    made.prefill(random_prompts([700]), draft=True)
    before = {k: tokens(made, k, Budget(steps=60)) for k in (0, 3)}
    assert same_prefixes(before[0], before[3])
    assert made.prompted is not None
    block = made.prompted.layout.blocks[0][-1]
    made.b.target.pages.v[:, block] = made.b.target.pages.v[:, block].flip(-1) * 4
    after = {k: tokens(made, k, Budget(steps=60)) for k in (0, 3)}
    assert not same_prefixes(before[0], after[0])
    assert same_prefixes(after[0], after[3])


def test_top2_are_the_logits_that_the_decode_path_saw() -> None:
    made = engine()
    lengths = [100, 7]
    made.prefill(random_prompts(lengths), draft=True)
    text, seen = tokens(made, 0, Budget(steps=12)), trace(made, 0, 12, StopRule((), (), SIZES.positions))
    for slot, n in ((0, 1), (0, 9), (1, 5)):
        logits = seen[slot, lengths[slot] + n - 1]
        assert made.top2(slot, text[slot][:n]) == tuple(logits.topk(2).values.tolist())
    first, second = made.top2(1, ())
    assert first > second
    assert tokens(made, 0, Budget(steps=12)) == text


def test_requests_end_at_their_limit_with_their_accounts_in_order() -> None:
    made = engine()
    made.prefill(random_prompts(RAGGED[:3]), draft=True)
    for k in (0, 3):
        block = made.decode(Role(k), Budget(new_tokens=20), ())
        assert [len(t) for t in block.tokens] == [20] * 3
        assert set(block.finish) == {"length"}
        for slot in range(3):
            mine = [row[slot] for row in block.accepted if row[slot] >= 0]
            assert sum(mine) + len(mine) - block.truncated[slot] == 19
        assert len(block.step_ns) == len(block.accepted) and min(block.step_ns) > 0
        assert block.elapsed_ns == sum(block.step_ns)
        assert set(block.phase_ns) == {"draft", "verify", "accept", "commit"} and min(block.phase_ns.values()) >= 0
    ended = made.decode(Role(3), Budget(new_tokens=1), ())
    assert [len(t) for t in ended.tokens] == [1] * 3 and ended.step_ns == ()


def broken_draft(plain: bool) -> Iterator[CupyEngine]:
    target, draft = checkpoints(shape(8, 2, 64))
    draft.tensors["fc.weight"][3, 5] = float("nan")
    yield engine_of(target, draft, Sizes(slots=2, positions=512, max_rows=4), plain=plain)


def test_a_draft_with_nan_ends_the_stretch_with_its_reason() -> None:
    (made,) = broken_draft(plain=False)
    made.prefill(random_prompts([40, 50]), draft=True)
    with pytest.raises(BackendError, match="draft's logits are not finite"):
        made.decode(Role(3), Budget(steps=8), ())
    assert len(made.decode(BASELINE, Budget(steps=8), ()).tokens[0]) == 9


def test_a_draft_with_nan_can_be_replaced_by_plain_decoding_that_says_so() -> None:
    (made,) = broken_draft(plain=True)
    made.prefill(random_prompts([40, 50]), draft=True)
    baseline = made.decode(BASELINE, Budget(steps=8), ())
    for _ in range(2):
        block = made.decode(Role(3), Budget(steps=8), ())
        assert block.tokens == baseline.tokens
        assert block.counters["disabled_draft_error"] == 16
        assert {d for row in block.drafted for d in row} == {0}


def test_a_target_with_nan_ends_the_stretch_whatever_the_role() -> None:
    target, draft = checkpoints(shape(8, 2, 64))
    target.tensors["lm_head.weight"][7, 7] = float("nan")
    made = engine_of(target, draft, Sizes(slots=1, positions=512, max_rows=4), plain=True)
    with pytest.raises(BackendError, match="target's logits are not finite"):
        made.prefill(random_prompts([40]), draft=True)


def test_what_does_not_fit_is_refused_with_numbers() -> None:
    made = engine()
    with pytest.raises(BackendError, match="9 prompts for an engine of 8 slots"):
        made.prefill(random_prompts([4] * 9), draft=True)
    with pytest.raises(BackendError, match=r"2048\.\.2048 outside 1\.\.2047"):
        made.prefill(random_prompts([2048]), draft=True)
    made.prefill(random_prompts([40]), draft=False)
    with pytest.raises(BackendError, match="without the draft"):
        made.decode(Role(3), Budget(steps=8), ())
    with pytest.raises(BackendError, match="exceed 2048 cached positions"):
        made.decode(BASELINE, Budget(steps=2020), ())
    with pytest.raises(BackendError, match="opened for spec-5"):
        made.decode(Role(6), Budget(steps=1), ())
