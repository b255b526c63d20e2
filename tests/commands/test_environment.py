"""The watch and its gate in whole runs, on drivers that are healthy, missing and lying."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgate.analysis.machine.conditions import conditions_of
from specgate.analysis.rounds import whole_rounds
from specgate.contract import Block
from specgate.contract.conditions import CpuUse, Sample
from specgate.files.run_folder import RunFolder
from specgate.planning.plan import build_plan
from tests.support import in_process
from tests.support.command import Cli, scenario_text
from tests.support.fake_nvml import LIBRARY_NOT_FOUND, Driver, Gpu, liar

POLICY = """\
schema: specgate.policy/v1
not_judged:
  - {kind: tokens, why: the machine is judged}
  - {kind: acceptance, why: the machine is judged}
  - {kind: speed, why: the machine is judged}
rules:
  - {id: records, gate: validity, required: true}
  - id: quiet
    gate: environment
    required: true
    gpu: GPU
    max_other_cpu_share: 1.0
    max_clock_shift: 0.05
    max_clock_jump_s: 1.0
"""


def measured(folder: Path, driver: Driver, *, gpu: bool) -> tuple[int, Path]:
    """Exit code and run folder of a scripted run beside `driver`."""
    (folder / "tiny.yaml").write_text(scenario_text(spec=[3]))
    (folder / "policy.yaml").write_text(POLICY.replace("GPU", str(gpu).lower()))
    command = ["micro", "--scenario", "tiny.yaml", "--policy", "policy.yaml"]
    command += ["--backend", "fake", "--target", str(folder / "target"), "--draft", str(folder / "draft")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pynvml", driver)
        patch.setenv("CUDA_VISIBLE_DEVICES", "0")
        done = in_process.command(folder, command)
    assert "run folder" in done.stdout, done.stdout + done.stderr
    (run,) = (p for p in (folder / "runs").iterdir() if p.is_dir())
    return done.returncode, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    from tests.pairs.tiny import write_random_pair

    write_random_pair(tmp_path, seed=8)
    return tmp_path


def record(run: Path, name: str) -> Any:
    return json.loads((run / name).read_text())


def test_a_watched_run_beside_a_healthy_driver_passes_and_keeps_what_was_seen(folder: Path) -> None:
    code, run = measured(folder, Driver([Gpu().busy()]), gpu=True)
    gates = record(run, "gates.json")
    assert code == 0, gates
    quiet = [v for v in gates["verdicts"] if v["rule"] == "quiet"]
    assert [v["reason_code"] for v in quiet] == ["undisturbed", "undisturbed"]
    environment = record(run, "env.json")
    for moment in ("env_before", "env_after"):
        assert environment[moment]["gpu"]["power_mw"] == 420_000
        assert environment[moment]["wall_ns"] > 0
    assert environment == record(run, "run.json")["environment"]
    assert "samples/environment.jsonl" in (run / "MANIFEST.sha256").read_text()
    subprocess.run(["sha256sum", "--check", "--quiet", "MANIFEST.sha256"], cwd=run, check=True)


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (Driver([liar()]), "nvml_implausible"),
        (Driver([], init_error=LIBRARY_NOT_FOUND), "nvml_missing"),
        (Driver([Gpu(reasons=0x40, utilization_pct=9)]), "throttled"),
    ],
    ids=["zeros", "no driver", "hot"],
)
def test_a_machine_that_cannot_be_trusted_ends_with_4_and_nothing_measured_is_lost(
    folder: Path, driver: Driver, reason: str
) -> None:
    code, run = measured(folder, driver, gpu=True)
    assert code == 4
    quiet = [v for v in record(run, "gates.json")["verdicts"] if v["rule"] == "quiet"]
    assert {(v["state"], v["reason_code"]) for v in quiet} == {("ENV_REJECTED", reason)}
    result = record(run, "run.json")
    assert result["status"] == "complete"
    assert all(cell["status"] == "ok" for cell in result["cells"])


def test_a_policy_without_gpu_passes_where_there_is_no_driver(folder: Path) -> None:
    code, run = measured(folder, Driver([], init_error=LIBRARY_NOT_FOUND), gpu=False)
    assert code == 0, record(run, "gates.json")


def test_every_block_has_its_time_and_the_conditions_can_be_recomputed(folder: Path) -> None:
    _, path = measured(folder, Driver([Gpu().busy()]), gpu=True)
    run = RunFolder.open(path)
    blocks, stored = run.lines(Block), run.read_run()
    spans = [b.span_ns for b in blocks]
    assert all(span is not None and span[0] < span[1] for span in spans)
    assert spans == sorted(spans, key=lambda span: span or (0, 0))
    config = run.read_config()
    plan = build_plan(tuple(config.scenarios.values()), config.backend)
    assert conditions_of(plan, whole_rounds(plan, blocks), run.lines(Sample)) == stored.conditions


# ── block by block ───────────────────────────────────────────────────────────────────────────────────────────────────

BY_BLOCKS = """\
  - id: quiet-blocks
    gate: environment
    required: true
    gpu: false
    max_other_cpu_share: 0.25
    max_clock_shift: 0.05
    max_clock_jump_s: 1.0
    max_cpu_wait: 0.05
    max_set_aside: 0.25
"""
QUIET = CpuUse(10**9, 2, 2.0, 10**9, 10**9, 0, 10**9, 0, 0)


def load_during(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    """The kernel's counters of a host that is loaded during these blocks of a run, counted from 0 with warm-up."""
    used = (replace(QUIET, waited_ns=4 * 10**8) if n in numbers else QUIET for n in itertools.count())
    monkeypatch.setattr("specgate.run.point_blocks.between", lambda before, after: next(used))


@pytest.mark.slow("runs of the reference engine")
@pytest.mark.parametrize(("loaded", "code", "aside"), [((7,), 0, 2), ((7, 12), 4, 0)])
def test_a_run_beside_a_burst_of_load_sets_rounds_aside_or_is_rejected_and_verifies(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, loaded: tuple[int, ...], code: int, aside: int
) -> None:
    cli.write("policy.yaml", (cli.folder / "policy.yaml").read_text() + BY_BLOCKS)
    load_during(monkeypatch, *loaded)
    done = cli.micro("--backend", "reference", "--plain")
    run = cli.newest()
    quiet = [v for v in record(run, "gates.json")["verdicts"] if v["rule"] == "quiet-blocks"]
    assert {v["reason_code"] for v in quiet} == {"set_aside" if aside else "host_loaded"}, done.stdout
    assert done.returncode == code
    (conditions,) = record(run, "run.json")["conditions"].values()
    assert len(conditions["host"]["set_aside"]) == aside
    cells = record(run, "run.json")["cells"]
    assert {(cell["status"], cell["set_aside"]) for cell in cells} == {("ok", aside)}
    assert "a thread waited for a CPU for up to 40% of the block (at most 5%)" in cli.details()
    verified = cli.run("runs", "verify", run, pair=False)
    assert verified.returncode == 0 and "all as stored" in verified.stdout, verified.stdout + verified.stderr
