"""Parity in every format: every stage is in it, and the one that departs is told apart."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specgate import plugins
from specgate.analysis.parity.comparison import Parity, compare
from specgate.reports.pictures.cycle import NAMED, places
from tests.checkpoints.stages.test_file import as_dump, whole
from tests.reports.page.test_html import Page

DRAWS = True
VIEW = plugins.view("parity")


@pytest.fixture(scope="module")
def departed() -> Parity:
    a, b = whole(), whole()
    b["draft.attn_out"] = b["draft.attn_out"] * np.float32(2)
    return compare(as_dump(a, source="ours|theirs"), as_dump(b, source="<other>"))


def test_a_page_names_the_stage_that_departs_first_and_marks_it_alone(departed: Parity) -> None:
    markup = VIEW.render(departed, "html")
    page = Page(markup)
    assert "DEPARTS" in markup and "first at draft.attn_out." in markup and "&lt;other&gt;" in markup
    assert markup.count('<span class="slower">') == 1
    assert all(f'<td class="text">{stage.stage}</td>' in markup for stage in departed.stages)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe"}


def test_two_equal_sides_agree_on_the_page_and_no_stage_is_marked() -> None:
    markup = VIEW.render(compare(as_dump(whole()), as_dump(whole())), "html")
    assert "AGREES" in markup and "DEPARTS" not in markup and 'class="slower"' not in markup


def test_the_csv_has_a_row_per_stage_with_the_figures_of_the_comparison(departed: Parity) -> None:
    rows = list(csv.DictReader(io.StringIO(VIEW.render(departed, "csv"))))
    assert [row["stage"] for row in rows] == [stage.stage for stage in departed.stages]
    for row, stage in zip(rows, departed.stages, strict=True):
        assert float(row["error"]) == pytest.approx(stage.distance.error)
        assert float(row["tolerance"]) == pytest.approx(stage.tolerance)
        assert row["departs"].lower() == str(stage.departs).lower()
        assert bool(row["top8_overlap"]) is stage.stage.endswith("logits")


def test_markdown_has_every_stage_and_the_usual_causes(departed: Parity) -> None:
    shown = VIEW.render(departed, "md")
    assert "**DEPARTS**: first at draft.attn\\_out." in shown and "ours\\|theirs" in shown
    assert all(f"| {stage.stage.replace('_', chr(92) + '_')} |" in shown for stage in departed.stages)
    assert "| usual cause | RoPE of the draft" in shown


def test_the_same_comparison_gives_the_same_bytes(departed: Parity) -> None:
    assert VIEW.render(departed, "html") == VIEW.render(departed, "html")


@pytest.mark.parametrize("layers", [1, 30, 36, 80, 126])
def test_at_most_so_many_stages_are_named_at_the_axis_and_the_drafts_all_are(layers: int, departed: Parity) -> None:
    one: Any = departed.stages[0]
    deep = [replace(one, stage=f"target.hidden.{n}") for n in range(layers + 1)]
    others = [stage for stage in departed.stages if not stage.stage.startswith("target.hidden")]
    shown = [*deep, *others]
    named = places(shown)
    assert len(named) <= NAMED and {*range(layers, len(shown))} <= {*named} and named == sorted({*named})
