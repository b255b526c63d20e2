"""`specgate load`: a sweep from the command line, on the fake engine and a stub server; stored, verified, resumed."""

from __future__ import annotations

import json
import subprocess

import pytest

from specgate.contract import Block
from specgate.files.run_folder import RunFolder
from tests.backends.servers.helpers import program
from tests.support.command import Cli
from tests.support.stored_runs import as_if_killed

SCENARIO = """\
# Up to how many clients does it pay?
schema: specgate.scenario/v1
extends: base/cpu
kind: load
family: load
grid: {context: [24], batch: [1, 2, 16], spec: [3]}
workload: {prompt_sets: 4, source: random}
budget: {new_tokens: 12}
schedule: {rounds: 2}
load: {requests: 2, per_client: 1}
"""
TIMED = SCENARIO.replace("per_client: 1}", "duration_s: 0.004, ramp_s: 0.001}").replace("[1, 2, 16]", "[2, 16]")
OPEN = SCENARIO.replace("[1, 2, 16]", "[4]").replace("per_client: 1", "rates: [500, 1000]")
POLICY = """\
schema: specgate.policy/v1
checks: {rescored_by: none}
rules:
  - {id: records, gate: validity, required: true}
  - {id: tokens, gate: tokens, required: true, near_tie_margin: 0.0}
  - {id: acceptance, gate: acceptance, required: true, role: spec-*, min: 1.1}
  - {id: pays, gate: load, required: true, role: spec-*, min_break_even: MIN}
"""
FAST = ("-o", "step_ns=100000", "-o", "draft_ns=10000", "-o", "row_ns=10000", "-o", "prefill_ns=10")


@pytest.fixture
def sweep(cli: Cli) -> Cli:
    """`cli` with a load scenario and its policy. Speculation pays up to eight clients or so, by the fake's script."""
    cli.write("sweep.yaml", SCENARIO)
    cli.write("load.yaml", POLICY.replace("MIN", "2"))
    return cli


def load(cli: Cli, *arguments: str, backend: str = "fake") -> subprocess.CompletedProcess[str]:
    return cli.run("load", "--scenario", "sweep.yaml", "--policy", "load.yaml", "--backend", backend, *arguments)


def test_a_sweep_says_where_speculation_stops_paying_in_every_report_and_can_be_verified(sweep: Cli) -> None:
    done = load(sweep, *FAST, "--plain")
    assert done.returncode == 0, done.stdout + done.stderr
    (break_even,) = RunFolder.open(sweep.newest()).read_run().break_even
    assert break_even.outcome == "crosses" and break_even.value is not None and 2 < break_even.value < 16
    message = f"peculation pays up to {break_even.value:.3g} clients, 95 % interval"
    assert message in done.stdout
    assert message in (sweep.newest() / "summary.md").read_text().replace("\\", "")
    page = (sweep.newest() / "report.html").read_text()
    assert message in page and "Where speculation stops paying" in page and "Throughput against latency" in page
    assert "break_even_level" in (sweep.newest() / "metrics.csv").read_text()
    entry = json.loads((sweep.folder / "runs" / "ledger.jsonl").read_text().splitlines()[-1])
    assert entry["kind"] == "load" and entry["state"] == "PASS"
    sweep.run("runs", "verify", sweep.newest(), pair=False, code=0)


def test_it_fails_where_speculation_costs_before_the_level_that_is_asked_for(sweep: Cli) -> None:
    sweep.write("load.yaml", POLICY.replace("MIN", "16"))
    done = load(sweep, *FAST)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "where 16 clients were asked for" in " ".join(done.stdout.split())


def test_a_sweep_that_was_killed_goes_on_where_it_was(sweep: Cli) -> None:
    assert load(sweep, *FAST).returncode == 0
    as_if_killed(sweep.newest(), blocks=25)
    sweep.run("load", "--resume", sweep.newest(), pair=False, code=0)
    assert {c.status for c in RunFolder.open(sweep.newest()).read_run().cells} == {"ok"}


