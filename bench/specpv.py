"""Acceptance, changes and reads of SpecPV: the reference engine, the same prompts decoded with each of some settings.

    python -m bench.specpv --pair demo --context 512,1024,2048 --texts 8

A setting is WAY:SINK/RETRIEVAL/WINDOW, in blocks of 16 positions, and for `lossy` /REFRESH, in tokens. Per line: the
acceptance length; the share of tokens before the first one that is not the baseline's; of tokens that only a partial
verification had chosen, the share that the next full one would not have; passes per 100 emitted tokens; and cached
positions that the target reads per emitted token, beside what plain decoding reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from typing import get_args

import click

from bench.kv_exactness import prompts
from specgate.backends.eagle3.lib.specpv import MOST_BUFFERED, PartialPlan
from specgate.backends.eagle3.reference.open import open_engine
from specgate.contract import BASELINE, Budget, Role
from specgate.contract.protocols import Decoded, OpenRequest
from specgate.contract.samples.counters import (
    SPECPV_CACHED,
    SPECPV_CHECKED,
    SPECPV_FULL,
    SPECPV_OVERRULED,
    SPECPV_PARTIAL,
    SPECPV_READ,
)
from specgate.contract.scenarios.workload import PromptSource
from specgate.pairs.resolve import resolve_pair

USUAL = (
    "full,lossy:2/4/4/20,lossy:2/16/8/20,lossy:2/48/8/20,lossy:2/16/8/8,lossless:2/4/4,lossless:2/16/8,lossless:2/48/8"
)


@click.command()
@click.option("--pair", default="demo", show_default=True, metavar="NAME|DIR")
@click.option("--context", default="512,1024,2048", show_default=True, metavar="N,…", help="Tokens of a prompt.")
@click.option("--texts", default=8, show_default=True, help="Prompts of each length.")
@click.option("--tokens", default=96, show_default=True, help="Tokens to decode behind each.")
@click.option("--spec", default="3", show_default=True, metavar="K,…", help="Draft lengths.")
@click.option("--settings", default=USUAL, show_default=True)
@click.option("--source", type=click.Choice(get_args(PromptSource)), default="mixed", show_default=True)
def main(pair: str, context: str, texts: int, tokens: int, spec: str, settings: str, source: PromptSource) -> None:
    """Print one line per context, draft length and setting."""
    resolved, ks = resolve_pair(pair, None, None), [int(k) for k in spec.split(",")]
    click.echo(f"{pair}, float32, {texts} {source} prompts of each length, {tokens} tokens decoded behind each")
    for length in map(int, context.split(",")):
        read = prompts(resolved, length, texts, source)
        request = OpenRequest(
            pair=resolved,
            dtype="float32",
            max_batch=1,
            max_positions=length + tokens + max(ks) + 2,
            max_k=max(ks),
            perf_mode=False,
            options={"specpv": "lossy", "specpv_refresh": str(MOST_BUFFERED)},  # room for every setting
        )
        engine = open_engine(request)
        made: dict[tuple[int, str], list[tuple[Decoded, Decoded]]] = {}
        for text in read:
            engine.prefill([text], draft=True)
            plain = engine.decode(BASELINE, Budget(new_tokens=tokens), ())
            for k in ks:
                for setting in settings.split(","):
                    engine.partial = plan_of(setting)
                    decoded = engine.decode(Role(k), Budget(new_tokens=tokens), ())
                    made.setdefault((k, setting), []).append((plain, decoded))
        for (k, setting), pairs in made.items():
            click.echo(line(length, k, setting, pairs))


def plan_of(setting: str) -> PartialPlan | None:
    way, _, numbers = setting.partition(":")
    if way == "full":
        return None
    sink, retrieval, window, *refresh = (int(number) for number in numbers.split("/"))
    return PartialPlan(sink, retrieval, window, refresh[0] if refresh else None)


def line(length: int, k: int, setting: str, pairs: Sequence[tuple[Decoded, Decoded]]) -> str:
    counted = sum((Counter(decoded.counters) for _, decoded in pairs), Counter[str]())
    steps = [a for _, decoded in pairs for (a,) in decoded.accepted]
    emitted = sum(len(decoded.tokens[0]) - 1 for _, decoded in pairs)
    plain_read = sum(positions_of(length, plain, len(plain.step_ns)) for plain, _ in pairs)
    full = [(len(decoded.step_ns), positions_of(length, decoded, 0)) for _, decoded in pairs]
    passes = counted[SPECPV_FULL] or sum(n for n, _ in full)
    read = counted[SPECPV_READ] or sum(total for _, total in full)
    buffered = counted[SPECPV_CHECKED]
    overruled = f"{counted[SPECPV_OVERRULED] / buffered:6.1%}" if buffered else "     –"
    same = sum(prefix(plain.tokens[0], decoded.tokens[0]) for plain, decoded in pairs)
    prefixes = same / sum(len(plain.tokens[0]) for plain, _ in pairs)
    whole = sum(plain.tokens == decoded.tokens for plain, decoded in pairs)
    partial = counted[SPECPV_PARTIAL]
    cached = f", {read / counted[SPECPV_CACHED]:.1%} of the cache" if counted[SPECPV_CACHED] else ""
    return (
        f"{length:6,}  spec-{k}  {setting:18} AL {1 + sum(steps) / len(steps):.2f}  equal prefix {prefixes:6.1%} "
        f"({whole} of {len(pairs)} texts)  overruled {overruled}  passes per 100 tokens: {100 * passes / emitted:5.1f} "
        f"full {100 * partial / emitted:5.1f} partial  positions read {read / plain_read:6.1%} of plain decoding's"
        f"{cached}"
    )


def positions_of(length: int, decoded: Decoded, plain_steps: int) -> int:
    """Cached positions that the passes of a block without SpecPV read; `plain_steps`: of plain decoding."""
    if plain_steps:
        return sum(length + step for step in range(plain_steps))
    total, at = 0, length
    for (accepted,) in decoded.accepted:
        total, at = total + at, at + accepted + 1
    return total


def prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=True)))


if __name__ == "__main__":
    main()
