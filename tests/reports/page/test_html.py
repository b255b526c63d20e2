"""The page: the verdict first, nothing fetched, nothing unescaped, the same bytes for the same run."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.analysis.cell_names import cell_name
from specgate.analysis.machine.conditions import conditions_of
from specgate.contract import Gap, LastGreen, Promotion, Run
from specgate.files.journal import JOURNALS
from specgate.reports.page.details import FILES
from specgate.reports.page.html import REPORT, TEMPLATES
from specgate.reports.page.points import DRAWN, sections
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
from tests.support.surroundings import timed, watched

pytestmark = pytest.mark.slow("draws the whole page for every test")

DRAWS = True
WORDS = pytest.mark.usefixtures("outlined")
"""Of a test that reads the words of pages of its own: what is drawn beside them is not looked at."""

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """The page as a browser reads it: texts in order, tags, attributes; fails on unbalanced tags."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(markup)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if data.strip() and not {"style", "script"} & set(self.open):
            self.texts.append(data.strip())

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@cache
def sample(**options: bool) -> Run:
    plan = plan_of(
        scenario("cpu-one", spec=(2, 3), batch=(2,)), scenario("cpu-two", context=(128,), spec=(3,), prompt_sets=2)
    )
    blocks = blocks_of(plan, change=lambda b: corrupt(b) if options.get("broken") else b)
    margins = margins_of(blocks, 1e-4) if options.get("near_tie") else ()
    return judged(run_of(plan, blocks, margins=margins), POLICY)


@cache
def rendered(**options: bool) -> str:
    """The page of `sample(**options)` with its pictures."""
    return REPORT.render(sample(**options), POLICY)


def page(run: Run) -> Page:
    return Page(REPORT.render(run, POLICY))


def test_the_verdict_its_reason_and_the_command_come_before_everything_else() -> None:
    shown = Page(rendered(broken=True)).text
    body = shown[shown.index("specgate micro · demo pair") :]
    parts = (
        "real acceptance",
        "INVALID",
        "sequences leave the baseline",
        "specgate micro --scenario",
        "Gates",
        "Cells",
    )
    order = [body.index(part) for part in parts]
    assert order == sorted(order)
    assert "Exit code 6" in body


def test_every_cell_and_every_verdict_is_there() -> None:
    run = sample(broken=True)
    shown = Page(rendered(broken=True)).text
    assert all(v.message in shown for v in run.verdicts)
    assert all(v.next_step in shown for v in run.verdicts if v.next_step)
    assert "cpu-one · 64 tokens · batch 2" in shown and "cpu-two · 128 tokens · batch 1" in shown


def test_every_link_within_the_page_has_its_target() -> None:
    result = Page(rendered())
    ids = [a["id"] for _, a in result.tags if "id" in a]
    assert [i for i, n in Counter(ids).items() if n > 1] == []
    targets = {a["href"][1:] for _, a in result.tags if (a.get("href") or "").startswith("#") and a["href"]}
    assert targets <= set(ids)


