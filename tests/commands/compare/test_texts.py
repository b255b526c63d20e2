"""`specgate runs compare --by texts` as a user runs it: files, what is said, and the exit code."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from specgate.cli import cli as commands
from specgate.contract import Block
from specgate.errors import UsageError
from tests.support.factories import corrupt, scenario
from tests.support.stored_runs import store

FULL = scenario("texts", "full", prompt_sets=8)


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(commands, ["runs", "compare", "--by", "texts", *map(str, arguments)])


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reference, an engine that does the same, and one that leaves the text of prompt set 2."""

    def strays(block: Block) -> Block:
        return corrupt(block, at=4) if block.prompt_set == 2 else block

    monkeypatch.chdir(tmp_path)
    store(tmp_path / "reference", scenarios=[FULL])
    store(tmp_path / "same", scenarios=[FULL], backend="one")
    store(tmp_path / "strays", scenarios=[FULL], backend="two", change=strays)
    return tmp_path


def test_engines_in_agreement_end_with_0_and_say_what_it_rests_on(runs: Path) -> None:
    result = invoke(runs / "reference", runs / "same")
    assert result.exit_code == 0, result.output
    assert "one beside fake" in result.output and "8 of 8 prompt sets" in result.output
    assert "acceptance_length\t2.833\t2.833\t1.000×\t1.000–1.000\tPASS" in result.output
    assert "PASS: Same texts but for near ties; acceptance within 3 %." in result.output


def test_a_text_that_parts_is_shown_and_undecided_where_no_engine_is_asked(runs: Path) -> None:
    result = invoke(runs / "reference", runs / "same", runs / "strays", "--offline")
    assert result.exit_code == 3, result.output
    assert "7 of 8 prompt sets" in result.output and "\tunknown\n" in result.output
    assert (
        "INCONCLUSIVE: two, texts · 64 tokens · batch 1 · spec-3: texts differ in 1 of 8 prompt sets." in result.output
    )


def test_every_format_tells_the_same(runs: Path) -> None:
    result = invoke(runs / "reference", runs / "strays", "--offline", "--html", "--md", "--csv", "--json", "--out", "o")
    assert {p.name for p in Path("o").iterdir()} == {f"texts.{kind}" for kind in ("html", "md", "csv", "json")}
    rows = list(csv.DictReader(Path("o/texts.csv").read_text().splitlines()))
    (length,) = (row for row in rows if row["figure"] == "acceptance_length")
    data = json.loads(Path("o/texts.json").read_text())
    (ratio,) = (row["ratio"] for row in data["figures"] if row["figure"] == "acceptance_length")
    assert float(length["ratio"]) == ratio == pytest.approx(1)
    # Eight prompt sets in two rounds: two places of one prompt.
    assert [(d["prompt_set"], d["round"], d["position"], d["margin"]) for d in data["divergences"] if d["k"] == 3] == [
        (2, 0, 4, None),
        (2, 1, 4, None),
    ]
    for name in ("texts.md", "texts.html"):
        assert "7 of 8" in Path("o", name).read_text()
    assert "wrote o/texts.html" in result.output


def test_a_margin_of_nothing_is_met_by_the_same(runs: Path) -> None:
    assert invoke(runs / "reference", runs / "same", "--margin", "0").exit_code == 0


def test_micro_runs_and_folders_that_are_none_are_refused(runs: Path) -> None:
    store(runs / "steps")
    for other in (runs / "steps", runs):
        assert isinstance(invoke(runs / "reference", other).exception, UsageError)
    assert isinstance(invoke(runs / "reference").exception, UsageError)


def test_a_run_that_was_cut_short_is_never_in_agreement(runs: Path) -> None:
    store(runs / "short", scenarios=[FULL], backend="one", changes={"failures": {"run": "the server ended"}})
    result = invoke(runs / "reference", runs / "short")
    assert result.exit_code == 7 and "one was cut short: the server ended" in result.output
