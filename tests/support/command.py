"""The command line as a user runs it, in a folder of its own and on a tiny pair."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCENARIO = """\
# Does the whole path run?
schema: specgate.scenario/v1
extends: base/cpu
kind: {kind}
family: single
grid: {{context: [{context}], batch: [2], spec: [2, 3]}}
workload: {{prompt_sets: 4, source: random}}
budget: {{{budget}}}
schedule: {{rounds: 2, warmup_rounds: 1}}
"""
POLICY = """\
schema: specgate.policy/v1
micro: [gate.yaml]
rules:
  - {id: records, gate: validity, required: true}
  - {id: tokens, gate: tokens, required: true, role: spec-*, near_tie_margin: 0.0}
  - {id: acceptance, gate: acceptance, required: true, min: MIN}
"""


class Cli:
    """`python -m specgate` in a folder of its own, which holds a scenario and a policy. The pair is tiny."""

    def __init__(self, folder: Path, target: Path, draft: Path) -> None:
        self.folder, self.target, self.draft = folder, target, draft
        self.root = ROOT
        self.write("policy.yaml", POLICY.replace("MIN", "1.0"))
        self.write("gate.yaml", SCENARIO.format(kind="micro", context=24, budget="steps: 6"))
        self.scenario()

    def write(self, name: str, text: str) -> Path:
        (self.folder / name).write_text(text)
        return self.folder / name

    def scenario(self, kind: str = "micro", context: int = 24, budget: str = "steps: 6") -> None:
        self.write("tiny.yaml", SCENARIO.format(kind=kind, context=context, budget=budget))

    def run(self, *arguments: str | Path, pair: bool = True) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "specgate", *map(str, arguments)]
        if pair:
            command += ["--target", str(self.target), "--draft", str(self.draft)]
        environment = {**os.environ, "PYTHONPATH": str(self.root), "NO_COLOR": "1"}
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120)

    def micro(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return self.run("micro", "--scenario", "tiny.yaml", "--policy", "policy.yaml", *arguments)

    def signalled_after_seven_blocks(self, signal_: signal.Signals) -> int:
        """Send a signal to a run whose engine hangs in its eighth block. Returns the exit status."""
        command = [sys.executable, "-m", "specgate", "micro", "--scenario", "tiny.yaml", "--policy", "policy.yaml"]
        command += ["--backend", "fake", "-o", "hang_after_blocks=7"]
        command += ["--target", str(self.target), "--draft", str(self.draft)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("[7/"):
                    break
            process.send_signal(signal_)
            process.stdout.read()
        return process.returncode

    def newest(self) -> Path:
        return max(path for path in (self.folder / "runs").iterdir() if path.is_dir())
