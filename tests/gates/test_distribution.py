"""The gate `distribution`: what it passes, what it rejects, and what it cannot judge."""

from __future__ import annotations

from dataclasses import replace

from specgate.contract import Rule, Run, Sampling, State, Verdict
from specgate.contract.draws import DrawCheck, FitTest
from specgate.gates.sampled.distribution import GATE
from tests.support.factories import blocks_of, plan_of, run_of, scenario, with_acceptance

RULE = Rule("drawn", "distribution", True, params={"alpha": 1e-6, "min_draws": 20_000})
TEST = FitTest(1, "target", 19_000, 12, 300, 310.0, 305.0, 0.4, 0.3)


def sampled() -> Run:
    plan = plan_of(replace(scenario(), sampling=Sampling()))
    return run_of(plan, blocks_of(plan))


def judged(check: DrawCheck | None, run: Run | None = None) -> list[Verdict]:
    """Of the baseline and the spec cell, which both have this check."""
    run = run or sampled()
    checks = {} if check is None else {c.cell.key: check for c in run.cells}
    return list(GATE.judge(RULE, replace(run, draws=checks)))


def test_texts_that_fit_pass_and_the_verdict_says_what_they_were_held_against() -> None:
    beside = replace(TEST, against="baseline")
    for v in judged(DrawCheck(20_000, (TEST, beside), "reference, float32, cpu")):
        assert (v.state, v.reason_code) == (State.PASS, "distribution_kept")
        assert "against the target's distribution by reference, float32, cpu and the baseline's draws" in v.message
        assert v.evidence["draws"] == 20_000


def test_texts_that_do_not_fit_are_invalid_and_the_place_is_named() -> None:
    wrong = replace(TEST, position=2, p_chi_square=1e-12, p_g=1e-9)
    for v in judged(DrawCheck(20_000, (TEST, wrong))):
        assert (v.state, v.reason_code) == (State.INVALID, "not_the_targets")
        assert v.message.startswith("token 3 after 12 beginnings: 19,000 draws do not fit the target's distribution")


def test_the_false_alarm_is_shared_by_all_tests() -> None:
    close = replace(TEST, p_chi_square=1e-9, p_g=4e-7)  # of two tests: 8e-7 in all
    assert {v.state for v in judged(DrawCheck(20_000, (TEST, close)))} == {State.INVALID}
    assert {v.state for v in judged(DrawCheck(20_000, (TEST, TEST, close)))} == {State.PASS}


def test_one_statistic_alone_rejects_nothing() -> None:
    for alone in (replace(TEST, p_g=1e-12), replace(TEST, p_chi_square=1e-12)):
        assert {v.state for v in judged(DrawCheck(20_000, (alone,)))} == {State.PASS}


def test_a_token_that_the_target_never_draws_is_invalid_whatever_the_statistics_say() -> None:
    for v in judged(DrawCheck(20_000, (replace(TEST, position=0, impossible=3, p_impossible=1e-15),))):
        assert v.state is State.INVALID
        assert v.message == "first token: 3 of 19,000 draws are of tokens that the target never draws"


def test_one_draw_that_rounding_may_explain_is_no_proof() -> None:
    for v in judged(DrawCheck(20_000, (replace(TEST, impossible=1, p_impossible=2e-5),))):
        assert v.state is State.PASS


def test_too_few_draws_decide_nothing() -> None:
    assert {(v.state, v.reason_code) for v in judged(DrawCheck(19_999, (TEST,)))} == {
        (State.INCONCLUSIVE, "too_few_draws")
    }


def test_what_was_not_drawn_is_not_judged_and_the_reason_is_said() -> None:
    for v in judged(DrawCheck(0, (), undrawn="the engine draws no texts")):
        assert (v.state, v.reason_code, v.message) == (State.NOT_JUDGED, "not_drawn", "the engine draws no texts")
    assert {v.reason_code for v in judged(None)} == {"not_drawn"}


def test_a_baseline_that_nothing_is_known_of_is_skipped_and_a_spec_cell_is_not() -> None:
    baseline, spec = judged(DrawCheck(20_000, (), unshown="the weights are on a server, and not on this machine"))
    assert (baseline.state, spec.state) == (State.SKIPPED, State.NOT_JUDGED)
    assert "the weights are on a server" in spec.message


def test_greedy_decoding_and_forced_acceptance_are_told_apart() -> None:
    plan = plan_of()
    greedy = judged(DrawCheck(20_000, (TEST,)), run_of(plan, blocks_of(plan)))
    assert {(v.state, v.reason_code) for v in greedy} == {(State.SKIPPED, "greedy")}
    _, spec = judged(DrawCheck(20_000, (TEST,)), with_acceptance(sampled(), "forced"))
    assert (spec.state, spec.reason_code) == (State.INVALID, "forced_acceptance")


def test_a_cell_without_figures_and_a_rule_without_cells_are_said() -> None:
    run = sampled()
    failed = replace(run, cells=tuple(replace(c, status="failed") for c in run.cells))
    assert {v.state for v in judged(None, failed)} == {State.INVALID}
    (nothing,) = GATE.judge(replace(RULE, scenario="other"), run)
    assert (nothing.state, nothing.reason_code) == (State.SKIPPED, "no_cell")


def test_what_is_allowed_for_and_what_another_engine_did_not_show_are_said() -> None:
    own = replace(TEST, against="own")
    for v in judged(DrawCheck(20_000, (own, replace(TEST, slack=0.25)), "reference", own_engine="cupy, bfloat16")):
        assert (
            "against what cupy, bfloat16 shows and the target's distribution by reference with logits off by"
            in v.message
        )
        assert v.message.endswith("up to 0.25)") and v.evidence["slack"] == 0.25
    for v in judged(DrawCheck(20_000, (own,), unshown="it cannot run here", own_engine="cupy")):
        assert v.state is State.PASS
        assert v.message.endswith("; its logits are the engine's own word: it cannot run here")


def test_the_next_step_depends_on_what_the_draws_do_not_fit() -> None:
    steps = {}
    for against in ("target", "own", "baseline"):
        wrong = replace(TEST, against=against, p_chi_square=1e-12, p_g=1e-12)
        (steps[against],) = {v.next_step for v in judged(DrawCheck(20_000, (wrong,), own_engine="cupy"))}
    assert steps["target"] and steps["target"].startswith("`specgate diagnose parity`")
    assert steps["own"] == steps["baseline"] and "residual" in str(steps["own"])
