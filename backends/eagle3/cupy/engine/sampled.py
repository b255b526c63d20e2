"""Questions to an engine that draws, beside decoding: who its requests are, scores of a draw, texts, a distribution.

Tokens are drawn on the device. Here the same is computed on the host, in float64, for one row of logits at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.memory.sampling import SamplingBuffers, draws
from specgate.contract import Sampling
from specgate.contract.draws import TokenLaw
from specgate.sampling.keys import Floats, Keys, requests_of
from specgate.sampling.rejection import scores
from specgate.sampling.target import target_distribution


def name_requests(b: SamplingBuffers, prompts: Sequence[Sequence[int]]) -> None:
    """The slots' requests are known by their prompts: equal ones draw equal texts. Their texts begin with these."""
    put_requests(b, requests_of(prompts).tolist())
    b.begin_texts(prompts)


def put_requests(b: SamplingBuffers, requests: Sequence[int]) -> None:
    """The first slots have these `requests`, below 2**64 each."""
    bits = np.array(requests, np.uint64).view(np.int64)
    b.requests[: len(bits)] = torch.from_numpy(bits).to(b.requests.device)


def top2_of_draw(
    logits: Tensor, sampling: Sampling, prompt: Sequence[int], output: Sequence[int]
) -> tuple[float, float]:
    """The two largest scores of the draw that comes after a prompt and `output`, from its logits [V] as the device has
    left them, with bias and penalties; at temperature 0 the two largest logits.
    """
    if not draws(sampling):
        first, second = logits.topk(2).values.tolist()
        return first, second
    at = np.array([len(prompt) + len(output)], np.int64)
    row = scores(distribution_of(logits, sampling)[None], Keys(sampling.seed, requests_of([prompt]), at))[0]
    second, first = np.sort(row)[-2:].tolist()
    return first, second


def distribution_of(logits: Tensor, sampling: Sampling) -> Floats:
    """The target's distribution [V] from logits [V] as the device has left them, with bias and penalties."""
    return target_distribution(logits.double().cpu().numpy(), as_left(sampling))


def as_left(sampling: Sampling) -> Sampling:
    """Return the settings that still apply to logits that have their bias and penalties."""
    return replace(sampling, logit_bias=(), repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0)


def law_of(logits: Tensor, sampling: Sampling, continuation: Sequence[int], least: float) -> TokenLaw:
    """As `protocols.ShowsDistribution.distribution`, from the logits [V] there."""
    distribution = distribution_of(logits, sampling)
    support = np.flatnonzero((distribution >= least) & (distribution > 0))
    return TokenLaw(tuple(continuation), tuple(support.tolist()), tuple(distribution[support].tolist()))
