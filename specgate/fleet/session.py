"""A run on many machines, from the request to the exit code.

What is measured, the coordinator has measured elsewhere. What follows from the samples is computed, judged, stored and
entered in the ledger as in every other run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from specgate.contract import Run
from specgate.errors import EnvironmentRefused, ExitCode, InvalidResult, SpecgateError, UsageError
from specgate.files.run_folder import RunFolder
from specgate.fleet.coordinator import Coordinator
from specgate.fleet.machines import Machines, Slot
from specgate.machine.software import Software
from specgate.planning.request import Request
from specgate.promotion.admission import admission
from specgate.promotion.fingerprint import FLEET
from specgate.run import early_stop, session
from specgate.run.ending import Measured, check_unchanged
from specgate.run.progress import Silent
from specgate.run.recompute import Stopped
from specgate.run.runner import Runner
from specgate.run.session import Resolved
from specgate.terminal import echo


def carry_out(request: Request, machines: Machines) -> ExitCode:
    """Carry out one run on `machines`. See `run.session.carry_out`.

    Raises EnvironmentRefused where there is no slot, and UsageError where they would share a server.
    """
    if not machines.slots:
        raise EnvironmentRefused(
            "the fleet has no slot to measure in", hint="a GPU, or --slots N on a host without one"
        )
    try:
        options = RunFolder.open(request.resume).read_config().options if request.resume else request.options
        refuse_shared(options, len(machines.slots))
        return session.carry_out(request, partial(measure_on, machines), taking_part(request, machines))
    finally:
        machines.stop()


def refuse_shared(options: Mapping[str, str], slots: int) -> None:
    """Raise UsageError for options of a back end that would have all slots measure one server, or use one port."""
    if attached := next((key for key in options if key.partition(".")[0] == "url"), None):
        raise UsageError(
            f"option {attached} = {options[attached]}: a server that runs already is measured from one place",
            hint="without it, each slot starts a server of its own; or leave --on out",
        )
    if slots > 1 and "port" in options:
        hint = "without it, free ones are found"
        raise UsageError(f"option port = {options['port']}: {slots} slots would use the same port", hint=hint)


def taking_part(request: Request, machines: Machines) -> dict[str, str]:
    """Machines that measure, as a key of the fingerprint. A run that is resumed keeps what it began with: machines may
    have been lost meanwhile. Raises UsageError where others are to go on, or where it was begun by one machine alone.
    """
    if request.resume is None:
        return {FLEET: in_words(machines.slots)}
    run = RunFolder.open(request.resume).read_run()
    if (began := run.fingerprint.get(FLEET)) is None:
        hint = f"continue it with specgate {run.kind} --resume {request.resume}"
        raise UsageError(f"{request.resume}: it was begun by one machine", hint=hint)
    known = began.partition(": ")[2].split(", ")
    if strangers := [slot.identity for slot in machines.slots if slot.identity not in known]:
        raise UsageError(
            f"{request.resume}: fleet: {strangers[0]} is none of the machines that it began with ({began})",
            hint="continue it with some of those, or begin a new run",
        )
    return {FLEET: began}


def in_words(slots: Sequence[Slot]) -> str:
    """Machines that measure, for the fingerprint: another set of machines begins a new count of green runs."""
    return f"{len(slots)}: {', '.join(sorted(slot.identity for slot in slots))}"


def measure_on(machines: Machines, resolved: Resolved, folder: RunFolder, run: Run) -> Measured:
    """Have the points measured that the journal lacks. Points that the journal shows to have stopped early are not
    continued.
    """
    config, software = resolved.config, resolved.software
    stopped: Stopped = None
    for scenario in config.scenarios.values():
        refuse_shared(scenario.options, len(machines.slots))
    with folder.lock():
        already = early_stop.not_continued(resolved.plan, run, config.policy, folder.journal())
        left = early_stop.truncated_plan(resolved.plan, already)
        missing = Runner(left, resolved.prompts, config, folder, Silent())
        admit = admission(resolved.request, config, resolved.ledger, resolved.promotion, software)
        coordinator = Coordinator(machines, folder, resolved.plan, admit, missing.worker_generation + 1)
        try:
            coordinator.measure(missing.todo)
            without = {key: value for key, value in software.facts.items() if key != FLEET}
            check_unchanged(Software(without, software.files), config)
        except (SpecgateError, KeyboardInterrupt) as error:
            stopped = error
    echo(coordinator.said(), err=True)
    try:
        return Measured(folder.journal(), coordinator.failures, stopped)
    except InvalidResult as error:
        return Measured(None, coordinator.failures, error)
