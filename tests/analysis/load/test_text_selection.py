"""Texts of a load run that are compared. A wrong token among them withholds every speed of its level."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.contract import Run
from tests.support.loaded import SCRIPT, load_scenario, loaded_run

ASKED = load_scenario((1, 8), rounds=2)
"""2 and 16 requests per block, in 4 prompt sets."""


@pytest.fixture(scope="module")
def wrong() -> Run:
    """Spec emits another token at index 5 of its first request."""
    return loaded_run(ASKED, replace(SCRIPT, wrong_token_at=5))


def test_a_level_compares_the_first_requests_of_every_prompt_set_once() -> None:
    compared = [c.tokens.compared_tokens for c in loaded_run(ASKED).comparisons]
    assert compared == [4 * 2 * 24, 4 * 8 * 24], "two requests are all there are; of sixteen, eight are compared"


def test_a_wrong_token_withholds_every_speed_of_its_level(wrong: Run) -> None:
    for comparison in wrong.comparisons:
        assert {(d.prompt_set, d.round, d.slot, d.position) for d in comparison.tokens.mismatches} == {
            (prompt_set, 0, 0, 5) for prompt_set in range(4)
        }
        assert comparison.speedup.value is None and comparison.speedup.reason_code == "token_mismatch"
    spec = [r for r in wrong.cells if r.cell.role.speculative]
    assert {r.values[m].value for r in spec for m in ("output_tok_s", "throughput_req_s", "p50_e2e_ms")} == {None}
    assert wrong.break_even[0].outcome == "unclear", "no level has a ratio"
