"""Speed-ups in the picture, and the floor of each."""

from __future__ import annotations

from dataclasses import replace

from specgate.analysis.cell_names import length_name
from specgate.contract import Role, Rule
from specgate.reports.pictures import forest
from tests.support.factories import blocks_of, corrupt, judged, plan_of, policy_of, run_of, scenario

DRAWS = True

ASKS = policy_of(
    Rule("all", "speed", False, role="spec-*", params={"min": 1.1}),
    Rule("more", "speed", True, role="spec-3", params={"min": 1.3}),
)
PLAN = plan_of(scenario(spec=(2, 3)))
RUN = judged(run_of(PLAN, blocks_of(PLAN)), ASKS)


def test_every_spec_cell_stands_beside_the_highest_floor_that_selects_it() -> None:
    rows = [forest.row_of(RUN, comparison) for comparison in RUN.comparisons]
    assert [(r.role, r.asked) for r in rows] == [(Role(2), 1.1), (Role(3), 1.3)]
    assert [r.value for r in rows] == [c.speedup.value for c in RUN.comparisons]


def test_a_withheld_speed_up_is_in_the_table_with_its_reason_only() -> None:
    run = run_of(PLAN, blocks_of(PLAN, change=lambda b: corrupt(b) if b.role == Role(3) else b))
    shown = forest.forest(run)
    (table,) = shown.tables
    assert [row[1] for row in table.rows][1] == "token mismatch"
    assert shown.svg is not None and shown.svg.count("64 tokens · batch 1 · spec-3") == 0


def test_a_speed_up_is_not_rounded_to_its_floor() -> None:
    near = replace(RUN.comparisons[1], speedup=replace(RUN.comparisons[1].speedup, value=1.2999, ci_low=1.29984))
    (table,) = forest.forest(replace(RUN, comparisons=(near,))).tables
    _, value, ends, least, _ = table.rows[0]
    assert (value, least) == ("1.2999", "1.3") and str(ends).startswith("1.2998 … ")


def test_cells_that_the_words_leave_out_are_counted() -> None:
    three = RUN.comparisons[1]
    cells = [replace(three.cell, point=replace(three.cell.point, context=1000 + i)) for i in range(20)]
    known = [replace(three, cell=cell) for cell in cells[:5]]
    withheld = [replace(three, cell=cell, speedup=replace(three.speedup, value=None)) for cell in cells[5:]]
    shown = forest.forest(replace(RUN, comparisons=(*known, *withheld), verdicts=()))
    assert shown.svg is not None and "and 15 more in the table" in shown.svg


def test_without_any_speed_up_there_is_a_sentence_and_no_picture() -> None:
    shown = forest.forest(run_of(PLAN, ()))
    assert shown.svg is None
    assert shown.caption == "Left out: no pair of blocks whose speed may be quoted."


def test_of_very_many_cells_those_with_the_least_room_are_drawn_and_all_are_listed() -> None:
    three, many = RUN.comparisons[1], range(100)
    cells = [replace(three.cell, point=replace(three.cell.point, context=1000 + i)) for i in many]
    made = [
        replace(
            three, cell=cell, speedup=replace(three.speedup, value=1.0 + i / 100, ci_low=1.0 + i / 100, ci_high=3.0)
        )
        for i, cell in zip(many, cells, strict=True)
    ]
    shown = forest.forest(replace(RUN, comparisons=tuple(made), verdicts=()))
    assert shown.svg is not None
    drawn = [i for i in many if f">{length_name(1000 + i, short=True)} · batch 1 · spec-3<" in shown.svg]
    assert drawn == list(range(forest.SHOWN))
    assert len(shown.tables[0].rows) == 100
    assert "60 of 100" in shown.caption


def test_a_machine_that_cannot_tell_small_effects_shows_a_band() -> None:
    shown = forest.forest(replace(RUN, mde={RUN.comparisons[0].cell.key: 0.03}))
    assert "grey band" in shown.caption
    assert [row[-1] for row in shown.tables[0].rows][:2] == ["3.0 %", "–"]
