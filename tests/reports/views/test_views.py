"""Contrast, matrix, history and agreement in every format: complete, no wider than the terminal, safe, repeatable."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from specgate import plugins
from specgate.api import visible
from specgate.archive.agreeing import agreement_of
from specgate.archive.contrasting import contrast_of
from specgate.archive.history import series
from specgate.archive.stored import load_run
from specgate.core import Cell, Point, Run
from specgate.core.agreement import Agreement
from specgate.core.matrix import matrix_of
from specgate.core.trends import Trends
from specgate.planning.policy import FOR_CONTRASTS, find_policy
from specgate.reports.views.contrast import UNPAIRED
from tests.reports.page.test_html import Page
from tests.support.factories import corrupt, scenario, with_acceptance
from tests.support.hostile import STRINGS, with_text
from tests.support.stored_runs import rewrite, store

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def contrast(a: Path, b: Path) -> Any:
    found = contrast_of(load_run(a), load_run(b))
    gates = plugins.contrast_gates()
    policy = find_policy("compare", {name: gate.params for name, gate in gates.items()}, FOR_CONTRASTS)
    return replace(found, verdicts=tuple(v for r in policy.rules for v in gates[r.gate].judge(r, found)))


def trends(*runs: Run) -> Trends:
    return Trends(runs, tuple(series(runs)), {"ground": {"device": "cpu"}}, ("elsewhere: not readable",))


@dataclass(frozen=True)
class Subjects:
    compare: Any
    matrix: Any
    history: Any
    agreement: Any


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Subjects:
    folder = tmp_path_factory.mktemp("runs")
    kinds = [scenario("a-scenario-with-a-long-name", spec=(2, 3), batch=(4,), context=(4096,))]
    a, b = store(folder / "a", scenarios=kinds), store(folder / "b", scenarios=kinds, cycle_ns=17_000_000)
    rewrite(b, with_acceptance(load_run(b).run, "planted"))
    one, other = load_run(a).run, load_run(b).run
    return Subjects(contrast(a, b), matrix_of([one, other]), trends(one, other), agreement(folder))


def agreement(folder: Path) -> Agreement:
    """With texts that part, and figures of both roles of spec."""
    whole = [scenario("a-scenario-with-a-long-name", "full", spec=(2, 3), batch=(4,), context=(4096,), prompt_sets=8)]
    runs = [
        store(folder / "one", scenarios=whole),
        store(folder / "other", scenarios=whole, backend="other", change=lambda b: corrupt(b) if b.prompt_set else b),
    ]
    return agreement_of([load_run(run) for run in runs], margin_pct=3.0)


NAMES = ("compare", "matrix", "history", "agreement")


@pytest.mark.parametrize("name", NAMES)
def test_no_line_on_a_terminal_is_wider_than_80_columns(name: str, subjects: Subjects) -> None:
    shown = ANSI.sub("", plugins.view(name).render(getattr(subjects, name), "console"))
    assert max(map(len, shown.splitlines())) <= 80


def test_a_wider_terminal_is_used(subjects: Subjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    shown = ANSI.sub("", plugins.view("compare").render(subjects.compare, "console"))
    assert 80 < max(map(len, shown.splitlines())) <= 120


def test_no_color_is_obeyed(subjects: Subjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown = plugins.view("compare").render(subjects.compare, "console")
    assert not re.search(r"\x1b\[[0-9;]*(?:3[0-7]|4[0-7])m", shown)


@pytest.mark.parametrize("name", NAMES)
def test_plain_lines_have_no_escape_codes(name: str, subjects: Subjects) -> None:
    assert "\x1b" not in plugins.view(name).render(getattr(subjects, name), "plain")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("format", ["html", "md", "csv"])
def test_the_same_subject_gives_the_same_bytes(name: str, format: Any, subjects: Subjects) -> None:
    subject, view = getattr(subjects, name), plugins.view(name)
    assert view.render(subject, format) == view.render(subject, format)


@pytest.mark.parametrize("name", NAMES)
def test_pages_are_balanced_fetch_nothing_and_run_nothing(name: str, subjects: Subjects) -> None:
    markup = plugins.view(name).render(getattr(subjects, name), "html")
    page = Page(markup)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "base", "form"}
    assert not re.search(r"""(?:src|href)=["'](?:https?:)?//|url\((?!#)|@import""", markup)


