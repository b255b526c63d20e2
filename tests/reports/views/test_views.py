"""The views of several runs in every format: complete, no wider than the terminal, safe, repeatable."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from specgate import plugins
from specgate.analysis.cell_names import cell_name
from specgate.archive.comparing.acceptance import acceptance_of
from specgate.archive.comparing.builds import contrast_of, judged
from specgate.archive.comparing.engines import matrix_of
from specgate.archive.history import series
from specgate.archive.stored_runs import StoredRun, load_run
from specgate.contract import Block, Cell, CellResult, Point
from specgate.contract.comparisons import Trends
from specgate.contract.protocols import Format, visible
from specgate.reports.views.builds import UNPAIRED
from tests.reports.page.test_html import Page
from tests.support import outlines, stored_runs
from tests.support.factories import corrupt, scenario, with_acceptance
from tests.support.hostile import STRINGS, with_text
from tests.support.stored_runs import rewrite

DRAWS = True
Rendered = Callable[[str, Format], str]

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def store(folder: Path, **how: Any) -> Path:
    """A stored run. Its own page, which no view reads, is not drawn."""
    with pytest.MonkeyPatch.context() as patch:
        outlines.instead_of_drawing(patch)
        return stored_runs.store(folder, **how)


def contrast(a: Path, b: Path) -> Any:
    return judged(contrast_of(load_run(a), load_run(b)), "compare")


def trends(*stored: StoredRun) -> Trends:
    runs = tuple(one.run for one in stored)
    return Trends(runs, tuple(series(stored)), {"ground": {"device": "cpu"}}, ("elsewhere: not readable",))


@dataclass(frozen=True)
class Subjects:
    builds: Any
    engines: Any
    history: Any
    acceptance: Any


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Subjects:
    folder = tmp_path_factory.mktemp("runs")
    kinds = [scenario("a-scenario-with-a-long-name", spec=(2, 3), batch=(4,), context=(4096,))]
    a, b = store(folder / "a", scenarios=kinds), store(folder / "b", scenarios=kinds, cycle_ns=17_000_000)
    rewrite(b, with_acceptance(load_run(b).run, "planted"))
    one, other = load_run(a), load_run(b)
    summed_up = acceptance_of([one, other, load_run(looping(folder))])
    return Subjects(contrast(a, b), matrix_of([one.run, other.run]), trends(one, other), summed_up)


@pytest.fixture(scope="module")
def rendered(subjects: Subjects) -> Rendered:
    """(view, format) → what the view shows of its subject, made once."""
    return cache(lambda name, format: plugins.view(name).render(getattr(subjects, name), format))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stored run of the usual scenario."""
    return store(tmp_path_factory.mktemp("runs") / "one")


def looping(folder: Path) -> Path:
    """A run half of whose texts loop."""

    def repeat(block: Block) -> Block:
        if block.prompt_set % 2:
            return block
        return replace(block, tokens=tuple(tuple(t % 3 for t in range(len(of))) for of in block.tokens))

    return store(folder / "looping", change=repeat)


NAMES = ("builds", "engines", "history", "acceptance")


@pytest.mark.parametrize("name", NAMES)
def test_no_line_on_a_terminal_is_wider_than_80_columns(name: str, subjects: Subjects) -> None:
    shown = ANSI.sub("", plugins.view(name).render(getattr(subjects, name), "console"))
    assert max(map(len, shown.splitlines())) <= 80


