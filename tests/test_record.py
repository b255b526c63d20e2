"""The record: every part's command can be typed, what is measured is not measured again, and no claim ages unseen."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from bench.record import Machine, Part, Record, declared, filled
from bench.record import __main__ as command
from specgate.backends.eagle3.cupy.engine.open import OPTIONS
from specgate.machine import inventory
from tests.key_tables.record import evidence, evidence_of_run, is_stale
from tests.support.command import ROOT
from tests.support.fences import command_lines, statements
from tests.support.kept_runs import KEPT, RESULTS, file_of
from tests.test_command_lines import faults

pytestmark = pytest.mark.engine

PARTS = declared().parts
RUNS = {run.name: run.command for part in PARTS for run in part.runs if not run.repeat}
SCRIPTS = RUNS | dict(declared().made)
LONGEST = 9
"""Minutes of a part."""


def python_faults(script: str) -> Iterator[str]:
    """Faults of the lines that run a module: pytest with paths that are there, or a bench with options that it has."""
    for words in statements(script):
        if "python" not in words:
            continue
        module, *rest = words[words.index("python") + 2 :]
        if module == "pytest":
            yield from (word for word in rest if re.match(r"(tests|bench)\b", word) and not (ROOT / word).exists())
            continue
        main = importlib.import_module(
            f"{module}.__main__" if (ROOT / module.replace(".", "/")).is_dir() else module
        ).main
        if isinstance(main, click.Command):
            yield from faults(rest, whole=True, root=main)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_command_of_a_part_can_be_typed(name: str) -> None:
    script = SCRIPTS[name]
    assert [fault for words in command_lines(script) for fault in faults(words, whole=True)] == []
    assert list(python_faults(script)) == []
    foreign = re.search(r"--backend (?!cupy)", script)
    options = re.findall(r"-o ([\w.]+)=", script)
    assert foreign or set(options) <= OPTIONS.keys()


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("python -m bench.stress --cycle 3 --out X", "No such option"),
        ("python -m bench.tensor_parallel exchanges", "no command 'exchanges'"),
        ("compute-sanitizer --tool x python -m pytest -q tests/gone", "tests/gone"),
    ],
)
def test_a_module_that_cannot_be_run_so_is_seen(script: str, fault: str) -> None:
    (seen,) = python_faults(script)
    assert fault in seen


def test_parts_have_names_of_their_own_machines_that_are_declared_and_fit_their_time() -> None:
    assert len({part.name for part in PARTS}) == len(PARTS)
    assert {part.machine for part in PARTS} == declared().machines.keys()
    assert (
        all(0 < part.minutes <= LONGEST for part in PARTS if part.machine != "cpu") and command.MOST_S == 60 * LONGEST
    )
    assert not {need for part in PARTS for need in part.needs} & {"", "kept", "first"}


def test_the_slowed_build_has_more_to_do_at_the_end_of_each_step() -> None:
    edit = re.search(r"s/(.+?)/&(.+?)/' \{slowed\}/(\S+)", declared().made["slowed"])
    assert edit is not None
    assert (ROOT / edit[3]).read_text(encoding="utf-8").count(edit[1]) == 1


def words_of(run: str) -> list[str]:
    return [word for words in statements(RUNS[run]) for word in words]


def test_gpu_tests_are_part_of_the_record() -> None:
    """Those of tuning have a part of their own."""
    paths = [word for word in words_of("gpu-tests") if re.match(r"(tests|bench)/", word)]
    files = (file for folder in ("tests", "bench") for file in (ROOT / folder).rglob("test_*.py"))
    texts = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}
    marked = {file for file, text in texts.items() if re.search(r"^@pytest\.mark\.gpu", text, re.MULTILINE)}
    assert marked and not {file for file in marked if not file.startswith(tuple(f"{path}/" for path in paths))}
    assert words_of("gpu-tests-tuning")[-1] == paths[-1]  # what --ignore leaves out


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_a_sanitizer_sees_every_test_of_kernels_once(tool: str) -> None:
    """In a new file? Put it into a group of `lists: kernels`, or below, if none of its tests needs a GPU."""
    folder = "tests/eagle3/cupy/kernels"
    without = ("compiled/", "peers/", "test_crossed.py", "test_fmha_config.py", "test_launches.py")
    files = {file.relative_to(ROOT / folder).as_posix() for file in (ROOT / folder).rglob("test_*.py")}
    seen = []
    for run in (run for part in PARTS if part.name == tool for run in part.runs):
        taken, _, ignored = filled(run.command, {}).partition(" --ignore ")
        paths = [word.removeprefix(f"{folder}/") for word in taken.split() if word.startswith(folder)]
        seen += [f for f in files if f.startswith(tuple(paths)) and f != ignored.removeprefix(f"{folder}/")]
    assert sorted(seen) == sorted(file for file in files if not file.startswith(without))


def test_every_stored_file_is_the_evidence_of_a_claim() -> None:
    stored = {file.relative_to(RESULTS).as_posix() for file in RESULTS.rglob("*") if file.is_file()} - {"README.md"}
    assert {file for part in PARTS for file in part.stored} == stored


def test_a_claim_awaits_a_new_measurement_exactly_if_its_evidence_is_of_another_engine() -> None:
    """Listed and fresh: take it off `awaiting` in parts.yaml. Stale and not listed: measure it, or list it."""
    stale = {part.name for part in PARTS if is_stale(part)}
    print("awaiting a new measurement:", *sorted(stale), sep="\n  ")
    assert set(declared().awaiting) == stale
    assert len(set(declared().awaiting)) == len(declared().awaiting)


def test_an_engine_that_was_counted_otherwise_is_named_while_fresh_evidence_is_of_it() -> None:
    fresh = {evidence(file).engine for part in PARTS if not is_stale(part) for file in part.stored}
    assert declared().counted_then.keys() <= fresh


@pytest.mark.parametrize("name", KEPT)
def test_a_stored_run_is_of_the_engine_that_its_part_names(name: str) -> None:
    run = json.loads(file_of(name, "run.json"))
    backends = {key.split("/")[1] for key in run["engines"]}
    of = {part.engine for part in PARTS if name in part.stored}
    assert (of == {"built-in"}) == (backends == {"cupy"})


def test_evidence_of_the_engine_that_ships_is_fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As the runner writes it, and in a run whose environment has the hash; with another hash both are stale."""
    ours = inventory.backend_trees()["eagle3"]
    (tmp_path / "2026-12-01").mkdir()
    file = "2026-12-01/x.txt"
    part = Part("x", "cpu", 1, "a claim", "true", stored=(file,))
    monkeypatch.setattr("tests.key_tables.record.RESULTS", tmp_path)
    for line, stale in ((command.heading("x"), False), (command.heading("x").replace(ours, "0" * 64), True)):
        evidence.cache_clear()
        (tmp_path / file).write_text(f"{line}\n$ true\n")
        assert is_stale(part) is stale
    evidence.cache_clear()
    run = json.loads(file_of(KEPT[0], "run.json"))
    run["environment"] = {"source": {"backends": {"eagle3": ours}}}
    files = {"run.json": json.dumps(run), "gates.json": file_of(KEPT[0], "gates.json")}
    monkeypatch.setattr("tests.key_tables.record.file_of", lambda name, file: files[file])
    assert evidence_of_run(KEPT[0]).engine == ours


