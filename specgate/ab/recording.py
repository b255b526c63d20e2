"""The end of a comparison, and its entry in the ledger of its folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psutil

import specgate
from specgate import plugins
from specgate.ab.folder import FILES, RESULT, AbFolder, Asked, result_json
from specgate.ab.sides import tree_sha256
from specgate.contract import State
from specgate.contract.conditions import GpuProcess
from specgate.contract.two_builds import TwoBuilds, Word
from specgate.errors import ExitCode
from specgate.files.config import Config
from specgate.files.json_text import from_plain
from specgate.machine import host
from specgate.machine.inventory import visible_gpu_uuid
from specgate.machine.nvml import GpuProbe, NvmlMissing
from specgate.machine.process_tree import family
from specgate.promotion.claim import digests, engine_fingerprint, machine_fingerprint, software_of, subject_of
from specgate.promotion.ending import Ending, begin, finish
from specgate.promotion.ledger import Entry, Ledger


def device_bytes_in_use() -> int | None:
    """GPU memory in use, whoever uses it, in bytes; None where there is no GPU or the driver does not say."""
    uuid = visible_gpu_uuid()
    if uuid is None:
        return None
    try:
        with GpuProbe(uuid, lambda pid: GpuProcess(pid, "unseen")) as probe:
            return probe.read().memory_used_bytes
    except NvmlMissing:
        return None


def most_host_bytes(pid: int) -> int | None:
    """The most resident memory that process `pid` and its children of this moment have had, in bytes.

    None where the system does not say: Linux keeps it as VmHWM in /proc/PID/status.
    """
    peaks = [peak for member in family(pid) if (peak := _high_water_mark(member.pid)) is not None]
    return sum(peaks) or None


def _high_water_mark(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    fields = next((line.split() for line in lines if line.startswith("VmHWM:")), None)
    return int(fields[1]) << 10 if fields else None  # the kernel writes kB and means KiB


STATES: Final[Mapping[Word, State]] = {
    Word.SAME: State.PASS,
    Word.FASTER: State.IMPROVED,
    Word.SLOWER: State.FAIL,
    Word.CANNOT_TELL: State.INCONCLUSIVE,
}


def decide(folder: AbFolder, settings: Asked, result: TwoBuilds) -> Ending:
    """Decide how the comparison in `folder` ends: see `promotion.ending`."""
    reports = tuple(file for _, file in FILES)
    return begin(folder.top, {RESULT: result_json(result)}, reports, partial(entry_of, settings, result))


def store(folder: AbFolder, decided: Ending) -> TwoBuilds:
    """Store what follows from the word: the ledger's entry, ab.json and its pages. Returns the result.

    See `promotion.ending.finish`.
    """
    result = from_plain(TwoBuilds, decided.stated(RESULT), folder.path / RESULT)
    pages = ((file, plugins.view("ab").render(result, format)) for format, file in FILES)
    finish(folder.top, decided, Ledger(folder.path.parent), lambda: pages)
    return result


def entry_of(settings: Asked, result: TwoBuilds, manifest_sha256: str) -> Entry:
    """The entry. Its subject and fingerprint are those of a run of the new build."""
    new, process = settings.sides["new"], psutil.Process()
    config = Config("micro", new.backend, settings.pair, settings.policy, settings.scenarios, new.options)
    return Entry(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        run=result.id,
        kind="ab",
        subject=subject_of(config),
        gates=digests(list(settings.scenarios.values())),
        fingerprint=fingerprint_of(config, settings, result),
        state=state_of(result),
        exit_code=int(result.code),
        pid=os.getpid(),
        process_started=datetime.fromtimestamp(process.create_time(), UTC).isoformat(timespec="milliseconds"),
        manifest_sha256=manifest_sha256,
        host=host.identity(),
    )


def state_of(result: TwoBuilds) -> State:
    """The state that goes with the exit code."""
    if result.word is not None:
        return STATES[result.word]
    if result.code in (ExitCode.INVALID, ExitCode.BACKEND_ERROR):
        return State.INVALID
    return State.ENV_REJECTED if result.code is ExitCode.ENV_REJECTED else State.INCONCLUSIVE


def fingerprint_of(config: Config, settings: Asked, result: TwoBuilds) -> dict[str, str | None]:
    """The fingerprint that a run of the new build has here: software, machine, weights and device.

    Of code that is not what runs here use, or that was changed while it was measured, only the machine is known.
    """
    machine = machine_fingerprint(config.policy)
    facts = next(iter(result.engines.get("new", {}).values()), None)
    software = software_of(config).facts
    if facts is None or not is_installed(config.backend, settings, result) or changed_since(settings, software):
        return machine
    return {**software, **machine, **engine_fingerprint(facts)}


def changed_since(settings: Asked, software: Mapping[str, str | None]) -> bool:
    """True if the software, or the code of the new side, is another one than when the comparison began."""
    new = settings.sides["new"]
    if any(key in software and software[key] != value for key, value in settings.begun_with.items()):
        return True
    return new.source is not None and tree_sha256(Path(new.source)) != new.sha256


def is_installed(backend: str, settings: Asked, result: TwoBuilds) -> bool:
    """True if every process of the new side was of this interpreter, and imported the engine and specgate from where
    runs import them. An engine lies beside its back end or in a folder below.
    """
    entry = plugins.registered("specgate.backends").get(backend)
    spec = find_spec(entry.module) if entry is not None else None
    origins = [p.origin for p in result.processes if p.side == "new"]
    if spec is None or spec.origin is None or not origins or settings.sides["new"].python is not None:
        return False
    backend_folder, harness = Path(spec.origin).resolve().parent, Path(specgate.__file__).resolve()
    return all(
        o is not None
        and Path(o.backend_file).resolve().is_relative_to(backend_folder)
        and Path(o.specgate_file).resolve() == harness
        for o in origins
    )
