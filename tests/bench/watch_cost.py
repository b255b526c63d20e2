"""What the watch costs a block that keeps every CPU busy: its time with the watch on, over its time with it off.

    python -m tests.bench.watch_cost --pairs 24

One run, interleaved A B · B A. A block hashes a fixed number of bytes on every usable CPU. The watch samples as in a
run, the GPU too where there is one. Beside the ratio, the CPU time that the watch itself used says what to expect.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import psutil

from specgate import machine
from specgate.host import usable_cpus
from specgate.stats import slot_interval
from specgate.watch import INTERVAL_S, watching

CHUNK = bytes(1 << 24)


@click.command()
@click.option("--pairs", default=24)
@click.option("--seconds", default=2.0, help="Length of a block, about.")
@click.option("--interval", default=INTERVAL_S, help="Seconds between samples.")
def main(pairs: int, seconds: float, interval: float) -> None:
    """Print the ratio on/off with its 95 % interval, and the share of CPU time that the watch used."""
    uuid = machine.visible_gpu_uuid()
    cpus = len(usable_cpus())
    block(cpus, 4)
    chunks = max(1, round(seconds / block(cpus, 20) * 20))
    ratios, orders, shares = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(pairs):
            on, off = 0.0, 0.0
            for watched in (False, True) if pair % 2 == 0 else (True, False):
                if watched:
                    with watching(Path(folder) / "environment.jsonl", 0, uuid, interval):
                        before = watch_cpu_s()
                        on = block(cpus, chunks)
                        shares.append((watch_cpu_s() - before) / (on * cpus))
                else:
                    off = block(cpus, chunks)
            ratios.append(math.log(on / off))
            orders.append(1 if pair % 2 == 0 else -1)
    found = slot_interval(ratios, orders)
    click.echo(
        f"{cpus} CPUs, {pairs} pairs of blocks of {off:.2f} s, a sample every {interval:g} s, GPU {uuid or 'none'}"
    )
    if found is not None:
        middle, low, high = (math.exp(v) - 1 for v in (found.mean, found.low, found.high))
        click.echo(f"time on/off: {middle:+.3%} (95 % interval {low:+.3%} … {high:+.3%}), sd of a pair {found.sd:.3%}")
    low, high = median_interval(ratios)
    middle, low, high = (math.exp(v) - 1 for v in (statistics.median(ratios), low, high))
    click.echo(
        f"median on/off: {middle:+.3%} (95 % interval {low:+.3%} … {high:+.3%}), which bursts of others move less"
    )
    click.echo(f"CPU time of the watch: {statistics.fmean(shares):.3%} of all CPUs")


def block(cpus: int, chunks: int) -> float:
    """Seconds that every CPU needs to hash `chunks` chunks; hashing lets go of the interpreter's lock."""
    start = time.perf_counter()
    with ThreadPoolExecutor(cpus) as pool:
        list(pool.map(hashed, [chunks] * cpus))
    return time.perf_counter() - start


def hashed(chunks: int) -> str:
    digest = hashlib.blake2b()
    for _ in range(chunks):
        digest.update(CHUNK)
    return digest.hexdigest()


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Order statistics that hold the median with 95 %: the sign test's interval."""
    from scipy.stats import binom

    ordered, n = sorted(values), len(values)
    reach = max(0, int(binom.ppf(0.025, n, 0.5)) - 1)
    return ordered[reach], ordered[n - 1 - reach]


def watch_cpu_s() -> float:
    """CPU seconds of every process that was started here: the watch, and what Python keeps beside it, which idles."""
    return sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children())


if __name__ == "__main__":
    main()
