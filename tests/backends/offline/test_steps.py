"""From what a loop says of its steps to what every request drafted and accepted: held against how the loop was made."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.backends.offline.blocks import block_of_steps
from specgate.backends.offline.replies import Emitted, Loop, Step, loop_of
from specgate.backends.servers.exchange import NOTHING, SpecCounts
from specgate.contract import Budget, Role
from specgate.errors import BackendError

K = 3


@st.composite
def made_loops(draw: st.DrawFn) -> tuple[Loop, list[list[tuple[int, int]]], int]:
    """A loop, [(drafted, accepted) of every step] of each slot, and the tokens that each request was asked for."""
    slots, limit = draw(st.integers(1, 4)), draw(st.integers(2, 12))
    one = st.one_of(st.integers(0, K).map(lambda a: (K, a)), st.just((0, 0)))
    done, made = [list[tuple[int, int]]() for _ in range(slots)], [1] * slots
    steps = [Step(10, tuple(Emitted(s, (s,), None) for s in range(slots)), NOTHING, 0)]
    while running := [s for s in range(slots) if made[s] < limit]:
        outs, spec = [], NOTHING
        for slot in draw(st.permutations(running)):
            drafted, accepted = draw(one)
            if drafted:
                spec += SpecCounts(1, drafted, accepted, tuple(int(i == accepted) for i in range(K + 1)))
            emitted = min(accepted + 1, limit - made[slot])
            made[slot] += emitted
            done[slot].append((drafted, accepted))
            outs.append(Emitted(slot, tuple(range(emitted)), "length" if made[slot] == limit else None))
        steps.append(Step(steps[-1].ns + draw(st.integers(0, 9)), tuple(outs), spec, 0))
    total = tuple(sum(getattr(s.spec, name) for s in steps) for name in ("steps", "drafted", "accepted"))
    return Loop(tuple(steps), total, total), done, limit


@settings(max_examples=60)
@given(made_loops())
def test_the_rows_are_those_that_the_loop_was_made_of(made: tuple[Loop, list[list[tuple[int, int]]], int]) -> None:
    loop, done, limit = made
    block = block_of_steps(Role(K), Budget(new_tokens=limit), loop, (), len(done), "test")
    for slot, rows in enumerate(done):
        ours = [(d[slot], a[slot]) for d, a in zip(block.drafted, block.accepted, strict=True) if a[slot] >= 0]
        # Which of several requests drafted without success, or lost tokens in the same last step, is not told.
        assert [a for _, a in ours[:-1]] == [a for _, a in rows[:-1]]
        assert ours == rows or len(done) > 1
        assert len(block.tokens[slot]) - 1 == len(ours) + sum(a for _, a in ours) - block.truncated[slot]
    for step in range(len(block.accepted)):
        mine = [(rows[step]) for rows in done if step < len(rows)]
        seen = [(d, a) for d, a in zip(block.drafted[step], block.accepted[step], strict=True) if a >= 0]
        assert sum(d for d, _ in seen) == sum(d for d, _ in mine)
        assert sorted(a for _, a in seen) == sorted(a for _, a in mine)
    assert sum(block.step_ns) == block.elapsed_ns and block.prefill_ns == 10


FIRST = Step(10, (Emitted(0, (7,), None),), NOTHING, 0)


def loop(*steps: Step) -> Loop:
    spec = [sum(getattr(s.spec, name) for s in steps) for name in ("steps", "drafted", "accepted")]
    return Loop((FIRST, *steps), tuple(spec), tuple(spec))


@pytest.mark.parametrize(
    ("steps", "role", "message"),
    [
        ((Step(20, (Emitted(0, (1, 2), None),), NOTHING, 0),), Role(K), r"requests got \[2\] tokens"),
        ((Step(20, (Emitted(0, (1,), None),), SpecCounts(1, 3, 2, (0, 0, 1, 0)), 0),), Role(K), r"got \[1\] tokens"),
        ((Step(20, (Emitted(0, (1,), None),), SpecCounts(2, 6, 0, (2, 0, 0, 0)), 0),), Role(K), "2 drafts, 1 requests"),
        ((Step(20, (Emitted(0, (1,), None),), SpecCounts(1, 3, 0, (1,)), 0),), Role(0), "draft length 0"),
        ((Step(20, (Emitted(0, (1,), None),), SpecCounts(1, 9, 0, (1,)), 0),), Role(K), "9 tokens in 1 drafts"),
        ((Step(20, (Emitted(0, (), None),), NOTHING, 0),), Role(K), "0 drafts, 1 requests"),
        ((Step(5, (Emitted(0, (1,), "length"),), NOTHING, 0),), Role(K), "clock went back by 5 ns"),
        ((Step(20, (Emitted(0, (1,), "repetition"),), NOTHING, 0),), Role(K), "ended with 'repetition' after 2 tokens"),
    ],
)
def test_counts_that_contradict_the_tokens_are_refused(steps: tuple[Step, ...], role: Role, message: str) -> None:
    with pytest.raises(BackendError, match=message):
        block_of_steps(role, Budget(new_tokens=2), loop(*steps), (), 1, "test")


def test_counters_that_are_not_what_the_steps_had_are_refused() -> None:
    with pytest.raises(BackendError, match="its steps had 0 drafts of 0 tokens with 0 accepted, but the counters"):
        block_of_steps(Role(K), Budget(new_tokens=2), replace(loop(), counted=(1, 3, 0)), (), 1, "test")


@pytest.mark.parametrize(
    "reply",
    [
        None,
        7,
        {},
        {"steps": {}, "heard": [0, 0, 0], "counted": [0, 0, 0]},
        {"steps": [], "heard": [0, 0], "counted": [0, 0, 0]},
        {"steps": [], "heard": [0, 0, -1], "counted": [0, 0, 0]},
        {"steps": [{"ns": 1, "out": [[2, [1], None]], "spec": [0, 0, 0, []], "cached": 0}], "heard": [], "counted": []},
        {"steps": [{"ns": 1.5, "out": [], "spec": [0, 0, 0, []], "cached": 0}], "heard": [], "counted": []},
        {"steps": [{"ns": 1, "out": [], "spec": [1, 3, 2, [1, 0]], "cached": 0}], "heard": [], "counted": []},
        {"steps": [{"ns": 1, "out": [], "spec": [1, 3, 1, []], "cached": 0}], "heard": [], "counted": []},
    ],
)
def test_answers_of_another_form_are_refused(reply: object) -> None:
    with pytest.raises(BackendError, match="test: malformed answer"):
        loop_of(reply, 2, "test")
