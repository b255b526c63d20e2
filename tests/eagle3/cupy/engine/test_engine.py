"""The whole engine on a GPU: rewind, prefix reuse, active slots, limits, faults."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specgate.backends.eagle3.cupy.engine import decode_run, decoding
from specgate.backends.eagle3.cupy.engine.decode_run import AHEAD, STEPS_PER_GRAPH, SlotWatch, StopRule, run
from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.backends.eagle3.cupy.engine.prefill import CHUNK
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.memory.buffers import tensors_of
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.lib.kv.modes import KvMode, KvModes
from specgate.backends.eagle3.lib.logit_watch import digest_of
from specgate.contract import BASELINE, Budget, Role
from specgate.errors import BackendError
from tests.eagle3.cupy.engine.tracing import same_prefixes, tokens, trace
from tests.eagle3.cupy.gpu_pairs import RAGGED, SIZES, checkpoints, engine, engine_of, random_prompts, shape

pytestmark = pytest.mark.gpu

STEPS = 27
"""Graphs of several steps, and of one."""


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
    assert made.prefilled is not None and made.prefilled.layout.reused_positions == 2 * 2 * BLOCK
    block = made.decode(Role(3), Budget(steps=STEPS), ())
    assert block.tokens[0] == block.tokens[2] == block.tokens[3] != block.tokens[1]
    made.prefill([long], draft=True)
    alone = made.decode(Role(3), Budget(steps=STEPS), ())
    assert alone.tokens[0] == block.tokens[0]
    assert [row[0] for row in alone.accepted] == [row[2] for row in block.accepted]


@pytest.mark.parametrize("kv", ["bf16", "fp8"])
@pytest.mark.parametrize("geometry", [(8, 2, 64), (16, 2, 128)], ids=["heads of 64", "heads of 128"])
def test_prompts_that_begin_alike_have_the_cache_and_the_texts_that_each_has_alone(
    geometry: tuple[int, int, int], kv: KvMode
) -> None:
    """By the libraries of a prefill, within a call and from the call before."""
    sizes = Sizes(slots=3, positions=9000, max_rows=4, kv=KvModes(kv, kv))
    made = engine_of(*checkpoints(shape(*geometry)), sizes)
    whole, other, last = random_prompts([8300] * 3)
    prompts = [whole, [*whole[:4200], *other[4200:]], [*whole[:8193], *last[8193:]]]

    def left() -> list[tuple[list[torch.Tensor], list[tuple[int, ...]]]]:
        """Of each slot, what the prefill has left, before a step writes behind the prompt; and the texts."""
        assert made.prefilled is not None
        pages, layout = [t for pages in made.b.pages for t in tensors_of(pages)], made.prefilled.layout
        caches = [[t[:, list(own)].clone() for t in pages] for own in layout.blocks]
        torch.cuda.synchronize()
        runs = [made.decode(Role(k), Budget(steps=STEPS), ()) for k in (0, 3)]
        assert {run.counters["cache_hit_tokens"] for run in runs} == {sum(layout.start)}
        return [
            ([*cache, *tensors_of(row)], [run.tokens[slot] for run in runs])
            for slot, (cache, row) in enumerate(zip(caches, made.prefilled.last, strict=True))
        ]

    alone = []
    for prompt in prompts:
        made.prefill([prompt], draft=True)
        alone += left()
    made.prefill([prompts[0]], draft=True)
    made.shared_chunk = CHUNK
    for call, starts in (([1, 2, 0], (4096, 8192, 8192)), ([2, 1], (8192, 8192))):
        made.prefill([prompts[of] for of in call], draft=True)
        assert made.prefilled is not None and made.prefilled.layout.start == starts
        for of, (tensors, texts) in zip(call, left(), strict=True):
            want, wanted = alone[of]
            assert texts == wanted and all(torch.equal(*pair) for pair in zip(tensors, want, strict=True))


def test_one_damaged_cache_block_changes_the_tokens() -> None:
    made = engine()
    made.prefill(random_prompts([700]), draft=True)
    before = {k: tokens(made, k, Budget(steps=60)) for k in (0, 3)}
    assert same_prefixes(before[0], before[3])
    assert made.prefilled is not None
    block = made.prefilled.layout.blocks[0][-1]
    with made.stream.current():  # it does not wait for the default one
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


@pytest.mark.parametrize(("first", "more"), [(STEPS, 33), (1, 8), (16, 1)])
def test_an_extended_text_is_that_of_one_longer_run(first: int, more: int) -> None:
    made = engine()
    made.prefill(random_prompts(RAGGED), draft=True)
    made.graphs.clear()  # so that a graph is captured in the middle of a text
    begun = made.decode(BASELINE, Budget(steps=first), ())
    extended = made.extend(more)
    whole = made.decode(BASELINE, Budget(steps=first + more), ())
    assert (extended.tokens, extended.finish) == (whole.tokens, whole.finish)
    assert same_prefixes(begun.tokens, extended.tokens)


def test_a_text_is_extended_only_right_after_its_plain_decode() -> None:
    made = engine()
    made.prefill(random_prompts([100]), draft=True)
    for between in (
        lambda: made.decode(Role(3), Budget(steps=4), ()),
        lambda: made.top2(0, (5,)),  # after no token it is the prefill's, and runs nothing
        lambda: made.extend(4),
        lambda: made.logits(BASELINE, (1, 2)),
    ):
        made.decode(BASELINE, Budget(steps=4), ())
        between()
        with pytest.raises(BackendError, match="a plain decode has to come before"):
            made.extend(4)
    made.decode(BASELINE, Budget(steps=4), ())
    with pytest.raises(BackendError, match=f"exceed {SIZES.positions} cached positions"):
        made.extend(SIZES.positions)


def test_the_logits_shown_are_those_of_the_decode_path_and_equal_in_every_role() -> None:
    made = engine()
    made.prefill(random_prompts(RAGGED), draft=True)
    positions = (1, 2, 5, 11, 23)
    text = tokens(made, 0, Budget(steps=24))
    seen = trace(made, 0, 24, StopRule((), (), SIZES.positions))
    expected = tuple(
        tuple((text[slot][p], digest_of(seen[slot, length + p - 1])) for p in positions)
        for slot, length in enumerate(RAGGED)
    )
    for role in (BASELINE, Role(1), Role(3), Role(5)):
        assert made.logits(role, positions) == expected


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


def test_whole_requests_end_soon_after_their_last_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    made, launched = engine(), list[tuple[int, ...]]()
    made.prefill(random_prompts(RAGGED[:1]), draft=True)
    (text,) = tokens(made, 0, Budget(new_tokens=300))

    def counted(*args: Any, **named: Any) -> Any:
        launched.append((result := run(*args, **named))[0])
        return result

    monkeypatch.setattr(decoding, "run", counted)
    stop = text[40]
    for k in (0, 3):
        block = made.decode(Role(k), Budget(new_tokens=300, ignore_eos=False), (stop,))
        assert block.tokens == (text[: text.index(stop) + 1],) and block.finish == ("stop",)
        with_work = -(-len(block.step_ns) // STEPS_PER_GRAPH)
        assert with_work <= len(launched[-1]) <= with_work + AHEAD


@pytest.mark.parametrize("late_ns", [decode_run.LATE_NS, 1])
def test_where_slots_have_ended_steps_for_fewer_slots_emit_the_same_tokens(
    monkeypatch: pytest.MonkeyPatch, late_ns: int
) -> None:
    """In graphs of several steps, and one by one where the host is taken to be on time always."""
    made, replayed = engine(), list[tuple[int, int]]()
    made.prefill(random_prompts(RAGGED), draft=True)
    text = tokens(made, 0, Budget(new_tokens=400))
    stops = {next(t for t in own[40:] if t not in text[-1]) for own in text[:-1]}
    budget, step = Budget(new_tokens=400, ignore_eos=False), made.step

    def noted(k: int, count: int, kinds: tuple[Any, ...]) -> Any:
        replay = step(k, count, kinds)

        def replay_noted() -> None:
            replayed.append((count, len(kinds)))
            replay()

        return replay_noted

    monkeypatch.setattr(decode_run, "LATE_NS", late_ns)
    monkeypatch.setattr(made, "step", noted)
    for k in (1, 3, 5):
        with monkeypatch.context() as patch:
            patch.setattr(decoding, "widths", lambda count, rows: (count,))
            want = made.decode(Role(k), budget, [*stops])
        replayed.clear()
        block = made.decode(Role(k), budget, [*stops])
        assert (block.tokens, block.accepted, block.finish) == (want.tokens, want.accepted, want.finish)
        counts = [count for count, _ in replayed]
        assert counts == sorted(counts, reverse=True) and {*counts} <= {*decode_run.widths(8, k + 1)}
        assert (counts[-1] < 8) == (k > 1)
        assert {n for _, n in replayed[AHEAD:]} <= ({1} if late_ns == 1 and k > 1 else {1, STEPS_PER_GRAPH})


def test_whole_requests_are_watched_on_another_stream_than_their_steps_run_on() -> None:
    """torch hands out 32 streams again and again: on the steps' own the host would wait for all that is enqueued."""
    assert all(made._watch._stream != made.stream.torch for made in (engine() for _ in range(3)))
    new_stream: Any = torch.cuda.Stream
    assert all(SlotWatch(stream)._stream != stream for stream in [new_stream() for _ in range(70)])


