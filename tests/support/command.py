"""The command line in a folder of its own, on a tiny pair: in this process, or in processes of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support import in_process
from tests.support.clocks.starved import ATTEMPTS, spoilt
from tests.support.engines import house

ROOT = Path(__file__).parents[2]
UNDRAWN = "tests.support.undrawn"
SCENARIO = """\
# Does the whole path run?
schema: specgate.scenario/v1
extends: base/cpu
kind: {kind}
family: single
grid: {{context: [{context}], batch: [{batch}], spec: {spec}}}
workload: {{prompt_sets: {sets}, source: random}}
budget: {{{budget}}}
schedule: {{rounds: {rounds}, warmup_rounds: 1}}
"""
USUAL = {"kind": "micro", "context": 24, "batch": 2, "spec": [2, 3], "sets": 4, "budget": "steps: 6", "rounds": 2}
POLICY = """\
schema: specgate.policy/v1
micro: [gate.yaml]
checks: {rescored_by: none}
not_judged:
  - {kind: speed, why: blocks of a tiny pair take milliseconds}
  - {kind: tokens, role: baseline, why: the other roles are held to it}
rules:
  - {id: records, gate: validity, required: true}
  - {id: tokens, gate: tokens, required: true, role: spec-*, near_tie_margin: 0.0}
  - {id: acceptance, gate: acceptance, required: true, min: MIN}
"""
SCRIPTED_POLICY = """\
schema: specgate.policy/v1
micro: [gate.yaml]
not_judged:
  - {kind: speed, why: blocks of a scripted engine take a millisecond}
rules:
  - {id: records, gate: validity, required: true}
  - {id: tokens, gate: tokens, required: true, near_tie_margin: 0.0}
  - {id: acceptance, gate: acceptance, required: true, min: 0.5}
"""
"""Rules that runs of a scripted engine keep to. A test adds its own."""
NOT_SCORED = "checks: {rescored_by: none}\n"
"""The line of the policy that asks no second engine: a scripted one says what no pair does."""


def scenario_text(**changes: object) -> str:
    """The scenario with the USUAL values, but for `changes`."""
    return SCENARIO.format(**USUAL | changes)


def ended(out: Path) -> set[Path]:
    """The folders of ended runs and comparisons in `out`."""
    return {file.parent for name in ("run.json", "ab.json") for file in out.glob(f"*/{name}")}


class Cli:
    """`specgate` in a folder of its own, with a tiny pair, a scenario and a policy at hand.

    `run` and `micro` start no process, which takes seconds; `run_apart` and `micro_apart` are what a user does, but for
    pictures, which they draw where a test says `drawn=True`. `code`: the exit code that the command must end with.
    """

    def __init__(self, folder: Path, target: Path, draft: Path) -> None:
        self.folder, self.target, self.draft = folder, target, draft
        self.root = ROOT
        self.write("policy.yaml", POLICY.replace("MIN", "1.0"))
        self.write("gate.yaml", scenario_text())
        self.scenario()

    def write(self, name: str, text: str) -> Path:
        (self.folder / name).write_text(text)
        return self.folder / name

    def scenario(self, **changes: object) -> None:
        """Write the scenario `tiny`, with other values than the USUAL ones."""
        self.write("tiny.yaml", scenario_text(**changes))

    def run(
        self, *arguments: str | Path, pair: bool = True, code: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = self._command(arguments, pair)
        return self._fed(lambda: in_process.command(self.folder, command), self._out(arguments), code)

    def run_apart(
        self, *arguments: str | Path, pair: bool = True, drawn: bool = False, code: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "specgate" if drawn else UNDRAWN, *self._command(arguments, pair)]
        folder, env = self.folder, self.environment()
        return self._fed(
            lambda: subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120),
            self._out(arguments),
            code,
        )

    def _out(self, arguments: Sequence[str | Path]) -> Path:
        """The folder in which a command leaves its run."""
        return self.folder / (arguments[arguments.index("--out") + 1] if "--out" in arguments else "runs")

    def _fed(
        self, attempt: Callable[[], subprocess.CompletedProcess[str]], out: Path, code: int | None
    ) -> subprocess.CompletedProcess[str]:
        """The outcome of a command. One that makes a run is given again where the machine had no CPU for the run, of
        which nothing is left.
        """
        before = ended(out)
        ledger = {file: file.read_bytes() for file in out.glob("ledger.*")}
        for left in reversed(range(ATTEMPTS)):
            ran = attempt()
            new = ended(out) - before
            if not left or ran.returncode != 6 or not any(map(spoilt, new)):
                break
            for gone in (*new, *out.glob("ledger.*")):
                shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
            for file, content in ledger.items():
                file.write_bytes(content)
        assert code in (None, ran.returncode), ran.stdout + ran.stderr
        return ran

    def environment(self) -> dict[str, str]:
        """The environment of a process that runs this tree's `specgate`."""
        path = os.pathsep.join(map(str, dict.fromkeys((self.root, ROOT))))  # where the tree is a copy, it has no tests
        return {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1"}

    def micro(self, *arguments: str | Path, code: int | None = None) -> subprocess.CompletedProcess[str]:
        return self.run("micro", "--scenario", "tiny.yaml", "--policy", "policy.yaml", *arguments, code=code)

    def micro_apart(
        self, *arguments: str | Path, drawn: bool = False, code: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        question = ("micro", "--scenario", "tiny.yaml", "--policy", "policy.yaml")
        return self.run_apart(*question, *arguments, drawn=drawn, code=code)

    def _command(self, arguments: Sequence[str | Path], pair: bool) -> list[str]:
        checkpoints = ["--target", str(self.target), "--draft", str(self.draft)]
        command = [*map(str, arguments), *(checkpoints if pair else [])]
        if house.opens_its_engine(command) and not house.is_here():
            pytest.skip("needs an engine of the engine's house, which is not installed")
        return command

    def signalled_after_seven_blocks(self, signal_: signal.Signals, *words: str) -> int:
        """Send a signal to a run whose engine hangs in its eighth block, a micro run unless `words` ask for another
        one. Returns the exit status.
        """
        words = words or ("micro", "--scenario", "tiny.yaml", "--policy", "policy.yaml")
        command = [sys.executable, "-m", UNDRAWN, *words, "--backend", "fake", "-o", "hang_after_blocks=7"]
        command += ["--target", str(self.target), "--draft", str(self.draft)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with (
            in_process.interruptible(),
            subprocess.Popen(command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, text=True) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("[7/"):
                    break
            process.send_signal(signal_)
            process.stdout.read()
        return process.returncode

    def details(self) -> str:
        """Return the output of `runs show --all` for the run that was written last."""
        return self.run("runs", "show", self.newest(), "--all", pair=False).stdout

    def newest(self) -> Path:
        """The run that was written last: names tell seconds, and two runs may begin in one."""
        return max((self.folder / "runs").glob("*/run.json"), key=lambda file: file.stat().st_mtime_ns).parent
