"""Kinds of judgement that a run lacks stand beside the verdict in every report, with the policy's reason or without."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace

import pytest

from specgate.contract import Gap, Run, State
from specgate.errors import ExitCode
from specgate.reports.common.summary import headline, not_judged
from specgate.reports.texts import console, junit, markdown
from specgate.reports.texts.markdown import LINES
from tests.reports.texts.test_markdown import large
from tests.support.factories import POLICY, blocks_of, judged, plan_of, run_of
from tests.support.hostile import STRINGS

PLAN = plan_of()
SPEC = PLAN.cells[1].key
GREEN = judged(run_of(PLAN, blocks_of(PLAN)), POLICY)
WHY = "a shared clock is no judge"
EXCUSED = replace(GREEN, not_judged=(Gap("speed", (SPEC,), WHY),))
SILENT = replace(GREEN, not_judged=(Gap("speed", (SPEC,), None), Gap("tokens", (SPEC, "a/b", "c/d"), None)))
Render = Callable[[Run], str]
REPORTS: dict[str, Render] = {
    "details": lambda run: console.DETAILS.render(run, POLICY),
    "plain": lambda run: console.PLAIN.render(run, POLICY),
    "console": lambda run: " ".join(re.sub(r"\x1b\[[\d;]*m", "", console.REPORT.render(run, POLICY)).split()),
    "markdown": lambda run: markdown.REPORT.render(run, POLICY),
    "junit": lambda run: junit.REPORT.render(run, POLICY),
}
each = pytest.mark.parametrize("render", REPORTS.values(), ids=REPORTS)


@each
def test_a_green_run_says_what_the_policy_gave_up_and_why(render: Render) -> None:
    text = render(EXCUSED)
    assert WHY in text and "speed" in text and ("PASS" in text or "Not judged: speed" in text)
    assert WHY not in render(GREEN)


@each
def test_a_run_that_is_not_judged_names_what_is_missing(render: Render) -> None:
    text = render(SILENT)
    assert "NOT_JUDGED" in text.replace("\\", "") and "speed of 64 tokens · batch 1 · spec-3" in text
    assert "tokens of 3 cells" in text
    assert "PASS: All" not in text


def test_the_headline_gives_the_code_and_what_to_do() -> None:
    line = headline(SILENT)
    assert (line.state, line.code) == ("NOT_JUDGED", ExitCode.NOT_JUDGED)
    assert line.advice is not None and "otherwise: true" in line.advice and "not_judged" in line.advice
    nothing = headline(replace(SILENT, verdicts=(), not_judged=()))
    assert nothing.reason == "No required rule judged a cell of this run."


@each
def test_a_rule_that_cannot_judge_gives_its_own_reason_and_no_advice_about_the_policy(render: Render) -> None:
    open_ = replace(GREEN.verdicts[0], state=State.NOT_JUDGED, message="nothing tells how it rounds", next_step="ask")
    text = render(replace(GREEN, verdicts=(open_, *GREEN.verdicts[1:])))
    assert "nothing tells how it rounds" in text and "ask" in text
    assert "equired rule judge" not in text and "otherwise: true" not in text


def test_of_a_red_run_it_is_said_too_and_only_there_beside_the_headline() -> None:
    red = tuple(replace(v, state=State.FAIL) for v in GREEN.verdicts)
    assert not_judged(SILENT) == []
    text = not_judged(replace(SILENT, verdicts=red))
    assert text[0] == "Not judged: speed of 64 tokens · batch 1 · spec-3: no required rule asks for it."
    assert len(text) == 2


def test_junit_skips_what_is_excused_and_fails_what_is_not() -> None:
    (excused,) = ET.fromstring(REPORTS["junit"](EXCUSED)).iter("testsuite")
    assert (excused.get("failures"), excused.get("errors")) == ("0", "0")
    (case,) = [c for c in excused.iter("testcase") if c.get("name") == "speed not judged"]
    assert [child.tag for child in case] == ["skipped", "system-out"]
    assert case[0].get("message") == WHY and case[1].text == SPEC
    (silent,) = ET.fromstring(REPORTS["junit"](SILENT)).iter("testsuite")
    assert silent.get("failures") == "3"  # the verdict, and two kinds


@pytest.mark.parametrize("text", STRINGS)
def test_a_reason_from_a_policy_adds_no_line_and_no_markup(text: str) -> None:
    run = replace(GREEN, not_judged=(Gap("speed", (SPEC,), text),))
    ET.fromstring(REPORTS["junit"](run))
    assert len(REPORTS["markdown"](run).splitlines()) == len(REPORTS["markdown"](EXCUSED).splitlines())


def test_the_summary_of_a_large_run_keeps_its_limit() -> None:
    run = replace(
        large(), not_judged=tuple(Gap("speed", (c.cell.key,), f"why {n}") for n, c in enumerate(large().cells))
    )
    assert len(REPORTS["markdown"](run).splitlines()) <= LINES
