"""What an honest engine does by accident, through a whole run, is seen; its honest twin is green (test_texts.py)."""

from __future__ import annotations

import re

import pytest

from specgate.contract import Run
from specgate.run import point_blocks
from tests.cheats.conftest import Cheating, objections
from tests.support.command import Cli


def reasons(run: Run) -> set[str]:
    return {v.reason_code for v in objections(run)}


def test_junk_that_is_alike_in_every_role_is_seen_wherever_it_stands(cheating: Cheating) -> None:
    code, run = cheating("JunkInTheSecondHalfOfTwoTexts")
    assert code == 6 and "not_the_targets" in reasons(run)


def test_drafts_that_are_not_the_drafts_are_seen_by_running_it_along_the_text(cheating: Cheating) -> None:
    code, run = cheating("DecodesInThePrefill")
    assert code == 6 and "not_the_drafts" in reasons(run)
    message = next(v.message for v in objections(run) if v.reason_code == "not_the_drafts")
    claimed, cycles, right = map(int, re.findall(r"(\d+) (?:draft tokens|cycles|right)", message))
    assert claimed > right and claimed <= 3 * cycles


def test_drafts_from_an_earlier_round_are_seen_by_counts_that_do_not_repeat(cheating: Cheating) -> None:
    code, run = cheating("RemembersEarlierRounds")
    assert code == 6
    assert {r.reason_code for r in run.cells if r.cell.role.speculative} == {"accepts_do_not_repeat"}


@pytest.fixture
def from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cheats are registered as if they came with specgate; here their word on prefills counts as a plug-in's."""
    monkeypatch.setattr(point_blocks, "ours", lambda backend: False)


@pytest.mark.usefixtures("from_outside")
def test_an_engine_that_prefills_in_one_go_and_tells_the_truth_is_green(cheating: Cheating) -> None:
    code, run = cheating("InOneGo")
    assert (code, objections(run)) == (0, [])


@pytest.mark.usefixtures("from_outside")
def test_decoding_that_is_told_as_prefill_is_seen_by_the_wait_for_a_step(cheating: Cheating) -> None:
    code, run = cheating("TellsDecodeAsPrefill")
    assert code == 6 and "clocks_disagree" in reasons(run)


def test_a_required_rule_whose_second_engine_was_silenced_is_not_judged(cheating: Cheating, cli: Cli) -> None:
    policy = (cli.folder / "policy.yaml").read_text()
    cli.write("policy.yaml", f"{policy}checks: {{rescored_by: RunsOutOfMemory}}\n")
    code, run = cheating("Honest")
    assert code == 8
    lost = [v for v in run.verdicts if v.gate == "tokens"]
    assert lost and {(v.state, v.reason_code) for v in lost} == {("NOT_JUDGED", "second_engine_lost")}
    assert cli.run("runs", "verify", cli.newest(), pair=False).returncode == 0
