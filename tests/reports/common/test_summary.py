"""The first sentence of every report."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from specgate.contract import Run, State, Value, Verdict
from specgate.errors import ExitCode
from specgate.reports.common.summary import cell_note, duration, headline, reproduction, tally
from specgate.reports.texts.csv import METRICS
from tests.support.factories import POLICY, blocks_of, judged, plan_of, run_of

PLAN = plan_of()
GREEN = judged(run_of(PLAN, blocks_of(PLAN)), POLICY)


def with_verdict(state: State, *, required: bool) -> Run:
    added = Verdict("extra", "g", PLAN.cells[1].key, state, required, "code", "because so", {}, "do that")
    return replace(GREEN, verdicts=(*GREEN.verdicts, added))


def test_a_green_run_says_how_many_verdicts_are_green() -> None:
    line = headline(GREEN)
    assert (line.state, line.code, line.advice) == ("PASS", ExitCode.PASS, None)
    assert str(sum(v.required for v in GREEN.verdicts)) in line.reason


def test_the_worst_required_verdict_gives_reason_and_advice() -> None:
    line = headline(with_verdict(State.FAIL, required=True))
    assert (line.state, line.code) == ("FAIL", ExitCode.FAIL)
    assert line.reason == "extra on 64 tokens · batch 1 · spec-3: because so"
    assert line.advice == "do that"


def test_a_figure_whose_metric_has_a_note_stands_beside_its_cell_unless_it_is_nothing() -> None:
    spec = GREEN.cells[1]
    hits, none = (
        replace(spec, values={**spec.values, "prefix_hit_tokens": Value("prefix_hit_tokens", tokens, "mean", 4)})
        for tokens in (12.5, 0.0)
    )
    assert cell_note(GREEN, hits) == "prompt tokens of a request from a prefix cache: 12.50"
    assert cell_note(GREEN, none) is None
    assert ",prefix_hit_tokens,mean,12.5,tokens," in METRICS.render(replace(GREEN, cells=(hits,)), POLICY)


def test_an_advisory_failure_is_mentioned_and_changes_nothing() -> None:
    line = headline(with_verdict(State.FAIL, required=False))
    assert line.code is ExitCode.PASS
    assert line.advice == "Advisory: extra on 64 tokens · batch 1 · spec-3: because so"


def test_a_run_cut_short_says_by_what_before_any_verdict() -> None:
    line = headline(replace(with_verdict(State.FAIL, required=True), failures={"run": "disk full\nfree some space"}))
    assert line.reason == "the run was cut short: disk full"
    assert line.advice == "free some space"


def test_the_command_reads_back_as_the_arguments() -> None:
    run = replace(GREEN, argv=("specgate", "micro", "--out", "a folder/$x; rm", "it's"))
    assert tuple(shlex.split(reproduction(run))) == run.argv


def test_the_command_of_a_stored_run_is_the_one_that_was_written_at_its_end() -> None:
    """run.json has `~` for the home folder. A run under it does not hold if its command is then quoted otherwise."""
    words = ("specgate", "micro", "--target", f"{Path.home()}/a b/target", f"x={Path.home()}/c")
    stored = ("specgate", "micro", "--target", "~/a b/target", "x=~/c")
    both = {reproduction(replace(GREEN, argv=argv)) for argv in (words, stored)}
    assert both == {"specgate micro --target ~/'a b/target' 'x=~/c'"}


def test_required_and_advisory_verdicts_are_counted_apart() -> None:
    run = with_verdict(State.INCONCLUSIVE, required=False)
    assert tally(run, required=True) == f"{sum(v.required for v in GREEN.verdicts)} PASS"
    assert tally(run, required=False).endswith("1 INCONCLUSIVE")


def test_a_run_without_an_end_has_no_duration() -> None:
    assert duration(GREEN) == "4 min 30 s"
    assert duration(replace(GREEN, ended="2026-11-21T02:15:42+00:00")) == "42 s"
    assert duration(replace(GREEN, ended=None)) is None
