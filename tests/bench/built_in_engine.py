"""How fast the built-in engine's steps are, beside the fewest bytes that they must read.

    python -m tests.bench.built_in_engine --pair planted-llama-3.1-8b-al3.0 --context 32768 --batch 1 --spec 3

One run prints, for the baseline and every draft length asked for: milliseconds per step (median over steps, CUDA
events), its phases, the floor (weights and cached positions read once, at the measured bandwidth of a plain read), and
the ratio to the baseline of the same run.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import click
import torch

from specgate import plugins
from specgate.api import Decoded, OpenRequest
from specgate.backends.cupy_eagle3.engine import CupyEngine
from specgate.backends.eagle3.checkpoint import Wanted
from specgate.backends.eagle3.layout import draft_tensors, target_tensors
from specgate.backends.eagle3.memory import weight_bytes
from specgate.core import Budget, Role
from specgate.pairs.resolve import resolve_pair

KEPT_OUT = ("embed_tokens",)
"""Tables of which a step reads a few rows only."""


@click.command()
@click.option("--pair", default="planted-llama-3.1-8b-al3.0")
@click.option("--context", default=32768)
@click.option("--batch", default=1)
@click.option("--spec", multiple=True, type=int, default=(3,))
@click.option("--steps", default=128)
@click.option("--option", "-o", multiple=True, help="KEY=VALUE, as for specgate micro")
def main(pair: str, context: int, batch: int, spec: tuple[int, ...], steps: int, option: tuple[str, ...]) -> None:
    """Print step times beside their floors."""
    most = max(spec)
    request = OpenRequest(
        pair=resolve_pair(pair, None, None),
        dtype="bfloat16",
        max_batch=batch,
        max_positions=context + steps * (most + 1) + most + 8,
        max_k=most,
        perf_mode=True,
        options=dict(o.split("=", 1) for o in option),
    )
    engine = plugins.backend("cupy").open(request)
    assert isinstance(engine, CupyEngine)
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(engine.target.geometry.vocab, (batch, context), generator=generator).tolist()
    bandwidth = read_bandwidth()
    cold, warm = (engine.prefill(prompts, draft=True) / 1e6 for _ in range(2))
    click.echo(f"{torch.cuda.get_device_name()}, {pair}, context {context}, batch {batch}, {steps} steps")
    click.echo(f"plain read {bandwidth / 1e12:.2f} TB/s; prefill {warm:.0f} ms (first {cold:.0f} ms)")
    click.echo(f"most memory held {torch.cuda.max_memory_allocated() / 1e9:.2f} GB")
    base: float | None = None
    for role in (Role(0), *(Role(k) for k in spec)):
        engine.decode(role, Budget(steps=8), ())
        block = engine.decode(role, Budget(steps=steps), ())
        step, floor = statistics.median(block.step_ns) / 1e6, floor_ms(engine, role.k, context, batch, bandwidth)
        base = base or step
        click.echo(
            f"{role.name:9} {step:7.3f} ms/step ({step / base:.2f} of baseline), floor {floor:6.3f} ms "
            f"({step / floor:.2f}x), {tokens_per_s(block):8.1f} tok/s, {phases(block)}"
        )


def floor_ms(engine: CupyEngine, k: int, context: int, batch: int, bandwidth: float) -> float:
    """Weights once (the draft's layer and head per drafted token, fc once) and every cached position once per pass."""
    t = engine.target.geometry
    size = weight_bytes(
        {n: w for n, w in target_tensors(t).items() if not any(s in n for s in KEPT_OUT)}, torch.bfloat16
    )
    if t.tied_embeddings:
        size += 2 * t.vocab * t.hidden
    size += 4 * t.layers * t.kv_heads * t.head_dim * context * batch
    if k and engine.draft:
        d = engine.draft.geometry
        wanted = read_whole(draft_tensors(d, False, False))
        fc = 2 * d.hidden * d.features * d.target_hidden
        size += k * (weight_bytes(wanted, torch.bfloat16) - fc) + fc
        size += k * 4 * d.kv_heads * d.head_dim * min(context, d.window or context) * batch
    return size / bandwidth * 1e3


def read_whole(wanted: Mapping[str, Wanted]) -> dict[str, Wanted]:
    return {name: want for name, want in wanted.items() if not any(part in name for part in KEPT_OUT)}


def read_bandwidth() -> float:
    """Bytes per second of a sum over 4 GB: the ceiling that a step can be compared with."""
    data = torch.randn(1 << 30, dtype=torch.float32, device="cuda")
    event: Any = torch.cuda.Event  # torch gives no types
    times = list[float]()
    for _ in range(8):
        start, end = (event(enable_timing=True) for _ in range(2))
        start.record()
        data.sum()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return data.nbytes / statistics.median(times)


def tokens_per_s(block: Decoded) -> float:
    return sum(len(t) - 1 for t in block.tokens) / block.elapsed_ns * 1e9


def phases(block: Decoded) -> str:
    return ", ".join(f"{name} {ns / len(block.step_ns) / 1e6:.3f}" for name, ns in block.phase_ns.items())


if __name__ == "__main__":
    main()
