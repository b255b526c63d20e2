"""The ledger: what was written is read back, whatever was changed is found, and no writer's death costs an entry."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specgate.contract import State
from specgate.errors import EnvironmentRefused, InvalidResult
from specgate.promotion.ledger import CODES, GENESIS, Entry, Ledger, _sha256
from tests.promotion.entries import ENTRY

WRITER = """\
import sys
from dataclasses import replace
from pathlib import Path
from specgate.promotion.ledger import Ledger
from tests.promotion.entries import ENTRY
name, count, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
for n in range(count):
    Ledger(folder).append(replace(ENTRY, run=f"{name}-{n}"))
    print(n, flush=True)
"""
"""Appends `count` entries and says so after each."""
HALF_A_LINE = """\
import os, signal, sys
from pathlib import Path
import specgate.promotion.ledger as ledger
from tests.promotion.entries import ENTRY
whole = ledger._append
def die_half_way(file, line):
    whole(file, line[: len(line) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
ledger._append = die_half_way
ledger.Ledger(Path(sys.argv[1])).append(ENTRY)
"""
BEFORE_THE_HEAD = """\
import os, signal, sys
from pathlib import Path
from specgate.promotion.ledger import Ledger
from tests.promotion.entries import ENTRY
Ledger._write_head = lambda self, count, last: os.kill(os.getpid(), signal.SIGKILL)
Ledger(Path(sys.argv[1])).append(ENTRY)
"""


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def filled(folder: Path, count: int = 4) -> Ledger:
    ledger = Ledger(folder)
    for n in range(count):
        assert ledger.append(replace(ENTRY, run=f"run-{n}")) is None
    return ledger


def runs(ledger: Ledger) -> list[str]:
    return [entry.run for entry in ledger.read().entries]


def rechained(ledger: Ledger, was: bytes, now: bytes) -> None:
    """Replace text in every line of a ledger, and make chain and head agree again."""
    lines, previous = [], GENESIS
    for line in ledger.file.read_bytes().replace(was or b"\0", now).splitlines():
        data = {**json.loads(line), "prev_sha256": previous}
        lines.append(json.dumps(data, separators=(",", ":")).encode())
        previous = _sha256(lines[-1])
    ledger.file.write_bytes(b"".join(line + b"\n" for line in lines))
    ledger._write_head(len(lines), previous)


def test_an_absent_ledger_has_no_entries_and_reading_makes_none(tmp_path: Path) -> None:
    assert Ledger(tmp_path / "runs").read().entries == ()
    assert not (tmp_path / "runs").exists()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.builds(
            replace,
            st.just(ENTRY),
            run=st.text(min_size=1),
            state=st.sampled_from([state for state in State if state in CODES]),
            override=st.none() | st.text(),
            subject=st.dictionaries(st.text(), st.text(), max_size=2),
        ),
        max_size=4,
    )
)
def test_what_is_appended_is_read_back(tmp_path_factory: pytest.TempPathFactory, entries: list[Entry]) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("runs"))
    entries = [replace(entry, exit_code=max(CODES[entry.state])) for entry in entries]
    for entry in entries:
        ledger.append(entry)
    assert list(ledger.read().entries) == entries


def test_a_line_is_never_changed_by_later_ones(tmp_path: Path) -> None:
    ledger = filled(tmp_path, 2)
    before = ledger.file.read_bytes()
    ledger.append(ENTRY)
    assert ledger.file.read_bytes().startswith(before)


def edit(lines: list[bytes]) -> None:
    lines[1] = lines[1].replace(b'"PASS"', b'"FAIL"')


def edit_the_last(lines: list[bytes]) -> None:
    lines[-1] = lines[-1].replace(b'"PASS"', b'"FAIL"')


def swap(lines: list[bytes]) -> None:
    lines[1], lines[2] = lines[2], lines[1]


@pytest.mark.parametrize(
    "change",
    [
        edit,
        edit_the_last,
        swap,
        lambda lines: lines.pop(0),
        lambda lines: lines.pop(1),
        lambda lines: lines.pop(),
        lambda lines: lines.append(lines[-1]),
        lambda lines: lines.insert(1, b"not JSON"),
        lambda lines: lines.insert(1, b"[]"),
        lambda lines: lines.clear(),
    ],
    ids=["edited", "last edited", "swapped", "first out", "one out", "last out", "doubled", "text", "list", "emptied"],
)
def test_a_changed_ledger_is_found_and_left_as_it_is(tmp_path: Path, change: Callable[[list[bytes]], object]) -> None:
    ledger = filled(tmp_path)
    lines = ledger.file.read_bytes().splitlines()
    change(lines)
    changed = b"".join(line + b"\n" for line in lines)
    ledger.file.write_bytes(changed)
    for use in (ledger.read, lambda: ledger.append(ENTRY)):
        with pytest.raises(InvalidResult, match=r"ledger\.jsonl:\d+: the ledger was changed"):
            use()
    assert ledger.file.read_bytes() == changed


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_byte_can_be_changed_unseen(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    ledger = filled(tmp_path_factory.mktemp("runs"), 2)
    content = bytearray(ledger.file.read_bytes())
    at = data.draw(st.integers(0, len(content) - 2))  # without the last newline the last line is a torn one
    content[at] ^= data.draw(st.integers(1, 255))
    ledger.file.write_bytes(content)
    with pytest.raises(InvalidResult):
        ledger.read()


@pytest.mark.parametrize("what", ["ledger.jsonl", "ledger.head"])
def test_a_missing_file_is_found(tmp_path: Path, what: str) -> None:
    ledger = filled(tmp_path)
    (tmp_path / what).unlink()
    with pytest.raises(InvalidResult, match="ledger was changed"):
        ledger.read()


def test_a_head_that_says_nothing_is_refused(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    (tmp_path / "ledger.head").write_text("many\n")
    with pytest.raises(InvalidResult, match=r"ledger\.head"):
        ledger.read()


@pytest.mark.slow("writers in processes of their own")
def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    writers = [python(WRITER, name, 12, tmp_path) for name in ("a", "b")]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    result = runs(Ledger(tmp_path))
    for name in ("a", "b"):
        assert [run for run in result if run.startswith(name)] == [f"{name}-{n}" for n in range(12)]
    assert len(result) == 24


@pytest.mark.slow("writers in processes of their own")
@pytest.mark.parametrize("after", [1, 5])
def test_a_writer_that_is_killed_takes_no_finished_entry_along(tmp_path: Path, after: int) -> None:
    with python(WRITER, "killed", 10_000, tmp_path) as writer, python(WRITER, "other", 6, tmp_path) as other:
        assert writer.stdout is not None
        lines = [line for line, _ in zip(writer.stdout, range(after), strict=False)]
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.readlines()
        other.communicate()
    ledger = Ledger(tmp_path)
    ledger.append(ENTRY)
    result = runs(ledger)
    mine = [run for run in result if run.startswith("killed")]
    assert mine == [f"killed-{n}" for n in range(len(mine))]
    assert len(mine) >= len(lines) >= after
    assert [run for run in result if run.startswith("other")] == [f"other-{n}" for n in range(6)]


def test_a_torn_line_is_no_entry_and_is_kept_aside_by_the_next_writer(tmp_path: Path) -> None:
    ledger = filled(tmp_path, 2)
    with python(HALF_A_LINE, tmp_path) as writer:
        writer.wait()
    assert writer.returncode == -signal.SIGKILL
    history = ledger.read()
    assert [entry.run for entry in history.entries] == ["run-0", "run-1"]
    assert history.torn is not None and history.torn.startswith('{"prev_sha256"')
    assert ledger.append(replace(ENTRY, run="run-2")) == history.torn
    assert runs(ledger) == ["run-0", "run-1", "run-2"]
    aside = json.loads((tmp_path / "ledger.torn.jsonl").read_text())
    assert aside["line"] == history.torn
    assert (ledger.read().torn, ledger.read().set_aside) == (None, 1)


def test_a_whole_line_without_its_newline_is_torn_too(tmp_path: Path) -> None:
    ledger = filled(tmp_path, 1)
    (tmp_path / "ledger.head").unlink()
    ledger.file.write_bytes(ledger.file.read_bytes().removesuffix(b"\n"))
    assert ledger.read().entries == ()
    ledger.append(replace(ENTRY, run="anew"))
    assert runs(ledger) == ["anew"]


def test_a_writer_killed_between_line_and_head_has_written_its_entry(tmp_path: Path) -> None:
    ledger = filled(tmp_path, 2)
    with python(BEFORE_THE_HEAD, tmp_path) as writer:
        writer.wait()
    assert runs(ledger) == ["run-0", "run-1", "run-0"]
    ledger.append(replace(ENTRY, run="next"))
    assert runs(ledger) == ["run-0", "run-1", "run-0", "next"]


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(EnvironmentRefused, match="cannot be written"):
        Ledger(tmp_path / "runs").append(ENTRY)


def test_an_entry_of_another_shape_names_file_and_field(tmp_path: Path) -> None:
    ledger = filled(tmp_path, 1)
    (tmp_path / "ledger.head").unlink()
    ledger.file.write_bytes(ledger.file.read_bytes().replace(b'"exit_code":0', b'"exit_code":"none"'))
    with pytest.raises(InvalidResult, match=r"ledger\.jsonl:1: exit_code"):
        ledger.read()
