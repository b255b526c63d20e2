"""Committing a cycle: stop criteria inside an accepted run, against a token-by-token statement of the rules."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.eagle3.reference.state import Slots, StopRule, commit

EOS, STOP = 3, 4


def by_hand(emitted: int, tokens: list[int], accepted: int, limit: int) -> tuple[list[int], str | None, int]:
    """Return one slot's text, its end, and the number of verified tokens that are cut."""
    out: list[int] = []
    reason = None
    for token in tokens[: accepted + 1]:
        if emitted + len(out) >= limit:
            break
        out.append(token)
        reason = {EOS: "eos", STOP: "stop"}.get(token)
        if reason:
            break
    if reason is None and emitted + len(out) >= limit:
        reason = "length"
    return out, reason, accepted + 1 - len(out)


slot_cases = st.integers(0, 4).flatmap(
    lambda k: st.tuples(
        st.lists(
            st.tuples(st.lists(st.integers(0, 5), min_size=k + 1, max_size=k + 1), st.integers(0, k)),
            min_size=1,
            max_size=4,
        ),
        st.integers(2, 8),
    )
)


@given(slot_cases)
def test_a_slot_ends_at_eos_stop_or_limit_inside_an_accepted_run(case: tuple[list[tuple[list[int], int]], int]) -> None:
    cycles, limit = case
    batch = len(cycles)
    rule = StopRule.make([EOS], [STOP], limit, ignore=False, device="cpu")
    slots = Slots.begin(torch.full((batch,), 10), torch.zeros(batch, dtype=torch.long), 16, rule)
    count = commit(slots, torch.tensor([t for t, _ in cycles]), torch.tensor([a for _, a in cycles]), rule)
    reasons = slots.finish_reasons()
    for i, (tokens, accepted) in enumerate(cycles):
        out, reason, cut = by_hand(1, tokens, accepted, limit)
        assert slots.out[i, 1 : 1 + len(out)].tolist() == out
        assert count[i] == len(out)
        assert slots.length[i] == 10 + len(out)
        assert slots.truncated[i] == cut
        assert reasons[i] == (reason or "steps")
        assert slots.last_token[i] == (out[-1] if out else 0)


def test_a_finished_slot_is_left_alone() -> None:
    rule = StopRule.make([EOS], [], 8, ignore=False, device="cpu")
    slots = Slots.begin(torch.tensor([5, 5]), torch.tensor([0, 0]), 8, rule)
    commit(slots, torch.tensor([[EOS, 1], [1, 2]]), torch.tensor([1, 1]), rule)
    before = slots.out[0].tolist(), int(slots.length[0])
    commit(slots, torch.tensor([[1, 1], [2, 2]]), torch.tensor([1, 1]), rule)
    assert (slots.out[0].tolist(), int(slots.length[0])) == before
    assert slots.out[1, :5].tolist() == [0, 1, 2, 2, 2]


def test_ignored_eos_ends_nothing() -> None:
    rule = StopRule.make([EOS], [STOP], 8, ignore=True, device="cpu")
    slots = Slots.begin(torch.tensor([5]), torch.tensor([0]), 8, rule)
    commit(slots, torch.tensor([[EOS, STOP, 1]]), torch.tensor([2]), rule)
    assert slots.finish_reasons() == ("steps",)
    assert int(slots.emitted[0]) == 4


def test_a_prefill_token_can_end_a_slot() -> None:
    first = torch.tensor([EOS, STOP, 1])
    rule = StopRule.make([EOS], [STOP], 8, ignore=False, device="cpu")
    assert Slots.begin(torch.full((3,), 5), first, 8, rule).finish_reasons() == ("eos", "stop", "steps")
    one = StopRule.make([EOS], [STOP], 1, ignore=False, device="cpu")
    assert Slots.begin(torch.full((3,), 5), first, 8, one).finish_reasons() == ("length",) * 3
