"""Steps of a pair on one GPU and on several, with their floors, and whether speculation keeps the baseline's tokens."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Sequence

import click
import torch
from torch import Tensor

from bench.built_in_engine import floor_ms, phases, touched
from bench.tensor_parallel.pairs import pair_of
from bench.tensor_parallel.ready import compile_all
from specgate import plugins
from specgate.backends.eagle3.cupy.engine.engine import CupyEngine
from specgate.backends.eagle3.nouns.fmha import parse_config
from specgate.contract import Budget, PairRef, Role
from specgate.contract.protocols import Decoded, OpenRequest
from specgate.machine.bandwidth import measure


def opened(
    pair: PairRef, ranks: int, context: int, batch: int, spec: int, steps: int, said: Sequence[str]
) -> CupyEngine:
    request = OpenRequest(
        pair=pair,
        dtype="bfloat16",
        max_batch=batch,
        max_positions=context + steps * (spec + 1) + spec + 8,
        max_k=spec,
        perf_mode=False,
        options={"tp": str(ranks), **dict(o.split("=", 1) for o in said)},
    )
    engine = plugins.backend("cupy").open(request)
    assert isinstance(engine, CupyEngine)
    return engine


def measured(engine: CupyEngine, k: int, steps: int) -> Decoded:
    engine.decode(Role(k), Budget(steps=8), ())
    return engine.decode(Role(k), Budget(steps=steps), ())


def report(engine: CupyEngine, way: str, context: int, batch: int, spec: int, steps: int, bandwidth: float) -> float:
    """Print the roles' steps; returns the milliseconds of the baseline's.

    Raises AssertionError where their tokens differ.
    """
    found = {k: measured(engine, k, steps) for k in (0, spec)}
    times = {k: block.elapsed_ns / len(block.step_ns) / 1e6 for k, block in found.items()}
    for k, block in found.items():
        floor = floor_ms(engine, k, context, batch, bandwidth, touched(block))
        rate = sum(len(t) - 1 for t in block.tokens) / block.elapsed_ns * 1e9
        click.echo(
            f"{way} {Role(k).name:9} {times[k]:7.3f} ms/step, floor {floor:6.3f} ms ({times[k] / floor:.3f}x), "
            f"{rate:8.1f} tok/s, {phases(block)}{experts_of(engine, block)}",
        )
    same = all(list(b)[: len(a)] == list(a)[: len(b)] for a, b in zip(found[0].tokens, found[spec].tokens, strict=True))
    click.echo(f"{way}: spec-{spec} emits the baseline's tokens: {same}")
    assert same, f"{way}: tokens of spec-{spec} are not the baseline's"
    return times[0]


def experts_of(engine: CupyEngine, block: Decoded) -> str:
    """How many experts of a layer a step reached; nothing of a dense target."""
    found = touched(block)
    return "" if found is None else f", {found / engine.target.geometry.layers:.1f} experts per layer"


def first_logits(engine: CupyEngine) -> Tensor:
    """The logits [V] after the first prompt and one token more."""
    assert engine.prefilled is not None
    token = engine.prefilled.first.tokens[0]
    return engine._logits_after(0, (token,)).float().cpu()


@click.command()
@click.option("--pair", default="planted-llama-3.1-8b-al3.0")
@click.option("--overlap", default=0.5, help="Of neighbouring tokens' experts, in a planted mixture.")
@click.option("--context", default=32768)
@click.option("--batch", default=1)
@click.option("--spec", default=3)
@click.option("--steps", default=96)
@click.option("--tp", "tps", multiple=True, type=int, default=(2, 1))
@click.option("--whole-draft", is_flag=True, help="Besides, with the whole draft on each GPU.")
@click.option("--fmha", multiple=True, help="Knobs to try besides, such as kv_tile:512")
@click.option("--option", "-o", multiple=True, help="KEY=VALUE, as for specgate micro")
@torch.inference_mode()
def steps(
    pair: str,
    overlap: float,
    context: int,
    batch: int,
    spec: int,
    steps: int,
    tps: tuple[int, ...],
    whole_draft: bool,
    fmha: tuple[str, ...],
    option: tuple[str, ...],
) -> None:
    """Step times on one GPU and on several. Exit code 1 where one of them failed."""
    failed = list[str]()
    bandwidth = measure().bytes_per_s
    torch.cuda.empty_cache()
    click.echo(f"{torch.cuda.get_device_name()}, {pair}, context {context}, batch {batch}, {steps} steps")
    click.echo(f"plain read {bandwidth / 1e12:.3f} TB/s")
    base, logits = dict[str, float](), dict[str, Tensor]()
    ways = {f"tp {ranks}": (ranks, [*option]) for ranks in tps}
    if whole_draft:
        ways |= {f"tp {n}, draft_tp 1": (n, [*option, "draft_tp=1"]) for n in tps if n > 1}
    for way, (ranks, said) in ways.items():
        try:
            began = time.monotonic()
            with pair_of(pair, overlap) as meant:
                engine = opened(meant, ranks, context, batch, spec, steps, said)
            click.echo(f"{way}: opened in {time.monotonic() - began:.1f} s; {engine.facts().details['attention']}")
            click.echo(f"{way}: compiled in {compile_all(engine, batch, (0, spec)):.1f} s")
            generator = torch.Generator().manual_seed(1)
            vocab = engine.facts().vocab
            prompts = torch.randint(vocab, (batch, context), generator=generator).tolist()
            cold, warm = (engine.prefill(prompts, draft=True) / 1e6 for _ in range(2))
            click.echo(f"{way}: prefill {warm:.0f} ms (first {cold:.0f} ms)")
            base[way] = report(engine, way, context, batch, spec, steps, bandwidth)
            logits[way] = first_logits(engine)
            for knobs in fmha:
                engine.retile_attention(parse_config(knobs))
                click.echo(f"{way} with fmha={knobs}:")
                report(engine, way, context, batch, spec, steps, bandwidth)
            del engine
            gc.collect()
            torch.cuda.empty_cache()
        except Exception:
            failed.append(way)
            click.echo(f"FAILED {way} after {time.monotonic() - began:.1f} s\n{traceback.format_exc()}")
    if (one := "tp 1") in base:
        for way in base:
            near = float(torch.cosine_similarity(logits[one], logits[way], dim=0))
            click.echo(f"{way}: {base[one] / base[way]:.3f}x of one GPU; logits' cosine to one GPU's {near:.6f}")
    if failed:
        raise SystemExit(1)