def test_nothing_is_fetched_and_only_the_pages_own_script_may_run() -> None:
    result = Page(rendered())
    assert not {tag for tag, _ in result.tags} & {"link", "img", "iframe", "object", "embed", "base", "form"}
    links = {a["href"] for a in result.all("a") if not (a["href"] or "").startswith("#")}
    assert links == set(FILES) >= JOURNALS
    markup = rendered()
    assert not re.search(r"""(?:src|href)=["'](?:https?:)?//|url\((?!#)|@import""", markup)
    (script,) = re.findall(r"<script>(.*?)</script>", markup, re.DOTALL)
    assert script == (TEMPLATES / "script.js").read_text(encoding="utf-8")
    policies = [a["content"] for a in result.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policies == [f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'"]


def test_every_picture_has_its_figures_in_words_and_in_a_table() -> None:
    markup = rendered()
    pictures = re.findall(r"<figure.*?</figure>", markup, re.DOTALL)
    assert len(pictures) == 9
    for picture in pictures:
        assert re.search(r'<svg [^>]*role="img" aria-label="[^"]{30,}"', picture)
        assert "<details>" in picture and "<table" in picture


def test_acceptance_by_position_is_described_by_its_figures() -> None:
    run = sample()
    spec3 = run.cells[2].acceptance
    assert spec3 is not None
    words = ", ".join(f"position {i} {share:.0%}" for i, share in enumerate(spec3.acceptance_at_pos, 1))
    given = ", ".join(f"{share:.0%}" for share in spec3.cond_acceptance_at_pos if share is not None)
    assert f"spec-3: {words}; given the draft before: {given}" in rendered()


def test_the_question_of_a_scenario_stands_above_its_cells() -> None:
    shown = Page(rendered()).text
    cells = shown[shown.index("role acceptance length") :]
    assert cells.index("batch 2 Does it?") < cells.index("spec-2") < cells.index("batch 1 Does it?")


@WORDS
def test_a_warning_is_not_called_a_failure() -> None:
    run = replace(sample(), warnings=("the draft's head is small",))
    assert "Warnings the draft's head is small" in page(run).text
    point = run.cells[0].cell.point.key
    text = page(replace(run, failures={"run": "disk full", point: "it hung"})).text
    assert "What went wrong the run : disk full" in text and f"{cell_name(point, run.scenarios)} : it hung" in text


@WORDS
@pytest.mark.parametrize("changes", [{}, {"warnings": ("so",)}, {"failures": {"run": "so"}}, {"kind": "load"}])
def test_the_contents_name_the_sections_in_the_order_of_the_page(changes: dict[str, Any]) -> None:
    _, contents, rest = re.split("<nav|</nav>", REPORT.render(replace(sample(), **changes), POLICY))
    headings = re.findall('<h2 id="(.*?)"', rest)
    assert re.findall('href="#(.*?)"', contents) == [name for name in headings if name != "gaps"]


def test_a_run_without_its_baseline_shows_acceptance_and_no_speed_up() -> None:
    plan = plan_of(scenario(spec=(3,)))
    run = judged(run_of(plan, [b for b in blocks_of(plan) if b.role.speculative]), POLICY)
    shown = page(run)
    assert len(shown.all("svg")) == 4
    assert "no pair of blocks whose speed may be quoted" in shown.text
    assert "no pairs" in shown.text and "2.83" in shown.text


def test_pictures_take_their_colours_from_the_page() -> None:
    svgs = re.findall(r"<svg.*?</svg>", rendered(), re.DOTALL)
    assert not re.findall(r"#[0-9a-f]{6}\b", "".join(svgs))
    assert "var(--role-3)" in "".join(svgs) and "prefers-color-scheme: dark" in rendered()


def test_the_same_run_gives_the_same_page_whatever_a_user_sets_in_matplotlib() -> None:
    import matplotlib

    before = rendered()
    with matplotlib.rc_context({"font.size": 30, "axes.grid": True, "svg.fonttype": "path"}):
        assert REPORT.render(sample(), POLICY) == before
        assert matplotlib.rcParams["font.size"] == 30


HOSTILE = "</svg><script>alert(1)</script>\"'&"


def test_hostile_text_is_shown_and_never_obeyed() -> None:
    plan = plan_of(scenario(HOSTILE, spec=(3,)))
    run = judged(run_of(plan, blocks_of(plan)), POLICY)
    run = replace(
        run,
        argv=("specgate", HOSTILE),
        environment={HOSTILE: HOSTILE},
        failures={HOSTILE: HOSTILE},
        warnings=(HOSTILE,),
        verdicts=tuple(
            replace(v, message=HOSTILE, next_step=HOSTILE, evidence={HOSTILE: HOSTILE}) for v in run.verdicts
        ),
    )
    markup = REPORT.render(run, POLICY)
    assert markup.count("<script") == 1
    assert Page(markup).text.count(HOSTILE) > 5


def test_what_has_no_data_is_left_out_with_a_line_that_says_why() -> None:
    plan = plan_of(scenario(spec=(3,)))
    run = run_of(plan, (), failures={plan.points[0].key: "the engine process was killed by signal 9\ntry less"})
    shown = page(run)
    assert not shown.all("svg")
    assert shown.text.count("Left out: ") >= 4
    assert "BACKEND ERROR" in shown.text and "killed by signal 9" in shown.text
    assert "no block was measured" in shown.text


def test_what_ended_a_run_is_not_said_again_by_each_verdict_that_it_left_open() -> None:
    plan = plan_of(scenario(spec=(3,)))
    run = judged(run_of(plan, (), failures={"run": "interrupted"}, status="interrupted"), POLICY)
    shown = page(run).text
    assert len(run.verdicts) > 2 and "the run was cut short: interrupted" in shown
    opened = shown[: shown.index("for what the run did not come to")]
    assert "no figures" not in opened and "INVALID in" not in opened


def test_withheld_times_are_neither_drawn_nor_listed() -> None:
    plan = plan_of(scenario(spec=(3,)))
    run = judged(run_of(plan, blocks_of(plan, change=corrupt)), POLICY)
    markup = REPORT.render(run, POLICY)
    assert "no pair of blocks whose speed may be quoted" in markup
    assert "spec-3 ms/token" not in markup
    assert "token mismatch" in markup


@WORDS
def test_divergences_are_listed_with_place_and_margin() -> None:
    shown = page(sample(broken=True, near_tie=True)).text
    assert "near tie" in shown and "0.0001" in shown
    assert "no sequence leaves it" in page(sample()).text


@WORDS
@pytest.mark.parametrize(
    ("acceptance", "marked"),
    [("real", False), ("planted", True), ("stand-in", True), ("forced", True), ("scripted", True)],
)
def test_acceptance_that_is_not_real_is_marked(acceptance: str, marked: bool) -> None:
    run = sample()
    shown = page(replace(run, pair=replace(run.pair, acceptance=acceptance)))  # type: ignore[arg-type]  # parametrised
    assert f"{acceptance} acceptance" in shown.text
    assert any("unreal" in (a.get("class") or "") for a in shown.all("span")) is marked


@WORDS
def test_the_figures_of_a_forced_run_stand_under_that_word_and_its_tokens_are_left_out() -> None:
    run = with_acceptance(run_of(plan_of(), ()), "forced")
    shown = page(run).text
    assert shown.count("64 tokens · batch 1 · forced acceptance") == 2
    assert "Left out: acceptance was forced" in shown


@cache
def small() -> Run:
    plan = plan_of(scenario(prompt_sets=1))
    return judged(run_of(plan, blocks_of(plan)), POLICY)


@WORDS
def test_the_count_of_green_runs_is_shown_as_it_was_when_the_run_began() -> None:
    promotion = Promotion(
        gates={"demo-64": "a" * 64, "cpu-three": "b" * 64}, needed=3, streak=2, command="specgate micro"
    )
    shown = page(replace(small(), promotion=promotion))
    assert "Green 2 of 3 times in a row when this run began." in shown.text
    assert "demo-64 yes" in shown.text and "cpu-three no" in shown.text
    assert [a.get("class") for a in shown.all("i")] == ["on", "on", ""]
    assert "stored without its place in the order" in page(small()).text


@WORDS
def test_what_changed_since_the_last_green_run_is_listed() -> None:
    changed = (("packages.torch", "2.12.0", "2.13.0"), ("variables.OMP_NUM_THREADS", None, "1"))
    green = LastGreen("an-earlier-run", "2026-11-20T10:00:00+00:00", changed)
    shown = page(replace(small(), last_green=green)).text
    assert "packages.torch 2.12.0 2.13.0" in shown and "variables.OMP_NUM_THREADS – 1" in shown
    assert "are those of an-earlier-run" in page(replace(small(), last_green=replace(green, differences=()))).text
    assert "can no longer be read" in page(replace(small(), last_green=replace(green, differences=None))).text
    assert "knows no earlier green run" in page(small()).text


@WORDS
def test_files_are_linked_with_the_first_digits_of_the_hashes_they_had() -> None:
    run = replace(small(), files={"env.json": "e" * 64, "samples/blocks.jsonl": "f" * 64})
    shown = page(run)
    assert f"env.json the machine {'e' * 12}…" in shown.text and "e" * 13 not in shown.text
    links = {a["href"] for a in shown.all("a") if not (a["href"] or "").startswith("#")}
    assert links == {"env.json", "samples/blocks.jsonl", "run.json", "summary.csv", "metrics.csv", "MANIFEST.sha256"}


@pytest.mark.slow("draws a page per example")
def test_a_run_of_many_points_draws_those_with_open_verdicts() -> None:
    many = scenario("many", context=tuple(range(64, 64 + 12)), prompt_sets=1, rounds=1, steps=4)
    plan = plan_of(many)
    last = plan.points[-1]
    blocks = blocks_of(plan, steps=4, change=lambda b: corrupt(b, at=3) if b.point == last else b)
    drawn = list(sections(judged(run_of(plan, blocks), POLICY)))
    assert [bool(section.pictures) for section in drawn].count(True) == DRAWN
    assert drawn[-1].pictures and not drawn[-2].pictures
    assert drawn[-2].undrawn is not None and f"{DRAWN} points of 12" in drawn[-2].undrawn
    assert drawn[-2].figures.rows


SMALL = plan_of(scenario(spec=(2, 3), prompt_sets=2))
MADE = timed(blocks_of(SMALL))


@pytest.mark.slow("draws a page per example")
@settings(max_examples=5, deadline=None)
@given(st.lists(st.booleans(), min_size=len(MADE), max_size=len(MADE)))
def test_whatever_blocks_are_missing_the_page_is_whole(kept: list[bool]) -> None:
    blocks = [b for b, keep in zip(MADE, kept, strict=True) if keep]
    conditions = conditions_of(SMALL, blocks, watched(MADE))
    run = judged(run_of(SMALL, blocks, status="interrupted", ended=None, conditions=conditions), POLICY)
    shown = page(run)
    assert "interrupted" in shown.text
    assert all(section in shown.text for section in ("Gates", "Cells", "Speed, all cells", "Files beside this page"))


def test_a_run_of_one_cell_has_its_cell_and_its_reasons() -> None:
    plan = plan_of(scenario(spec=()))
    run = judged(run_of(plan, blocks_of(plan)), POLICY)
    shown = page(run).text
    assert len(run.cells) == 1
    assert "no step of this point had a draft" in shown
    assert "no pair of blocks whose speed may be quoted" in shown and "no pair of blocks to compare" in shown


def test_a_whole_request_has_its_first_token_drawn() -> None:
    plan = plan_of(scenario(kind="full"))
    run = replace(run_of(plan, blocks_of(plan)), kind="full")
    assert "Time to the first token. baseline: 50.0 ms at the median" in REPORT.render(run, POLICY)
    assert "a micro run measures no whole requests" in rendered()


@WORDS
def test_what_was_not_judged_stands_in_the_head_and_escaped() -> None:
    plan = plan_of()
    run = judged(run_of(plan, blocks_of(plan)), POLICY)
    gap = Gap("speed", (plan.cells[1].key,), "a <b>shared</b> clock")
    head = REPORT.render(replace(run, not_judged=(gap,)), POLICY).split("<main>")[0]
    assert "Not judged: speed of 64 tokens · batch 1 · spec-3: a &lt;b&gt;shared&lt;/b&gt; clock." in head
    silent = REPORT.render(replace(run, not_judged=(replace(gap, why=None),)), POLICY).split("<main>")[0]
    assert "NOT JUDGED</h1>" in silent and "No required rule judges speed of 64 tokens · batch 1 · spec-3." in silent
