"""Green runs in a row: the rule line by line, and against a statement of it that knows no loop state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.contract import EngineIdentity, State
from specgate.promotion.green_runs import EXPIRY, NEEDED, Claim, assuming_last_engine, green_runs
from specgate.promotion.ledger import Entry
from tests.promotion.entries import ENTRY

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SUBJECT = {"policy": "cpu", "pair": "demo"}
CLAIM = Claim(SUBJECT, {"one": "1", "two": "2"}, {"source": "s", "weights": "w"})


def entry(n: int, state: State = State.PASS, *, hours_ago: float = 1.0, **changes: Any) -> Entry:
    made = replace(ENTRY, run=f"run-{n}", state=state, pid=1000 + n)
    made = replace(made, time=(NOW - timedelta(hours=hours_ago)).isoformat(timespec="seconds"))
    made = replace(made, subject=SUBJECT, gates=CLAIM.gates, fingerprint=CLAIM.fingerprint)
    return replace(made, **changes)


def length(*entries: Entry) -> int:
    return green_runs(entries, CLAIM, NOW).length


def states(*names: str) -> list[Entry]:
    return [entry(n, State(name)) for n, name in enumerate(names)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), 0),
        (("PASS", "IMPROVED", "PASS"), 3),
        (("PASS", "PASS", "FAIL"), 0),
        (("PASS", "FAIL", "PASS", "PASS"), 2),
        (("PASS", "INVALID", "PASS"), 1),
        (("PASS", "INCONCLUSIVE", "PASS"), 2),
        (("PASS", "INCONCLUSIVE", "INCONCLUSIVE", "PASS"), 1),
        (("PASS", "INCONCLUSIVE", "PASS", "INCONCLUSIVE", "PASS"), 3),
        (("PASS", "INCONCLUSIVE", "ENV_REJECTED", "INCONCLUSIVE"), 0),
        (("PASS", "ENV_REJECTED", "ENV_REJECTED", "PASS"), 2),
    ],
)
def test_the_states_of_runs_make_the_count(names: tuple[str, ...], expected: int) -> None:
    assert length(*states(*names)) == expected


def test_another_build_or_attention_of_somebody_elses_engine_starts_anew() -> None:
    def made(**changes: Any) -> dict[str, str | None]:
        known = {"attention": "FLASH_ATTN 3", "dtype": "bfloat16"}
        identity = EngineIdentity("vllm", "0.25.1", changes.pop("build", None), settings=known | changes)
        return {**CLAIM.fingerprint, **identity.fingerprint}

    claim, before = replace(CLAIM, fingerprint=made()), [entry(n, fingerprint=made()) for n in range(2)]
    assert green_runs(before, claim, NOW).length == 2, "unknown is the same as unknown"
    for changes in ({"attention": "FLASHINFER"}, {"build": "wheel-8"}, {"cuda_graphs": "NONE"}):
        result = green_runs([*before, entry(2, fingerprint=made(**changes))], claim, NOW)
        (key,) = changes
        assert result.length == 0 and f"engine:{key} was " in result.steps[-1][1]
    assert green_runs([entry(0)], claim, NOW).length == 0, "a run of before there were builds has none"
    unloaded = assuming_last_engine(CLAIM, before, ())
    assert green_runs(before, unloaded, NOW).length == 2, "before it is loaded, the last engine is assumed"


@pytest.mark.parametrize("key", ["source", "weights"])
def test_another_fingerprint_in_between_starts_anew(key: str) -> None:
    other = entry(9, fingerprint={**CLAIM.fingerprint, key: "another"})
    assert length(entry(0), entry(1), other) == 0
    assert length(entry(0), entry(1), other, entry(2)) == 1


def test_a_count_that_starts_anew_names_every_change_with_both_values() -> None:
    made_by = {**CLAIM.fingerprint, "weights": "v", "package:torch": "2.11.0", "package:triton": "3.3"}
    claim = replace(CLAIM, fingerprint={**CLAIM.fingerprint, "package:torch": "2.12.0"})
    result = green_runs([entry(0, fingerprint=made_by), entry(1, fingerprint=claim.fingerprint)], claim, NOW)
    assert [effect for _, effect in result.steps] == [
        "starts anew: weights was v, is w; torch was 2.11.0, is 2.12.0; triton was 3.3, is absent",
        "one more",
    ]


def test_a_run_that_ended_before_its_engine_was_known_is_judged_by_its_state() -> None:
    known = {"source": "s"}
    assert length(entry(0), entry(1, State.ENV_REJECTED, fingerprint=known), entry(2)) == 2
    assert length(entry(0), entry(1, State.INVALID, fingerprint=known), entry(2)) == 1
    assert length(entry(0), entry(1, fingerprint=known), entry(2)) == 2


def test_a_run_of_some_of_the_gates_cannot_advance_but_can_reset() -> None:
    some = {"one": "1"}
    assert length(entry(0), entry(1, gates=some), entry(2)) == 2
    assert length(entry(0), entry(1, State.FAIL, gates=some), entry(2)) == 1
    assert length(entry(0), entry(1, gates={"one": "1", "two": "with fewer rounds"}), entry(2)) == 2
    assert length(entry(0), entry(1, gates={**CLAIM.gates, "three": "3"}), entry(2)) == 3


def test_other_policies_pairs_scenarios_and_full_runs_have_no_say() -> None:
    for other in (
        entry(1, State.FAIL, subject={**SUBJECT, "policy": "seed"}),
        entry(1, State.FAIL, gates={"three": "3"}),
        entry(1, State.FAIL, kind="full"),
    ):
        assert length(entry(0), other, entry(2)) == 2


def test_one_run_or_one_process_counts_once() -> None:
    assert length(entry(0), entry(1, run="run-0")) == 1
    assert length(entry(0), entry(1, pid=1000)) == 1
    assert length(entry(0), entry(1, pid=1000, process_started="2026-11-21T11:00:00.000+00:00")) == 2


def test_a_green_run_expires_and_one_from_the_future_counts_for_nothing() -> None:
    hours = EXPIRY.total_seconds() / 3600
    assert length(entry(0, hours_ago=hours + 0.01), entry(1, hours_ago=hours - 0.01), entry(2)) == 2
    assert length(entry(0), entry(1, hours_ago=-1)) == 1
    assert length(entry(0, hours_ago=-0.01)) == 1  # a time server stepped back by half a minute


def test_a_complete_count_ends_when_the_oldest_run_it_needs_expires() -> None:
    result = green_runs([entry(n, hours_ago=10 - n) for n in range(4)], CLAIM, NOW)
    assert result.complete
    assert result.expires == NOW - timedelta(hours=9) + EXPIRY
    assert green_runs((), CLAIM, NOW).expires is None


def test_every_run_that_has_a_say_says_what_it_did() -> None:
    result = green_runs([*states("PASS", "INCONCLUSIVE", "FAIL"), entry(3, gates={"one": "1"})], CLAIM, NOW)
    assert [effect for _, effect in result.steps] == [
        "one more",
        "no change",
        "starts anew",
        "no change: two did not run",
    ]


def test_unknown_weights_are_taken_from_the_last_run_that_knew_them() -> None:
    open_claim = Claim(SUBJECT, CLAIM.gates, {"source": "s"})
    runs = [entry(0, fingerprint={"source": "s", "weights": "old"}), entry(1), entry(2, State.FAIL, fingerprint={})]
    assert assuming_last_engine(open_claim, runs, ("weights",)) == CLAIM
    assert assuming_last_engine(open_claim, (), ("weights",)) == open_claim


# ── against a brute-force statement ──────────────────────────────────────────────────────────────────────────────────

ENTRIES = st.lists(
    st.builds(
        lambda n, state, hours, source, gates, kind, pid: entry(
            n, state, hours_ago=hours, fingerprint={"source": source, "weights": "w"}, gates=gates, kind=kind, pid=pid
        ),
        st.integers(0, 6),
        st.sampled_from([s for s in State if s is not State.SKIPPED] + [State.PASS] * 6),
        st.sampled_from([-2.0, 1.0, 20.0, 71.0, 73.0]),
        st.sampled_from(["s", "s", "s", "s", "t"]),
        st.sampled_from([CLAIM.gates, CLAIM.gates, {"one": "1"}, {"three": "3"}, {"one": "1", "two": "x"}]),
        st.sampled_from(["micro", "micro", "micro", "full"]),
        st.integers(1, 6),
    ),
    max_size=12,
)


def stated(entries: Sequence[Entry]) -> int:
    """Count the different green runs of all gates behind the last entry that starts the count anew."""
    heard = [e for e in entries if e.kind == "micro" and set(e.gates) & set(CLAIM.gates)]
    heard = [e for e in heard if e.state not in (State.ENV_REJECTED, State.NOT_JUDGED)]
    letters = "".join(
        "x" if e.fingerprint["source"] != "s" or e.state in (State.FAIL, State.INVALID)
        else "?" if e.state is State.INCONCLUSIVE
        else "g"
        for e in heard
    )  # fmt: skip
    behind = max([letters.rfind("x"), letters.rfind("??") + 1 if "??" in letters else -1]) + 1
    green = [e for e, letter in zip(heard[behind:], letters[behind:], strict=True) if letter == "g"]
    fresh = [e for e in green if timedelta() <= NOW - datetime.fromisoformat(e.time) <= timedelta(hours=72)]
    whole = [e for e in fresh if all(e.gates.get(name) == sha256 for name, sha256 in CLAIM.gates.items())]
    counted: list[Entry] = []
    for e in whole:
        if e.run not in [c.run for c in counted] and e.pid not in [c.pid for c in counted]:
            counted.append(e)
    return len(counted)


@given(ENTRIES)
def test_the_rule_is_what_it_is_said_to_be(entries: list[Entry]) -> None:
    result = green_runs(entries, CLAIM, NOW)
    assert result.length == stated(entries)
    assert result.complete == (result.length >= NEEDED)


@given(ENTRIES, st.sampled_from([State.FAIL, State.INVALID]))
def test_whatever_was_before_a_red_run_is_forgotten(entries: list[Entry], red: State) -> None:
    assert length(*entries, entry(20, red, pid=99)) == 0
    assert length(*entries, entry(20, red, pid=99), entry(21, pid=98)) == 1


@given(ENTRIES)
def test_waiting_never_makes_the_count_longer(entries: list[Entry]) -> None:
    past = [e for e in entries if datetime.fromisoformat(e.time) <= NOW]
    lengths = [green_runs(past, CLAIM, NOW + timedelta(hours=h)).length for h in (0, 1, 30, 60, 80)]
    assert lengths == sorted(lengths, reverse=True)


def test_a_run_that_is_not_judged_is_neither_green_nor_red() -> None:
    unjudged = entry(3, State.NOT_JUDGED, pid=3)
    assert length(entry(1, pid=1), entry(2, pid=2), unjudged) == 2
    assert length(entry(1, pid=1), unjudged, unjudged, entry(2, pid=2)) == 2
    assert length(unjudged, unjudged, unjudged) == 0
