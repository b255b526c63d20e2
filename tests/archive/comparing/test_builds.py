"""Two stored runs, figure by figure: what is paired with what, and what is not compared at all."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from specgate import plugins
from specgate.analysis.intervals.between_runs import ASSUMED, OF_TIME
from specgate.analysis.verdict import overall_of_contrast
from specgate.archive.comparing.builds import contrast_of, judged
from specgate.archive.stored_runs import StoredRun, load_run
from specgate.contract import BetweenRuns, Block, Role, Value
from specgate.contract.comparisons import Change, Contrast, How
from specgate.errors import ExitCode, UsageError
from tests.support.factories import corrupt, scenario, with_acceptance
from tests.support.stored_runs import changed, store


@pytest.fixture(scope="module")
def a(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store(tmp_path_factory.mktemp("a") / "a")


def contrast(a: Path, b: Path | StoredRun) -> Contrast:
    return contrast_of(load_run(a), b if isinstance(b, StoredRun) else load_run(b))


def change(result: Contrast, metric: str, role: str = "spec-3") -> Change:
    (one,) = [c for c in result.changes if c.metric == metric and c.cell.role == Role.parse(role)]
    return one


def test_two_runs_of_the_same_blocks_agree_in_every_figure(a: Path, tmp_path: Path) -> None:
    comparison = contrast(a, store(tmp_path / "b"))
    assert {c.ratio for c in comparison.changes if c.ratio is not None} == {1.0}
    assert all((t.differing, t.reason_code) == (0, None) for t in comparison.tokens)
    assert not comparison.only_a and not comparison.only_b


def test_a_slower_cycle_shows_in_times_as_unpaired_and_in_the_speed_up_over_the_own_baseline(
    a: Path, tmp_path: Path
) -> None:
    comparison = contrast(a, store(tmp_path / "b", cycle_ns=15_400_000))
    times = change(comparison, "mean_tpot_ms")
    assert times.how is How.UNPAIRED and times.ratio == pytest.approx(1.1, rel=1e-6) and times.ci_low is not None
    shown = change(comparison, "p50_itl_ms")
    assert shown.ratio == pytest.approx(1.1, rel=1e-6) and shown.ci_low is None, "shown, without an interval"
    assert change(comparison, "decode_throughput_ratio").how is How.OVER_BASELINES
    speedup = change(comparison, "decode_speedup_ratio")
    assert speedup.how is How.OVER_BASELINES and speedup.ratio == pytest.approx(1 / 1.1, rel=1e-6)
    assert speedup.ci_low is not None and speedup.ci_high is not None
    assert speedup.ci_low < 1 / 1.1 < speedup.ci_high < 1
    assert change(comparison, "mean_tpot_ms", "baseline").ratio == pytest.approx(1.0)


def logs_by_set(folder: Path) -> dict[int, float]:
    """Prompt set → mean of ln(ns per token) over its rounds, of the blocks with spec-3."""
    blocks = [b for b in load_run(folder).blocks() if b.role.k == 3 and not b.warmup]
    sets = sorted({b.prompt_set for b in blocks})
    return {n: statistics.fmean(math.log(b.elapsed_ns / b.emitted) for b in blocks if b.prompt_set == n) for n in sets}


def test_times_on_the_same_prompts_have_the_paired_interval_of_scipy_and_two_assumed_processes(
    a: Path, tmp_path: Path
) -> None:
    b = store(tmp_path / "b", jitter=0.05)
    figure = change(contrast(a, b), "mean_tpot_ms")
    of_a, of_b = (list(logs_by_set(folder).values()) for folder in (a, b))
    within = stats.ttest_rel(of_b, of_a).confidence_interval(0.95)
    middle, half = (within.low + within.high) / 2, (within.high - within.low) / 2
    reach = math.hypot(half, stats.norm.ppf(0.975) * 0.0056, stats.norm.ppf(0.975) * 0.0056)
    assert ends(figure) == pytest.approx([middle - reach, middle + reach])
    assert figure.n == 4


def ends(result: Change) -> list[float]:
    """The ends of an interval, on the log scale."""
    assert result.ci_low is not None and result.ci_high is not None
    return [math.log(result.ci_low), math.log(result.ci_high)]


def test_a_speed_up_allows_for_what_each_run_knows_of_its_processes(a: Path) -> None:
    known = BetweenRuns(0.001, 4)
    (cell,) = [c.cell.key for c in load_run(a).run.cells if c.cell.role.speculative]
    figure = change(contrast(a, changed(load_run(a), between_runs={cell: known})), "decode_speedup_ratio")
    assert figure.between == (ASSUMED, known)
    z, t = stats.norm.ppf(0.975) * 0.0052, stats.t.ppf(0.975, 4) * 0.001
    assert ends(figure) == pytest.approx([-math.hypot(z, t), math.hypot(z, t)])


def test_a_time_of_one_role_allows_for_no_less_than_is_assumed(a: Path) -> None:
    """A profile speaks of ratios to the baseline, in which the clock of a process cancels."""
    (cell,) = [c.cell.key for c in load_run(a).run.cells if c.cell.role.speculative]
    for known, expected in ((BetweenRuns(0.0001, 4), OF_TIME), (BetweenRuns(0.02, 4), BetweenRuns(0.02, 4))):
        comparison = contrast(a, changed(load_run(a), between_runs={cell: known}))
        assert change(comparison, "step_ms").between == (OF_TIME, expected)
        assert change(comparison, "step_ms", "baseline").between == (OF_TIME, OF_TIME)
        assert change(comparison, "acceptance_length").between is None


def test_rounds_of_a_prompt_are_no_new_evidence(tmp_path: Path) -> None:
    """Every round of a prompt set takes the same time in a run: four rounds give the interval of two."""

    def slowed(by: float) -> Callable[[Block], Block]:
        def change(block: Block) -> Block:
            step_ns = round(block.step_ns[0] * (1 + by * block.prompt_set))
            return replace(block, step_ns=(step_ns,) * len(block.step_ns), elapsed_ns=step_ns * len(block.step_ns))

        return change

    values = []
    for rounds in (2, 4):
        kinds = [scenario(rounds=rounds)]
        runs = [
            store(tmp_path / f"{name}{rounds}", scenarios=kinds, jitter=0.0, change=slowed(by))
            for name, by in (("a", 0.0), ("b", 0.01))
        ]
        values.append(change(contrast(*runs), "mean_tpot_ms"))
    two, four = values
    assert (two.n, four.n) == (4, 4)
    assert two.ci_low is not None and two.ci_low == pytest.approx(four.ci_low, rel=1e-6)
    assert two.ci_high == pytest.approx(four.ci_high, rel=1e-6)


def test_a_ratio_divides_the_means_beside_it(a: Path, tmp_path: Path) -> None:
    for result in contrast(a, store(tmp_path / "b", jitter=0.2)).changes:
        if result.ratio is not None and result.mean_a is not None and result.mean_b is not None:
            assert result.ratio == pytest.approx(result.mean_b / result.mean_a)
        elif result.ratio is not None and result.a and result.b:
            assert result.ratio == pytest.approx(result.b / result.a)


def test_two_prompt_sets_are_too_few_for_an_interval(tmp_path: Path) -> None:
    kinds = [scenario(prompt_sets=2, rounds=8)]
    figure = change(
        contrast(store(tmp_path / "a", scenarios=kinds), store(tmp_path / "b", scenarios=kinds)), "mean_tpot_ms"
    )
    assert (figure.ratio, figure.ci_low, figure.reason_code) == (1.0, None, "few_prompt_sets")


def test_acceptance_is_paired_by_prompt_and_moves_with_it(a: Path, tmp_path: Path) -> None:
    figure = change(contrast(a, store(tmp_path / "b", accept=(3, 1, 2, 0, 3, 3))), "acceptance_length")
    assert figure.how is How.BY_PROMPT and figure.n == 4
    assert figure.ratio == pytest.approx((1 + 12 / 6) / (1 + 11 / 6))


def test_other_prompts_are_said_and_neither_tokens_nor_acceptance_are_paired(a: Path) -> None:
    prompts = {key: {**about, "sha256": "d" * 64} for key, about in load_run(a).run.prompts.items()}
    comparison = contrast(a, changed(load_run(a), prompts=prompts))
    assert {t.reason_code for t in comparison.tokens} == {"prompts_differ"}
    assert change(comparison, "acceptance_length").how is How.OTHER_PROMPTS
    assert not any(c.same_prompts for c in comparison.changes)


def test_the_first_token_that_differs_is_found(a: Path, tmp_path: Path) -> None:
    def wrong(block: Block) -> Block:
        return corrupt(block, at=7)

    data = {t.cell.role.name: t for t in contrast(a, store(tmp_path / "b", change=wrong)).tokens}
    assert (data["spec-3"].differing, data["spec-3"].sequences, data["spec-3"].first) == (8, 8, 7)
    assert data["baseline"].differing == 0


def test_a_speed_that_was_withheld_has_no_ratio(a: Path, tmp_path: Path) -> None:
    comparison = contrast(a, store(tmp_path / "b", change=corrupt))
    for metric in ("decode_speedup_ratio", "decode_tok_s", "mean_tpot_ms"):
        assert (change(comparison, metric).ratio, change(comparison, metric).reason_code) == (None, "token_mismatch")


def test_times_beside_refused_requests_have_no_ratio(a: Path) -> None:
    one = load_run(a)
    refused = {"refused_requests": Value("refused_requests", 3.0, "count", 48)}
    cells = tuple(replace(r, values={**r.values, **refused}) for r in one.run.cells)
    result = contrast(a, changed(one, cells=cells))
    latency = change(result, "mean_tpot_ms")
    assert (latency.ratio, latency.reason_code) == (None, "requests_refused") and latency.a == latency.b
    assert change(result, "decode_tok_s").ratio == 1


def test_acceptance_of_two_sources_is_never_held_together(a: Path) -> None:
    one = load_run(a)
    comparison = contrast(a, replace(one, run=with_acceptance(one.run, "forced")))
    for metric in ("acceptance_length", "draft_acceptance_rate"):
        of = change(comparison, metric)
        assert (of.ratio, of.reason_code) == (None, "acceptance_sources_differ")
    reasons = {t.cell.role.name: t.reason_code for t in comparison.tokens}
    assert reasons == {"baseline": None, "spec-3": "acceptance_forced"}


def test_tokens_of_other_weights_are_not_compared(a: Path) -> None:
    engines = {k: replace(facts, target_sha256="e" * 64) for k, facts in load_run(a).run.engines.items()}
    assert {t.reason_code for t in contrast(a, changed(load_run(a), engines=engines)).tokens} == {"targets_differ"}


def test_two_back_ends_are_held_together_cell_by_cell(a: Path, tmp_path: Path) -> None:
    comparison = contrast(a, store(tmp_path / "b", backend="other"))
    assert {(c.cell.point.backend, c.partner.point.backend) for c in comparison.changes} == {("fake", "other")}
    assert all(t.reason_code is None for t in comparison.tokens)


def test_cells_without_a_partner_are_named(a: Path, tmp_path: Path) -> None:
    comparison = contrast(a, store(tmp_path / "b", scenarios=[scenario(spec=(2,))]))
    assert [c.role.name for c in comparison.only_a] == ["spec-3"]
    assert [c.role.name for c in comparison.only_b] == ["spec-2"]


def test_a_cell_that_failed_has_no_ratio_and_compares_no_token(a: Path, tmp_path: Path) -> None:
    b = store(tmp_path / "b", blocks=[])
    comparison = contrast(a, b)
    assert {c.ratio for c in comparison.changes} == {None}
    assert {t.reason_code for t in comparison.tokens} == {"not_measured"}


@pytest.mark.parametrize(
    ("scenarios", "why"),
    [([scenario(kind="full")], "is a micro run"), ([scenario("other-64")], "no cell of A is also in B")],
)
def test_runs_that_have_nothing_in_common_are_a_usage_error(
    a: Path, tmp_path: Path, scenarios: list[Any], why: str
) -> None:
    b = store(tmp_path / "b", scenarios=scenarios)
    with pytest.raises(UsageError, match=why):
        contrast(a, b)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("scenario: demo-65", "there is no scenario 'demo-65'"),
        ("role: spec-99", "there is no role 'spec-99' (did you mean 'spec-"),
        ("role: '*+no-such'", "there is no role '*+no-such'"),
    ],
)
def test_a_required_rule_for_two_runs_whose_names_are_nowhere_is_not_green(
    a: Path, tmp_path: Path, names: str, message: str
) -> None:
    file = tmp_path / "ours.yaml"
    mine = f"  - {{id: mine, gate: same-tokens, required: true, {names}}}\n"
    head = "schema: specgate.policy/v1\nrules:\n  - {id: all, gate: same-tokens, required: true}\n"
    file.write_text(head + mine)
    comparison = judged(contrast(a, store(tmp_path / "b")), str(file))
    assert overall_of_contrast(comparison)[1] is ExitCode.NOT_JUDGED
    assert f"required rule mine selects nothing: {message}" in plugins.view("builds").render(comparison, "plain")
    file.write_text(head + mine.replace("true", "false"))
    assert overall_of_contrast(judged(comparison, str(file)))[1] is ExitCode.PASS
