"""Pictures of acceptance: what their shares are of."""

from __future__ import annotations

from dataclasses import replace

from specgate.contract import Value
from specgate.planning.plan import build_plan
from specgate.reports.common.parts import Entry
from specgate.reports.pictures.acceptance import by_position
from tests.support.factories import blocks_of, run_of, scenario


def test_shares_by_position_are_of_the_cycles_that_proposed_the_draft() -> None:
    plan = build_plan((scenario(),), "one")
    result = run_of(plan, blocks_of(plan)).cells[1]
    at = "acceptance_at_pos[3]"  # 3 of the 4 cycles of 10 that proposed a third draft
    result = replace(result, values={**result.values, at: Value(at, 0.75, n=4)})
    picture = by_position("p", [result])
    row = picture.tables[0].rows[0]
    assert row[1] == "cycles that proposed the draft"
    assert isinstance(row[-1], Entry) and row[-1].text.startswith("75")
    assert "Solid: of the cycles that proposed the draft" in picture.caption
