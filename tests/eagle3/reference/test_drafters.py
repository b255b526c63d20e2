"""Whatever proposes the drafts, greedy speculation says what the target says; the stand-ins' lengths are known."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from specgate.backends.eagle3.reference.open import open_engine
from specgate.contract import BASELINE, Budget, PairRef, Role
from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.protocols import Decoded, Engine, OpenRequest
from specgate.contract.tape import Tape, sha256_of_ids
from specgate.errors import BackendError, UsageError
from tests.pairs.tiny import write_random_pair

PROMPTS = [[5, 9, 2, 7, 7, 1, 30, 12], [3, 3, 8], [40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> PairRef:
    folder = tmp_path_factory.mktemp("pair")
    return PairRef("random", *write_random_pair(folder, seed=1, layers=2, boundaries=(0, 1, 2)))


def opened(pair: PairRef, **options: str) -> Engine:
    engine = open_engine(OpenRequest(pair, "float32", 3, 400, 5, False, {"device": "cpu", **options}))
    engine.prefill(PROMPTS, draft=True)
    return engine


def length(decoded: Decoded, k: int) -> float | None:
    emitted = sum(len(tokens) - 1 for tokens in decoded.tokens)
    record = AcceptanceRecord.from_steps(k, decoded.accepted, decoded.drafted, emitted, sum(decoded.truncated))
    record.check()
    return record.acceptance_length


@pytest.mark.parametrize(("drafter", "ends"), [("none", False), ("random", True), ("oracle", True)])
def test_a_stand_in_changes_no_token(pair: PairRef, drafter: str, ends: bool) -> None:
    engine = opened(pair, drafter=drafter)
    plain = engine.decode(BASELINE, Budget(new_tokens=40, ignore_eos=not ends), ())
    stop = (plain.tokens[1][9],) if ends else ()
    baseline = engine.decode(BASELINE, Budget(new_tokens=40, ignore_eos=not ends), stop)
    assert ("stop" in baseline.finish) == ends
    for k in (1, 3, 5):
        spec = engine.decode(Role(k), Budget(new_tokens=40, ignore_eos=not ends), stop)
        assert (spec.tokens, spec.finish) == (baseline.tokens, baseline.finish)


@pytest.mark.parametrize("k", [1, 5])
def test_the_lengths_of_the_stand_ins_are_what_they_promise(pair: PairRef, k: int) -> None:
    budget = Budget(steps=20)
    assert length(opened(pair, drafter="none").decode(Role(k), budget, ()), k) == 1
    assert length(opened(pair, drafter="oracle").decode(Role(k), budget, ()), k) == k + 1
    at_random = length(opened(pair, drafter="random").decode(Role(k), budget, ()), k)
    assert at_random is not None and 1 <= at_random < 1.1


def test_blocks_of_the_random_stand_in_repeat_themselves(pair: PairRef) -> None:
    engine = opened(pair, drafter="random")
    first, second = (engine.decode(Role(3), Budget(steps=60), ()) for _ in range(2))
    assert (first.tokens, first.accepted) == (second.tokens, second.accepted)


def test_a_stand_in_needs_no_draft_and_is_named_for_what_it_is(pair: PairRef) -> None:
    alone = PairRef("target alone", pair.target, None)
    facts = opened(alone, drafter="oracle").facts()
    assert (facts.acceptance, facts.has_draft, facts.draft_sha256) == ("stand-in", True, None)
    assert facts.details["drafter"] == "oracle"
    assert opened(pair).facts().acceptance is None
    assert facts.warnings == ("drafter oracle stands in for the pair's draft: acceptance says nothing of the pair",)
    with pytest.raises(BackendError, match=r"has no draft, but spec-5.*\n.*drafter = none, random, oracle"):
        opened(alone)


def test_an_unknown_drafter_is_refused_with_the_known_ones(pair: PairRef) -> None:
    with pytest.raises(UsageError, match=r"drafter = 'orcale'\n  known: eagle3, none, random, oracle"):
        opened(pair, drafter="orcale")


# ── tapes ────────────────────────────────────────────────────────────────────────────────────────────────────────────

COUNTS = ((3, 0, 1), (2,), (0, 0, 3, 3))


def taped(folder: Path, prompts_sha256: str = "another run's") -> str:
    file = folder / "tape.json"
    Tape({"run": "r1"}, ("others", prompts_sha256), {3: (((1,),), COUNTS)}).save(file)
    return str(file)


@pytest.mark.parametrize("drafter", ["eagle3", "none", "oracle"])
def test_a_tape_decides_what_is_accepted_whoever_drafts(pair: PairRef, tmp_path: Path, drafter: str) -> None:
    engine = opened(pair, tape=taped(tmp_path, sha256_of_ids(PROMPTS)), drafter=drafter)
    decoded = engine.decode(Role(3), Budget(steps=7), ())
    for slot, counts in enumerate(COUNTS):
        assert [row[slot] for row in decoded.accepted] == [counts[i % len(counts)] for i in range(7)]
    assert engine.decode(Role(3), Budget(steps=7), ()).tokens == decoded.tokens
    assert length(decoded, 3) == pytest.approx(1 + sum(map(sum, decoded.accepted)) / 21)


def test_prompts_that_were_not_recorded_take_the_recorded_sets_in_turn(pair: PairRef, tmp_path: Path) -> None:
    engine = opened(pair, tape=taped(tmp_path))
    first = engine.decode(Role(3), Budget(steps=2), ()).accepted
    engine.prefill(PROMPTS[:2], draft=True)
    second = engine.decode(Role(3), Budget(steps=2), ()).accepted
    engine.prefill(PROMPTS, draft=True)
    assert first == ((1, 1, 1), (1, 1, 1)) == engine.decode(Role(3), Budget(steps=2), ()).accepted
    assert second == ((3, 2), (0, 2))


def test_forced_cycles_say_the_drafts_and_then_the_targets_token(pair: PairRef, tmp_path: Path) -> None:
    """An oracle's drafts are the target's tokens, so even forced acceptance of fewer says the baseline's text."""
    engine = opened(pair, tape=taped(tmp_path, sha256_of_ids(PROMPTS)), drafter="oracle")
    baseline = engine.decode(BASELINE, Budget(steps=30), ())
    forced = engine.decode(Role(3), Budget(steps=8), ())
    assert all(text == plain[: len(text)] for text, plain in zip(forced.tokens, baseline.tokens, strict=True))
    wrong = opened(pair, tape=taped(tmp_path, sha256_of_ids(PROMPTS)), drafter="none")
    assert wrong.decode(Role(3), Budget(steps=8), ()).tokens != forced.tokens


