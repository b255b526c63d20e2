"""One task of a fleet, measured on this machine.

Without done.json, the task is lost. Nothing is imported before it is needed: the monitor process of a run imports this
file again.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
from pathlib import Path

from specgate.contract import Block, Run
from specgate.errors import InvalidResult
from specgate.files.journal import JOURNALS
from specgate.files.json_record import stored_json
from specgate.files.json_text import from_plain
from specgate.files.run_folder import RunFolder
from specgate.fleet.machines import unlike
from specgate.fleet.tasks import TASK, Done, Stop, Task, only
from specgate.planning.plan import build_plan
from specgate.planning.request import Request
from specgate.planning.resolution import read_back
from specgate.promotion.claim import software_of
from specgate.promotion.fingerprint import FLEET
from specgate.run.beginning import fitting_prompts
from specgate.run.progress import Silent
from specgate.run.recompute import Stopped
from specgate.run.runner import Runner
from specgate.run.session import stop_check, watched
from specgate.sandbox.isolation import FACT, isolated
from specgate.terminal import echo


def end_with_the_coordinator() -> None:
    """Standard input is a pipe that nothing is written into: it closes when the coordinator has ended, in any way."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGINT)


def main(folder: Path) -> None:
    from specgate.errors import SpecgateError
    from specgate.files.json_text import to_plain
    from specgate.files.writing import write_json
    from specgate.fleet.tasks import DONE, Done, Stop

    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be inherited as ignored
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    threading.Thread(target=end_with_the_coordinator, daemon=True).start()
    try:
        done = carry_out(folder)
    except SpecgateError as error:
        done = Done(stopped=Stop.of(error))
    write_json(folder / DONE, to_plain(Done, done))


def carry_out(path: Path) -> Done:
    """Measure the task in the folder `path`, unless this machine is unlike the one that the run began on.

    The folder holds the beginning of the run (config.resolved.yaml, env.json and a run.json without figures). What is
    measured goes into its samples/, as in a run of this machine alone. Raises KeyboardInterrupt where that was
    interrupted.
    """
    folder, task = RunFolder.open(path), from_plain(Task, stored_json(path / TASK), path / TASK)
    run = folder.read_run()
    with isolated(FACT in run.fingerprint, path.absolute().parent, *([Path(task.runs)] if task.runs else [])):
        return measure(path, folder, task, run)


def measure(path: Path, folder: RunFolder, task: Task, run: Run) -> Done:
    """Measure the task under the sandbox that is current, if any: see `carry_out`."""
    config = read_back(Request(kind=run.kind, argv=(), plain=True, out=path.parent, resume=path))
    software = software_of(config)
    facts = {key: value for key, value in run.fingerprint.items() if key != FLEET}
    if differences := tuple(unlike(run.environment, facts, software.facts)):
        return Done(unlike=differences)
    whole = build_plan(tuple(config.scenarios.values()), config.backend)
    plan = only(whole, task.points)
    prompts = fitting_prompts(plan, config)
    for key, made in prompts.items():
        if (then := run.prompts[key]["sha256"]) != made.sha256:
            raise InvalidResult(f"{key}: other prompts here: {made.sha256}, {then} where the run began")
    runner = Runner(
        plan,
        prompts,
        config,
        folder,
        Counted(),
        stop_check(run, whole, config.policy),
        bandwidth=run.bandwidth,
        first_generation=task.first_generation,
    )
    measured = watched(runner, folder, config, software)
    return Done(samples_of(path), measured.failures, stopped=stop_of(measured.stopped))


class Counted(Silent):
    """Prints how many blocks are done."""

    def __call__(self, block: Block, done: int, planned: int, side: str = "") -> None:
        echo(f"{done} of {planned} blocks: {block.cell.key}")


def samples_of(path: Path) -> dict[str, str]:
    """Journal → SHA-256, of those that hold anything."""
    contents = {name: (path / name).read_bytes() for name in sorted(JOURNALS) if (path / name).is_file()}
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items() if content}


def stop_of(stopped: Stopped) -> Stop | None:
    """Error that stopped a node, in words; None for nothing."""
    if isinstance(stopped, KeyboardInterrupt):
        raise stopped
    return Stop.of(stopped) if stopped is not None else None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
