"""Cycles of the built-in engine whose chains end early, beside those of whole chains.

    python -m bench.early_chains --context 1024 --batch 1 --batch 4 --spec 3 --spec 5 --spec 7
    python -m bench.early_chains --pair demo --batch 1

A pair is loaded once; every confidence is an engine of its own over the same weights and prompts. Rounds alternate
between them, and of each the fastest round counts. Per line: milliseconds per cycle, draft tokens per request-step, the
acceptance length, tokens per second, and these as a multiple of the same role's without a confidence. `never` is a
confidence so small that no chain ends: what it takes longer is the kernel's cost, which is printed per launch. `always`
ends every chain behind its first token: what it takes longer than spec-1 is the cost of draft steps with nothing to do
and of rows that nobody drafted.

Drafts of planted pairs are certain of every token, right or wrong, so that no confidence ends their chains: such pairs
tell what the kernel and empty steps take, and not what a confidence gains. For that, take a pair whose draft was
trained, such as `demo`. `--soften 0.25` makes the draft's logits a quarter: its tokens stay, and it is less sure of all
of them, so that chains of planted pairs end at several lengths, but no sooner where they are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, get_args

import click
import torch

from bench.kv_exactness import prompts
from specgate.backends.eagle3.cupy.engine.engine import CupyEngine
from specgate.backends.eagle3.cupy.engine.open import open_engine
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.lib.chains.lengths import ChainLengths
from specgate.contract import Budget, Role
from specgate.contract.asked import PromptSource
from specgate.contract.protocols import Decoded, OpenRequest
from specgate.pairs.resolve import resolve_pair

WHOLE: Final = "whole"
NEVER, ALWAYS = "never", "always"
BOUNDS: Final[Mapping[str, float | None]] = {WHOLE: None, NEVER: 1e-30, ALWAYS: 2.0}
"""Above 1, which no option can ask for, every chain ends behind its first token, however certain the draft is."""


@dataclass(frozen=True, slots=True)
class Cycles:
    """Those of one role in an engine: the mean time of the fastest round, and per request-step the draft tokens and
    the accepted ones; `emitted`: tokens per cycle, of all requests.
    """

    ms: float
    drafted: float
    accepted: float
    emitted: float

    @classmethod
    def of(cls, rounds: Sequence[Decoded]) -> Cycles:
        """All rounds have the same tokens and counts."""
        first = rounds[0]
        steps = [(d, a) for row in zip(first.drafted, first.accepted, strict=True) for d, a in zip(*row, strict=True)]
        ran = [(d, a) for d, a in steps if a >= 0]
        accepted = sum(a for _, a in ran)
        return cls(
            ms=min(sum(block.step_ns) / len(block.step_ns) for block in rounds) / 1e6,
            drafted=sum(d for d, _ in ran) / len(ran),
            accepted=accepted / len(ran),
            emitted=(accepted + len(ran)) / len(first.step_ns),
        )

    @property
    def tokens_per_s(self) -> float:
        return self.emitted / self.ms * 1e3


def engine_with(made: CupyEngine, batch: int, confidence: float | None) -> CupyEngine:
    """Over the weights of `made`, for `batch` requests."""
    assert made.draft is not None
    target, draft = made.target.geometry, made.draft.geometry
    sizes = replace(made.sizes, slots=batch, confidence=confidence).usual(target)
    buffers = Buffers.allocate(target, draft, sizes, made.b.slots.length.device)
    lengths = None if confidence is None else ChainLengths(confidence)
    return CupyEngine(
        *(made.target, made.draft, sizes, buffers, made.facts()), tuned=made.tuned, way=made.way, lengths=lengths
    )


def measured(engines: Mapping[str, CupyEngine], k: int, steps: int, rounds: int) -> dict[str, Cycles]:
    """Setting → its cycles of spec-`k`, over the prompts that are in the caches."""
    budget, found = Budget(steps=steps), dict[str, list[Decoded]]()
    for number in range(rounds + 1):
        for name, engine in engines.items():
            block = engine.decode(Role(k), budget, ())
            if number:  # the first captures graphs
                found.setdefault(name, []).append(block)
    return {name: Cycles.of(blocks) for name, blocks in found.items()}


def lines(k: int, found: Mapping[str, Cycles], single: Cycles) -> Iterator[str]:
    """One per setting, and what follows from them. `single`: cycles of spec-1 without a confidence."""
    whole = found[WHOLE]
    for name, cycles in found.items():
        yield (
            f"spec-{k}  {name:>6}  {cycles.ms:8.3f} ms/cycle  drafted {cycles.drafted:5.2f}  "
            f"AL {1 + cycles.accepted:5.2f}  {cycles.tokens_per_s:8.1f} tok/s  "
            f"{cycles.tokens_per_s / whole.tokens_per_s:6.3f}"
        )
    cost = (found[NEVER].ms - whole.ms) * 1e3
    share = cost / whole.ms / 10
    yield f"spec-{k}  the kernel: {cost:+.1f} us/cycle, {cost / (k - 1):+.1f} us a launch, {share:+.2f} %"
    empty = (found[ALWAYS].ms - single.ms) * 1e3
    yield f"spec-{k}  where all end behind the first token: {empty:+.1f} us/cycle beside spec-1, with {k - 1} rows more"
    asked = [cycles for name, cycles in found.items() if name not in BOUNDS]
    if asked and all(cycles.drafted == k for cycles in asked):
        yield (
            f"spec-{k}  no confidence ended a chain: the draft is certain of every token, as those of planted pairs "
            "are. What a confidence gains cannot be read here."
        )


@click.command()
@click.option("--pair", default="planted-llama-3.1-8b-al3.0", show_default=True, metavar="NAME|DIR")
@click.option("--context", default=1024, show_default=True, help="Tokens of a prompt.")
@click.option("--batch", multiple=True, type=click.IntRange(1), default=(1, 4), show_default=True)
@click.option("--spec", multiple=True, type=click.IntRange(2, 7), default=(3, 5, 7), show_default=True)
@click.option(
    "--confidence",
    multiple=True,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=(0.2, 0.4, 0.6, 0.8),
    show_default=True,
)
@click.option(
    "--soften",
    type=click.Choice(("1", "0.5", "0.25", "0.125")),
    default="1",
    show_default=True,
    help="What the draft's logits are multiplied by, which is exact.",
)
@click.option("--steps", default=64, show_default=True, help="Cycles of a round.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--source", type=click.Choice(get_args(PromptSource)), default="mixed", show_default=True)
def main(
    pair: str,
    context: int,
    batch: tuple[int, ...],
    spec: tuple[int, ...],
    confidence: tuple[float, ...],
    soften: str,
    steps: int,
    rounds: int,
    source: PromptSource,
) -> None:
    """Print cycles of whole chains and of chains that end early."""
    resolved, most = resolve_pair(pair, None, None), max(spec)
    positions = context + Budget(steps=steps).longest(most) + most + 2
    request = OpenRequest(resolved, "bfloat16", max(batch), positions, most, perf_mode=False)
    made, read = open_engine(request), prompts(resolved, context, max(batch), source)
    assert made.draft is not None
    if soften != "1" and not made.draft.geometry.own_lm_head:
        raise click.UsageError("--soften: the draft has the target's LM head; take a pair whose draft has its own")
    with torch.inference_mode():
        made.draft.weights.lm_head.mul_(float(soften))
    said = "" if soften == "1" else f", the draft's logits times {soften}: where chains end says nothing of its errors"
    click.echo(f"{torch.cuda.get_device_name()}, {pair}, context {context}, {steps} cycles, {rounds} rounds{said}")
    settings = {**BOUNDS, **{f"{value:g}": value for value in confidence}}
    for requests in batch:
        engines = {name: engine_with(made, requests, value) for name, value in settings.items()}
        torch.cuda.synchronize()  # engines have streams of their own, and weights and buffers were written on another
        for engine in engines.values():
            engine.prefill(read[:requests], draft=True)
        single = measured({WHOLE: engines[WHOLE]}, 1, steps, rounds)[WHOLE]
        click.echo(f"batch {requests}: spec-1 {single.ms:.3f} ms/cycle, {single.tokens_per_s:.1f} tok/s")
        for k in spec:
            for line in lines(k, measured(engines, k, steps, rounds), single):
                click.echo(line)


if __name__ == "__main__":
    main()
