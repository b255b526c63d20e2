"""Counts of a block that cannot be true, each named with its place and its equation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.checks.identities import check_block
from specgate.analysis.speculation.rewinds import check_rewinds
from specgate.contract import Block, Budget, Role
from specgate.errors import InvalidResult
from tests.analysis.speculation.evidence import served
from tests.support.factories import block, blocks_of, plan_of, run_of, scenario

BUDGET = Budget(steps=12)
patterns = st.lists(st.integers(0, 6), min_size=1, max_size=7)


def one_block() -> Block:
    return block(plan_of(scenario(batch=(2,))).rounds[-1], Role(3))


def counting(**counters: int) -> Callable[[Block], Block]:
    return lambda b: replace(b, counters=counters)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda b: replace(b, tokens=(b.tokens[0][:-1], b.tokens[1])), r"slot 0: emitted 33, .* 12 \+ 22 - 0"),
        (lambda b: replace(b, truncated=(0, 2)), r"slot 1: emitted \d+, .* - 2"),
        (lambda b: replace(b, truncated=(0, -2)), r"truncated\[1\] = -2"),
        (lambda b: replace(b, accepted=((4, 0), *b.accepted[1:])), "step 0 slot 0: accepted 4 of 3 drafts at k = 3"),
        (lambda b: replace(b, drafted=((4, 4), *b.drafted[1:])), "step 0 slot 0: accepted 3 of 4 drafts"),
        (lambda b: replace(b, accepted=((-1, 0), *b.accepted[1:])), "step 0 slot 0: accepted -1 of 3"),
        (lambda b: replace(b, accepted=b.accepted[1:]), "steps"),
        (lambda b: replace(b, step_ns=b.step_ns[1:]), "steps"),
        (lambda b: replace(b, truncated=(0,)), "2 slots"),
        (lambda b: replace(b, tokens=((), b.tokens[1])), "slot 0: no token"),
        (lambda b: replace(b, tokens=((-1, *b.tokens[0][1:]), b.tokens[1])), "slot 0: token id -1"),
        (counting(tuned_hits=-1), "tuned_hits = -1: a count is at least 0"),
        (counting(disabled_draft_error=1), "disabled_draft_error = 1, but 0 request-steps had no draft"),
    ],
)
def test_a_block_that_contradicts_itself_is_named_with_the_equation(spoil: Callable[[Block], Block], says: str) -> None:
    sound = one_block()
    check_block(sound, BUDGET)
    with pytest.raises(InvalidResult, match=rf"c64/b2/spec-3 set 3 round 1.*{says}"):
        check_block(spoil(sound), BUDGET)


def test_a_slot_that_has_finished_does_not_go_on() -> None:
    made = block(plan_of(scenario()).rounds[-1], Role(3))
    paused = replace(made, accepted=((-1,), *made.accepted[1:]), drafted=((-1,), *made.drafted[1:]))
    with pytest.raises(InvalidResult, match="step 1 slot 0: accepted 1, but it had finished before"):
        check_block(paused, BUDGET)


@given(st.integers(49_152, 1 << 62), st.integers(0, 12))
def test_an_id_beyond_the_vocabulary_is_named_with_its_index(beyond: int, at: int) -> None:
    plan = plan_of()
    facts = run_of(plan, blocks_of(plan)).engines[plan.points[0].key]
    made = block(plan.rounds[-1], Role(0))
    check_block(made, BUDGET, facts)
    row = (*made.tokens[0][:at], beyond, *made.tokens[0][at + 1 :])
    with pytest.raises(InvalidResult, match=f"token id {beyond} at index {at}, but the vocabulary has 49152"):
        check_block(replace(made, tokens=(row,)), BUDGET, facts)


@given(patterns, st.integers(0, 5), st.integers(1, 4))
def test_what_engines_return_keeps_every_identity(accept: list[int], k: int, batch: int) -> None:
    round_ = replace(plan_of(scenario(batch=(batch,))).rounds[-1], order=(Role(k),))
    made = block(round_, Role(k), accept=accept)
    rewound = [k - a for row in made.accepted for a in row]
    counters = {"rewound_tokens": sum(rewound), "rewind_steps": sum(r > 0 for r in rewound)}
    check_block(replace(made, counters=counters), BUDGET)
    check_rewinds([replace(made, counters=counters)])


@pytest.mark.parametrize(
    ("made", "counters", "why"),
    [
        (one_block(), {"rewound_tokens": 1}, r"rewound_tokens = 1, .* gives \d\d: rejected drafts stay in the cache"),
        (one_block(), {"rewind_steps": 99}, r"rewind_steps = 99, .* gives \d\d: committed tokens were rewound"),
        # 10 steps drafted 30 tokens, of which 14 were accepted; a draft token may be the step's own.
        (served([2, 3, 4, 1]), {"rewound_tokens": 17}, "rewound_tokens = 17, .* gives 6 to 16: committed tokens"),
        (served([2, 3, 4, 1]), {"rewound_tokens": 5}, "rewound_tokens = 5, .* gives 6 to 16: rejected drafts stay"),
        (served([2, 3, 4, 1]), {"rewind_steps": 11}, "rewind_steps = 11, .* gives 0 to 10: committed tokens"),
    ],
)
def test_a_rewind_that_no_rejected_draft_explains_is_named(made: Block, counters: dict[str, int], why: str) -> None:
    for fine in ({}, {"rewound_tokens": 6}, {"rewound_tokens": 16, "rewind_steps": 10}) if made.served else ():
        check_rewinds([replace(made, counters=fine)])
    with pytest.raises(InvalidResult, match=why):
        check_rewinds([replace(made, counters=counters)])