def test_a_wider_terminal_is_used(subjects: Subjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    shown = ANSI.sub("", plugins.view("builds").render(subjects.builds, "console"))
    assert 80 < max(map(len, shown.splitlines())) <= 120


def test_no_color_is_obeyed(subjects: Subjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown = plugins.view("builds").render(subjects.builds, "console")
    assert not re.search(r"\x1b\[[0-9;]*(?:3[0-7]|4[0-7])m", shown)


@pytest.mark.parametrize("name", NAMES)
def test_plain_lines_have_no_escape_codes(name: str, rendered: Rendered) -> None:
    assert "\x1b" not in rendered(name, "plain")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("format", ["html", "md", "csv"])
def test_the_same_subject_gives_the_same_bytes(
    name: str, format: Format, subjects: Subjects, rendered: Rendered
) -> None:
    assert plugins.view(name).render(getattr(subjects, name), format) == rendered(name, format)


@pytest.mark.parametrize("name", NAMES)
def test_pages_are_balanced_fetch_nothing_and_run_nothing(name: str, rendered: Rendered) -> None:
    markup = rendered(name, "html")
    page = Page(markup)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "base", "form"}
    assert not re.search(r"""(?:src|href)=["'](?:https?:)?//|url\((?!#)|@import""", markup)


def test_differences_come_before_figures_and_times_under_their_banner(rendered: Rendered) -> None:
    formats: tuple[Format, ...] = ("html", "md", "plain")
    for format in formats:
        shown = rendered("builds", format)
        figure = re.search(r"(?<!mean_)(?<!mean\\_)tpot", shown)  # a rule names mean_tpot_ms, too
        assert figure and shown.index("npaired in time: A and B") < shown.index("What differs") < figure.start()
    assert "real in A, planted in B: lengths are not compared" in shown


def test_every_change_is_a_row_of_the_csv_with_its_verdict(subjects: Subjects, rendered: Rendered) -> None:
    rows = list(csv.DictReader(io.StringIO(rendered("builds", "csv"))))
    assert len(rows) == len(subjects.builds.changes)
    data = {(r["role"], r["metric"]): r for r in rows}
    assert data["spec-3", "decode_speedup_ratio"]["verdict"] == "FAIL"
    assert data["spec-3", "acceptance_length"]["reason_code"] == "acceptance_sources_differ"
    assert data["spec-3", "mean_tpot_ms"]["how"] == "unpaired in time"
    assert data["spec-3", "step_ms"]["verdict"] == "INCONCLUSIVE"
    assert data["spec-3", "verify_ms"]["verdict"] == ""


def test_a_matrix_never_shows_planted_acceptance_without_its_label(rendered: Rendered) -> None:
    shown = rendered("engines", "plain")
    rows = [line for line in shown.splitlines() if "\tspec-" in line]
    assert rows and all("planted" in line for line in rows)
    assert "Acceptance comes from different sources" in shown


def test_an_entry_that_cannot_be_compared_shows_the_reason_in_place_of_a_figure(one: Path) -> None:
    run = load_run(one).run
    other = replace(run, id="two", prompts={k: {"sha256": "d" * 64} for k in run.prompts})
    shown = plugins.view("engines").render(matrix_of([run, other]), "plain")
    rows = [line for line in shown.splitlines() if line.startswith("  demo-64")]
    assert rows and all("– (other prompts: dddddddd, not cccccccc)" in line for line in rows)


def test_the_changes_that_decide_stand_on_top_and_divide(rendered: Rendered) -> None:
    shown = rendered("builds", "plain")
    lines = shown[shown.index("In short:") :].splitlines()[2:]
    rows = [line.strip().split("\t") for line in lines[: lines.index("Verdicts:")] if "\t" in line]
    assert rows[0][-1] == "FAIL (margin exceeded)" and rows[0][1] == "speed-up"
    verdicts = shown[shown.index("Verdicts:") : shown.index("Runs:")]
    assert {row[1] for row in rows} >= {"step time, ms"} and all(row[0] in verdicts for row in rows)
    for _, figure, a, b, change, *_ in rows:
        before, after = (float(text.rstrip("×").replace(",", "")) for text in (a, b))
        if not change.startswith("–"):
            assert float(change.partition(" %")[0]) == pytest.approx(100 * (after / before - 1), abs=1.0), figure
    assert [line.strip().split("\t")[0] for line in shown[shown.index("Verdicts:") :].splitlines()[2:4]] == ["FAIL"] * 2


def test_a_matrix_marks_the_best_of_a_row_and_what_is_slower_than_its_baseline(tmp_path: Path) -> None:
    fast, slow = (
        load_run(store(tmp_path / name, cycle_ns=ns)).run for name, ns in (("a", 14_000_000), ("b", 40_000_000))
    )
    slow = replace(slow, cells=slow.cells, id="slow")
    shown = plugins.view("engines").render(matrix_of([fast, slow]), "plain")
    speedups = shown[shown.index("Speed-up over the own baseline:") : shown.index("Acceptance length:")]
    (row,) = [line.split("\t") for line in speedups.splitlines() if "\tspec-3" in line]
    assert "best of the row" in row[4] and "slower than baseline" not in row[4]
    assert "slower than baseline" in row[5] and "best" not in row[5]
    lengths = shown[shown.index("Acceptance length:") : shown.index("Output tokens per second:")]
    assert "best" not in lengths, "both are alike"
    page = Page(plugins.view("engines").render(matrix_of([fast, slow]), "html"))
    assert {"best", "slower"} <= {a.get("class") for a in page.all("span")}


def test_speeds_that_rest_on_different_sources_of_acceptance_have_no_best(rendered: Rendered) -> None:
    shown = rendered("engines", "plain")
    speedups = shown[: shown.index("Acceptance length:")]
    assert "\tspec-3" in speedups and "best of the row" not in speedups


def followed(one: Path, count: int) -> Trends:
    """The history of so many runs like one, in one group."""
    first = load_run(one)
    made = [replace(first.run, id=f"run-{n:02d}", started=f"2026-11-01T{n:02d}:00") for n in range(count)]
    runs = [replace(run, cells=tuple(nudged(c, n) for c in run.cells)) for n, run in enumerate(made)]
    results = list(series([replace(first, run=run) for run in runs]))
    groups = {s.group: {"device": "cpu"} for s in results}
    return Trends(tuple(runs), tuple(results), groups, ())


def nudged(result: CellResult, n: int) -> CellResult:
    """The result with speeds that differ a little from run to run."""
    value = result.values["decode_tok_s"]
    assert value.value is not None
    wobbled = replace(value, value=value.value * (1 + 0.001 * (n * 7 % 5)))
    return replace(result, values={**result.values, "decode_tok_s": wobbled})


def test_history_has_a_small_picture_per_metric_of_a_group_with_two_runs_or_more(one: Path) -> None:
    """Its axis names the runs by whole numbers."""
    result = followed(one, 2)
    markup = plugins.view("history").render(result, "html")
    page = Page(markup)
    pictures = {(s.cell.point, s.group, s.metric) for s in result.series}
    assert len(page.all("svg")) == len(pictures)
    assert all(svg["aria-label"] for svg in page.all("svg"))
    for svg in re.findall(r"<svg.*?</svg>", markup, re.DOTALL):
        texts = re.findall(r"<text\b[^>]*>\s*(.*?)\s*</text>", svg, re.DOTALL)
        assert texts[: texts.index("run")] == ["1", "2"]


def test_a_group_with_one_run_stands_in_a_table_and_what_was_left_out_is_named(
    subjects: Subjects, rendered: Rendered
) -> None:
    page = Page(rendered("history", "html"))
    assert not page.all("svg") and "Measured once" in page.text
    for sery in subjects.history.series:
        assert cell_name(sery.cell.key) in page.text
    assert "elsewhere: not readable" in page.text and "no gate" in page.text


@pytest.mark.parametrize("text", STRINGS)
def test_hostile_text_is_text_in_every_format(text: str, one: Path) -> None:
    stored = load_run(one)
    run = with_text(stored.run, text)
    cells = tuple(replace(c, cell=Cell(Point(text, "fake", 64, 1), c.cell.role)) for c in run.cells)
    run = replace(run, cells=cells, scenarios={text: next(iter(run.scenarios.values()))})
    summed_up = acceptance_of([replace(stored, run=with_text(stored.run, text))])
    subjects = {
        "engines": matrix_of([run, replace(run, id="y")]),
        "history": trends(replace(stored, run=run)),
        "acceptance": summed_up,
    }
    for name, subject in subjects.items():
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


def test_lengths_of_texts_that_loop_stand_beside_those_of_the_others(subjects: Subjects, rendered: Rendered) -> None:
    shown = rendered("acceptance", "plain")
    layouts = subjects.acceptance.layouts[0]
    (looped,) = [s for s in layouts.rows if s.looping_prompts]
    assert looped.without_loops is not None
    assert f"note: {looped.looping_prompts} of {sum(s.prompts for s in layouts.rows)} prompts have a text" in shown
    section = shown[shown.index("Texts that loop:") : shown.index("By context:")]
    (row,) = [line.split("\t") for line in section.splitlines()[2:-1]]
    assert row[1] == f"{looped.looping_prompts} of {looped.prompts}"
    assert row[3].startswith(f"{looped.value('acceptance_length'):.2f} (")
    assert row[4].startswith(f"{looped.without_loops.value:.2f} (")


def test_rows_of_planted_acceptance_say_so(rendered: Rendered) -> None:
    shown = rendered("acceptance", "plain")
    assert "note: Acceptance is planted and real" in shown
    assert "demo (spec-3, planted)" in shown


def test_a_position_that_no_engine_counts_is_said(subjects: Subjects) -> None:
    layout = subjects.acceptance.layouts[-1]
    silent = replace(layout.rows[0], values={"acceptance_length": layout.rows[0].values["acceptance_length"]})
    changed = replace(subjects.acceptance, layouts=(subjects.acceptance.layouts[0], replace(layout, rows=(silent,))))
    assert "Not counted by position: demo, spec-2, planted." in plugins.view("acceptance").render(changed, "plain")


def test_wrong_tokens_make_a_contrast_invalid_and_say_where(one: Path, tmp_path: Path) -> None:
    shown = plugins.view("builds").render(contrast(one, store(tmp_path / "b", change=corrupt)), "plain")
    assert shown.splitlines()[-1].startswith(
        "INVALID: decode-speed-up on 64 tokens · batch 1 · spec-3: no ratio: token mismatch"
    )
    assert "8 differ" in shown and UNPAIRED in shown


def test_a_comparison_says_of_its_times_that_the_spread_between_processes_is_assumed(one: Path, tmp_path: Path) -> None:
    shown = plugins.view("builds").render(contrast(one, store(tmp_path / "b")), "plain")
    times = next(line for line in shown.splitlines() if line.lstrip().startswith("step_ms"))
    lengths = next(line for line in shown.splitlines() if line.lstrip().startswith("acceptance_length"))
    assert "process to process 0.56 % assumed in A and B" in times
    assert "process" not in lengths
