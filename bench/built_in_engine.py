"""Time the built-in engine's steps, and compare them with the bytes that they must at least read.

    python -m bench.built_in_engine --pair planted-llama-3.1-8b-al3.0 --context 32768 --batch 1 --spec 3

For the baseline and each draft length, one run prints milliseconds per step (mean over steps, CUDA events), the phases
of a step, its floor, and the ratio to the baseline of the same run. The floor is the time to move the fewest possible
bytes at the measured bandwidth of a plain read.
"""

from __future__ import annotations

import click
import torch

from specgate import plugins
from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.contract import Budget, Role
from specgate.contract.protocols import Decoded, OpenRequest
from specgate.contract.traffic import Slot, draft_bytes, pass_bytes
from specgate.machine.bandwidth import measure
from specgate.pairs.resolve import resolve_pair


@click.command()
@click.option("--pair", default="planted-llama-3.1-8b-al3.0")
@click.option("--context", default=32768)
@click.option("--batch", default=1)
@click.option("--spec", multiple=True, type=int, default=(3,))
@click.option("--steps", default=128)
@click.option("--option", "-o", multiple=True, help="KEY=VALUE, as for specgate micro")
def main(pair: str, context: int, batch: int, spec: tuple[int, ...], steps: int, option: tuple[str, ...]) -> None:
    """Print step times with their floors."""
    most = max(spec)
    request = OpenRequest(
        pair=resolve_pair(pair, None, None),
        dtype="bfloat16",
        max_batch=batch,
        max_positions=context + steps * (most + 1) + most + 8,
        max_k=most,
        perf_mode=False,
        options=dict(o.split("=", 1) for o in option),
    )
    bandwidth = measure().bytes_per_s
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    engine = plugins.backend("cupy").open(request)
    assert isinstance(engine, CupyEngine)
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(engine.target.geometry.vocab, (batch, context), generator=generator).tolist()
    cold, warm = (engine.prefill(prompts, draft=True) / 1e6 for _ in range(2))
    click.echo(f"{torch.cuda.get_device_name()}, {pair}, context {context}, batch {batch}, {steps} steps")
    click.echo(f"plain read {bandwidth / 1e12:.2f} TB/s; prefill {warm:.0f} ms (first {cold:.0f} ms)")
    click.echo(f"most memory held {torch.cuda.max_memory_allocated() / 1e9:.2f} GB")
    base: float | None = None
    for role in (Role(0), *(Role(k) for k in spec)):
        engine.decode(role, Budget(steps=8), ())
        block = engine.decode(role, Budget(steps=steps), ())
        step = block.elapsed_ns / len(block.step_ns) / 1e6
        floor = floor_ms(engine, role.k, context, batch, bandwidth, touched(block))
        base = base or step
        click.echo(
            f"{role.name:9} {step:7.3f} ms/step ({step / base:.2f} of baseline), floor {floor:6.3f} ms "
            f"({step / floor:.2f}x), {tokens_per_s(block):8.1f} tok/s, {phases(block)}"
        )


def touched(block: Decoded) -> float | None:
    """Experts that a step of the block reached, over all layers: the mean. None of a dense target."""
    return sum(block.experts.touched) / len(block.experts.touched) if block.experts else None


def floor_ms(
    engine: CupyEngine, k: int, context: int, batch: int, bandwidth: float, touched: float | None = None
) -> float:
    """The floor of a cycle, in milliseconds, at `context` cached positions. It extends the draft over one token per
    slot. `touched`: experts that it reaches, over all layers; None for as many as independent tokens would.
    """
    traffic = engine.facts().traffic
    assert traffic is not None
    moved = pass_bytes(traffic.target, [Slot(context, k + 1)] * batch, touched=touched)
    if k and traffic.draft:
        moved += draft_bytes(traffic.draft, [Slot(context - 1, 1)] * batch, [k] * batch)
    return moved.total / bandwidth * 1e3


def tokens_per_s(block: Decoded) -> float:
    return sum(len(t) - 1 for t in block.tokens) / block.elapsed_ns * 1e9


def phases(block: Decoded) -> str:
    return ", ".join(f"{name} {ns / len(block.step_ns) / 1e6:.3f}" for name, ns in block.phase_ns.items())


if __name__ == "__main__":
    main()
