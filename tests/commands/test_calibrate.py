"""Looks and calibration on the command line: a fake engine, a scenario of three looks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from specgate.files.writing import sha256_of
from tests.commands.test_run import last_lines
from tests.support.command import Cli

POLICY = """\
schema: specgate.policy/v1
not_judged:
  - {kind: acceptance, why: it is scripted}
  - {kind: tokens, role: baseline, why: the other roles are held to it}
rules:
  - {id: records, gate: validity, required: true}
  - {id: tokens, gate: tokens, required: true, role: spec-*, near_tie_margin: 0.0}
  - {id: speed, gate: speed, required: true, role: spec-3, min: 1.5}
"""


@pytest.fixture
def cli(cli: Cli) -> Cli:
    cli.scenario(spec=[3], rounds=6)
    cli.write("policy.yaml", POLICY)
    return cli


def counted(run: Path) -> int:
    return sum(not json.loads(line)["warmup"] for line in (run / "samples" / "blocks.jsonl").read_text().splitlines())


def test_a_decided_run_ends_at_its_first_look_with_everything_whole(cli: Cli) -> None:
    cli.micro("--backend", "fake", code=0)
    run = cli.newest()
    assert counted(run) == 16
    record = json.loads((run / "run.json").read_text())
    assert list(record["ended_early"].values()) == [8]
    assert {c["status"] for c in record["cells"]} == {"ok"}
    (speed,) = [v for v in record["verdicts"] if v["rule"] == "speed"]
    assert (speed["evidence"]["look"], speed["evidence"]["pairs"]) == (1, 8)


@pytest.mark.slow("a run in processes of its own")
def test_a_resumed_run_ends_at_the_same_look(cli: Cli) -> None:
    assert cli.micro_apart("--backend", "fake", "-o", "die_after_blocks=14").returncode == 7
    run = cli.newest()
    cli.run("micro", "--resume", run, pair=False, code=0)
    record = json.loads((run / "run.json").read_text())
    assert list(record["ended_early"].values()) == [8]
    assert record["status"] == "complete"
    assert cli.run("micro", "--resume", run, pair=False).returncode == 2
    assert json.loads((run / "run.json").read_text())["verdicts"] == record["verdicts"]


def test_a_quiet_machine_gets_a_noise_profile_that_later_runs_go_by(cli: Cli) -> None:
    done = cli.run("machine", "calibrate", "--scenario", "tiny.yaml", "--backend", "fake", code=0)
    assert last_lines(done)[-1] == "this machine is accepted at 2 %"
    assert "5 processes sd 0.0" in done.stdout
    (profile,) = (cli.folder / "noise").glob("*.json")
    cells = json.loads(profile.read_text())["cells"]
    assert [(key.rpartition("/")[2], cell["pairs"]) for key, cell in cells.items()] == [
        ("baseline", 24),
        ("spec-3", 24),
    ]
    assert cli.micro("--backend", "fake").returncode == 0
    verdicts = json.loads((cli.newest() / "gates.json").read_text())["verdicts"]
    assert any("this machine can tell" in v["message"] for v in verdicts)
    assert any(re.search(r"\(sd, 5 measured(\)|; 0\.13 % is the least that counts\))", v["message"]) for v in verdicts)


def test_a_calibration_is_recomputed_from_its_samples_and_judged_by_no_policy(cli: Cli) -> None:
    cli.run("machine", "calibrate", "--scenario", "tiny.yaml", "--backend", "fake", "--processes", "2", code=0)
    of_calibration = sorted(
        (cli.folder / "runs").glob("*-calibrate-*"), key=lambda folder: not (folder / "noise.json").is_file()
    )
    holds = [cli.run("runs", "verify", folder, pair=False, code=0).stdout for folder in of_calibration]
    assert "2 cells recomputed, all as stored" in holds[0] and "a further process, without a profile" in holds[1]
    folder = of_calibration[0]
    refused = cli.run("runs", "check", folder, "--policy", "policy.yaml", pair=False, code=2)
    assert "a calibration, which has no verdict" in refused.stderr
    noise, manifest = folder / "noise.json", folder / "MANIFEST.sha256"
    before = sha256_of(noise)
    noise.write_text(noise.read_text().replace('"pairs": 24', '"pairs": 25', 1))
    assert "noise.json" in cli.run("runs", "verify", folder, pair=False, code=6).stdout
    manifest.write_text(manifest.read_text().replace(before, sha256_of(noise)))
    assert "pairs" in cli.run("runs", "verify", folder, pair=False, code=6).stdout


def test_a_noisy_machine_is_rejected(cli: Cli) -> None:
    done = cli.run("machine", "calibrate", "--scenario", "tiny.yaml", "--backend", "fake", "-o", "jitter=1.5", code=4)
    assert "rejected at 2 %" in done.stdout
    assert cli.micro("--backend", "fake").returncode == 0
    assert "rejects this machine" in (cli.newest() / "report.html").read_text()


def test_an_engine_that_fails_calibrates_nothing(cli: Cli) -> None:
    cli.run("machine", "calibrate", "--scenario", "tiny.yaml", "--backend", "fake", "-o", "fail_open=no", code=7)
    assert not (cli.folder / "noise").exists()


def test_a_run_that_cannot_tell_goes_on_with_more_rounds_and_keeps_its_looks(cli: Cli) -> None:
    cli.write("policy.yaml", POLICY.replace("min: 1.5", "min: 2.29"))
    short = ("--backend", "fake", "--measurement-runs", "4", "-o", "jitter=0.02")
    cli.micro(*short, code=3)
    run = cli.newest()
    assert cli.run("micro", "--resume", run, pair=False).returncode == 2  # as planned, nothing is left
    assert cli.run("micro", "--resume", run, "--measurement-runs", "4", pair=False).returncode == 2
    before = json.loads((run / "run.json").read_text())["fingerprint"]["config_sha256"]
    cli.run("micro", "--resume", run, "--measurement-runs", "6", pair=False, code=3)
    record = json.loads((run / "run.json").read_text())
    assert (record["scenarios"]["tiny"]["schedule"]["extended"], counted(run)) == ([4], 48)
    (speed,) = [v for v in record["verdicts"] if v["rule"] == "speed"]
    assert (speed["evidence"]["look"], speed["evidence"]["looks"], speed["evidence"]["pairs"]) == (3, 3, 24)
    assert record["fingerprint"]["config_sha256"] != before
    checked = cli.run("runs", "verify", run, pair=False)
    assert checked.returncode == 0 and "4 verdicts recomputed, all as stored" in checked.stdout, (
        checked.stdout + checked.stderr
    )


def test_a_run_with_a_verdict_does_not_go_on(cli: Cli) -> None:
    assert cli.micro("--backend", "fake").returncode == 0
    again = cli.run("micro", "--resume", cli.newest(), "--measurement-runs", "8", pair=False)
    assert again.returncode == 2 and "nothing is left to continue" in again.stderr
