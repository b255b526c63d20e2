"""verify: an untouched run holds; whatever was touched is named with file and place, also behind a mended manifest."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specgate.archive.report_comparison import differences_of, line_differences
from specgate.archive.verification import verify
from specgate.cli import cli as commands
from specgate.errors import OtherVersion
from specgate.files.manifest import listings
from specgate.files.run_folder import RunFolder
from tests.conftest import Killed
from tests.support.command import Cli
from tests.support.kept_runs import KEPT, unpacked
from tests.support.stored_runs import change_block, change_json


@pytest.fixture
def run(green_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(green_run.parent, tmp_path / "runs")
    return tmp_path / "runs" / green_run.name


def differences(run: Path) -> list[str]:
    return [str(d) for d in verify(run).differences]


def by_another_source_tree(run: Path) -> None:
    """As another version of specgate would have stored it, wherever it says so."""
    tree, name = "0" * 64, run.name[:-15] + "00000000" + run.name[-7:]
    for file in ("run.json", "gates.json"):
        change_json(run / file, lambda data: data.update({"id" if "id" in data else "run": name}))
    change_json(run / "run.json", lambda data: data["fingerprint"].update(source_tree_sha256=tree))
    change_json(run / "run.json", lambda data: data["environment"]["source"].update(tree_sha256=tree))
    change_json(run / "env.json", lambda data: data["source"].update(tree_sha256=tree))
    for table in run.glob("*.csv"):
        table.write_text(table.read_text().replace(run.name, name))
    stored = RunFolder(run)
    if "files" in json.loads((run / "run.json").read_text()):
        change_json(run / "run.json", lambda data: data.update(files=stored.evidence_hashes()))


def mend(run: Path) -> None:
    """Hide a change from the manifest and, with the ledger gone, from everything but the samples."""
    RunFolder(run).write_manifest()
    for file in run.parent.glob("ledger.*"):
        file.unlink()


def test_an_untouched_run_holds_and_nothing_is_written(run: Path) -> None:
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in run.rglob("*") if p.is_file()}
    done = CliRunner().invoke(commands, ["runs", "verify", str(run)])
    assert done.exit_code == 0, done.output
    assert "holds: " in done.output and "verdict PASS (exit 0)" in done.output
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in run.rglob("*") if p.is_file()} == before


def test_a_run_that_failed_a_gate_holds_too(cli: Cli) -> None:
    assert cli.micro("--backend", "fake", "-o", "wrong_token_at=5").returncode == 6
    assert differences(cli.newest()) == []


def test_a_run_whose_engine_was_killed_holds_too(cli: Cli, killed: Killed) -> None:
    assert killed.done.returncode == 7
    assert differences(cli.newest()) == []


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_one_byte_anywhere_is_found(
    green_run: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    run = tmp_path_factory.mktemp("edited") / green_run.name
    shutil.copytree(green_run, run)
    files = sorted(p for p in run.rglob("*") if p.is_file() and p.stat().st_size and p.name != ".lock")
    file = data.draw(st.sampled_from(files))
    content = bytearray(file.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    file.write_bytes(content)
    lines = differences(run)
    assert any(file.name in line or "MANIFEST" in line for line in lines), lines


def test_an_edited_byte_is_exit_6_with_the_files_name(run: Path) -> None:
    file = run / "metrics.csv"
    file.write_text(file.read_text().replace("acceptance_length", "acceptance_lengtH", 1))
    done = CliRunner().invoke(commands, ["runs", "verify", str(run)])
    assert done.exit_code == 6
    assert "differs: metrics.csv: its SHA-256 is" in done.output
    assert "differs: metrics.csv: line " in done.output


def test_missing_and_extra_files_are_named(run: Path) -> None:
    (run / "summary.csv").unlink()
    (run / "samples" / "more.jsonl").write_text("{}\n")
    assert differences(run) == [
        "summary.csv: is missing; MANIFEST.sha256 lists it",
        "samples/more.jsonl: is not in MANIFEST.sha256",
    ]


def test_a_run_without_a_manifest_has_not_ended(run: Path) -> None:
    (run / "MANIFEST.sha256").unlink()
    assert "MANIFEST.sha256: is missing: the run never ended" in differences(run)[0]


def figure(data: Any) -> None:
    data["cells"][1]["values"]["acceptance_length"]["value"] += 0.1


def verdict(data: Any) -> None:
    data["verdicts"][0]["state"] = "FAIL"


def extra(data: Any) -> None:
    data["cells"][0]["values"]["invented"] = {"metric": "invented", "value": 1.0}


def gone(data: Any) -> None:
    del data["eagle_speculation"]["tiny/fake/c24/b2/spec-3"]


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("run.json", figure, "run.json: cells[1].values.acceptance_length.value: "),
        ("run.json", extra, "run.json: cells[0].values.invented: does not follow from the samples"),
        ("run.json", gone, "run.json: eagle_speculation.tiny/fake/c24/b2/spec-3: is missing"),
        ("run.json", lambda d: d["fingerprint"].update(config_sha256="0"), "run.json: fingerprint.config_sha256: "),
        ("run.json", lambda d: d.update(warnings=[]), "run.json: warnings: "),
        ("gates.json", verdict, "gates.json: verdicts[0].state: FAIL; recomputed: PASS"),
        ("gates.json", lambda d: d.update(exit_code=1), "gates.json: exit_code: 1; recomputed: 0"),
        ("gates.json", lambda d: d["policy"]["rules"][2]["params"].update(min=0.5), "gates.json: policy.rules[2]."),
        ("env.json", lambda d: d["host"].update(cpu="a better one"), "env.json: host.cpu: "),
    ],
)
def test_a_changed_figure_is_found_behind_a_mended_manifest(
    run: Path, file: str, change: Callable[[Any], None], message: str
) -> None:
    change_json(run / file, change)
    mend(run)
    lines = differences(run)
    assert any(line.startswith(message) for line in lines), lines


def test_a_changed_sample_changes_what_follows_from_it(run: Path) -> None:
    change_block(run, lambda block: block.update(elapsed_ns=2 * block["elapsed_ns"]))
    mend(run)
    changes = differences(run)
    assert any("comparisons" in line and "log_ratios" in line for line in changes), changes
    assert any(line.startswith("report.html: line ") for line in changes), changes


def test_a_changed_figure_on_the_page_or_in_a_table_is_found(run: Path) -> None:
    page, table = run / "report.html", run / "summary.csv"
    page.write_text(page.read_text().replace(">PASS<", ">FAIL<", 1))
    rows = list(csv.reader(table.read_text().splitlines()))
    table.write_text(table.read_text().replace(rows[1][-1] or rows[1][0], "0.5", 1))
    mend(run)
    assert {line.partition(":")[0] for line in differences(run)} == {"report.html", "summary.csv"}


def test_a_run_that_was_changed_with_its_manifest_is_found_by_the_ledger(run: Path) -> None:
    change_json(run / "env.json", lambda d: d["host"].update(cpu="a better one"))
    change_json(run / "run.json", lambda d: d["environment"]["host"].update(cpu="a better one"))
    RunFolder(run).write_manifest()
    lines = differences(run)
    assert any("ledger.jsonl" in line and "manifest_sha256" in line for line in lines), lines


def test_samples_that_break_the_arithmetic_are_a_difference_not_a_crash(run: Path) -> None:
    change_block(run, lambda block: block["phase_ns"].update(draft=10**400))
    mend(run)
    changes = differences(run)
    assert any("cannot be recomputed: " in line and "at most 9223372036854775807" in line for line in changes), changes


def test_changed_files_are_named_and_nothing_is_derived_from_them(run: Path) -> None:
    (run / "config.resolved.yaml").write_bytes(b"\xff")
    done = CliRunner().invoke(commands, ["runs", "verify", str(run)])
    assert done.exit_code == 6
    assert "figures were not recomputed, since files behind them were changed: config.resolved.yaml" in done.output


def test_a_torn_journal_is_reported_and_left_as_it_is(run: Path) -> None:
    file = run / "samples" / "blocks.jsonl"
    file.write_text(torn := file.read_text()[:-20])
    mend(run)
    lines = differences(run)
    assert any("an unfinished line" in line for line in lines), lines
    assert file.read_text() == torn


def test_the_last_digits_of_another_machine_are_no_difference_and_the_ninth_is() -> None:
    stored = {"figures": [-0.00024844178997684985, 1.5]}
    assert not list(differences_of("run.json", stored, {"figures": [-0.0002484417899766278, 1.5]}))
    (difference,) = differences_of("run.json", stored, {"figures": [-0.00024844178997684985, 1.50000001]})
    assert (difference.file, difference.place) == ("run.json", "figures[1]")


def test_the_last_digits_in_a_table_are_no_difference_and_the_ninth_or_a_word_is() -> None:
    stored = "run-1,spec-3,1.8563021794385072,PASS\nrun-1,spec-4,2.25,PASS\n"
    assert not list(line_differences("summary.csv", stored, stored.replace("5072", "5070")))
    for was, now in (("1.8563021794385072", "1.85630219"), ("PASS\n", "FAIL\n"), ("spec-3", "spec-2")):
        (line_difference,) = line_differences("summary.csv", stored, stored.replace(was, now, 1))
        assert (line_difference.file, line_difference.place) == ("summary.csv", "line 1")


def test_a_full_run_holds(cli: Cli) -> None:
    cli.scenario(kind="full", budget="new_tokens: 6")
    options = ("--scenario", "tiny.yaml", "--policy", "policy.yaml", "--backend", "fake")
    cli.run("full", *options, "--override-order", "the order is not what is tested here", code=0)
    full = cli.newest()
    assert differences(full) == []
    by_another_source_tree(full)
    mend(full)
    problems = verify(full)
    assert problems.differences == problems.untold == ()
    assert f"the run was made by source tree {'0' * 12}" in " ".join(problems.notes)


def test_a_field_may_not_be_missing(run: Path) -> None:
    change_json(run / "run.json", lambda data: data["cells"][0].pop("distributions"))
    mend(run)
    assert "run.json: cells[0].distributions: is missing" in differences(run)


def without_ledger(run: Path) -> list[str]:
    mend(run)
    return differences(run)


def test_a_removed_report_and_a_foreign_file_are_named_behind_a_mended_manifest(run: Path) -> None:
    (run / "summary.md").unlink()
    (run / "more.txt").touch()
    assert without_ledger(run) == [
        "summary.md: is missing; run.json says that it was written",
        "more.txt: is a file that no run writes",
    ]


def picture(page: Path, was: str, now: str) -> None:
    """Change a text within the first picture of a page that has it."""
    head, mark, tail = page.read_text().partition("<svg")
    assert was in tail
    page.write_text(head + mark + tail.replace(was, now, 1))


def test_what_a_picture_says_is_compared(run: Path) -> None:
    picture(run / "report.html", 'role="img" aria-label="', 'role="img" aria-label="not ')
    assert [line.partition(":")[0] for line in without_ledger(run)] == ["report.html"]


PICTURE = (
    '<p>a</p>\n<svg viewBox="0 0 9 9" role="img" aria-label="Speed-up">\n<path d="M 1.25 {y}"/>\n'
    '<text x="1.5">1.5x</text>\n</svg>\n<p>z</p>'
)


def test_of_a_picture_the_text_alternative_counts() -> None:
    stored, moved = PICTURE.format(y="3.00"), PICTURE.format(y="4.00")
    assert not list(line_differences("report.html", stored, moved))
    assert list(line_differences("report.html", stored, stored.replace("Speed-up", "Slow-down")))


def test_the_source_tree_of_run_json_is_held_to_env_json_and_to_the_name(run: Path) -> None:
    """Else a made-up source tree would switch the comparison of reports off."""
    change_json(run / "run.json", lambda data: data["fingerprint"].update(source_tree_sha256="0" * 64))
    assert any(line.startswith("run.json: fingerprint.source_tree_sha256: 000") for line in without_ledger(run))
    change_json(run / "run.json", lambda data: data["environment"]["source"].update(tree_sha256="0" * 64))
    change_json(run / "env.json", lambda data: data["source"].update(tree_sha256="0" * 64))
    assert any(line.startswith(f"run.json: id: {run.name}") for line in without_ledger(run))


@pytest.mark.parametrize("key", ["target_sha256", "draft_sha256", "device", "config_sha256", "interpreter"])
def test_the_fingerprint_is_held_to_engines_configuration_and_environment(run: Path, key: str) -> None:
    change_json(run / "run.json", lambda data: data["fingerprint"].update({key: "another"}))
    assert any(line.startswith(f"run.json: fingerprint.{key}: another; ") for line in without_ledger(run))


def test_reports_of_another_source_tree_are_not_compared(run: Path) -> None:
    by_another_source_tree(run)
    for file in run.glob("*.csv"):
        file.write_text(file.read_text().replace("reason_code", "reason", 1))
    mend(run)
    problems = verify(run)
    assert problems.differences == problems.untold == ()
    assert any("reports are not compared" in note for note in problems.notes)


def test_a_figure_that_only_another_source_tree_computes_is_left_to_that_tree(run: Path) -> None:
    by_another_source_tree(run)
    change_json(run / "run.json", figure)
    mend(run)
    done = CliRunner().invoke(commands, ["runs", "verify", str(run)])
    assert done.exit_code == 4 and "holds" not in done.output
    assert "differs: run.json: cells[1].values.acceptance_length.value: " in done.output
    assert "cannot be judged by this version: it computes" in done.output
    assert "next: check out " in done.output and f"source tree {'0' * 12}" in done.output


def test_what_no_source_tree_stores_is_a_difference_whoever_made_the_run(run: Path) -> None:
    by_another_source_tree(run)
    change_json(run / "run.json", figure)
    mend(run)
    (run / "more.txt").touch()
    done = CliRunner().invoke(commands, ["runs", "verify", str(run)])
    assert done.exit_code == 6 and "more.txt: is not in MANIFEST.sha256" in done.output


@pytest.mark.parametrize("schema", [{"schema": "specgate.result/v1"}, {"schema_version": "1.19.0"}])
def test_a_run_of_another_schema_is_not_recomputed_and_its_version_is_named(run: Path, schema: dict[str, str]) -> None:
    change_json(run / "run.json", lambda data: data.update(schema))
    change_json(run / "run.json", lambda data: data["environment"]["source"].update(commit="cd" * 20, dirty=False))
    mend(run)
    with pytest.raises(OtherVersion, match=r"made by source tree [0-9a-f]{12} \(commit cdcdcdcdcdcd\)") as caught:
        verify(run)
    assert (caught.value.hint or "").startswith("check out commit cdcdcdcdcdcd (source tree ")
    assert caught.value.exit_code == 4


def test_a_block_without_the_harnesss_clock_is_a_difference(run: Path) -> None:
    change_block(run, lambda block: block.update(span_ns=None), number=0)
    mend(run)
    assert "samples/blocks.jsonl: span_ns: is missing in 1 block: the engine's clock cannot be checked" in (
        differences(run)
    )


def test_a_verdict_that_the_ledger_states_otherwise_is_named(run: Path) -> None:
    file = run.parent / "ledger.jsonl"
    (run.parent / "ledger.head").unlink()
    file.write_text(file.read_text().replace('"state":"PASS","exit_code":0', '"state":"FAIL","exit_code":1'))
    lines = differences(run)
    assert len(lines) == 2 and all("ledger.jsonl" in line for line in lines), lines


def test_a_page_names_files_with_the_hashes_that_the_manifest_has(run: Path) -> None:
    manifest = listings(run / "MANIFEST.sha256")
    stored = json.loads((run / "run.json").read_text())["files"]
    assert {"env.json", "gates.json", "config.resolved.yaml", "samples/blocks.jsonl"} <= stored.keys()
    assert stored.items() <= manifest.items()
    assert all(sha256 in (run / "report.html").read_text() for sha256 in stored.values())


@pytest.mark.parametrize("kept", KEPT)
def test_a_run_that_the_documentation_quotes_holds_with_the_source_of_today(kept: str, tmp_path: Path) -> None:
    assert differences(unpacked(kept, tmp_path)) == []


def test_a_run_under_the_name_of_another_is_noticed_beside_the_ledger_of_that_one(cli: Cli) -> None:
    for _ in range(2):
        assert cli.micro("--backend", "fake").returncode == 0
    first, second = sorted((cli.folder / "runs").glob("*-micro-*"))
    here = cli.folder / "here"
    here.mkdir()
    for ledger in (cli.folder / "runs").glob("ledger.*"):
        shutil.copy(ledger, here)
    for name, code in ((first.name, 6), ("renamed", 0), (second.name, 0)):
        moved = shutil.copytree(second, here / name)
        done = cli.run("runs", "verify", moved, pair=False)
        assert done.returncode == code, done.stdout
        assert ("the folder has the name of another run, which ended with PASS" in done.stdout) == (code == 6)
