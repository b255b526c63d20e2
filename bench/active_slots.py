"""Time steps of a batch in which some requests have ended, beside those of a batch that is as small from the beginning.

    python -m bench.active_slots --pair planted-llama-3.1-8b-al2.5 --context 4096 --batch 8 --spec 3

Requests end at a stop token that only their own text has. Each line is a number of requests that go on: milliseconds
per step (median over steps with just so many) in the whole batch, the same with steps launched for all slots, and in a
batch of that many. The three take turns.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from unittest.mock import patch

import click
import torch

from specgate import plugins
from specgate.backends.eagle3.cupy.engine import decoding
from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.contract import BASELINE, Budget, Role
from specgate.contract.protocols import Decoded, OpenRequest
from specgate.pairs.resolve import resolve_pair

EARLY = 24
"""Tokens after which a request may end."""


@click.command()
@click.option("--pair", default="planted-llama-3.1-8b-al2.5")
@click.option("--context", default=4096)
@click.option("--batch", default=8)
@click.option("--spec", default=3)
@click.option("--tokens", default=256, help="Of a request that goes on.")
@click.option("--rounds", default=3)
def main(pair: str, context: int, batch: int, spec: int, tokens: int, rounds: int) -> None:
    """Print step times by requests that go on."""
    positions = context + tokens + 2 * spec + 8
    request = OpenRequest(resolve_pair(pair, None, None), "bfloat16", batch, positions, spec, perf_mode=False)
    engine = plugins.backend("cupy").open(request)
    assert isinstance(engine, CupyEngine)
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(engine.target.geometry.vocab, (batch, context), generator=generator).tolist()
    role, budget = Role(spec), Budget(new_tokens=tokens, ignore_eos=False)
    engine.prefill(prompts, draft=True)
    texts = engine.decode(BASELINE, budget, ()).tokens
    times = defaultdict[tuple[int, str], list[int]](list)
    for number in range(rounds + 1):
        for going_on in range(1, batch + 1):
            kept = {token for text in texts[:going_on] for token in text}
            stops = [next(t for t in text[EARLY:] if t not in kept) for text in texts[going_on:]]
            engine.prefill(prompts, draft=True)
            blocks = {"ended": engine.decode(role, budget, stops)}
            with patch.object(decoding, "widths", lambda count, rows: (count,)):
                blocks["all slots"] = engine.decode(role, budget, stops)
            assert blocks["ended"].tokens == blocks["all slots"].tokens
            engine.prefill(prompts[:going_on], draft=True)
            blocks["alone"] = engine.decode(role, budget, stops)
            for name, block in blocks.items() if number else ():  # the first round warms up
                times[going_on, name] += steps_of(block, going_on)
    click.echo(f"{torch.cuda.get_device_name()}, {pair}, context {context}, batch {batch}, {role.name}, ms per step")
    click.echo(
        "requests that go on   in the batch (steps)   launched for all   as a batch   of that   for all, of that"
    )
    for going_on in range(batch, 0, -1):
        ended, every, alone = (median(times[going_on, name]) / 1e6 for name in ("ended", "all slots", "alone"))
        click.echo(
            f"{going_on:19}   {ended:12.3f} ({len(times[going_on, 'ended']):5})   {every:16.3f}   {alone:10.3f}   "
            f"{ended / alone:6.3f}×   {every / alone:15.3f}×"
        )


def steps_of(block: Decoded, going_on: int) -> list[int]:
    """Nanoseconds of the steps in which just `going_on` requests ran."""
    running = (sum(a >= 0 for a in row) for row in block.accepted)
    return [ns for n, ns in zip(running, block.step_ns, strict=True) if n == going_on]


if __name__ == "__main__":
    main()