def test_an_engine_with_a_tape_says_so(pair: PairRef, tmp_path: Path) -> None:
    facts = opened(pair, tape=taped(tmp_path), drafter="oracle").facts()
    assert (facts.acceptance, facts.details["tape of"]) == ("forced", "r1")
    assert facts.tape_sha256 == hashlib.sha256((tmp_path / "tape.json").read_bytes()).hexdigest()
    assert any("tokens of spec blocks are wrong by design" in warning for warning in facts.warnings)
    assert opened(pair).facts().tape_sha256 is None


def test_a_tape_below_the_home_folder_is_found_as_a_run_folder_writes_it(
    pair: PairRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taped(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert opened(pair, tape="~/tape.json").facts().acceptance == "forced"


def test_a_forced_block_ends_at_its_limit_with_records_that_add_up(pair: PairRef, tmp_path: Path) -> None:
    engine = opened(pair, tape=taped(tmp_path, sha256_of_ids(PROMPTS)), drafter="random")
    decoded = engine.decode(Role(3), Budget(new_tokens=11), ())
    assert [len(tokens) for tokens in decoded.tokens] == [11, 11, 11]
    assert set(decoded.finish) == {"length"} and sum(decoded.truncated) > 0
    length(decoded, 3)


def test_a_role_that_the_tape_lacks_is_refused(pair: PairRef, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"spec-2 asked for, but the tape has spec-3\n"):
        opened(pair, tape=taped(tmp_path)).decode(Role(2), Budget(steps=2), ())
