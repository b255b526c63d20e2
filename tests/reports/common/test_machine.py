"""The machine's effect on the times stands in every report: rounds set aside, and clocks beside step times."""

from __future__ import annotations

from dataclasses import replace

from specgate import plugins
from specgate.analysis.machine.conditions import conditions_of
from specgate.analysis.machine.cpu_pace import uneven
from specgate.analysis.machine.disturbed_blocks import judge_hosts, set_aside
from specgate.analysis.reduce import measure
from specgate.contract import NearTies, Rule, Run
from specgate.contract.conditions import CpuUse
from specgate.contract.traffic import LinkTraffic, PassTraffic, Traffic
from specgate.planning.gates import machine_limits
from specgate.reports.common import machine
from tests.support.factories import POLICY, judged, policy_of
from tests.support.surroundings import BLOCKS, PLAN, SAMPLES, SECOND, gpu, watched_run, working

PARAMS = {"gpu": True, "max_other_cpu_share": 0.5, "max_clock_shift": 0.05, "max_clock_jump_s": 1.0}
RULE = Rule("machine-quiet", "environment", True, params={**PARAMS, "max_cpu_wait": 0.05, "max_set_aside": 0.25})
QUIET = CpuUse(2 * SECOND, 2, 2.0, 2 * SECOND, 2 * SECOND, 0, 2 * SECOND, 0, 0)


def run_with(busy: int) -> Run:
    """A run on a GPU at its power cap whose first `busy` measured blocks had to wait for a CPU."""
    late = {id(b) for b in [b for b in BLOCKS if not b.warmup][:busy]}
    blocks = [replace(b, cpu=replace(QUIET, waited_ns=SECOND) if id(b) in late else QUIET) for b in BLOCKS]
    capped = {"clock_event_reasons": 0x4, "sm_clock_mhz": 1845, "max_sm_clock_mhz": 1980, "power_mw": 698_000}
    samples = [gpu(s, **capped) for s in SAMPLES]
    policy = policy_of(RULE, *POLICY.rules)
    hosts = judge_hosts(PLAN, blocks, machine_limits(policy), {})
    cells, comparisons = measure(PLAN, blocks, (), NearTies(1e-3), aside=set_aside(hosts))
    run = replace(watched_run(SAMPLES), cells=cells, comparisons=comparisons)
    return judged(replace(run, conditions=conditions_of(PLAN, blocks, samples, hosts)), policy)


def test_every_report_says_what_was_set_aside_and_why() -> None:
    run, policy = run_with(1), policy_of(RULE, *POLICY.rules)
    message = "2 of 8 rounds set aside: of 16 blocks 1 disturbed"
    for report in ("details", "markdown", "html"):
        text = " ".join(plugins.report(report).render(run, policy).split())
        assert message in text, report
        assert "a thread waited for a CPU for up to 50" in text, report
        assert "times of 2 of 8 blocks set aside: the host was disturbed" in text, report


def test_a_quiet_run_has_nothing_to_say_of_its_host() -> None:
    run = run_with(0)
    (only,) = machine.sentences(run)
    assert only.startswith("the GPU was at its power cap")
    assert not machine.has_set_aside(run)


def test_cpus_that_were_not_evenly_fast_are_said_to_be_so() -> None:
    shared = [working(s, 20_000 * (1 + i % 2)) for i, s in enumerate(SAMPLES)]
    run = watched_run(shared)
    (pace,) = (c.cpu_pace for c in run.conditions.values())
    assert pace is not None and machine.sentences(run) == [uneven(pace)]
    worse = {key: replace(c, cpu_pace=replace(pace, slow=pace.readings)) for key, c in run.conditions.items()}
    both = replace(run, conditions={**run.conditions, **{f"{key}/other": c for key, c in worse.items()}})
    (sentence,) = machine.sentences(both)
    assert (
        sentence.startswith("2 of 2 points, most at ") and f"in {pace.readings} of {pace.readings} samples" in sentence
    )


def test_uneven_cpus_are_in_the_summary_however_many_points_had_more_to_say() -> None:
    """`summary.md` has room for three sentences, and every point of a large model is at its power cap."""
    shared = [working(s, 20_000 * (1 + i % 2)) for i, s in enumerate(SAMPLES)]
    run = watched_run([gpu(s, clock_event_reasons=0x4, max_sm_clock_mhz=1980) for s in shared])
    ((key, watch),) = run.conditions.items()
    points = {f"{key}/{i}": replace(watch, gpu=replace(watch.gpu, power_w=400.0 + i)) for i in range(5)}
    run = replace(run, conditions=points)
    assert len(machine.sentences(run)) == 6
    summary = plugins.report("markdown").render(run, POLICY)
    assert "The machine: 5 of 5 points" in summary and "and 3 more in report.html" in summary
    assert machine.sentences(watched_run([working(s, 20_000) for s in SAMPLES])) == []


def test_of_several_gpus_the_worst_is_said_to_be_that() -> None:
    run, link = run_with(0), Traffic(PassTraffic(0, 0, ()), link=LinkTraffic(4, 8192))
    (key,) = run.conditions
    run = replace(run, engines={key: replace(run.engines[key], traffic=link)})
    (only,) = machine.sentences(run)
    assert only.startswith("the GPU was at its power cap") and only.endswith("698 W of 700 W (the worst of 4 GPUs)")


def test_more_than_may_be_set_aside_is_said_to_have_been_kept() -> None:
    sentences = machine.sentences(run_with(5))[0]
    assert "of 16 blocks 5 disturbed" in sentences and sentences.endswith("so nothing was set aside")


def test_step_times_at_the_highest_clock_stand_beside_the_measured_ones() -> None:
    run = run_with(0)
    table = machine.clocks(run)
    for result, row in zip(run.cells, table.rows, strict=True):
        step = result.values["step_ms"].value
        assert step is not None
        assert row[1:5] == ["sw_power_cap", f"{step:,.0f}", "1,845", "1,980"]
        assert float(str(row[5])) == round(step * 1845 / 1980)
        assert row[6:] == ["100.0 %", "698 of 700", "1,845 ± 0"]
    assert {c.values["step_ms"].value for c in run.cells} == {c.values["step_ms"].value for c in run_with(0).cells}


def test_a_run_whose_samples_lack_the_highest_clock_has_no_such_table() -> None:
    run = watched_run(SAMPLES)
    assert machine.clocks(run).rows == [] and machine.sentences(run) == []
    assert 'id="machine"' not in plugins.report("html").render(run, POLICY)
