"""2,048 cells over 64 slots of this host, of which a tenth are killed: is every cell measured once, and nothing lost?

    python -m tests.fleet.many_cells [--slots 64] [--killed 7] FOLDER

The engine is scripted: what is tested is the fleet. FOLDER gets the run. Prints how long it took, how long slots waited
for a task, and the verdict. Exit code 1 where a block is missing or was measured twice. A host with few CPUs starves so
many nodes: the harness's clock then contradicts the engine's, and the verdict is INVALID.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from subprocess import Popen

from specgate.cli import cli
from specgate.contract import Block, Plan
from specgate.files.run_folder import RunFolder
from specgate.fleet import local
from specgate.planning.plan import build_plan
from tests.pairs.tiny import write_random_pair
from tests.support.command import scenario_text

POLICY = """\
schema: specgate.policy/v1
not_judged:
  - {kind: speed, why: the engine is scripted}
  - {kind: tokens, role: baseline, why: the other roles are held to it}
rules:
  - {id: records, gate: validity, required: true}
  - {id: tokens, gate: tokens, required: true, role: spec-*, near_tie_margin: 0.0}
  - {id: acceptance, gate: acceptance, required: true, min: 1.0}
"""
WITHIN_S = (1.0, 20.0)
"""How long a node that is to be killed lives."""


def kill_some(count: int, slots: int) -> list[int]:
    """Have `count` of the first `slots` nodes killed at some moment of their work. Returns the numbers of those that
    were, as far as they have been chosen.
    """
    lot, killed, begun = random.Random(5), list[int](), [0]
    victims, really_started, lock = set(lot.sample(range(slots), count)), local.started, threading.Lock()

    def started(folder: Path, variables: Mapping[str, str]) -> Popen[bytes]:
        process = really_started(folder, variables)
        with lock:
            number, begun[0] = begun[0], begun[0] + 1
        if number in victims:
            killed.append(process.pid)
            threading.Timer(lot.uniform(*WITHIN_S), process.send_signal, (signal.SIGKILL,)).start()
        return process

    local.started = started
    return killed


def twice_or_missing(folder: RunFolder, plan: Plan) -> tuple[int, int]:
    """(blocks that are there more than once, blocks that are missing)"""
    counter = Counter(
        (block.cell.key, block.prompt_set, block.round) for block in folder.lines(Block) if not block.warmup
    )
    planned = sum(len(round_.order) for round_ in plan.rounds if not round_.warmup)
    return sum(count - 1 for count in counter.values()), planned - len(counter)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--killed", type=int, default=7)
    parser.add_argument("--contexts", type=int, default=64)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        target, draft = write_random_pair(Path(made), seed=8)
        scenario, policy = Path(made, "many.yaml"), Path(made, "policy.yaml")
        contexts = ", ".join(map(str, range(9, 9 + given.contexts)))
        scenario.write_text(
            scenario_text(context=contexts, batch="1, 2, 3, 4, 5, 6, 7, 8", spec=[1, 2, 3], sets=8, budget="steps: 4")
        )
        policy.write_text(POLICY)
        killed, began = kill_some(given.killed, given.slots), time.monotonic()
        arguments = ["micro", "--on", "gpus", "--plain", "--backend", "fake", "--slots", str(given.slots)]
        files = {"scenario": scenario, "policy": policy, "target": target, "draft": draft, "out": given.folder}
        arguments += [word for name, file in files.items() for word in (f"--{name}", str(file))]
        try:
            cli(arguments, standalone_mode=False)
            code: object = 0
        except SystemExit as ended:
            code = ended.code
        took = time.monotonic() - began
        folder = RunFolder.open(max(given.folder.glob("2*/")), read_only=True)
        plan = build_plan(tuple(folder.read_config().scenarios.values()), "fake")
        twice, missing = twice_or_missing(folder, plan)
        print(f"{len(plan.cells):,} cells, {len(killed)} nodes killed, {took:.0f} s, exit code {code}")
        print(f"{twice} blocks measured twice, {missing} missing")
    return int(bool(twice or missing))


if __name__ == "__main__":
    sys.exit(main())
