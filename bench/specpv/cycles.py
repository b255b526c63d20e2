"""Cycles of the built-in engine that verify over a part of the cache, beside those that verify over all of it.

    python -m bench.specpv.cycles --context 8192 --context 16384 --context 32768 --context 65536
    python -m bench.specpv.cycles --pair demo --context 8192 --source mixed --retrieval 64

A pair is loaded once; every setting is an engine of its own over the same weights and prompts. Rounds alternate between
the settings, and of each the fastest round counts. Per setting: milliseconds per cycle, averaged over partial and full
verifications, and of each kind by itself; the acceptance length; tokens per second; and the cycle and the tokens per
second as multiples of those over the whole cache. What a full verification takes longer than a cycle over the whole
cache is what running tokens again costs. Beside it the median of the GPU's clock and power. The text may differ, so
that acceptance lengths do, too. `--phases` adds where the time of each kind of cycle goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, get_args

import click
import torch

from bench.gpt_oss.conditions import Conditions, watched
from bench.kv_exactness import prompts
from specgate.backends.eagle3.cupy.engine.engine import CupyEngine
from specgate.backends.eagle3.cupy.engine.open import open_engine
from specgate.backends.eagle3.cupy.engine.partial.schedule import kinds_of
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.step.partial import FULL, PARTIAL, Kind
from specgate.backends.eagle3.lib.specpv.asked import PartialPlan
from specgate.contract import Budget, Role
from specgate.contract.asked import PromptSource
from specgate.contract.protocols import Decoded, OpenRequest
from specgate.pairs.resolve import resolve_pair

WHOLE: Final = "whole cache"


@dataclass(frozen=True, slots=True)
class Cycles:
    """Of the fastest round: the mean milliseconds of a cycle, and of each kind; and what they emitted."""

    ms: float
    of_kind: Mapping[Kind, float]
    acceptance: float
    tokens_per_s: float
    overruled: float | None
    read: float | None

    @classmethod
    def of(cls, rounds: Sequence[Decoded], kinds: Sequence[Kind]) -> Cycles:
        """All rounds have the same tokens and counts."""
        fastest, counted = min(rounds, key=lambda block: sum(block.step_ns)), rounds[0].counters
        ms = [ns / 1e6 for ns in fastest.step_ns]
        of_kind = {
            kind: sum(own) / len(own)
            for kind in (FULL, PARTIAL)
            if (own := [took for took, each in zip(ms, kinds, strict=True) if each == kind])
        }
        accepted = [a for row in fastest.accepted for a in row if a >= 0]
        emitted = sum(accepted) + len(accepted)
        checked, cached = counted.get("specpv_checked"), counted.get("specpv_cached_positions")
        return cls(
            ms=sum(ms) / len(ms),
            of_kind=of_kind,
            acceptance=emitted / len(accepted),
            tokens_per_s=emitted / sum(ms) * 1e3,
            overruled=counted["specpv_overruled"] / checked if checked else None,
            read=counted["specpv_read_positions"] / cached if cached else None,
        )


def engine_with(made: CupyEngine, batch: int, context: int, more: int, plan: PartialPlan | None) -> CupyEngine:
    """Over the weights of `made`, for `batch` requests of `context` tokens and `more` behind them."""
    assert made.draft is not None
    target, draft = made.target.geometry, made.draft.geometry
    sizes = replace(made.sizes, slots=batch, partial=plan)
    sizes = replace(sizes, positions=min(context + more + sizes.most_rows, made.sizes.positions)).usual(target)
    buffers = Buffers.allocate(target, draft, sizes, made.b.slots.length.device)
    return CupyEngine(*(made.target, made.draft, sizes, buffers, made.facts()), tuned=made.tuned, way=made.way)


def measured(
    engines: Mapping[str, CupyEngine], lengths: Sequence[int], k: int, steps: int, rounds: int
) -> dict[str, tuple[Cycles, Decoded]]:
    """Setting → its cycles of spec-`k`, over the prompts that are in the caches, and a block of them."""
    budget, found = Budget(steps=steps), dict[str, list[Decoded]]()
    for number in range(rounds + 1):
        for name, engine in engines.items():
            block = engine.decode(Role(k), budget, ())
            if number:  # the first captures graphs
                found.setdefault(name, []).append(block)
    kinds = {name: kinds_of(engine.sizes, k, lengths, steps) for name, engine in engines.items()}
    return {name: (Cycles.of(blocks, kinds[name]), blocks[0]) for name, blocks in found.items()}


def lines(context: int, batch: int, k: int, found: Mapping[str, Cycles], seen: Conditions) -> Iterator[str]:
    """One per setting."""
    whole = found[WHOLE]
    for name, c in found.items():
        kinds = "".join(f"  {kind} {ms:6.3f}" for kind, ms in c.of_kind.items())
        shares = "" if c.read is None else f"  read {c.read:5.1%}"
        shares += "" if c.overruled is None else f"  overruled {c.overruled:5.1%}"
        yield (
            f"{context:6} x {batch}  spec-{k}  {name:22} {c.ms:7.3f} ms/cycle  {whole.ms / c.ms:5.3f}x  AL "
            f"{c.acceptance:4.2f}  {c.tokens_per_s:7.1f} tok/s  {c.tokens_per_s / whole.tokens_per_s:5.3f}x"
            f"{kinds}{shares}"
        )
    said = seen.summary()
    yield (
        f"        {said['sm_clock_mhz']} MHz, {said['power_w']} W, {said['temperature_c']} C, "
        f"lower clock: {', '.join(said['clock_events']) or 'never'}{' ' + said['missing'] if 'missing' in said else ''}"
    )


def phases_of(name: str, block: Decoded) -> str:
    each = (f"{phase} {ns / len(block.step_ns) / 1e6:.3f}" for phase, ns in block.phase_ns.items())
    return f"        {name:22} {', '.join(each)}"


@click.command()
@click.option("--pair", default="planted-llama-3.1-8b-al3.0", show_default=True, metavar="NAME|DIR")
@click.option("--context", multiple=True, type=int, default=(8192, 16384, 32768, 65536), show_default=True)
@click.option("--batch", default=1, show_default=True)
@click.option("--spec", default=3, show_default=True)
@click.option("--sink", default=2, show_default=True)
@click.option("--retrieval", default=256, show_default=True)
@click.option("--window", default=8, show_default=True)
@click.option("--refresh", multiple=True, type=int, default=(20,), show_default=True)
@click.option("--steps", default=96, show_default=True, help="Cycles of a round.")
@click.option("--rounds", default=4, show_default=True)
@click.option("--source", type=click.Choice(get_args(PromptSource)), default="mixed", show_default=True)
@click.option("--phases", is_flag=True, help="Show the mean phases of a cycle, too.")
def main(
    pair: str,
    context: tuple[int, ...],
    batch: int,
    spec: int,
    sink: int,
    retrieval: int,
    window: int,
    refresh: tuple[int, ...],
    steps: int,
    rounds: int,
    source: PromptSource,
    phases: bool,
) -> None:
    """Print one line per context and setting."""
    found, more = resolve_pair(pair, None, None), steps * (spec + 1) + spec + 2
    plans = {f"lossy {sink}/{retrieval}/{window}/{r}": PartialPlan(sink, retrieval, window, r) for r in refresh}
    spare = 2 * (max(refresh) + 3 * spec)
    request = OpenRequest(
        pair=found,
        dtype="bfloat16",
        max_batch=1,
        max_positions=max(context) + more + spare,
        max_k=spec,
        perf_mode=False,
        options={},
    )
    made = open_engine(request)
    click.echo(f"{torch.cuda.get_device_name()}, {pair}, {steps} cycles, the fastest of {rounds} rounds")
    for length in context:
        texts = list(prompts(found, length, batch, source))
        engines = {WHOLE: engine_with(made, batch, length, more, None)}
        engines |= {
            name: engine_with(made, batch, length, more, plan)
            for name, plan in plans.items()
            if plan.leaves_out(length)
        }
        for engine in engines.values():
            engine.prefill(texts, draft=True)
        with watched() as seen:
            of = measured(engines, [length] * batch, spec, steps, rounds)
        for line in lines(length, batch, spec, {name: cycles for name, (cycles, _) in of.items()}, seen):
            click.echo(line)
        for name, (_, block) in of.items() if phases else ():
            click.echo(phases_of(name, block))
        engines.clear()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
