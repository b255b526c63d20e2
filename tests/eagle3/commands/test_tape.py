"""Record accept counts in one run and replay them in another, through the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from specgate.contract.tape import Tape
from specgate.errors import ExitCode
from specgate.files.run_folder import RunFolder
from tests.support.command import Cli

SPEED = """\
# A shared CPU's clock is no judge.
schema: specgate.policy/v1
base: speed-only
rules:
  - {id: speed, min: 0.01}
"""


def acceptance_of(run: Path) -> dict[str, object]:
    return {c.cell.role.name: c.acceptance for c in RunFolder.open(run).read_run().cells}


@pytest.mark.slow("runs of the reference engine")
def test_a_replayed_run_accepts_what_was_recorded_and_satisfies_speed_gates_only(cli: Cli) -> None:
    assert cli.micro("--backend", "reference").returncode == 0
    recorded = cli.newest()
    done = cli.run("engine", "tape", recorded, "tape.json", pair=False)
    assert done.returncode == 0 and "spec-2: acceptance length" in done.stdout
    tape = Tape.load(cli.folder / "tape.json")
    assert len(tape.prompts) == 4 and tuple(tape.specs) == (2, 3) and tape.origin["run"] == recorded.name

    cli.write(
        "policy.yaml",
        (cli.folder / "policy.yaml").read_text() + "  - {id: s, gate: speed, required: false, min: 0.01}\n",
    )
    options = ("-o", "tape=tape.json", "-o", "drafter=none", "--perf-mode")
    replayed = cli.micro("--backend", "reference", *options)
    assert replayed.returncode == 6 and "acceptance is forced" in cli.details()
    run = max((cli.folder / "runs").glob("*/"), key=lambda folder: folder.stat().st_mtime_ns)
    assert run != recorded and acceptance_of(run) == acceptance_of(recorded)

    gates = {
        (v["gate"], v["cell"].rpartition("/")[2]): v for v in json.loads((run / "gates.json").read_text())["verdicts"]
    }
    for gate in ("acceptance", "tokens"):
        assert (gates[gate, "spec-3"]["state"], gates[gate, "spec-3"]["reason_code"]) == (
            "INVALID",
            "forced_acceptance",
        )
    assert gates["speed", "spec-3"]["state"] in ("PASS", "INCONCLUSIVE")
    assert gates["speed", "spec-3"]["message"].endswith("acceptance was forced")
    assert not (run / "samples" / "margins.jsonl").exists()
    cli.write("speed.yaml", SPEED)
    judged = cli.run("runs", "check", run, "--policy", "speed.yaml", pair=False)
    output = judged.stdout + judged.stderr
    # Pairs of a busy machine may lie too far apart to tell anything from 0.01x.
    assert judged.returncode in (ExitCode.PASS, ExitCode.INCONCLUSIVE), output
    speeds = re.findall("^(?:PASS|INCONCLUSIVE) speed on .*acceptance was forced$", judged.stdout, re.MULTILINE)
    assert len(speeds) == 2, output
    assert "tokens are then wrong by design" in judged.stdout and "is given, not measured" in judged.stdout
    assert "spec-3: I3 I5 hold; not observable here: I1 I2 I4 I6 I7" in judged.stdout


@pytest.mark.slow("runs of the reference engine")
def test_an_oracle_passes_the_token_gate_and_never_the_acceptance_gate(cli: Cli) -> None:
    done = cli.micro("--backend", "reference", "-o", "drafter=oracle")
    assert done.returncode == 6 and "acceptance is stand-in" in cli.details()
    gates = {
        (v["gate"], v["cell"].rpartition("/")[2]): v
        for v in json.loads((cli.newest() / "gates.json").read_text())["verdicts"]
    }
    assert gates["tokens", "spec-3"]["state"] == "PASS"
    assert (gates["acceptance", "spec-3"]["state"], gates["acceptance", "spec-3"]["reason_code"]) == (
        "INVALID",
        "stand_in_drafter",
    )


def test_a_point_that_is_not_meant_is_refused_with_those_there_are(cli: Cli) -> None:
    assert cli.micro("--backend", "fake").returncode in (0, 1)
    done = cli.run("engine", "tape", cli.newest(), "tape.json", "--point", "nowhere", pair=False)
    assert (
        done.returncode == 2
        and "has no point 'nowhere'" in done.stderr
        and "--point is one of: tiny/fake" in done.stderr
    )


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_what_is_no_run_folder_is_refused(cli: Cli, name: str) -> None:
    assert cli.run("engine", "tape", name, "tape.json", pair=False).returncode == 2
