"""What drawing tokens adds to a step of the built-in engine: sampled steps beside the greedy one.

    python -m bench.sampled_steps --pair planted-llama-3.1-8b-al3.0 --context 1024 --batch 1 --spec 0 --spec 3

Weights are random, of the pair's sizes; all steps have the same. Rounds alternate between the steps, and of each step
the fastest round counts. The last column says by how much a step is longer than the greedy one, and whether that stays
below the 2 % that sampling is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import click
import torch

from specgate.backends.eagle3.cupy.bench.stage import Stage, random_stages
from specgate.backends.eagle3.cupy.device import first_gpu
from specgate.backends.eagle3.cupy.engine.graph import captured
from specgate.backends.eagle3.cupy.memory.sampling import SamplingBuffers
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.backends.eagle3.cupy.tuned.gemms import Configurations
from specgate.backends.eagle3.cupy.tuned.lookup import Tuned
from specgate.backends.eagle3.cupy.tuning.steps import replayed_us
from specgate.contract import Role, Sampling
from specgate.pairs.resolve import resolve_pair

ALLOWED: Final = 0.02
"""Of a greedy step: what drawing may add to it, at 8B size."""
KINDS: Final[Mapping[str, Sampling | None]] = {
    "greedy": None,
    "temperature": Sampling(),
    "min-p": Sampling(min_p=0.05),
    "top-p": Sampling(top_p=0.95),
    "top-k, top-p": Sampling(temperature=0.6, top_k=20, top_p=0.95),
    "everything": Sampling(temperature=0.6, top_k=20, top_p=0.95, min_p=0.01, logit_bias=((0, 1.0),)),
    "penalties": Sampling(repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.2),
    "rejection": Sampling(method="rejection"),
    "rejection, top-p": Sampling(top_p=0.95, method="rejection"),
}


@click.command()
@click.option("--pair", default="planted-llama-3.1-8b-al3.0", show_default=True, metavar="NAME|DIR")
@click.option("--context", default=1024, show_default=True)
@click.option("--batch", default=1, show_default=True)
@click.option("--spec", multiple=True, type=int, default=(0, 3), show_default=True, help="Drafts; 0: the baseline.")
@click.option("--rounds", default=5, show_default=True)
def main(pair: str, context: int, batch: int, spec: tuple[int, ...], rounds: int) -> None:
    """Print microseconds per step of every kind of sampling."""
    device, stream, roles = first_gpu(), Stream(), [Role(k) for k in spec]
    tuned = Tuned.on(torch.cuda.get_device_name(), None)
    click.echo(f"{torch.cuda.get_device_name()}, {pair}, context {context}, batch {batch}, {rounds} rounds")
    with torch.inference_mode(), stream.current():
        for role, greedy in random_stages(resolve_pair(pair, None, None), context, batch, roles, tuned, device).items():
            greedy.fill()
            stages = {name: sampled(greedy, asked, tuned) for name, asked in KINDS.items()}
            for line in lines(role, times(stages, stream, rounds)):
                click.echo(line)


def sampled(greedy: Stage, asked: Sampling | None, tuned: Configurations) -> Stage:
    """The same step over the same weights and caches, that draws as `asked`."""
    sizes = replace(greedy.sizes, sampling=asked)
    drawn = None
    if asked is not None:
        target, draft = greedy.geometry.target, greedy.geometry.draft
        drawn = SamplingBuffers.allocate(
            *(asked, target.vocab, sizes.slots, sizes.rows, greedy.b.slots.length.device),
            draft_vocab=draft.draft_vocab if draft else 0,
        )
        drawn.requests.random_()
    b = replace(greedy.b, sampling=drawn)
    return Stage(greedy.geometry, greedy.pair, b, sizes, greedy.context, greedy.k, tuned)


def times(stages: Mapping[str, Stage], stream: Stream, rounds: int) -> dict[str, float]:
    """Kind → microseconds per step."""
    graphs = dict[str, Any]()
    for name, stage in stages.items():
        stage.reset()
        graphs[name] = captured(partial(stage.cycle, stage.b), stream)
    found = dict.fromkeys(stages, float("inf"))
    for _ in range(rounds):
        for name, stage in stages.items():
            found[name] = min(found[name], replayed_us(graphs[name], stage, stream))
    return found


def lines(role: Role, latency_us: Mapping[str, float]) -> Iterator[str]:
    """One per kind, with what it adds to the greedy step."""
    greedy = latency_us["greedy"]
    for name, took in latency_us.items():
        share = took / greedy - 1
        judged = f"  ({'at most' if share <= ALLOWED else 'MORE THAN'} {ALLOWED:.0%})" if name != "greedy" else ""
        yield f"{role.name:9} {name:16} {took:9.1f} us/step  {took - greedy:+8.1f} us  {share:+7.2%}{judged}"


if __name__ == "__main__":
    main()
