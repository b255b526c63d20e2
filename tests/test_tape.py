from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specgate.errors import UsageError
from specgate.tape import SCHEMA, Slots, Tape


def slots_of(k: int) -> st.SearchStrategy[Slots]:
    counts = st.lists(st.integers(0, k), min_size=1, max_size=5).map(tuple)
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
    assert Tape.load(tmp_path / "tape.json") == tape


def test_a_tape_that_is_shorter_and_narrower_than_the_run_begins_anew() -> None:
    tape = Tape({}, ("a", "b"), {2: (((0, 1), (2,)), ((1,), (1,)))})
    assert [tape.accepted(2, 0, 2, cycle) for cycle in range(4)] == [0, 1, 0, 1]
    assert tape.index_of("b", 7) == 1 and tape.index_of("new", 2) == 0 and tape.index_of("new", 3) == 1


GOOD = {"schema": SCHEMA, "origin": {}, "prompts_sha256": ["a"], "accepted": {"spec-2": [[[0, 2]]]}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "specgate.tape/v9"}, r"schema = 'specgate.tape/v9'\n.*specgate.tape/v1 is needed"),
        ({"prompts_sha256": []}, "prompts_sha256\n"),
        ({"accepted": {}}, "accepted\n"),
        ({"accepted": {"spec-0": [[[0]]]}}, "accepted.spec-0\n.*roles are named"),
        ({"accepted": {"baseline": [[[0]]]}}, "accepted.baseline\n"),
        ({"accepted": {"spec-2": [[[0]], [[1]]]}}, "accepted.spec-2\n.*one entry per prompt set is needed: 1"),
        ({"accepted": {"spec-2": [[[]]]}}, r"accepted.spec-2\[0\]\n"),
        ({"accepted": {"spec-2": [[[True]]]}}, r"accepted.spec-2\[0\]\n"),
        ({"accepted": {"spec-2": [[[0, 3]]]}}, r"accepted.spec-2\[0\] holds 3\n.*0 to 2 drafts can be accepted"),
        ({"origin": []}, r"origin = \[\]\n"),
    ],
)
def test_a_spoilt_tape_is_refused_with_file_and_key(tmp_path: Path, change: dict[str, object], message: str) -> None:
    file = tmp_path / "tape.json"
    file.write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(UsageError, match=f"tape.json: {message}"):
        Tape.load(file)


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_what_is_no_tape_at_all_is_refused(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "tape.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=r"tape\.json.*\n.*specgate tape RUN FILE writes one"):
        Tape.load(file)
