"""The comparison of this very build with the branch that it goes into, and its result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgate.analysis.verdict import overall
from specgate.contract import Rule, Run, State, Verdict
from specgate.contract.references import Builds, ComparedBuild, Revision
from specgate.errors import ExitCode
from specgate.gates.builds import GATE
from tests.support.factories import blocks_of, plan_of, run_of, scenario

RULE = Rule("no-slower-build", "builds", True, params={"base": "main"})
MAIN, LEFT, OTHER = "a" * 40, "b" * 40, "c" * 40
PLAN = plan_of()
RUN = run_of(PLAN, blocks_of(PLAN))
COMPARED = ComparedBuild(
    comparison="20261122T101500Z-ab-demo-64-1a2b3c4d-000001",
    time="2026-11-22T10:15:00+00:00",
    manifest_sha256="d" * 64,
    base=MAIN,
    word="SAME",
    reason="all 4 quantities that decide are the same within their margins",
    scenarios=("demo-64",),
    fingerprint={**RUN.fingerprint, "plugin:gate:p90": "only another policy has it"},
)


def with_builds(*compared: ComparedBuild, commit: str | None = MAIN) -> Run:
    return replace(RUN, builds=Builds({"main": Revision(commit, LEFT, "origin/main")}, compared))


def verdict(run: Run, rule: Rule = RULE) -> Verdict:
    (outcome,) = GATE.judge(rule, run)
    return outcome


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("SAME", State.PASS),
        ("FASTER", State.IMPROVED),
        ("SLOWER", State.FAIL),
        ("CANNOT TELL", State.INCONCLUSIVE),
        (None, State.INVALID),
    ],
)
def test_the_word_of_the_comparison_decides(word: str | None, state: State) -> None:
    assert verdict(with_builds(replace(COMPARED, word=word))).state is state


def test_a_comparison_with_where_the_branch_left_counts_and_is_named_as_that() -> None:
    outcome = verdict(with_builds(replace(COMPARED, base=LEFT)))
    assert outcome.state is State.PASS and "main at bbbbbbbbbbbb, where the branch left it" in outcome.message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base": OTHER}, "compared this build with commit cccccccccccc; main is aaaaaaaaaaaa"),
        ({"base": None}, "compared this build with a build without a commit"),
        ({"fingerprint": {**RUN.fingerprint, "source_tree_sha256": "0" * 64}}, "source_tree_sha256 was 000000000000"),
        ({"fingerprint": {**RUN.fingerprint, "draft_sha256": "0" * 64}}, "draft_sha256 was 000000000000"),
        ({"fingerprint": {}}, "its new side is not the code that runs here use"),
        ({"scenarios": ("another",)}, "no comparison of this build with main"),
    ],
)
def test_a_comparison_of_something_else_leaves_the_run_not_judged(changes: dict[str, object], message: str) -> None:
    run = with_builds(replace(COMPARED, **changes))  # type: ignore[arg-type]
    outcome = verdict(run)
    assert outcome.state is State.NOT_JUDGED and message in outcome.message
    assert overall(replace(run, verdicts=(outcome,), not_judged=()))[1] is ExitCode.NOT_JUDGED


def test_in_a_shallow_checkout_a_build_without_a_commit_is_not_where_the_branch_left() -> None:
    """There, neither is known: nothing is not the same as nothing."""
    compared = replace(COMPARED, base=None)
    shallow = replace(RUN, builds=Builds({"main": Revision(MAIN, None, "origin/main")}, (compared,)))
    assert verdict(shallow).state is State.NOT_JUDGED


def test_the_command_that_is_missing_is_said_whole() -> None:
    argv = ("specgate", "micro", "--policy", "merge", "--pair", "mine", "-o", "graph=off", "--out", "my runs")
    step = verdict(replace(with_builds(), argv=argv)).next_step
    assert step == (
        "specgate ab --base origin/main --scenario demo-64 --backend fake --pair mine -o graph=off --out 'my runs'"
    )


def test_without_the_revision_nothing_is_judged() -> None:
    outcome = verdict(with_builds(COMPARED, commit=None))
    assert (outcome.state, outcome.reason_code) == (State.NOT_JUDGED, "no_revision")
    assert verdict(RUN).state is State.NOT_JUDGED


def test_a_loss_that_was_found_is_not_measured_away() -> None:
    later, earlier = replace(COMPARED, comparison="later"), replace(COMPARED, comparison="earlier", word="SLOWER")
    outcome = verdict(with_builds(later, earlier))
    assert outcome.state is State.FAIL and "earlier; one of 2 comparisons of this build" in outcome.message
    open_ = replace(COMPARED, comparison="earlier", word="CANNOT TELL")
    assert verdict(with_builds(later, open_)).state is State.PASS


def test_every_micro_scenario_that_the_rule_selects_needs_its_comparison() -> None:
    other = plan_of(scenario("other"))
    both = replace(RUN, cells=(*RUN.cells, *run_of(other, blocks_of(other)).cells), builds=with_builds(COMPARED).builds)
    both = replace(both, scenarios={**RUN.scenarios, **other.scenarios})
    assert [v.state for v in GATE.judge(RULE, both)] == [State.PASS, State.NOT_JUDGED]
    assert [v.state for v in GATE.judge(replace(RULE, scenario="demo-*"), both)] == [State.PASS]
    whole = {name: replace(s, kind="full") for name, s in both.scenarios.items()}
    assert list(GATE.judge(RULE, replace(both, scenarios=whole))) == [], "whole requests come after micro runs"