# The runner


def part(name: str, run: str, **keys: object) -> Part:
    return Part(name, "cpu", 1, f"claim of {name}", run, **keys)  # type: ignore[arg-type]


def measure(
    monkeypatch: pytest.MonkeyPatch, out: Path, *parts: Part, options: tuple[str, ...] = (), machine: str = "cpu"
) -> Result:
    made = {"pair": "mkdir {pair} && echo made >> {work}/makes"}
    machines = {"cpu": Machine(0, "no GPU"), "gpu": Machine(1, "one H200")}
    record = Record(machines, (), made, parts)
    monkeypatch.setattr(command, "declared", lambda: record)
    return CliRunner().invoke(command.main, [machine, "--out", str(out), "--work", str(out / "work"), *options])


def lines_of(done: Result) -> dict[str, str]:
    return {line.split()[0]: line for line in done.output.splitlines()}


def test_what_has_a_result_is_not_run_again_and_what_failed_is_and_comes_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parts = (
        part("red", "echo red >> {work}/order; exit 7"),
        part("green", "echo green >> {work}/order", times=2),
        part("right", "exit 6", ends=(6,)),
    )
    first = measure(monkeypatch, tmp_path, *parts)
    assert first.exit_code == 3
    lines = lines_of(first)
    assert {name: " done " in line for name, line in lines.items()} == {
        "red": False, "green-1": True, "green-2": True, "right": True
    }  # fmt: skip
    assert "ended with 7" in lines["red"]
    (tmp_path / "green-2" / "ended.json").unlink()
    measure(monkeypatch, tmp_path, *parts)
    assert (tmp_path / "work" / "order").read_text().split() == ["red", "green", "green", "green", "red"]