def test_logits_are_shown_up_to_where_the_room_for_whole_requests_ends() -> None:
    target, draft = checkpoints(shape(8, 2, 64))
    prompts = random_prompts(RAGGED[:2])
    longest = max(map(len, prompts))
    made = engine_of(target, draft, Sizes(slots=2, positions=longest + 24 + 5, max_rows=4))
    made.prefill(prompts, draft=True)
    positions = (1, 7, 20, 23)
    assert made.logits(Role(3), positions) == made.logits(BASELINE, positions)


def broken_draft(plain: bool) -> CupyEngine:
    target, draft = checkpoints(shape(8, 2, 64))
    draft.tensors["fc.weight"][3, 5] = float("nan")
    return engine_of(target, draft, Sizes(slots=2, positions=512, max_rows=4), plain=plain)


def test_a_draft_with_nan_ends_the_stretch_with_its_reason() -> None:
    made = broken_draft(plain=False)
    made.prefill(random_prompts([40, 50]), draft=True)
    with pytest.raises(BackendError, match="draft's logits are not finite"):
        made.decode(Role(3), Budget(steps=8), ())
    assert len(made.decode(BASELINE, Budget(steps=8), ()).tokens[0]) == 9


def test_a_draft_with_nan_can_be_replaced_by_plain_decoding_that_says_so() -> None:
    made = broken_draft(plain=True)
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
    with made.stream.current():  # which clears them
        assert all(not t.isnan().any() for t in (made.b.target.pages.k, made.b.target.pages.v))
    with pytest.raises(BackendError, match="decode before prefill"):
        made.decode(BASELINE, Budget(steps=4), ())


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
