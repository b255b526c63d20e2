"""Measure what the machine watch costs a block that keeps every CPU busy: the block's time with the watch over without.

    python -m bench.watch_cost --pairs 24 [--gpu]

One run, with pairs in the order A B · B A. A block hashes a fixed number of bytes on every usable CPU. With --gpu it is
a decode run of the built-in engine, timed by CUDA events. The watch samples as in a real run, the GPU too where there
is one. The CPU time that the watch itself used is printed with the ratio, and says what ratio to expect.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import psutil
import torch

from specgate.analysis.stats import order_interval
from specgate.contract import Budget, Role
from specgate.machine import inventory
from specgate.machine.host import usable_cpus
from specgate.machine.monitor import INTERVAL_S, watching

CHUNK = bytes(1 << 24)


@click.command()
@click.option("--pairs", default=24)
@click.option("--seconds", default=2.0, help="Length of a block, about.")
@click.option("--interval", default=INTERVAL_S, help="Seconds between samples.")
@click.option("--gpu", is_flag=True, help="Blocks are decode runs on the GPU.")
def main(pairs: int, seconds: float, interval: float, gpu: bool) -> None:
    """Print the ratio on/off with its 95 % interval, and the share of CPU time that the watch used."""
    uuid = inventory.visible_gpu_uuid()
    cpus = len(usable_cpus())
    block = decode_runs(seconds) if gpu else hashes(cpus, seconds)
    wall, cpu, orders, shares = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(pairs):
            for watched in (False, True) if pair % 2 == 0 else (True, False):
                if watched:
                    with watching(Path(folder) / "environment.jsonl", 0, [uuid] if uuid else [], interval):
                        before = watch_cpu_s()
                        on, on_cpu = timed(block)
                        watch = watch_cpu_s() - before
                else:
                    off, off_cpu = timed(block)
            wall.append(math.log(on / off))
            cpu.append(math.log((on_cpu + watch) / off_cpu))
            orders.append(1 if pair % 2 == 0 else -1)
            shares.append(watch / (on * cpus))
    click.echo(
        f"{cpus} CPUs, {pairs} pairs of blocks of {off:.2f} s, a sample every {interval:g} s, GPU {uuid or 'none'}"
    )
    say("time of a block, on/off", wall, orders)
    if not gpu:
        say("CPU time of block and watch, on/off", cpu, orders)
    click.echo(f"CPU time of the watch: {statistics.fmean(shares):.3%} of all CPUs")


def timed(block: Callable[[], float]) -> tuple[float, float]:
    """(seconds of a block, CPU seconds of this process meanwhile). The CPU seconds exclude other processes."""
    before = time.process_time()
    return block(), time.process_time() - before


def say(what: str, ratios: Sequence[float], orders: Sequence[int]) -> None:
    found = order_interval(ratios, orders)
    if found is not None:
        middle, low, high = (math.exp(v) - 1 for v in (found.mean, found.low, found.high))
        click.echo(f"{what}: {middle:+.3%} (95 % interval {low:+.3%} … {high:+.3%}), sd of a pair {found.sd:.3%}")
    low, high = median_interval(ratios)
    middle, low, high = (math.exp(v) - 1 for v in (statistics.median(ratios), low, high))
    click.echo(f"  median {middle:+.3%} ({low:+.3%} … {high:+.3%}), which bursts of others move less")


def hashes(cpus: int, seconds: float) -> Callable[[], float]:
    """A block of about `seconds` in which every CPU hashes the same amount. Hashing releases the interpreter lock."""

    def block(chunks: int) -> float:
        start = time.perf_counter()
        with ThreadPoolExecutor(cpus) as pool:
            list(pool.map(hashed, [chunks] * cpus))
        return time.perf_counter() - start

    block(4)
    chunks = max(1, round(seconds / block(20) * 20))
    return lambda: block(chunks)


def decode_runs(seconds: float) -> Callable[[], float]:
    """A block of about `seconds`: steps of a small planted pair, which are bound by launches and not by memory."""
    from specgate.backends.eagle3.cupy.memory.sizes import Sizes
    from tests.eagle3.cupy.gpu_pairs import checkpoints_of, engine_of, random_prompts

    engine = engine_of(*checkpoints_of("4:1 of 64", "A", torch.bfloat16), Sizes(slots=1, positions=32768, max_rows=4))
    engine.prefill(random_prompts([256]), draft=True)

    def block(steps: int) -> float:
        return engine.decode(Role(0), Budget(steps=steps), ()).elapsed_ns / 1e9

    block(100)
    steps = min(32000, max(1, round(seconds / block(1000) * 1000)))
    return lambda: block(steps)


def hashed(chunks: int) -> str:
    digest = hashlib.blake2b()
    for _ in range(chunks):
        digest.update(CHUNK)
    return digest.hexdigest()


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median, from order statistics (the sign test)."""
    from scipy.stats import binom

    ordered, n = sorted(values), len(values)
    reach = max(0, int(binom.ppf(0.025, n, 0.5)) - 1)
    return ordered[reach], ordered[n - 1 - reach]


def watch_cpu_s() -> float:
    """CPU seconds of all processes started here: the watch, and Python's helper process beside it, which idles."""
    return sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children())


if __name__ == "__main__":
    main()
