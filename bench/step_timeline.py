"""Table of the begin and end of every kernel of a step: it shows where a step waits.

    python -m bench.step_timeline --pair planted-llama-3.1-8b-al3.0 --context 32768 --spec 3 --without qkv

A kernel starts before the previous one has ended, so its duration is not its cost. `adds` is by how much its end lies
after the end of the previous kernel. `--without` leaves out kernels of the target's layer, one after another, and
prints how much shorter the step becomes.

Weights are random, of the pair's sizes. Times come from a profiler (CUPTI). A replay under the profiler takes about as
long as without it; the first line of the output shows both.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import torch

from specgate.backends.eagle3.cupy.bench.stage import Stage, stages_at
from specgate.backends.eagle3.cupy.device import first_gpu
from specgate.backends.eagle3.cupy.engine.decode_run import captured
from specgate.backends.eagle3.cupy.kernels.loader import entry_points
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.backends.eagle3.cupy.tuned.lookup import Tuned
from specgate.backends.eagle3.cupy.tuning.steps import step_latency_us
from specgate.contract import Role
from specgate.pairs.resolve import resolve_pair

PARTS = ("qkv", "attention", "o", "gate_up", "down")
REPLAYS = 3
FIRST = "kv_reserve"


@click.command()
@click.option("--pair", default="planted-llama-3.1-8b-al3.0", show_default=True, metavar="NAME|DIR")
@click.option("--context", default=32768, show_default=True)
@click.option("--batch", default=1, show_default=True)
@click.option("--spec", default=3, show_default=True, help="Drafts; 0: the baseline.")
@click.option("--around", default=14, show_default=True, help="Kernels shown at the beginning, middle and end.")
@click.option("--without", multiple=True, type=click.Choice(PARTS))
def main(pair: str, context: int, batch: int, spec: int, around: int, without: tuple[str, ...]) -> None:
    """Print the timeline of one step."""
    device, stream, role = first_gpu(), Stream(), Role(spec)
    tuned = Tuned.on(torch.cuda.get_device_name(), None)
    with torch.inference_mode(), stream.current():
        stage = stages_at(resolve_pair(pair, None, None), [(context, batch)], [role], tuned, device)[0][role]
        stage.fill()
        whole = step_latency_us(stage, stream, rounds=3)
        spans = timeline(stage, stream)
        length = (spans[-1][1] - spans[0][0]) / 1e3
        click.echo(f"{role.name}, {batch} x {context}: {whole:.1f} us per step, {length:.1f} under the profiler")
        show(spans, around)
        layers = stage.geometry.target.layers
        for part in without:
            with left_out(stage, part):
                saved = whole - step_latency_us(stage, stream, rounds=3)
            click.echo(f"without {part:<10} {saved:9.1f} us less, {saved / layers:6.2f} per layer")


def timeline(stage: Stage, stream: Stream) -> list[tuple[int, int, str]]:
    """(begin, end, name) of every kernel of one replay, in nanoseconds, in order of beginning."""
    stage.reset()
    graph = captured(lambda: stage.cycle(stage.b), stream)
    stage.reset()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(REPLAYS):
            graph.launch(stream.cupy)
        stream.wait()
    results: Any = profile.profiler.kineto_results if profile.profiler else None
    names = entry_points()
    spans = sorted(
        (e.start_ns(), e.start_ns() + e.duration_ns(), e.name()) for e in results.events() if e.name() in names
    )
    last = max(i for i, (_, _, name) in enumerate(spans) if name == FIRST)
    return spans[last:]


def show(spans: list[tuple[int, int, str]], around: int) -> None:
    zero, middle = spans[0][0], len(spans) // 2
    indices = sorted({*range(around), *range(middle, middle + around), *range(len(spans) - around, len(spans))})
    click.echo(f"{'':5} {'kernel':<18}{'begins':>10}{'lasts':>9}{'adds':>9}")
    for i in (i for i in indices if 0 <= i < len(spans)):
        begin, end, name = spans[i]
        added = end - (spans[i - 1][1] if i else begin)
        click.echo(f"{i:5d} {name:<18}{(begin - zero) / 1e3:10.2f}{(end - begin) / 1e3:9.2f}{added / 1e3:9.2f}")
    gaps = [max(0, spans[i][0] - spans[i - 1][1]) for i in range(1, len(spans))]
    click.echo(
        f"between kernels nothing runs for {sum(gaps) / 1e3:.1f} us in all, {statistics.median(gaps)} ns at a time"
    )


def nothing(*_: object, **__: object) -> None:
    """Launch nothing."""


@contextmanager
def left_out(stage: Stage, part: str) -> Iterator[None]:
    """Replace one kernel of the target's layer by nothing."""
    layer = stage.cycle.verify.layer
    kernel = getattr(layer, part)
    setattr(layer, part, dict.fromkeys(kernel, nothing) if isinstance(kernel, dict) else nothing)
    try:
        yield
    finally:
        setattr(layer, part, kernel)


if __name__ == "__main__":
    main()
