"""`specgate micro --on gpus`, with nodes that are processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from specgate.contract import Block
from specgate.files.run_folder import RunFolder
from specgate.fleet import coordinator, local, merging
from tests.support.command import Cli, scenario_text

pytestmark = pytest.mark.slow("starts nodes")


def many(cli: Cli, contexts: str = "16, 24") -> None:
    """Write the scenario `many`, of a point per context."""
    cli.write("many.yaml", scenario_text(context=contexts, batch=1, spec=[3], sets=8))


def spread(cli: Cli, *arguments: str, contexts: str = "16, 24") -> subprocess.CompletedProcess[str]:
    options = [] if "--resume" in arguments else ["--scenario", "many.yaml", "--policy", "policy.yaml"]
    options += [] if "--resume" in arguments else ["--backend", "fake"]
    many(cli, contexts)
    return cli.run("micro", "--on", "gpus", *options, *arguments, pair="--resume" not in arguments)


def check_whole(cli: Cli, points: int = 2) -> Path:
    """Every planned block once, all of a point by one engine process, and a run folder that can be recomputed."""
    path = cli.newest()
    folder = RunFolder.open(path, read_only=True)
    blocks = [block for block in folder.lines(Block) if not block.warmup]
    times = Counter((block.cell.key, block.prompt_set, block.round) for block in blocks)
    assert len(times) == points * 2 * 8 * 2 and set(times.values()) == {1}
    processes = {(block.point.key, block.worker_generation) for block in blocks}
    assert len(processes) == points == len({generation for _, generation in processes})
    verified = cli.run("runs", "verify", str(path), pair=False)
    assert verified.returncode == 0 and " holds: " in verified.stdout, verified.stdout
    return path


def ends(path: Path) -> list[str]:
    logs = sorted((path / "logs").glob("fleet-*.jsonl"))
    return [json.loads(line)["ended"] for log in logs for line in log.read_text().splitlines()]


def test_a_node_that_is_killed_loses_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    really_started = local.started

    def started(folder: Path, variables: dict[str, str]) -> subprocess.Popen[bytes]:
        process = really_started(folder, variables)
        if not killed:
            killed.append(process.pid)
            process.send_signal(signal.SIGKILL)
        return process

    monkeypatch.setattr(local, "started", started)
    ran = spread(cli, "--slots", "2")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "its process was ended by signal 9; it is measured again" in ran.stdout
    path = check_whole(cli)
    assert sorted(ends(path)) == ["lost", "measured", "measured"]
    run = RunFolder.open(path, read_only=True).read_run()
    assert str(run.fingerprint["fleet"]).startswith("2: ") and run.status == "complete"


def test_an_interrupted_fleet_goes_on_with_other_slots(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    merged, really_merge = list[object](), merging.merge

    def merge(*given: object) -> int:
        if merged:
            raise KeyboardInterrupt
        merged.append(given[0])
        return really_merge(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(coordinator, "merge", merge)
        ran = spread(cli, "--slots", "2")
    assert ran.returncode == 130, ran.stdout + ran.stderr
    assert "1 of 2 points" in ran.stderr
    path = cli.newest()
    alone = cli.run("micro", "--resume", str(path), pair=False)
    assert alone.returncode == 2 and f"specgate micro --on gpus --resume {path}" in alone.stderr
    strange = spread(cli, "--resume", str(path), "--slots", "3")
    assert strange.returncode == 2 and "is none of the machines that it began with" in strange.stderr
    ran = spread(cli, "--resume", str(path), "--slots", "1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "[1/1 points]" in ran.stdout and check_whole(cli) == path


def test_what_an_engine_refuses_ends_the_run_as_on_one_machine(cli: Cli) -> None:
    ran = spread(cli, "-o", "max_positions=16")
    assert ran.returncode == 2 and "max_positions = 16, but the plan needs" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--on", "moon"), 2, "--on 'moon': no such machines\n  gpus, ray, or ray=ADDRESS"),
        (("--slots", "0"), 2, "--slots"),
        (("--on", "ray"), 4, "Ray is not installed"),
        (("-o", "url.baseline=http://127.0.0.1:1"), 2, "option url.baseline = http://127.0.0.1:1: a server that runs"),
    ],
)
def test_where_it_cannot_measure_it_says_what_would_be_right(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, message: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    ran = spread(cli, *arguments)
    assert ran.returncode == code and message in ran.stderr
    assert not (cli.folder / "runs").exists()


def test_the_hosts_of_a_ray_cluster_measure_too(cli: Cli) -> None:
    pytest.importorskip("ray")
    many(cli)
    ran = cli.run_apart(
        *("micro", "--scenario", "many.yaml", "--policy", "policy.yaml", "--backend", "fake"),
        *("--on", "ray=local", "--slots", "1"),
        code=0,
    )
    assert "fleet: 1 slots measured 2 of 2 points in 2 tasks;" in ran.stderr
    path = cli.newest()
    assert ends(path) == ["measured"] * 2
    assert cli.run("runs", "verify", str(path), pair=False).returncode == 0
