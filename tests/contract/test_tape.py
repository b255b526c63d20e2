"""A tape comes back from its file as it was, goes round where it is too short, and is refused where it is spoilt."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specgate.archive.tape import tape_of
from specgate.contract import Block, Finish
from specgate.contract.tape import SCHEMA, Slots, Tape
from specgate.errors import EnvironmentRefused, InvalidResult, UsageError
from specgate.files.config import Config
from specgate.files.journal import PointEngine
from specgate.files.run_folder import RunFolder
from tests.support.factories import POLICY, blocks_of, plan_of, run_of, scenario


def slots_of(k: int) -> st.SearchStrategy[Slots]:
    counts = st.lists(st.integers(0, k), max_size=5).map(tuple)
    return st.lists(counts, min_size=1, max_size=3).map(tuple)


@st.composite
def tapes(draw: st.DrawFn) -> Tape:
    sets = draw(st.integers(1, 3))
    ks = draw(st.sets(st.integers(1, 8), min_size=1, max_size=3))
    specs = {k: tuple(draw(st.lists(slots_of(k), min_size=sets, max_size=sets))) for k in sorted(ks)}
    return Tape({"run": draw(st.text(max_size=5))}, tuple(f"hash {i}" for i in range(sets)), specs)


@given(tapes())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_tape_survives_its_file(tmp_path: Path, tape: Tape) -> None:
    tape.save(tmp_path / "tape.json")
    loaded = Tape.load(tmp_path / "tape.json")
    assert loaded == tape and loaded.sha256 == tape.sha256


def test_a_file_that_cannot_be_written_is_the_environments_fault(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentRefused, match=r"no/tape\.json: cannot be written: No such file"):
        Tape({}, ("a",), {1: (((0,),),)}).save(tmp_path / "no" / "tape.json")


def test_a_slot_that_ended_at_its_first_token_accepts_nothing() -> None:
    tape = Tape({}, ("a",), {2: (((), (1, 2)),)})
    assert [tape.accepted(2, 0, slot, 1) for slot in range(4)] == [0, 2, 0, 2]


def test_a_tape_that_is_shorter_and_narrower_than_the_run_begins_anew() -> None:
    tape = Tape({}, ("a", "b"), {2: (((0, 1), (2,)), ((1,), (1,)))})
    assert [tape.accepted(2, 0, 2, cycle) for cycle in range(4)] == [0, 1, 0, 1]
    assert tape.index_of("b", 7) == 1 and tape.index_of("new", 2) == 0 and tape.index_of("new", 3) == 1


GOOD = {"schema": SCHEMA, "origin": {}, "prompts_sha256": ["a"], "accepted": {"spec-2": [[[0, 2]]]}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "specgate.tape/v9"}, r"schema = 'specgate.tape/v9'\n.*specgate.tape/v1 is needed"),
        ({"prompts": []}, r"prompts = \[\]\n.*no such key; known: schema, origin"),
        ({"prompts_sha256": []}, r"prompts_sha256 = \[\]\n"),
        ({"prompts_sha256": [7]}, r"prompts_sha256 = \[7\]\n"),
        ({"accepted": {}}, r"accepted = \{\}\n"),
        ({"accepted": {"spec-0": [[[0]]]}}, r"accepted.spec-0 = \[\[\[0\]\]\]\n.*roles are named"),
        ({"accepted": {"spec-02": [[[0]]]}}, r"accepted.spec-02 = .*\n.*roles are named"),
        ({"accepted": {"spec-٢": [[[0]]]}}, r"accepted.spec-٢ = .*\n.*roles are named"),
        ({"accepted": {"baseline": [[[0]]]}}, "accepted.baseline = "),
        ({"accepted": {"spec-2": [[[0]], [[1]]]}}, "accepted.spec-2 = .*\n.*one entry per prompt set is needed: 1"),
        ({"accepted": {"spec-2": [[]]}}, r"accepted.spec-2\[0\] = \[\]\n"),
        ({"accepted": {"spec-2": [[[True]]]}}, r"accepted.spec-2\[0\] = \[\[True\]\]\n"),
        ({"accepted": {"spec-2": [[[1.0]]]}}, r"accepted.spec-2\[0\] = \[\[1.0\]\]\n"),
        ({"accepted": {"spec-2": [[[0, 3]]]}}, r"accepted.spec-2\[0\]\[0\] = 3\n.*0 to 2 drafts can be accepted"),
        ({"accepted": {"spec-2": [[[-1]]]}}, r"accepted.spec-2\[0\]\[0\] = -1\n"),
        ({"origin": []}, r"origin = \[\]\n"),
        ({"origin": {"run": None}}, r"origin = \{'run': None\}\n"),
    ],
)
def test_a_spoilt_tape_is_refused_with_file_and_key(tmp_path: Path, change: dict[str, object], message: str) -> None:
    file = tmp_path / "tape.json"
    file.write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(UsageError, match=f"tape.json: {message}"):
        Tape.load(file)


@pytest.mark.parametrize("text", [None, "{", "[" * 100_000])
def test_what_is_no_tape_at_all_is_refused(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "tape.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=r"tape\.json.*\n.*specgate engine tape RUN FILE writes one"):
        Tape.load(file)


# ── recording ────────────────────────────────────────────────────────────────────────────────────────────────────────


def journal(
    folder: Path,
    change: Callable[[Block], Block] = lambda block: block,
    blocks: int | None = None,
    ignore_eos: bool = True,
) -> Path:
    """A run folder as a run that has not ended leaves it, its engine's drafts made by a stand-in."""
    small_scenario = scenario(spec=(2, 3), batch=(2,))
    plan = plan_of(replace(small_scenario, budget=replace(small_scenario.budget, ignore_eos=ignore_eos)))
    made = run_of(plan, (), status="running", ended=None)
    engines, (point,) = made.engines, plan.points
    hashes = [f"hash {i}" for i in range(4)]
    run = RunFolder.create(folder, "micro", "demo", "0" * 64)
    run.write_config(Config("micro", "fake", made.pair, POLICY, made.scenarios))
    run.write_run(replace(made, id=run.id, engines={}, prompts={point.key: {"set_sha256": hashes}}))
    run.append(PointEngine(point.key, replace(engines[point.key], acceptance="stand-in", eos_token_ids=())))
    for block in blocks_of(plan, change=change)[:blocks]:
        run.append(block)
    return run.path


