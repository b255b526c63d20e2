"""Effect of narrower keys and values on a target's choices: the reference engine, on text that it reads once per
format.

    python -m bench.kv_exactness --pair demo --context 512,2048 --texts 8

Of every text the last tokens are scored, each with all tokens before it cached in the format. Beside the cache in the
dtype that the engine computes in: the mean and the smallest cosine of a row of logits, how often the likeliest token is
the same, and the perplexity of the text. `mixed` text is from packages that are installed here; no pair was trained on
the prompts that scenarios measure (`docs/scenarios.md`).

`--beside float32` computes all of it a second time, in that dtype, and says how far apart two right engines are in each
format: a number that they round differently may get another code, and a coarser format has codes further apart. It is
what a check of an engine's tokens by another engine has to expect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, get_args

import click
import torch
import torch.nn.functional as F
from torch import Tensor

from specgate.backends.eagle3.lib.kv.modes import KV, MODES
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.backends.eagle3.reference.kv_planes import Fp8Plane
from specgate.backends.eagle3.reference.open import open_engine
from specgate.contract import PairRef
from specgate.contract.protocols import OpenRequest
from specgate.contract.scenarios.workload import PromptSource
from specgate.pairs.resolve import resolve_pair, target_limits
from specgate.planning.prompts import RANDOM, build_prompts
from specgate.planning.scenario import find

EXACT: Final = "as computed"
BROKEN: Final = 0x7E
"""The code of 448, the largest number of E4M3: what lies beyond has it, too."""


@dataclass(frozen=True, slots=True)
class Found:
    """Of one format over all scored tokens. `loss`: the mean of −ln p of the text's own tokens. `saturated`: the share
    of cached numbers that are at the end of the range, of a cache in fp8.
    """

    cosine: float
    least_cosine: float
    top1: float
    loss: float
    saturated: float | None


@click.command()
@click.option("--pair", default="demo", show_default=True, metavar="NAME|DIR")
@click.option("--context", default="512,2048", show_default=True, metavar="N,…", help="Tokens of a text.")
@click.option("--texts", default=8, show_default=True, help="Texts of each length.")
@click.option("--scored", default=128, show_default=True, help="Tokens at the end of each text that are scored.")
@click.option("--dtype", type=click.Choice(("float32", "bfloat16")), default="float32", show_default=True)
@click.option("--source", type=click.Choice(get_args(PromptSource)), default="mixed", show_default=True)
@click.option("--beside", type=click.Choice(("float32", "bfloat16")), help="Another dtype to compute all of it in.")
def main(
    pair: str, context: str, texts: int, scored: int, dtype: str, source: PromptSource, beside: str | None
) -> None:
    """Print one line per context and format."""
    resolved = resolve_pair(pair, None, None)
    click.echo(f"{pair}, {dtype}, {texts} {source} texts of each length, the last {scored} tokens scored")
    for length in map(int, context.split(",")):
        read = prompts(resolved, length, texts, source)
        exact, *_ = scored_by(resolved, None, read, scored, dtype)
        for mode in MODES:
            logits, engine = scored_by(resolved, mode, read, scored, dtype)
            click.echo(line(length, mode, compared(exact, logits, read, engine)))
            del engine
            if beside:
                click.echo(
                    f"{length:7,}  {mode:12} {apart(logits, scored_by(resolved, mode, read, scored, beside)[0])}"
                )
        click.echo(f"{length:7,}  {EXACT:12} perplexity {perplexity(exact, read):8.4f}")
        if beside:
            click.echo(f"{length:7,}  {EXACT:12} {apart(exact, scored_by(resolved, None, read, scored, beside)[0])}")


def prompts(pair: PairRef, length: int, texts: int, source: PromptSource) -> Sequence[Sequence[int]]:
    """`texts` texts of `length` tokens each."""
    scenario = find("cpu-1k-single")
    _, vocab = target_limits(pair, None)
    source = RANDOM if pair.acceptance == "planted" else source
    scenario = replace(scenario, workload=replace(scenario.workload, prompt_sets=texts, source=source))
    tokenizer = pair.tokenizer if pair.tokenizer.is_file() else None
    return [made.token_ids[0] for made in build_prompts(scenario, length, 1, tokenizer, vocab).measured]


def scored_by(
    pair: PairRef, mode: str | None, texts: Sequence[Sequence[int]], scored: int, dtype: str
) -> tuple[list[Tensor], ReferenceEngine]:
    """Of every text, the logits [scored, V] that its last tokens are chosen from."""
    options = {} if mode is None else {KV: mode}
    request = OpenRequest(
        pair=replace(pair, draft=None),
        dtype=dtype,
        max_batch=1,
        max_positions=len(texts[0]),
        max_k=0,
        perf_mode=False,
        options=options,
    )
    engine = open_engine(request)
    with torch.inference_mode():
        return [torch.cat(list(rows_of(engine, text, scored))) for text in texts], engine


def rows_of(engine: ReferenceEngine, text: Sequence[int], scored: int) -> Iterator[Tensor]:
    """The logits [rows, V] of the last `scored` tokens, chunk by chunk."""
    first, step = len(text) - 1 - scored, engine.model.prefill_rows
    for start in range(0, len(text) - 1, step):
        tokens = torch.tensor([text[start : min(start + step, len(text) - 1)]], device=engine.device)
        at = torch.arange(start, start + tokens.shape[1], device=engine.device)[None]
        rows = [row for row in range(tokens.shape[1]) if start + row >= first]
        stream, _ = engine.model.forward(slice(0, 1), tokens, at, (), rows or [-1])
        if rows:
            yield engine.model.logits(stream)[0].cpu()


def compared(
    exact: Sequence[Tensor], logits: Sequence[Tensor], texts: Sequence[Sequence[int]], engine: ReferenceEngine
) -> Found:
    a, b = torch.cat(list(exact)), torch.cat(list(logits))
    cosines = F.cosine_similarity(a, b, dim=-1)
    top1 = (a.argmax(dim=-1) == b.argmax(dim=-1)).float().mean()
    planes = [p for p in (*engine.cache.k, *engine.cache.v) if isinstance(p, Fp8Plane)]
    ends = [float((p.codes & 127 == BROKEN).float().mean()) for p in planes]
    saturated = sum(ends) / len(ends) if ends else None
    return Found(float(cosines.mean()), float(cosines.min()), float(top1), loss(logits, texts), saturated)


def apart(logits: Sequence[Tensor], others: Sequence[Tensor]) -> str:
    """Return how often `others` choose another token, by how much `logits` have that one below their own choice, and
    the root mean square of what a logit differs by.
    """
    a, b = torch.cat(list(logits)).float(), torch.cat(list(others)).float()
    behind = a.amax(dim=-1) - a.gather(-1, b.argmax(dim=-1, keepdim=True))[:, 0]
    worst = ", ".join(f"{gap:.3f}" for gap in behind.sort(descending=True).values[:5].tolist())
    differ = int((a.argmax(dim=-1) != b.argmax(dim=-1)).sum())
    off = float((a - b).square().mean().sqrt())
    return f"two dtypes: {differ} of {len(a)} choices differ, the furthest by {worst} in logits; a logit by {off:.4f}"


def loss(logits: Sequence[Tensor], texts: Sequence[Sequence[int]]) -> float:
    """The mean of −ln p of the tokens that the texts really have."""
    tokens = [torch.tensor(list(text[-len(rows) :])) for rows, text in zip(logits, texts, strict=True)]
    return float(F.cross_entropy(torch.cat(list(logits)), torch.cat(tokens)))


def perplexity(logits: Sequence[Tensor], texts: Sequence[Sequence[int]]) -> float:
    return float(torch.tensor(loss(logits, texts)).exp())


def line(length: int, mode: str, result: Found) -> str:
    ends = "" if result.saturated is None else f"  at the end of the range {result.saturated:.2e}"
    return (
        f"{length:7,}  {mode:12} perplexity {float(torch.tensor(result.loss).exp()):8.4f}  cosine {result.cosine:.6f} "
        f"(least {result.least_cosine:.6f})  same likeliest token {result.top1:.2%}{ends}"
    )


if __name__ == "__main__":
    main()
