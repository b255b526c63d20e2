"""Samples host and GPU while a run goes on, in a process of its own.

The harness's thread that waits for a block takes no samples, and the engine's process does not know about it. The
monitor process appends to `samples/environment.jsonl`, one line per sample, at the lowest priority. It cannot harm a
run: where it fails, samples are missing, and the gate `environment` says so.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

from specgate.contract.conditions import ClockReading, Sample
from specgate.machine.host import HostProbe
from specgate.machine.nvml import GpuProbes, NvmlMissing

INTERVAL_S = 0.5
"""Seconds between two samples."""
CLOCK_INTERVAL_S = 0.1
"""Seconds between two readings of the GPU's clock alone. A block of a server may last a second, and two samples do not
tell at which clock it ran.
"""
_START_S, _STOP_S = 20.0, 5.0


class Sampler:
    """Takes samples of the host around process `harness` and, where there are any, of the GPUs `uuids`, which are read
    as one: whatever is worst on any of them. `ports`: see `HostProbe`.
    """

    def __init__(self, worker_generation: int, harness: int, uuids: Sequence[str], ports: Sequence[int] = ()) -> None:
        self._worker_generation, self._host = worker_generation, HostProbe(harness, ports)
        self._clocks: list[ClockReading] = []
        self._gpu: GpuProbes | None = None
        self._nvml: str | None = None
        try:
            self._gpu = GpuProbes(uuids or [None], self._host.owner)
        except NvmlMissing as missing:
            self._nvml = str(missing)

    def sample(self) -> Sample:
        """The machine at this moment."""
        monotonic, wall = time.monotonic_ns(), time.time_ns()
        host = self._host.read()
        gpu = self._gpu.read() if self._gpu else None
        clocks, self._clocks = tuple(self._clocks), []
        return Sample(self._worker_generation, monotonic, wall, host, gpu, self._nvml, clocks)

    @property
    def sees_gpu(self) -> bool:
        """True if there is a GPU to sample."""
        return self._gpu is not None

    def read_clock(self) -> None:
        """Keep the GPU's clock of this moment for the next sample; nothing where there is no GPU."""
        if self._gpu is not None:
            self._clocks.append(self._gpu.clock())

    def close(self) -> None:
        """Close the connection to the driver."""
        if self._gpu is not None:
            self._gpu.close()


def snapshot(uuids: Sequence[str]) -> dict[str, object]:
    """One sample of this moment, JSON-ready, for env.json."""
    sampler = Sampler(0, os.getpid(), uuids)
    try:
        sample = asdict(sampler.sample())
    finally:
        sampler.close()
    return {key: value for key, value in sample.items() if key not in ("worker_generation", "monotonic_ns", "clocks")}


@contextmanager
def watching(
    file: Path, worker_generation: int, uuids: Sequence[str], interval_s: float = INTERVAL_S, ports: Sequence[int] = ()
) -> Iterator[None]:
    """Sample into `file` while the body runs. The first sample is taken before the body begins, the last one after it
    ends. `ports`: of this machine, on which programs listen that are measured (`HostProbe`).
    """
    context = mp.get_context("spawn")
    conn, child = context.Pipe()
    process = context.Process(
        target=_serve,
        args=(child, file, worker_generation, os.getpid(), tuple(uuids), interval_s, tuple(ports)),
        name="specgate-watch",
        daemon=True,
    )
    resource_tracker.ensure_running()  # it lets these signals through again
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
    try:
        process.start()  # where they stay blocked: the parent handles Ctrl-C, and stops that process
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    child.close()
    with suppress(EOFError, OSError):
        if conn.poll(_START_S):
            conn.recv()
    try:
        yield
    finally:
        with suppress(EOFError, OSError, ValueError):
            conn.send(None)
        process.join(_STOP_S)
        if process.is_alive():
            process.kill()
            process.join()
        conn.close()


def _serve(
    conn: Connection,
    file: Path,
    worker_generation: int,
    harness: int,
    uuids: Sequence[str],
    interval_s: float,
    ports: Sequence[int],
) -> None:
    """The monitor process: one sample at once, one per interval, and a last one when it is told to stop. It ends where
    it cannot write: the harness, which writes beside it, says so.
    """
    with suppress(OSError):
        os.nice(19)
    sampler = Sampler(worker_generation, harness, uuids, ports)
    with suppress(OSError), file.open("ab") as out:

        def take() -> None:
            out.write(line_of(sampler.sample()).encode())
            out.flush()

        take()
        conn.send(None)
        with suppress(EOFError, OSError):  # raised once the parent has ended
            while not _told_to_stop(conn, sampler, interval_s):
                take()
        take()
        os.fsync(out.fileno())
    sampler.close()


def _told_to_stop(conn: Connection, sampler: Sampler, interval_s: float) -> bool:
    """Wait for the next sample, and read the GPU's clock meanwhile. Whether the parent asked for an end before."""
    end = time.monotonic() + interval_s
    while sampler.sees_gpu and end - time.monotonic() > CLOCK_INTERVAL_S:
        if conn.poll(CLOCK_INTERVAL_S):
            return True
        sampler.read_clock()
    return conn.poll(max(0.0, end - time.monotonic()))


def line_of(sample: Sample) -> str:
    """The sample as one line of JSON."""
    # Not by way of pydantic, whose import would make this process heavy.
    return json.dumps(asdict(sample), allow_nan=False, separators=(",", ":")) + "\n"
