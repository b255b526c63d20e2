"""report, compare and history as a user runs them: files, what is said, and the exit code."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from specgate.cli import cli as commands
from specgate.errors import ExitCode, SpecgateError
from specgate.files.run_folder import RunFolder
from tests.support.factories import corrupt, scenario
from tests.support.stored_runs import store


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    store(folder / "a")
    store(folder / "b")
    store(folder / "slow", cycle_ns=17_000_000)
    store(folder / "wrong", change=corrupt)
    store(folder / "full", scenarios=[scenario(kind="full")])
    store(folder / "other", backend="other")
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runs, in a working folder of their own."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(made, tmp_path / "runs"))


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(commands, [str(a) for a in arguments])


def code(result: Result) -> int:
    """Return the exit code of `main`."""
    return int(result.exception.exit_code) if isinstance(result.exception, SpecgateError) else result.exit_code


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# ── report ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_reports_of_a_run_are_what_the_run_wrote_itself_and_its_folder_stays_as_it_was(runs: Path) -> None:
    before = contents(runs)
    result = invoke("runs", "report", runs / "a", "--html", "--csv", "--md", "--junit")
    assert code(result) == 0, result.output
    rendered = contents(Path("report"))
    assert set(rendered) == {"report.html", "metrics.csv", "summary.csv", "summary.md", "junit.xml"}
    assert all((runs / "a" / name).read_bytes() == text for name, text in rendered.items())
    assert contents(runs) == before


def test_several_runs_share_tables_and_suites_and_have_a_page_each(runs: Path) -> None:
    result = invoke("runs", "report", runs / "a", runs / "slow", "--html", "--csv", "--junit", "--out", "all")
    assert code(result) == 0, result.output
    assert set(contents(Path("all"))) == {
        "a/report.html",
        "slow/report.html",
        "metrics.csv",
        "summary.csv",
        "junit.xml",
    }
    with open("all/summary.csv", newline="") as file:
        assert [row["run_id"] for row in csv.DictReader(file)] == ["a", "a", "slow", "slow"]


def test_show_prints_the_verdict_which_is_never_the_exit_code(runs: Path) -> None:
    result = invoke("runs", "show", runs / "wrong")
    assert code(result) == 0
    assert "INVALID tokens" in result.output and "verdict INVALID (exit 6)" in result.output
    assert not Path("report").exists()


def test_a_report_without_a_format_is_refused_with_the_formats_that_there_are(runs: Path) -> None:
    result = invoke("runs", "report", runs / "wrong")
    assert code(result) == ExitCode.USAGE
    assert "--html, --csv, --md, --junit, --github" in str(result.exception) and "runs show" in str(result.exception)


def test_annotations_are_printed_and_the_summary_is_appended(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = Path("summary.md")
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    result = invoke("runs", "report", runs / "wrong", "--github")
    assert result.output.startswith("::error title=specgate micro%3A INVALID::tokens-equal")
    assert summary.read_text().startswith("before\n## ! INVALID")


def test_a_plug_ins_report_is_rendered_by_name_and_one_without_a_file_is_refused(runs: Path) -> None:
    assert code(invoke("runs", "report", runs / "a", "--report", "junit")) == 0
    assert set(contents(Path("report"))) == {"junit.xml"}
    assert code(invoke("runs", "report", runs / "a", "--report", "console")) == ExitCode.USAGE
    assert code(invoke("runs", "report", runs / "a", "--report", "junti")) == ExitCode.USAGE


def test_nothing_is_written_into_a_run_folder(runs: Path) -> None:
    before = contents(runs)
    for out in (runs / "a", runs / "a" / "deeper"):
        result = invoke("runs", "report", runs / "a", "--md", "--out", out)
        assert code(result) == ExitCode.USAGE and "lies in the run folder" in str(result.exception)
    assert contents(runs) == before


def test_an_edited_run_is_refused_by_every_command(runs: Path) -> None:
    file = runs / "b" / "run.json"
    file.write_text(file.read_text().replace('"complete"', '"complet3"', 1))
    for command in (
        ["runs", "show"],
        ["runs", "report", "--md"],
        ["runs", "compare"],
        ["runs", "compare", "--by", "engines"],
    ):
        result = invoke(*command, runs / "a", runs / "b")
        assert code(result) == ExitCode.INVALID and "run.json: its SHA-256" in str(result.exception)


# ── compare ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("other", "expected"),
    [("b", ExitCode.PASS), ("slow", ExitCode.FAIL), ("wrong", ExitCode.INVALID), ("other", ExitCode.PASS)],
)
def test_the_exit_code_of_a_comparison_is_the_policys(runs: Path, other: str, expected: ExitCode) -> None:
    result = invoke("runs", "compare", runs / "a", runs / other, "--by", "builds", "--html", "--md", "--csv", "--json")
    assert code(result) == expected, result.output
    assert set(contents(Path("report"))) == {"builds.html", "builds.md", "builds.csv", "builds.json"}


def test_a_policy_of_ones_own_decides(runs: Path) -> None:
    rule = "{id: t, gate: change, required: true, metric: mean_tpot_ms, margin_pct: 30.0, trust_unpaired: true}"
    Path("mine.yaml").write_text(f"schema: specgate.policy/v1\nrules:\n  - {rule}\n")
    assert code(invoke("runs", "compare", runs / "a", runs / "slow", "--policy", "mine.yaml")) == ExitCode.PASS
    assert code(invoke("runs", "compare", runs / "slow", runs / "a", "--policy", "mine.yaml")) == ExitCode.PASS


def test_a_run_that_was_cut_short_is_never_green(runs: Path) -> None:
    file = runs / "b" / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "failures": {"run": "disk full"}}))
    RunFolder(runs / "b").write_manifest()
    result = invoke("runs", "compare", runs / "a", runs / "b")
    assert code(result) == ExitCode.BACKEND_ERROR
    assert "BACKEND_ERROR: B was cut short (run): disk full" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs", "compare", "runs/a", "runs/a"], "are the same run"),
        (["runs", "compare", "runs/a", "runs/full"], "is a micro run"),
        (["runs", "compare", "runs/a", "runs"], "is not a run folder"),
        (["runs", "compare", "runs/a", "runs/b", "--policy", "cpu"], "no such policy"),
        (["runs", "compare", "runs/a", "nowhere", "--by", "engines"], "is not a run folder"),
        (["runs", "compare", "runs/a", "--by", "builds"], "compares one run with another: here is 1 of them"),
        (["runs", "compare", "runs/a", "--by", "engines", "--policy", "compare"], "--policy says nothing --by engines"),
        (["runs", "history", "nowhere"], "is not a folder"),
        (["runs", "show", "runs/a", "runs/a"], "are the same run"),
    ],
)
def test_what_cannot_be_meant_is_a_sentence_and_exit_2(runs: Path, arguments: list[str], message: str) -> None:
    result = invoke(*arguments)
    assert code(result) == ExitCode.USAGE and message in str(result.exception)


# ── engines and history ──────────────────────────────────────────────────────────────────────────────────────────────


def test_runs_of_several_back_ends_have_a_column_each(runs: Path) -> None:
    result = invoke("runs", "compare", runs / "a", runs / "other", "--csv", "--html", "--md", "--json")
    assert code(result) == 0, result.output
    with open("report/engines.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["role"], r["backend"], r["comparable"]) for r in rows] == [
        ("baseline", "fake", "yes"),
        ("baseline", "other", "yes"),
        ("spec-3", "fake", "yes"),
        ("spec-3", "other", "yes"),
    ]
    data = json.loads(Path("report/engines.json").read_text())
    assert data["schema"] == "specgate.engines/v1"
    assert [[str(v) for v in row.values() if v is not None] for row in data["cells"]] == [
        [v for v in row.values() if v] for row in rows
    ]


@pytest.mark.parametrize(
    ("names", "view"),
    [
        (["a"], "acceptance"),
        (["a", "b"], "builds"),
        (["a", "other"], "engines"),
        (["a", "b", "slow"], "engines"),
        (["a", "other", "--policy", "engines"], "builds"),
    ],
)
def test_what_is_laid_out_follows_from_the_runs_and_the_options(runs: Path, names: list[str], view: str) -> None:
    arguments = [name if name.startswith("-") or not (runs / name).is_dir() else runs / name for name in names]
    result = invoke("runs", "compare", *arguments, "--json")
    assert set(contents(Path("report"))) == {f"{view}.json"}, result.output


def test_history_shows_every_run_and_never_fails(runs: Path) -> None:
    result = invoke("runs", "history", runs, "--html", "--csv")
    assert code(result) == 0, result.output
    assert {"history.html", "history.csv"} <= set(contents(Path("report")))
    assert all(f"\t{name}\n" in result.output for name in ("a", "slow", "wrong", "full", "other"))
