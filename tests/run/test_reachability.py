"""Floors that no run can reach are said before anything is measured, with what would reach them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.speedup_limits import (
    PointTimes,
    least_cycle_s,
    most_of_requests,
    most_of_steps,
    prefill_for,
    tokens_for,
)
from specgate.contract import Budget, Policy, Rule, Scenario, Traffic
from specgate.contract.cycle_budget import Bandwidth
from specgate.errors import UsageError
from specgate.files.config import Config
from specgate.files.run_folder import RunFolder
from specgate.planning.plan import build_plan
from specgate.run.reachability import check_reachable
from tests.support.budgets import MEMORY, TRAFFIC
from tests.support.command import Cli
from tests.support.experts import ROUTED
from tests.support.factories import plan_of, run_of, scenario
from tests.support.stored_runs import rewrite, store

TIMES = st.floats(1e-4, 1.0)


# ── arithmetic ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_short_answer_after_a_long_prefill_cannot_be_twice_as_fast() -> None:
    """163 ms of prefill and 114 ms of decoding: with decoding for nothing (P + D)/P, with every draft accepted less."""
    step = 0.114 / 255
    assert most_of_requests(10**6, step, step, 0.163, 256) == pytest.approx((0.163 + 0.114) / 0.163, rel=1e-3)
    assert most_of_requests(3, step, step, 0.163, 256) == pytest.approx((0.163 + 0.114) / (0.163 + 0.114 / 4))


@given(st.integers(1, 8), TIMES, st.floats(1, 3), st.floats(1e-3, 10), st.integers(2, 10_000))
def test_no_simulated_request_is_faster_than_the_bound(
    k: int, step: float, cost: float, prefill: float, n: int
) -> None:
    cycle = cost * step
    spec = prefill + math.ceil((n - 1) / (k + 1)) * cycle  # every draft accepted
    base = prefill + (n - 1) * step
    assert base / spec <= most_of_requests(k, step, cycle, prefill, n) * (1 + 1e-9)
    assert most_of_requests(k, step, cycle, prefill, n) <= max(1.0, most_of_steps(k, step, cycle)) * (1 + 1e-9)


@given(st.floats(1.01, 4), st.integers(1, 8), TIMES, st.floats(1, 3), st.floats(1e-3, 10), st.integers(2, 10_000))
def test_what_would_reach_a_floor_reaches_it_exactly(
    floor: float, k: int, step: float, cost: float, prefill: float, n: int
) -> None:
    cycle = cost * step
    tokens, less = tokens_for(floor, k, step, cycle, prefill), prefill_for(floor, k, step, cycle, n)
    if tokens is None or less is None:
        assert tokens is less is None
        assert most_of_steps(k, step, cycle) <= floor * (1 + 1e-9)
    elif tokens < 1e9:
        assert most_of_requests(k, step, cycle, prefill, tokens) == pytest.approx(floor, rel=1e-6)  # type: ignore[arg-type]
        assert most_of_requests(k, step, cycle, less, n) == pytest.approx(floor, rel=1e-6)


def test_a_cycle_takes_no_less_than_a_step_and_no_less_than_its_bytes() -> None:
    step, k, context = 0.001, 3, 32_768
    times = PointTimes("run", 0.1, step, TRAFFIC)
    assert TRAFFIC.draft is not None
    assert least_cycle_s(times, context, 1, k, None) == step
    assert least_cycle_s(replace(times, traffic=None), context, 1, k, MEMORY) == step
    read = TRAFFIC.target.weight_bytes + (k + 1) * TRAFFIC.target.token_bytes
    read += TRAFFIC.draft.extension.weight_bytes + (k - 1) * TRAFFIC.draft.step.weight_bytes
    assert least_cycle_s(times, context, 1, k, MEMORY) == pytest.approx(read / MEMORY.bytes_per_s)
    cached = replace(MEMORY, cache_bytes=read)
    assert least_cycle_s(times, context, 1, k, cached) == step


# ── before a run ─────────────────────────────────────────────────────────────────────────────────────────────────────


def asks(gate: str, least: float, role: str = "spec-*", **how: Any) -> Policy:
    return Policy("mine", (Rule("floor", gate, True, role=role, params={"min": least}),), not_judged=(), **how)


def config_of(policy: Policy, *scenarios: Scenario) -> Config:
    run = run_of(plan_of(*scenarios), ())
    return Config(scenarios[0].kind, "fake", run.pair, policy, {s.name: s for s in scenarios})


def said(
    policy: Policy,
    workload: Scenario,
    out: Path,
    machine: Mapping[str, object] | None = None,
    memory: Bandwidth | None = None,
) -> tuple[str, ...]:
    here = machine if machine is not None else run_of(plan_of(), ()).environment
    return check_reachable(config_of(policy, workload), build_plan([workload], "fake"), out, here, memory)


def full(new_tokens: int, **how: Any) -> Scenario:
    return replace(scenario("whole", "full", **how), budget=Budget(new_tokens=new_tokens, ignore_eos=False))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder with one micro run: 50 ms of prefill, steps of 10 ms."""
    store(tmp_path / "runs" / "one", jitter=0)
    return tmp_path / "runs"


@pytest.mark.parametrize("gate", ["acceptance", "speed"])
def test_a_cycle_emits_at_most_one_token_more_than_it_drafts(gate: str, tmp_path: Path) -> None:
    result = said(asks(gate, 4.5), scenario(spec=(3, 4)), tmp_path)
    assert len(result) == 1
    assert (
        "of 4.5 of demo-64/fake/c64/b1/spec-3: 3 drafts per cycle give at most 4; it takes spec-4 or more" in result[0]
    )
    assert said(asks(gate, 4.0), scenario(spec=(3,)), tmp_path) == ()
    assert "not even spec-64 does" in said(asks(gate, 65.5), scenario(spec=(64,)), tmp_path)[0]