def test_differences_come_before_figures_and_times_under_their_banner(subjects: Subjects) -> None:
    for format in ("html", "md", "plain"):
        shown = plugins.view("compare").render(subjects.compare, format)
        assert shown.index("npaired in time: A and B") < shown.index("What differs") < shown.index("tpot")
    assert "real in A, planted in B: lengths are not compared" in shown


def test_every_change_is_a_row_of_the_csv_with_its_verdict(subjects: Subjects) -> None:
    rows = list(csv.DictReader(io.StringIO(plugins.view("compare").render(subjects.compare, "csv"))))
    assert len(rows) == len(subjects.compare.changes)
    found = {(r["role"], r["metric"]): r for r in rows}
    assert found["spec-3", "speedup_vs_ar_ratio"]["verdict"] == "FAIL"
    assert found["spec-3", "acceptance_length"]["reason_code"] == "acceptance_sources_differ"
    assert found["spec-3", "tpot_ms"]["how"] == "unpaired in time"
    assert found["spec-3", "step_ms"]["verdict"] == ""


def test_a_matrix_never_shows_planted_acceptance_without_its_label(subjects: Subjects) -> None:
    shown = plugins.view("matrix").render(subjects.matrix, "plain")
    rows = [line for line in shown.splitlines() if "\tspec-" in line]
    assert rows and all("planted" in line for line in rows)
    assert "Acceptance comes from different sources" in shown


def test_an_entry_that_cannot_be_compared_shows_the_reason_in_place_of_a_figure(tmp_path: Path) -> None:
    one = load_run(store(tmp_path / "one")).run
    other = replace(one, id="two", prompts={k: {"sha256": "d" * 64} for k in one.prompts})
    shown = plugins.view("matrix").render(matrix_of([one, other]), "plain")
    rows = [line for line in shown.splitlines() if line.startswith("  demo-64")]
    assert rows and all("– (other prompts: dddddddd, not cccccccc)" in line for line in rows)


def test_history_has_a_picture_per_metric_and_point_and_names_what_it_left_out(subjects: Subjects) -> None:
    page = Page(plugins.view("history").render(subjects.history, "html"))
    pictures = {(s.cell.point, s.ground, s.metric) for s in subjects.history.series}
    assert len(page.all("svg")) == len(pictures)
    assert all(svg["aria-label"] for svg in page.all("svg"))
    assert "elsewhere: not readable" in page.text and "no gate" in page.text


@pytest.mark.parametrize("text", STRINGS)
def test_hostile_text_is_text_in_every_format(text: str, tmp_path: Path) -> None:
    run = with_text(load_run(store(tmp_path / "x")).run, text)
    cells = tuple(replace(c, cell=Cell(Point(text, "fake", 64, 1), c.cell.role)) for c in run.cells)
    run = replace(run, cells=cells, scenarios={text: next(iter(run.scenarios.values()))})
    for name, subject in (("matrix", matrix_of([run, replace(run, id="y")])), ("history", trends(run))):
        view = plugins.view(name)
        page = Page(view.render(subject, "html"))
        assert "script" not in {tag for tag, _ in page.tags} and not page.all("img")
        assert not re.search(r"<script|(?<!\\)\]\(javascript", view.render(subject, "md"))
        for row in csv.reader(io.StringIO(view.render(subject, "csv"))):
            assert not any(field[:1] in ("=", "+", "@") for field in row)
        for format in ("console", "plain"):
            shown = ANSI.sub("", view.render(subject, format))
            assert not set(shown) & {"\x1b", "\x08", "\x00"}
    assert visible(text)


def test_wrong_tokens_make_a_contrast_invalid_and_say_where(tmp_path: Path) -> None:
    a, b = store(tmp_path / "a"), store(tmp_path / "b", change=corrupt)
    shown = plugins.view("compare").render(contrast(a, b), "plain")
    assert shown.splitlines()[-1].startswith("INVALID: speed-up on demo-64 c64 b1 spec-3: no ratio: token mismatch")
    assert "8 differ" in shown and UNPAIRED in shown