def test_all_that_is_measured_ends_with_0(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert (
        measure(monkeypatch, tmp_path, part("a", "specgate --version; python -c 'import bench.record'")).exit_code == 0
    )
    output = (tmp_path / "a" / "output.txt").read_text()
    assert output.startswith("record: a, 2") and "\n$ specgate --version" in output and "Traceback" not in output


def test_packages_that_lie_on_pythonpath_alone_are_there_for_a_part(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "only_there.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    done = measure(monkeypatch, tmp_path, part("a", "python -c 'import only_there, bench.record'"))
    assert done.exit_code == 0, (tmp_path / "a" / "output.txt").read_text()


def test_on_a_machine_of_fewer_gpus_nothing_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests that are skipped for want of a GPU would count as a result."""
    one = Part("one", "gpu", 1, "a claim", "touch {out}/begun")
    monkeypatch.setattr(inventory, "gpus", list)
    done = measure(monkeypatch, tmp_path, one, machine="gpu")
    assert done.exit_code == 4 and "gpu: one H200; here are 0 GPUs" in done.output
    assert measure(monkeypatch, tmp_path, one, machine="gpu", options=("--list",)).exit_code == 3
    assert not (tmp_path / "one").exists()
    monkeypatch.setattr(inventory, "gpus", lambda: [{"name": "a GPU"}])
    assert measure(monkeypatch, tmp_path, one, machine="gpu").exit_code == 0
    assert (tmp_path / "one" / "begun").exists()


def test_repeats_come_after_the_first_runs_of_all_parts_and_what_is_named_in_the_order_of_its_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parts = (
        part("a", "echo a >> {work}/order", times=2),
        part("b", "echo {each} >> {work}/order", each=("b one", "b two")),
    )
    assert measure(monkeypatch, tmp_path / "all", *parts).exit_code == 0
    assert (tmp_path / "all/work/order").read_text().splitlines() == ["a", "b one", "b two", "a"]
    options = ("--only", "b-2", "--only", "a")
    assert list(lines_of(measure(monkeypatch, tmp_path / "some", *parts, options=options))) == ["b-2", "a-1", "a-2"]


def test_a_part_that_takes_all_the_minutes_is_begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert measure(monkeypatch, tmp_path, part("one", "true"), options=("--minutes", "1")).exit_code == 0


def test_what_a_machine_lacks_is_listed_and_run_once_it_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = part("one", "echo {vllm} ${HOME:+home}")
    done = measure(monkeypatch, tmp_path, one)
    assert done.exit_code == 3 and "missing: needs --with vllm=…" in done.output
    assert measure(monkeypatch, tmp_path, one, options=("--with", "vllm=here")).exit_code == 0
    assert (tmp_path / "one" / "output.txt").read_text().endswith("\nhere home\n")


def test_nothing_is_run_by_a_list_and_nothing_that_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for options, why in ((("--list",), "1 min"), (("--minutes", "0.5"), "takes 1 min, less are left")):
        done = measure(monkeypatch, tmp_path, part("one", "true"), options=options)
        assert done.exit_code == 3 and f"missing: {why}" in done.output
    assert not (tmp_path / "one").exists()


@pytest.mark.parametrize(
    ("options", "known"),
    [
        (("--only", "tow"), "--only tow: no part of this machine has it; known: one, two"),
        (("--only", "other"), "known: one, two"),
        (("--with", "vlm=here"), "--with vlm: no part of this machine has it; known: vllm"),
    ],
)
def test_a_name_that_no_part_of_the_machine_has_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: tuple[str, ...], known: str
) -> None:
    parts = (part("one", "echo {vllm} {out}"), part("two", "true"), Part("other", "gpu", 1, "elsewhere", "true"))
    done = measure(monkeypatch, tmp_path, *parts, options=options)
    assert done.exit_code == 2 and known in done.output
    assert not (tmp_path / "two").exists()


def test_a_folder_that_cannot_be_made_ends_with_4_and_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for option in ("--out", "--work"):
        done = measure(
            monkeypatch, tmp_path / "out", part("one", "true"), options=(option, str(tmp_path / "file" / "x"))
        )
        assert done.exit_code == 4
        assert done.output.startswith(f"Error: {tmp_path / 'file'}") and done.output.endswith("or --work\n")


def test_what_several_parts_need_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = measure(monkeypatch, tmp_path, part("one", "test -d {pair}"), part("two", "test -d {pair}"))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "work" / "makes").read_text() == "made\n"


def test_a_run_folder_is_packed_and_a_part_that_takes_too_long_is_cut(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "MOST_S", 2.0)
    run = "mkdir {runs}/run-1 {runs}/no-run; echo '{{}}' > {runs}/run-1/run.json; tail -f /dev/null"
    done = measure(monkeypatch, tmp_path, replace(part("one", run), minutes=0.01))
    assert "ended with 124" in done.output
    assert json.loads((tmp_path / "one" / "ended.json").read_text())["runs"] == ["run-1"]
    with tarfile.open(tmp_path / "run-one.tar.xz") as archive:
        assert archive.getnames() == ["run-1", "run-1/run.json"]


def test_a_part_ends_with_the_runner_that_began_it(tmp_path: Path) -> None:
    os.mkfifo(begun := tmp_path / "begun")
    script = f"""
from bench.record import Machine, Part, Record, __main__ as command
part = Part("one", "cpu", 1, "a claim", "echo $$ > {begun}; exec tail -f /dev/null")
command.declared = lambda: Record({{"cpu": Machine(0, "")}}, (), {{}}, (part,))
command.main(["cpu", "--out", "{tmp_path / "out"}", "--work", "{tmp_path / "work"}"])
"""
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.DEVNULL) as runner:
        part = int(begun.read_text())
        runner.terminate()
    assert runner.returncode == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(part, 0)
    assert not (tmp_path / "out" / "one" / "ended.json").exists()


def test_a_part_that_is_being_started_ends_with_its_runner(tmp_path: Path) -> None:
    """The signal comes within Popen, once the part runs."""
    os.mkfifo(begun := tmp_path / "begun")
    script = f"""
import os, pathlib, signal, subprocess
from bench.record import Machine, Part, Record, __main__ as command
class Popen(subprocess.Popen):
    def __init__(self, *words, **keys):
        super().__init__(*words, **keys)
        pathlib.Path("{tmp_path / "part"}").write_text(pathlib.Path("{begun}").read_text())
        os.kill(os.getpid(), signal.SIGTERM)
part = Part("one", "cpu", 1, "a claim", "echo $$ > {begun}; exec tail -f /dev/null")
command.declared = lambda: Record({{"cpu": Machine(0, "")}}, (), {{}}, (part,))
command.heading = lambda name: name
subprocess.Popen = Popen
command.main(["cpu", "--out", "{tmp_path / "out"}", "--work", "{tmp_path / "work"}"])
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "part").read_text()), 0)


def test_words_that_commands_share_are_filled_in_and_what_the_shell_fills_in_is_left() -> None:
    assert filled("{a} ${b} {c-d} {e}", {"a": "{e}", "c-d": 3}) == "{e} ${b} 3 {e}"
