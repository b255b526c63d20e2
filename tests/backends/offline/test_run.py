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
    cli.micro(*VLLM, "-o", "env.STAND_IN_FAULT=step_s=0.004", code=0)
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
    done = cli.micro(*VLLM, "-o", "env.STAND_IN_FAULT=step=die", code=7)
    assert "its process was ended by signal 9" in done.stdout + done.stderr
    assert "arguments of LLM" in (cli.newest() / "logs" / "vllm-offline-baseline.log").read_text()


def test_a_secret_among_the_arguments_is_refused_before_anything_is_written(cli: Cli) -> None:
    done = cli.micro(*VLLM, "-o", "llm.hf_token=hf_abcdefghijklmnopqrstuvwxyz")
    assert done.returncode == 2 and "abcdefghij" not in done.stdout + done.stderr
    assert not list(cli.folder.glob("runs/*-micro-*"))
