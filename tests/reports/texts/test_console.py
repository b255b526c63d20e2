"""A terminal and a log: short where all is green, nothing wider than the terminal, nothing but text in a log."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from specgate.contract import AcceptanceSource, Run
from specgate.contract.samples.counters import AS_TEXTS
from specgate.reports.texts.console import CELLS, DETAILS, LEAST, MOST, PLAIN, REPORT, ConsoleReport, latency_rows
from tests.support.factories import (
    POLICY,
    blocks_of,
    corrupt,
    judged,
    margins_of,
    plan_of,
    run_of,
    scenario,
    with_acceptance,
)
from tests.support.hostile import STRINGS, with_text
from tests.support.loaded import load_scenario, loaded_run

ANSI = re.compile(r"\x1b\[[0-9;]*m")


@cache
def sample(*, broken: bool = False) -> Run:
    plan = plan_of(scenario(spec=(2, 3), batch=(2,)))
    blocks = blocks_of(plan, change=lambda b: corrupt(b) if broken else b)
    return judged(run_of(plan, blocks), POLICY)


@pytest.mark.parametrize("broken", [False, True])
def test_no_line_is_wider_than_the_terminal(broken: bool) -> None:
    assert max(len(line) for line in ANSI.sub("", REPORT.render(sample(broken=broken), POLICY)).splitlines()) <= LEAST


def test_latencies_under_load_are_two_tables_where_the_terminal_is_too_narrow_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = loaded_run(load_scenario((8, 16)))
    for columns, heads in ((160, 1), (80, 2)):
        monkeypatch.setenv("COLUMNS", str(columns))
        rows = list(latency_rows(run))
        assert max(map(len, rows)) <= columns
        assert sum(row.startswith("clients") for row in rows) == heads
        assert sum(row.startswith("16 · spec-3") for row in rows) == heads


def test_a_green_run_is_a_row_per_cell_and_the_answer() -> None:
    lines = PLAIN.render(sample(), POLICY).splitlines()
    assert [line.split()[:5] for line in lines[1:3]] == [["64", "tokens", "·", "batch", "2"]] * 2
    assert all(re.search(r"2\.\d\d +\d+ +all equal$", line) for line in lines[1:3])
    assert lines[3:] == ["Speculation pays in all 2 cells: 1.79× to 2.03×."]


@pytest.mark.parametrize("report", [REPORT, PLAIN])
def test_a_rule_that_is_not_green_comes_with_its_reason_and_the_next_step_and_others_are_left_out(
    report: ConsoleReport,
) -> None:
    shown = " ".join(ANSI.sub("", report.render(sample(broken=True), POLICY)).split())
    assert (
        "INVALID tokens-equal on 64 tokens · batch 2 · spec-2 and 1 more cell: 8 sequences leave the baseline" in shown
    )
    assert " next: " in shown and "SKIPPED" not in shown and "PASS" not in shown
    assert re.search(r"Tokens differ with .*: prompt set 0, slot 0, token \d+: \d+ instead of \d+\.$", shown)


def test_of_many_cells_the_worst_have_a_row_and_the_others_are_counted() -> None:
    plan = plan_of(scenario(spec=(2, 3), batch=tuple(range(1, 7))))
    last = plan.cells[-1]
    blocks = blocks_of(plan, change=lambda b: corrupt(b) if b.cell == last else b)
    lines = PLAIN.render(judged(run_of(plan, blocks), POLICY), POLICY).splitlines()
    assert lines[CELLS].startswith("64 tokens · batch 6 · spec-3") and lines[CELLS + 1] == "  and 5 more cells"


def test_everything_is_one_line_per_cell_and_verdict_without_escape_codes() -> None:
    run = sample()
    lines = DETAILS.render(run, POLICY).splitlines()
    assert not any("\x1b" in line for line in lines)
    assert sum(line.startswith("cell ") for line in lines) == len(run.cells)
    assert sum(line.startswith("PASS") for line in lines) == len(run.verdicts) + 1
    assert any("acceptance length 2.83" in line and "tokens all equal" in line for line in lines)


def test_everything_has_each_next_step_once() -> None:
    run = sample(broken=True)
    steps = {v.next_step for v in run.verdicts if v.next_step}
    lines = DETAILS.render(run, POLICY).splitlines()
    assert steps and {step: sum(step in line for line in lines) for step in steps} == dict.fromkeys(steps, 1)


def test_near_ties_are_told_apart_from_equal_tokens() -> None:
    plan = plan_of(scenario(spec=(2, 3)))
    blocks = blocks_of(plan, change=lambda b: corrupt(b) if b.role.k == 2 else b)
    run = judged(run_of(plan, blocks, margins=margins_of(blocks, 1e-4)), POLICY)
    rows = PLAIN.render(run, POLICY).splitlines()[1:3]
    assert rows[0].endswith("8 near ties") and rows[1].endswith("all equal")


def test_texts_of_a_server_without_token_ids_are_not_called_equal_tokens() -> None:
    plan = plan_of()
    run = judged(run_of(plan, blocks_of(plan, change=lambda b: replace(b, counters={AS_TEXTS: 1}))), POLICY)
    assert PLAIN.render(run, POLICY).splitlines()[1].endswith("texts equal")


def test_withheld_speed_says_why() -> None:
    assert "– (token mismatch)" in PLAIN.render(sample(broken=True), POLICY)
    assert "speed-up – (token mismatch)" in DETAILS.render(sample(broken=True), POLICY)


def test_a_cell_shows_its_intervals_and_its_share_of_repeats() -> None:
    run = sample()
    length = run.cells[2].values["acceptance_length"]
    assert length.ci_low is not None and length.ci_high is not None
    shown = DETAILS.render(run, POLICY)
    assert f"{length.ci_low:.2f} … {length.ci_high:.2f}" in shown
    assert shown.count("0.0 %") == len(run.cells)


@cache
def dead() -> Run:
    """Nothing measured: the engine fell over."""
    plan = plan_of(scenario(spec=(2, 3)))
    return judged(run_of(plan, (), failures={plan.points[0].key: "killed by signal 9\ntry less"}), POLICY)


def test_a_log_says_once_why_nothing_was_measured() -> None:
    run = dead()
    assert sum(v.reason_code == "not_measured" for v in run.verdicts) > 2
    assert PLAIN.render(run, POLICY).count("killed by signal 9") == 1


def test_an_interrupted_run_is_not_said_to_be_the_engines_failure() -> None:
    run = replace(dead(), status="interrupted", failures={"run": "interrupted"})
    shown = PLAIN.render(run, POLICY)
    assert "INTERRUPTED: the run was cut short: interrupted" in shown and "BACKEND_ERROR" not in shown


def test_a_log_says_once_how_a_cell_contradicts_itself_and_names_every_rule() -> None:
    plan = plan_of(scenario(spec=(2, 3)))
    one = plan.cells[1]
    why, code = f"{one.key}: another engine scored other tokens", "records_contradict"
    run = run_of(plan, blocks_of(plan))
    cells = [replace(c, status="failed", reason=why, reason_code=code) if c.cell == one else c for c in run.cells]
    run = judged(replace(run, cells=tuple(cells)), POLICY)
    lines = [line for line in DETAILS.render(run, POLICY).splitlines() if line.startswith("INVALID") and why in line]
    judging = [v for v in run.verdicts if v.cell == one.key and v.reason_code == code]
    assert len(judging) > 2 and len(lines) <= 1 + len({v.required for v in judging})  # the last one is the run's own
    assert all(v.rule in lines[0] for v in judging if v.required) and "on 64 tokens · batch 1 · spec-2: " in lines[0]
    assert all(line.count("no figures") == 1 for line in lines)


def test_a_run_without_a_block_is_told_in_words() -> None:
    for report in (REPORT, PLAIN):
        shown = ANSI.sub("", report.render(dead(), POLICY))
        assert "BACKEND_ERROR: 64 tokens · batch 1 was cut short: killed by signal 9" in " ".join(shown.split())
        assert "None" not in shown
        assert "try less" in shown


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    colour = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert colour.search(REPORT.render(sample(broken=True), POLICY))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colour.search(REPORT.render(sample(broken=True), POLICY))


def test_a_terminal_that_knows_no_style_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in REPORT.render(sample(broken=True), POLICY)


@pytest.mark.parametrize("source", ["planted", "stand-in", "forced", "scripted"])
@pytest.mark.parametrize("report", [REPORT, PLAIN])
def test_acceptance_that_is_not_real_is_named_at_its_figures(report: ConsoleReport, source: AcceptanceSource) -> None:
    real, other = sample(), with_acceptance(sample(), source)
    assert f"{source} AL" in ANSI.sub("", report.render(other, POLICY)).splitlines()[0]
    assert "real" not in ANSI.sub("", report.render(real, POLICY))
    assert f"{source} acceptance length" in DETAILS.render(other, POLICY)
    assert max(map(len, ANSI.sub("", REPORT.render(other, POLICY)).splitlines())) <= LEAST


def test_tokens_of_a_forced_run_are_not_said_to_be_equal() -> None:
    shown = DETAILS.render(with_acceptance(sample(), "forced"), POLICY)
    assert "tokens – (forced)" in shown and "all equal" not in shown


@pytest.mark.parametrize("report", [REPORT, PLAIN, DETAILS])
@pytest.mark.parametrize("text", STRINGS)
def test_text_from_outside_cannot_steer_the_terminal(report: ConsoleReport, text: str) -> None:
    shown = ANSI.sub("", report.render(with_text(sample(), text), POLICY))
    assert not set(shown) & {"\x1b", "\x08", "\x00", "\r"}
    shown.encode()


def test_a_wider_terminal_is_used_up_to_a_readable_width(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, widest in ((60, LEAST), (120, 120), (400, MOST)):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = ANSI.sub("", REPORT.render(sample(broken=True), POLICY)).splitlines()
        assert max(map(len, lines)) <= widest
        assert any(len(line) > widest * 0.8 for line in lines)
