"""junit.xml as another library reads it: red where the exit code is red, one case per verdict, text as text."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import junitparser
import pytest

from specgate.analysis.verdict import overall
from specgate.contract import Run, State, Verdict
from specgate.contract.protocols import visible
from specgate.errors import ExitCode
from specgate.reports.texts.junit import REPORT
from tests.support.factories import POLICY, blocks_of, corrupt, judged, plan_of, run_of, scenario
from tests.support.hostile import STRINGS, with_text

PLAN = plan_of(scenario(spec=(2, 3)))
GREEN = judged(run_of(PLAN, blocks_of(PLAN)), POLICY)
ALLOWED = {
    "testsuites": {"testsuite"},
    "testsuite": {"properties", "testcase"},
    "properties": {"property"},
    "testcase": {"skipped", "error", "failure", "system-out"},
}
ATTRIBUTES = {
    "testsuites": {"name", "tests", "failures", "errors"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp"},
    "property": {"name", "value"},
    "testcase": {"name", "classname", "time"},
    **{tag: {"type", "message"} for tag in ("failure", "error", "skipped")},
}
"""What the schema allows, of which the report uses no more."""


def suites(*runs: Run) -> list[junitparser.TestSuite]:
    return list(junitparser.JUnitXml.fromstring(REPORT.render_all(runs).encode()))


def with_verdict(state: State, *, required: bool) -> Run:
    added = Verdict("extra", "g", PLAN.cells[1].key, state, required, "code", "because so", {"min": 2.0}, "do that")
    return replace(GREEN, verdicts=(*GREEN.verdicts, added))


def outcome(run: Run) -> str | None:
    case = list(suites(run)[0])[-1]
    return type(case.result[0]).__name__ if case.result else None


def test_there_is_a_case_for_the_verdict_and_one_per_gate_and_cell() -> None:
    (suite,) = suites(GREEN)
    assert suite.tests == len(GREEN.verdicts) + 1 == len(list(suite))
    assert (suite.failures, suite.errors) == (0, 0)
    names = [(c.classname, c.name) for c in suite]
    assert names[0] == ("specgate.micro", "verdict")
    assert ("specgate.micro.demo-64", "acceptance fake c64 b1 spec-3") in names


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("state", list(State))
def test_the_file_is_red_exactly_where_the_exit_code_is(state: State, required: bool) -> None:
    run = with_verdict(state, required=required)
    (suite,) = suites(run)
    assert (suite.failures + suite.errors > 0) == (overall(run)[1] is not ExitCode.PASS)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (State.PASS, None),
        (State.IMPROVED, None),
        (State.FAIL, "Failure"),
        (State.INCONCLUSIVE, "Failure"),
        (State.INVALID, "Error"),
        (State.ENV_REJECTED, "Error"),
        (State.SKIPPED, "Skipped"),
    ],
)
def test_each_state_has_its_outcome_and_advice_only_skips(state: State, expected: str | None) -> None:
    assert outcome(with_verdict(state, required=True)) == expected
    assert outcome(with_verdict(state, required=False)) == ("Skipped" if expected else None)


def test_the_figures_of_a_verdict_stand_in_its_output() -> None:
    case = list(suites(with_verdict(State.FAIL, required=True))[0])[-1]
    assert "min 2" in (case.system_out or "")


def test_a_run_that_judged_nothing_or_was_cut_short_is_red() -> None:
    for run in (replace(GREEN, verdicts=()), replace(GREEN, failures={"run": "disk full"})):
        (suite,) = suites(run)
        assert suite.failures + suite.errors == 1


def test_several_runs_are_several_suites_and_their_sums() -> None:
    wrong = judged(run_of(PLAN, blocks_of(PLAN, change=corrupt), id="wrong"), POLICY)
    root = ET.fromstring(REPORT.render_all([GREEN, wrong]).encode())
    assert [s.get("name") for s in root] == [f"specgate micro {GREEN.id}", "specgate micro wrong"]
    assert root.get("tests") == str(sum(int(s.get("tests", 0)) for s in root))
    assert root.get("errors") == str(sum(int(s.get("errors", 0)) for s in root)) != "0"


@pytest.mark.parametrize("text", STRINGS)
def test_hostile_text_is_text_and_only_what_the_schema_allows_is_used(text: str) -> None:
    root = ET.fromstring(REPORT.render(with_text(GREEN, text), POLICY).encode())
    for element in root.iter():
        assert {child.tag for child in element} <= ALLOWED.get(element.tag, set())
        assert set(element.keys()) <= ATTRIBUTES.get(element.tag, set())
    device = next(p.get("value") for p in root.iter("property") if p.get("name") == "device")
    assert device == visible(text)
