"""Many verdicts, one state, one exit code: the worst required one, and never green by silence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.verdict import overall
from specgate.core import Run, State, Verdict
from specgate.errors import ExitCode
from tests.support.factories import blocks_of, plan_of, run_of

PLAN = plan_of()
RUN = run_of(PLAN, blocks_of(PLAN))


def judged(*states: State, required: bool = True) -> Run:
    verdicts = tuple(Verdict(f"r{i}", "g", "cell", s, required, "code", "message") for i, s in enumerate(states))
    return replace(RUN, verdicts=(*RUN.verdicts, *verdicts))


@pytest.mark.parametrize(
    ("states", "state", "code"),
    [
        ((State.PASS, State.IMPROVED), State.PASS, ExitCode.PASS),
        ((State.PASS, State.SKIPPED), State.PASS, ExitCode.PASS),
        ((State.PASS, State.INCONCLUSIVE), State.INCONCLUSIVE, ExitCode.INCONCLUSIVE),
        ((State.INCONCLUSIVE, State.FAIL), State.FAIL, ExitCode.FAIL),
        ((State.FAIL, State.INVALID), State.INVALID, ExitCode.INVALID),
        ((State.PASS, State.ENV_REJECTED), State.ENV_REJECTED, ExitCode.ENV_REJECTED),
        ((State.FAIL, State.ENV_REJECTED), State.ENV_REJECTED, ExitCode.ENV_REJECTED),
        ((State.INVALID, State.ENV_REJECTED), State.INVALID, ExitCode.INVALID),
    ],
)
def test_the_worst_required_verdict_decides(states: tuple[State, ...], state: State, code: ExitCode) -> None:
    assert overall(judged(*states)) == (state, code)
    assert overall(judged(*states[::-1])) == (state, code)


@given(st.lists(st.sampled_from(State), max_size=4))
def test_advisory_verdicts_decide_nothing(states: list[State]) -> None:
    green = judged(State.PASS)
    advised = replace(green, verdicts=(*green.verdicts, *judged(*states, required=False).verdicts))
    assert overall(advised) == (State.PASS, ExitCode.PASS)


@pytest.mark.parametrize("states", [(), (State.SKIPPED,)])
def test_where_nothing_required_was_judged_the_run_is_inconclusive(states: tuple[State, ...]) -> None:
    assert overall(judged(*states)) == (State.INCONCLUSIVE, ExitCode.INCONCLUSIVE)


@given(st.lists(st.sampled_from(State), max_size=4))
def test_a_back_end_that_failed_outranks_every_verdict(states: list[State]) -> None:
    failed = replace(judged(*states), failures={"demo-64/fake/c64/b1": "killed"})
    assert overall(failed)[1] is ExitCode.BACKEND_ERROR
