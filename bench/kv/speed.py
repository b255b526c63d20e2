"""What narrower caches cost the reference engine, beside the cache in the dtype that it computes in.

    python -m bench.kv.speed --pair demo --context 1024
    python -m bench.kv.speed --pair planted-llama-3.1-8b-al3.3 --context 32768 --dtype bfloat16 --profile

Per format: opening, the check of a second engine (`score`: one pass over a text, 64 of its tokens scored), and steps of
plain decoding behind it. The first pass is told apart from later ones, since a GPU makes kernels and memory ready in
it. Formats take turns, round after round. Ratios are of the fastest passes. Texts are random tokens.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import click
import torch

from specgate.backends.eagle3.lib.kv.modes import KV, MODES
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.open import open_engine
from specgate.contract import BASELINE, Budget
from specgate.contract.protocols import OpenRequest
from specgate.pairs.resolve import resolve_pair

COMPUTED: Final = "as computed"
SCORED: Final = 64
HEADING: Final = f"{'cache':12} {'opened':>9} {'1st score':>10} {'score':>9} {'ratio':>7} {'step':>10} {'ratio':>7}"


@dataclass(slots=True)
class Timed:
    """Seconds of one format: of opening, of every score, of every step of decoding in the mean of a block."""

    engine: ReferenceEngine
    opened: float
    scores: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)


@click.command()
@click.option("--pair", default="demo", show_default=True, metavar="NAME|DIR")
@click.option("--context", default=1024, show_default=True, help="Tokens of the prompt.")
@click.option("--rounds", default=3, show_default=True, help="Passes of every format.")
@click.option("--steps", default=16, show_default=True, help="Steps of plain decoding after each pass.")
@click.option("--dtype", type=click.Choice(("float32", "bfloat16")), default="float32", show_default=True)
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--kv", "formats", default="bf16,fp8,nvfp4", show_default=True, metavar="FORMAT,…")
@click.option("--profile", is_flag=True, help="Show what the last pass of every format spent its time in.")
def main(
    pair: str,
    context: int,
    rounds: int,
    steps: int,
    dtype: str,
    device: str,
    formats: str,
    profile: bool,
) -> None:
    """Print one line per format."""
    found = replace(resolve_pair(pair, None, None), draft=None)
    asked = [name for name in formats.split(",") if name in MODES]
    request = OpenRequest(
        pair=found, dtype=dtype, max_batch=1, max_positions=context + SCORED + steps + 2, max_k=0, perf_mode=False
    )
    timed = {name: opened(request, name, device) for name in (COMPUTED, *asked)}
    first = next(iter(timed.values())).engine
    source = random.Random(1)
    text = [source.randrange(len(first.model.embed)) for _ in range(context + SCORED)]
    for _ in range(rounds + 1):  # the first is told apart
        for t in timed.values():
            one_pass(t, text, context, steps)
    click.echo(f"{pair}, {dtype} on {first.device}, torch {torch.__version__}, {context:,} tokens and {SCORED} scored")
    click.echo(HEADING)
    for name, t in timed.items():
        click.echo(line(name, t, timed[COMPUTED]))
    if profile:
        for name, t in timed.items():
            click.echo(f"\n{name}\n{spent(t.engine, text, context)}")


def opened(request: OpenRequest, name: str, device: str) -> Timed:
    options = {"device": device, **({} if name == COMPUTED else {KV: name})}
    began = time.perf_counter()
    engine = open_engine(replace(request, options=options))
    return Timed(engine, time.perf_counter() - began)


def one_pass(t: Timed, text: Sequence[int], context: int, steps: int) -> None:
    """Time a score of `text`, and `steps` of plain decoding behind its first `context` tokens."""
    prompt, scored = text[:context], text[context:]
    t.scores.append(seconds(t.engine, lambda: t.engine.score(prompt, scored, range(SCORED))))
    t.engine.prefill([prompt], draft=False)
    t.steps.append(seconds(t.engine, lambda: t.engine.decode(BASELINE, Budget(steps=steps), ())) / steps)


def seconds(engine: ReferenceEngine, work: Callable[[], object]) -> float:
    """How long `work` takes; what it returns is on the host."""
    began = time.perf_counter()
    work()
    if engine.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def line(name: str, t: Timed, beside: Timed) -> str:
    score, step = min(t.scores[1:]), min(t.steps[1:])
    ratios = score / min(beside.scores[1:]), step / min(beside.steps[1:])
    return (
        f"{name:12} {t.opened:8.2f}s {t.scores[0]:9.2f}s {score:8.2f}s {ratios[0]:6.2f}× {step * 1e3:8.2f}ms "
        f"{ratios[1]:6.2f}×"
    )


def spent(engine: ReferenceEngine, text: Sequence[int], context: int) -> str:
    """The operations that a score spends most time in, on the device where there is one, then on the host."""
    on_gpu = engine.device == "cuda"
    both = (torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=both if on_gpu else both[:1]) as profiler:
        engine.score(text[:context], text[context:], range(SCORED))
    orders = ("self_cuda_time_total", "self_cpu_time_total") if on_gpu else ("self_cpu_time_total",)
    averages = profiler.key_averages()
    return "\n".join(averages.table(sort_by=order, row_limit=15, max_name_column_width=60) for order in orders)


if __name__ == "__main__":
    main()