def test_a_closed_loop_ends_by_the_clock_and_can_be_verified(sweep: Cli) -> None:
    """Blocks have as many requests as fit, so more with speculation where that is faster; texts are still compared."""
    sweep.write("sweep.yaml", TIMED)
    done = load(sweep, *FAST)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    folder = RunFolder.open(sweep.newest())
    counts = {(b.point.batch, b.role.k): len(b.tokens) for b in folder.lines(Block) if not b.warmup}
    assert counts[2, 3] > counts[2, 0] > 2
    assert "no client sent a second one" not in done.stdout
    assert all(c.tokens.compared_tokens and not c.tokens.divergences for c in folder.read_run().comparisons)
    assert sweep.run("runs", "verify", sweep.newest(), pair=False).returncode == 0


def test_a_duration_shorter_than_one_request_is_warned_of(sweep: Cli) -> None:
    sweep.write("sweep.yaml", TIMED.replace("0.004, ramp_s: 0.001", "0.00001"))
    done = load(sweep, *FAST)
    assert "the duration is shorter than one request" in " ".join(done.stdout.split()), done.stdout + done.stderr


def test_a_search_measures_few_levels_and_says_the_greatest_load_within_the_limits(sweep: Cli) -> None:
    """A baseline step of n clients takes 0.1 + 0.01 n ms: 0.18 ms are reached at 8 clients."""
    grid = SCENARIO.replace("[1, 2, 16]", "[1, 2, 4, 6, 8, 12, 16, 24]").replace(
        "requests: 2", "requests: 8, search: goodput"
    )
    sweep.write("sweep.yaml", grid + "goodput: {tpot_ms: 0.18}\n")
    done = load(sweep, *FAST, "--plain")
    run = RunFolder.open(sweep.newest()).read_run()
    baseline, spec = run.max_goodput
    assert baseline.value is not None and 6.5 < baseline.value < 9 and spec.value is not None
    assert {key.split("/")[3] for key, rounds in run.ended_early.items() if not rounds} >= {"b2", "b24"}
    assert "max_goodput_level" in (sweep.newest() / "metrics.csv").read_text()
    page = (sweep.newest() / "report.html").read_text()
    assert "limits hold up to" in page and f"{baseline.value:.3g}" in page
    first = next(line for line in done.stdout.splitlines() if line.startswith("Speculation"))
    assert f"Within TPOT ≤ 0.18 ms for 90 % of requests: baseline up to {baseline.value:.3g} clients (95 %" in first
    assert sweep.run("runs", "verify", sweep.newest(), pair=False).returncode == 0


def test_an_open_loop_compares_latencies_at_the_same_arrivals(sweep: Cli) -> None:
    sweep.write("sweep.yaml", OPEN)
    sweep.write("load.yaml", POLICY.replace("MIN", "500"))
    done = load(sweep, *FAST)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    folder = RunFolder.open(sweep.newest())
    assert {c.speedup.metric for c in folder.read_run().comparisons} == {"latency_speedup_ratio"}
    due = {
        (b.point.key, b.warmup, b.prompt_set, b.round, tuple(r.due_ns for r in b.served.requests))
        for b in folder.lines(Block)
        if b.served is not None
    }
    assert 2 * len(due) == len(folder.lines(Block)), (
        "both roles of a round have the same arrivals, and no other round has"
    )
    assert sweep.run("runs", "verify", sweep.newest(), pair=False).returncode == 0


def test_an_open_loop_whose_client_was_late_is_invalid_and_warned_of(sweep: Cli) -> None:
    sweep.write("sweep.yaml", OPEN)
    sweep.write("load.yaml", POLICY.replace("MIN", "500"))
    done = load(sweep, *FAST, "-o", "send_lag_ns=1000000")
    assert done.returncode == 6, done.stdout + done.stderr
    assert "the client fell behind: one request of a hundred was sent more than 1.000 ms" in " ".join(
        done.stdout.split()
    )
    assert any("fell behind" in warning for warning in RunFolder.open(sweep.newest()).read_run().warnings)
    assert "sent late p50" in (sweep.newest() / "report.html").read_text()
    assert sweep.run("runs", "verify", sweep.newest(), pair=False).returncode == 0


