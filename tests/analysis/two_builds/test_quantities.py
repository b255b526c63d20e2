"""Quantities that share an error, and the number of further process pairs that a quantity asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from specgate.analysis.two_builds.estimates import Difference
from specgate.analysis.two_builds.outcomes import log_margin, needed
from specgate.analysis.two_builds.quantities import Both, Pairing, Raw, raw_of_cells, with_words
from specgate.contract import BASELINE, Served, ServedRequest
from specgate.contract.two_builds import ACCEPTANCE, PREFILL, START_UP, STEP, USUAL_PCT, Margins, Word
from specgate.planning.plan import build_plan
from tests.support.factories import block, scenario

MARGINS = Margins(step_pct=0.5)
PROVEN_ALONE = Difference(0.0071, 0.005, 8)
"""One-sided p-value 0.0025 … 0.005: proven by itself, not where another quantity shares the error."""
UNCLEAR = Difference(0.004, 0.005, 8)


def raw(name: str, difference: Difference | None, *, cell: str = "c", decides: bool = True, exact: bool = False) -> Raw:
    better: Literal["lower", "higher"] = "higher" if name == ACCEPTANCE else "lower"
    return Raw(name, cell, decides, better, (1.0, 1.0), difference, difference.n if difference else 0, exact=exact)


def test_quantities_that_are_the_same_by_count_or_do_not_decide_take_no_share_of_the_error() -> None:
    assert MARGINS.error / 2 < PROVEN_ALONE.chance() < MARGINS.error
    exact = raw(ACCEPTANCE, Difference(0.0, 0.0, 8), exact=True)
    advisory = raw(START_UP, UNCLEAR, cell="", decides=False)
    absent = raw(PREFILL, None)
    words = [q.word for q in with_words([raw(STEP, PROVEN_ALONE), exact, advisory, absent], MARGINS)]
    assert words[:2] == [Word.SLOWER, Word.SAME]
    shared = with_words([raw(STEP, PROVEN_ALONE), raw(STEP, UNCLEAR, cell="d")], MARGINS)
    assert [q.word for q in shared] == [Word.CANNOT_TELL, Word.CANNOT_TELL]


def test_how_many_are_needed_is_said_for_the_quantities_that_share_the_error() -> None:
    exact = raw(ACCEPTANCE, Difference(0.0, 0.0, 8), exact=True)
    quantities = with_words([raw(STEP, PROVEN_ALONE), raw(STEP, UNCLEAR, cell="d"), exact], MARGINS)
    for quantity, difference in zip(quantities, (PROVEN_ALONE, UNCLEAR), strict=False):
        assert quantity.needed == needed(difference, log_margin(MARGINS.percent(STEP)), MARGINS.error, 2)
    assert quantities[0].needed == 9


def test_a_longer_acceptance_is_faster_and_a_longer_time_is_slower() -> None:
    longer = Difference(0.05, 0.001, 8)
    quantities = with_words([raw(STEP, longer), raw(ACCEPTANCE, longer, cell="d")], MARGINS)
    assert [q.word for q in quantities] == [Word.SLOWER, Word.FASTER]


def test_margins_are_those_of_the_engines_device_unless_they_are_stated() -> None:
    usual = [[Margins(device=device).percent(q) for q in (STEP, PREFILL, ACCEPTANCE)] for device in USUAL_PCT]
    assert usual == [[1, 5, 2], [3, 5, 2], [5, 10, 5]]
    assert Margins(step_pct=0.3, device="cpu").percent(STEP) == 0.3


@pytest.mark.parametrize(
    ("old_ms", "new_ms", "stated", "decides"),
    [(20, 49, None, False), (20, 51, None, True), (60, 40, None, True), (20, 20, 5.0, True)],
)
def test_a_prefill_that_is_short_per_prompt_on_both_sides_decides_only_at_a_margin_that_was_stated(
    old_ms: int, new_ms: int, stated: float | None, decides: bool
) -> None:
    round_ = build_plan((scenario(),), "any").rounds[0]
    prompts = len(block(round_, BASELINE).tokens)
    old, new = (replace(block(round_, BASELINE), prefill_ns=prompts * ms * 1_000_000) for ms in (old_ms, new_ms))
    cell = Both("s/c/b/baseline", "s/c/b", BASELINE, [old], [new])
    step, prefill = raw_of_cells([cell], Pairing({}), Margins(prefill_pct=stated))
    assert (step.decides, prefill.name, prefill.decides) == (True, PREFILL, decides)


@pytest.mark.parametrize(("requests", "stated", "decides"), [(1, None, True), (8, None, False), (8, 5.0, True)])
def test_a_prefill_that_a_servers_scheduler_gathers_decides_only_at_a_margin_that_was_stated(
    requests: int, stated: float | None, decides: bool
) -> None:
    round_ = build_plan((scenario(),), "any").rounds[0]
    served = Served(tuple(ServedRequest(0, (60_000_000,), (1,)) for _ in range(requests)))
    old, new = (replace(block(round_, BASELINE), prefill_ns=60_000_000, served=served) for _ in range(2))
    cell = Both("s/c/b/baseline", "s/c/b", BASELINE, [old], [new])
    prefill = next(q for q in raw_of_cells([cell], Pairing({}), Margins(prefill_pct=stated)) if q.name == PREFILL)
    assert prefill.decides == decides
