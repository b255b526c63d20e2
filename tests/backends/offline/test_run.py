"""The command line on a library: a run with its evidence, and a fault that loses nothing that was measured."""

from __future__ import annotations

import pytest

from specgate.contract import Held
from specgate.files.run_folder import RunFolder
from tests.backends.offline.helpers import STAND_INS
from tests.support.command import Cli

pytestmark = pytest.mark.slow("starts an engine's processes for a run")
VLLM = ("--backend", "vllm-offline", "-o", f"pythonpath={STAND_INS}", "-o", "stop_s=1", "--plain")


@pytest.fixture(autouse=True)
def looked_into(cli: Cli) -> None:
    cli.write("tiny.yaml", (cli.folder / "tiny.yaml").read_text() + "perf_mode: true\n")


def test_a_run_whose_steps_are_seen_holds_what_rests_on_steps_and_can_be_verified(cli: Cli) -> None:
    # Steps so long that a busy machine does not make a cycle look shorter than a baseline step, which is invalid.
    done = cli.micro(*VLLM, "-o", "env.STAND_IN_FAULT=step_s=0.004")
    assert done.returncode == 0, done.stdout + done.stderr
    run = RunFolder.open(cli.newest()).read_run()
    assert all(c.tokens.identical for c in run.comparisons)
    for cell in run.cells:
        states = {i.id: i.held for i in run.certificates[cell.cell.key]}
        assert [i for i in states if states[i] is Held.HELD] == ["I3", "I5", "I7"]
        assert [i for i in states if states[i] is Held.UNSEEN] == ["I1", "I2", "I4", "I6"]
    assert all("step_ms" in cell.values for cell in run.cells)
    assert run.fingerprint["engine:build"] == "752a3a504" and run.fingerprint["engine:attention"] == "FLASH_ATTN"
    assert sorted(p.name for p in (cli.newest() / "logs").glob("vllm-*")) == [
        "vllm-offline-baseline.log",
        "vllm-offline-spec-2.log",
        "vllm-offline-spec-3.log",
    ]
    assert cli.run("runs", "verify", cli.newest(), pair=False).returncode == 0


def test_a_library_that_dies_ends_the_point_with_its_log(cli: Cli) -> None:
    done = cli.micro(*VLLM, "-o", "env.STAND_IN_FAULT=step=die")
    assert done.returncode == 7, done.stdout + done.stderr
    assert "its process was ended by signal 9" in done.stdout + done.stderr
    assert "arguments of LLM" in (cli.newest() / "logs" / "vllm-offline-baseline.log").read_text()


def test_a_secret_among_the_arguments_is_refused_before_anything_is_written(cli: Cli) -> None:
    done = cli.micro(*VLLM, "-o", "llm.hf_token=hf_abcdefghijklmnopqrstuvwxyz")
    assert done.returncode == 2 and "abcdefghij" not in done.stdout + done.stderr
    assert not list(cli.folder.glob("runs/*-micro-*"))


ON_A_CPU = """\
# The policy of another engine with gpt-oss-120b, where a CPU's clock judges nothing.
schema: specgate.policy/v1
base: engine-gpt-oss-120b
checks: {rescored_by: none}
micro: [micro-32k-single.yaml]
not_judged:
  - {kind: speed, why: a shared CPU's clock is no judge}
without: [no-loss-since-green, speed, speed-16k-b4, speed-32k-single]
rules:
  - {id: machine-quiet, required: false, gpu: false}
"""


def test_turbomind_is_green_under_the_120bs_policy_with_what_cannot_be_seen_named(cli: Cli) -> None:
    gate = (cli.folder / "tiny.yaml").read_text().replace("spec: [2, 3]", "spec: [3]").replace("steps: 6", "steps: 12")
    cli.write("micro-32k-single.yaml", gate)
    cli.write("policy.yaml", ON_A_CPU)
    turbomind = ("--backend", "lmdeploy-pipeline", "-o", "engine=turbomind", "-o", f"pythonpath={STAND_INS}", "--plain")
    measured = ("micro", "--scenario", "micro-32k-single.yaml", "--policy", "policy.yaml", *turbomind, "-o", "stop_s=1")
    done = cli.run(*measured, "-o", "env.STAND_IN_FAULT=accepts=2", "-o", "env.LMDEPLOY_EAGLE_KV_DEBUG=1")
    assert done.returncode == 0, done.stdout + done.stderr
    run = RunFolder.open(cli.newest()).read_run()
    messages = {v.rule: v.message for v in run.verdicts if v.cell.endswith("spec-3")}
    assert messages["perf-mode"] == "I3 I5 I7 hold; not observable here: I1 I2 I4 I6"
    assert messages["acceptance-32k-single"] == (
        "acceptance length 3.000 ≥ 3 by the engine's count, 2.000 emitted per cycle"
    )
    assert run.fingerprint["engine:env.LMDEPLOY_EAGLE_KV_DEBUG"] == "1"
    (facts,) = run.engines.values()
    assert facts.details["env LMDEPLOY_EAGLE_MICRO_STEPS"] == "12"
    assert cli.run("runs", "verify", cli.newest(), pair=False).returncode == 0