def test_a_back_end_that_takes_one_block_at_a_time_is_refused_before_it_loads(sweep: Cli) -> None:
    done = load(sweep, backend="reference")
    assert done.returncode == 2 and "cannot be put under load" in done.stderr and "vllm" in done.stderr
    assert not (sweep.folder / "runs").exists()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("load: {requests: 2, per_client: 1}", "", "a load scenario says what it offers"),
        ("kind: load", "kind: full", "only a scenario of kind: load has it"),
        ("new_tokens: 12", "steps: 12", "a load scenario sends whole requests"),
        ("per_client: 1", "rates: [1]", "an open loop has one"),
        ("per_client: 1", "arrivals: constant", "set load.rates, or --rate R,…"),
        ("per_client: 1", "rates: [2, 1]", "must ascend"),
        ("per_client: 1", "rates: [0]", "load.rates[0]: 0: must be at least 0.000001"),
        ("prompt_sets: 4", "prompt_sets: 2", "4 different prompts; 8 are needed"),
        ("budget:", "perf_mode: true\nbudget:", "the loop of a server cannot be profiled"),
    ],
)
def test_a_load_scenario_that_contradicts_itself_is_named(sweep: Cli, old: str, new: str, says: str) -> None:
    assert old in SCENARIO
    sweep.write("sweep.yaml", SCENARIO.replace(old, new))
    done = load(sweep)
    assert done.returncode == 2 and says in done.stderr, done.stderr


@pytest.mark.slow("starts servers")
def test_a_stub_server_under_load_is_judged_and_refusals_lose_nothing(sweep: Cli) -> None:
    sweep.write("sweep.yaml", SCENARIO.replace("[1, 2, 16]", "[1, 3]"))
    sweep.write("load.yaml", POLICY.replace("MIN", "1"))
    server = program(sweep.folder, "vllm", "--rate 2000 --fault refuse_beyond=2")
    done = load(sweep, "-o", f"program={server}", backend="vllm")
    assert done.returncode == 6, done.stdout + done.stderr
    assert "were refused in sweep/vllm/c24/b3/" in " ".join(done.stdout.split())
    run = RunFolder.open(sweep.newest()).read_run()
    refused = {r.cell.key: r.values["refused_requests"].value for r in run.cells}
    assert refused["sweep/vllm/c24/b1/spec-3"] == 0 and (refused["sweep/vllm/c24/b3/spec-3"] or 0) > 0
    assert {r.status for r in run.cells} == {"ok"}
    assert sweep.run("runs", "verify", sweep.newest(), pair=False).returncode == 0


@pytest.mark.slow("starts servers")
def test_a_measured_acceptance_length_is_forced_at_load_by_one_command(cli: Cli) -> None:
    server = ("--backend", "sglang", "-o", f"program={program(cli.folder, 'sglang', '--rate 500')}", "--plain")
    cli.micro("--backend", "reference", "--spec", "3")
    first = cli.newest()
    cli.write("one.yaml", SCENARIO.replace("[1, 2, 16]", "[1]").replace("per_client: 1", "per_client: 2"))
    done = cli.run("load", "--scenario", "one.yaml", *server, "-o", f"force_al={first}")
    run, before = RunFolder.open(cli.newest()).read_run(), RunFolder.open(first).read_run()
    assert run.kind == "load", done.stdout + done.stderr
    length = before.cells[1].values["acceptance_length"].value
    config = RunFolder.open(cli.newest()).read_config()
    assert float(config.options["force_al"]) == pytest.approx(length, rel=1e-5) and config.policy.name == "load-forced"
    assert any(f"as {first.name} measured it" in warning for warning in run.warnings)
    assert {v.state.value for v in run.verdicts if v.gate == "tokens" and v.cell.endswith("spec-3")} <= {"SKIPPED"}


def test_a_trace_without_a_file_of_requests_is_refused_before_anything_is_asked(cli: Cli) -> None:
    done = cli.run("load", "http://127.0.0.1:9", "--arrivals", "trace", pair=False)
    assert done.returncode == 2 and "--arrivals trace without --prompts" in done.stderr
