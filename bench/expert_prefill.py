"""Time prefills of one prompt through a target with experts, by each way of multiplying these; the ways take turns.

    python -m bench.expert_prefill --pair planted-gpt-oss-120b-al3.0 --length 256 --length 1024 --length 4096

Milliseconds are medians, to the last row's bits on the host. "same": how many of the first 32 tokens after it are those
of the first way.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Final

import click
import torch

from specgate import plugins
from specgate.backends.eagle3.cupy.engine.open import CupyEngine
from specgate.backends.eagle3.cupy.engine.prefill import PrefillMode
from specgate.contract import BASELINE, Budget
from specgate.contract.protocols import OpenRequest
from specgate.pairs.resolve import resolve_pair

TOKENS: Final = 32


def ways_of(mode: PrefillMode, length: int) -> Mapping[str, PrefillMode]:
    """Name → mode. A prompt of `length` tokens counts as a short one, but where experts are decoded."""
    return {
        "warpgroups": replace(mode, packed_rows=length, wgmma=True),
        "warps": replace(mode, packed_rows=length, wgmma=False),
        "decoded": replace(mode, packed_rows=0),
    }


@click.command()
@click.option("--pair", default="planted-gpt-oss-120b-al3.0")
@click.option("--length", "lengths", multiple=True, default=(256, 1024, 2048, 4096, 8192), show_default=True)
@click.option("--rounds", default=7, show_default=True)
def main(pair: str, lengths: tuple[int, ...], rounds: int) -> None:
    """Print a line for each length."""
    request = OpenRequest(resolve_pair(pair, None, None), "bfloat16", 1, max(lengths) + 64, 1, perf_mode=False)
    engine = plugins.backend("cupy").open(request)
    assert isinstance(engine, CupyEngine)
    usual, generator = engine.mode, torch.Generator().manual_seed(1)
    click.echo(f"{torch.cuda.get_device_name()}, {pair}, one prompt, ms")
    for length in lengths:
        prompt = torch.randint(engine.target.geometry.vocab, (1, length), generator=generator).tolist()
        times, texts = defaultdict[str, list[float]](list), dict[str, tuple[int, ...]]()
        for number in range(rounds + 1):
            for name, mode in ways_of(usual, length).items():
                engine.mode = mode
                torch.cuda.synchronize()
                began = time.perf_counter()
                engine.prefill(prompt, draft=False)
                torch.cuda.synchronize()
                if number:  # the first round compiles and warms up
                    times[name].append(1e3 * (time.perf_counter() - began))
                else:
                    texts[name] = engine.decode(BASELINE, Budget(steps=TOKENS, ignore_eos=True), ()).tokens[0]
        first = next(iter(texts.values()))
        cells = (f"{name} {median(times[name]):8.2f} (same {same(first, texts[name]):2})" for name in times)
        click.echo(f"{length:6} tokens  {'  '.join(cells)}")


def same(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Return how many tokens both begin with."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


if __name__ == "__main__":
    main()