def test_advice_and_other_cells_are_not_looked_at(tmp_path: Path) -> None:
    rule = Rule("floor", "acceptance", False, params={"min": 9.0})
    assert said(Policy("mine", (rule,)), scenario(), tmp_path) == ()
    assert said(asks("acceptance", 9.0, role="spec-5"), scenario(), tmp_path) == ()


def test_the_prefill_of_an_earlier_run_puts_a_floor_for_whole_requests_out_of_reach(out: Path) -> None:
    (result,) = said(asks("speed", 2.0), full(6), out)
    assert "rule floor asks for a speed-up of 2 of whole/fake/c64/b1/spec-3: at most 1.60 with every draft" in result
    assert "6 new tokens take 50 ms beside a prefill of 50 ms" in result and "(run one)" in result
    assert "it takes 11 new tokens or more, or a prefill of 25 ms or less" in result
    assert said(asks("speed", 2.0), full(11), out) == ()
    assert said(asks("speed", 1.6), full(6), out) == ()


def with_traffic(out: Path, traffic: Traffic) -> None:
    """The run in `out` had an engine with `traffic`."""
    run = RunFolder.open(out / "one").read_run()
    rewrite(out / "one", replace(run, engines={key: replace(f, traffic=traffic) for key, f in run.engines.items()}))


def test_what_equal_choice_does_not_reach_is_out_of_reach(out: Path) -> None:
    with_traffic(out, ROUTED)
    memory = replace(MEMORY, bytes_per_s=4e11)
    cycle = 3e9 + 4 * 8192 + 4 * 4 * 50e6 + 0.85e9 + 2 * 0.75e9  # bytes of target, tokens, experts and draft
    most = 0.04 / (cycle / 4e11)
    (result,) = said(asks("speed", most * 1.01), scenario(), out, memory=memory)
    assert f"at most {most:.2f} with every draft accepted, since" in result
    assert said(asks("speed", most * 0.99), scenario(), out, memory=memory) == ()


def test_where_decoding_alone_gains_less_no_length_helps(out: Path) -> None:
    memory = replace(MEMORY, bytes_per_s=1e12)
    with_traffic(out, TRAFFIC)
    (requests,) = said(asks("speed", 3.0), full(10_000), out, memory=memory)
    (steps,) = said(asks("speed", 3.0), scenario(), out, memory=memory)
    cycle = least_cycle_s(PointTimes("one", 0.05, 0.01, TRAFFIC), 64, 1, 3, memory)
    assert f"decoding alone gains at most {0.04 / cycle:.2f}, however long the answer" in requests
    assert f"at most {0.04 / cycle:.2f} with every draft accepted" in steps


@pytest.mark.parametrize(
    "what", ["another context", "another machine", "another back end", "cut short", "unreadable", "gone"]
)
def test_a_run_that_says_nothing_of_the_point_is_not_believed(out: Path, what: str) -> None:
    machine, request = run_of(plan_of(), ()).environment, full(6)
    run, config = RunFolder.open(out / "one").read_run(), RunFolder.open(out / "one").read_config()
    if what == "another context":
        request = full(6, context=(128,))
    elif what == "another machine":
        machine = {"host": {"cpu": "Another CPU"}, "gpus": []}
    elif what == "another back end":
        RunFolder(out / "one").write_config(replace(config, backend="other"))
    elif what == "cut short":
        rewrite(out / "one", replace(run, status="partial"))
    elif what == "unreadable":
        (out / "one" / "run.json").write_text("{")
    else:
        (out / "one" / "run.json").unlink()
    assert said(asks("speed", 2.0), request, out, machine) == ()


def test_the_newest_run_of_the_point_counts(out: Path) -> None:
    store(out / "two", jitter=0, base_ns=40_000_000)  # its name sorts behind that of the first
    assert said(asks("speed", 2.0), full(6), out) == ()


def test_a_policy_can_make_it_an_error(out: Path) -> None:
    with pytest.raises(UsageError, match=r"floors that cannot be reached\n  rule floor asks for .* at most 1\.60"):
        said(asks("speed", 2.0, unreachable="refuse"), full(6), out)
    assert said(asks("speed", 1.5, unreachable="refuse"), full(6), out) == ()


def test_a_run_says_so_before_it_measures_and_keeps_it_among_its_warnings(cli: Cli) -> None:
    policy = (cli.folder / "policy.yaml").read_text()
    cli.write("policy.yaml", policy.replace("min: 1.0", "min: 3.5"))
    done = cli.micro("--backend", "fake")
    assert done.returncode == 1
    (warning,) = [line for line in done.stderr.splitlines() if "acceptance length of 3.5" in line]
    assert warning.startswith("warning: rule acceptance asks for an ") and "spec-2: 2 drafts" in warning
    assert warning.removeprefix("warning: ") in RunFolder.open(cli.newest()).read_run().warnings
    cli.write("policy.yaml", policy.replace("min: 1.0", "min: 3.5") + "unreachable: refuse\n")
    before = sorted((cli.folder / "runs").iterdir())
    refused = cli.micro("--backend", "fake")
    assert refused.returncode == 2 and "floors that cannot be reached" in refused.stderr
    assert sorted((cli.folder / "runs").iterdir()) == before