def test_what_an_unfinished_run_has_measured_can_be_recorded_with_where_it_comes_from(tmp_path: Path) -> None:
    # One warm-up round, the first round of two prompt sets and a block of the third, three roles each.
    run = journal(tmp_path, blocks=3 + 2 * 3 + 1)
    tape = tape_of(run, None)
    assert tape.prompts == ("hash 0", "hash 1")
    assert tape.specs[2] == 2 * (((2, 1, 2, 0, 2, 2) * 2, (1, 2, 0, 2, 2, 2) * 2),)
    assert tape.specs[3] == 2 * (((3, 1, 2, 0, 3, 2) * 2, (1, 2, 0, 3, 2, 3) * 2),)
    known = {"run": run.name, "acceptance": "stand-in", "target_sha256": "a" * 64, "draft_sha256": "b" * 64}
    assert known.items() <= tape.origin.items()


def test_a_slot_that_ended_early_is_recorded_up_to_its_end_and_can_be_loaded(tmp_path: Path) -> None:
    def ended(block: Block) -> Block:
        """Slot 0 ends at its prefill token."""
        accepted, drafted = (tuple((-1, row[1]) for row in rows) for rows in (block.accepted, block.drafted))
        tokens, finish = (block.tokens[0][:1], block.tokens[1]), (Finish.EOS, Finish.STEPS)
        return replace(block, accepted=accepted, drafted=drafted, tokens=tokens, finish=finish, counters={})

    tape = tape_of(journal(tmp_path, ended, ignore_eos=False), None)
    assert tape.specs[3][0] == ((), (1, 2, 0, 3, 2, 3) * 2)
    tape.save(tmp_path / "tape.json")
    assert Tape.load(tmp_path / "tape.json") == tape


def test_blocks_of_the_same_prompts_that_accepted_differently_are_no_tape(tmp_path: Path) -> None:
    plan = plan_of(scenario(spec=(2, 3), batch=(2,)))
    other = next(b for b in blocks_of(plan, accept=(1,)) if (b.role.k, b.prompt_set, b.round) == (3, 2, 1))

    def differing(made: Block) -> Block:
        same = (made.role, made.prompt_set, made.round, made.warmup) == (other.role, 2, 1, False)
        return other if same else made

    with pytest.raises(InvalidResult, match="spec-3: blocks of prompt set 2 accepted different counts"):
        tape_of(journal(tmp_path, differing), None)


def test_counts_that_contradict_their_tokens_are_not_recorded(tmp_path: Path) -> None:
    broken = journal(tmp_path, lambda b: replace(b, tokens=tuple(t[:-1] for t in b.tokens)))
    with pytest.raises(InvalidResult, match=r"emitted \d+, but steps \+ accepted"):
        tape_of(broken, None)


def test_a_run_that_is_being_written_is_not_read_under_its_writer(tmp_path: Path) -> None:
    run = journal(tmp_path)
    with RunFolder(run).lock(), pytest.raises(EnvironmentRefused, match="another specgate is writing"):
        tape_of(run, None)


def test_a_run_without_a_whole_round_has_no_tape(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no whole round of demo-64/fake/c64/b2 has a spec block"):
        tape_of(journal(tmp_path, blocks=4), None)
