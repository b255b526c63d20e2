"""Settings of sampling at a temperature, and of texts that are drawn to be judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from specgate.contract.types import FACTOR, POSITIONS, Check, Factor, Positions, Range, Requests, Share, Steps

SamplingMethod = Literal["coupled", "rejection"]
"""How a draft is verified at a temperature. `coupled`: with the random numbers of plain sampling, whose tokens are then
emitted. `rejection`: so that as many draft tokens as possible are accepted; the tokens are others of the same
distribution.
"""


def one_bias_per_token(biases: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Return `biases` in the order of their tokens. Raises ValueError where a token has two."""
    if len({token for token, _ in biases}) < len(biases):
        raise ValueError("every token once: [[TOKEN, BIAS], …]")
    return tuple(sorted(biases))


Penalty = Annotated[float, Range(ge=-FACTOR, le=FACTOR)]


Bias = tuple[Annotated[int, Range(ge=0, le=POSITIONS)], Penalty]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings by which tokens are drawn. The defaults are the target's own distribution, with coupled verification."""

    temperature: Annotated[float, Range(ge=0, le=FACTOR, hint="0 is greedy")] = 1.0
    """What logits are divided by; 0 is greedy."""
    top_p: Annotated[float, Range(gt=0, le=1)] = 1.0
    """Only the most likely tokens may be drawn that have this probability together; 1 keeps all."""
    top_k: Annotated[int, Range(ge=0, le=POSITIONS)] = 0
    """Only so many of the most likely tokens may be drawn; 0 keeps all."""
    min_p: Share = 0.0
    """Only tokens with this share of the largest probability may be drawn; 0 keeps all."""
    repetition_penalty: Factor = 1.0
    """On tokens of the prompt and the output, as transformers has it; 1 is none."""
    presence_penalty: Penalty = 0.0
    """On tokens of the output, subtracted from logits; 0 is none."""
    frequency_penalty: Penalty = 0.0
    """On tokens of the output and as often as they are there, subtracted from logits; 0 is none."""
    logit_bias: Annotated[tuple[Bias, ...], Check(one_bias_per_token)] = ()
    """Pairs of a token and what is added to its logit."""
    method: SamplingMethod = "coupled"
    """How a draft is verified."""
    seed: Annotated[int, Range(ge=0, le=(1 << 64) - 1)] = 0
    """Of the random numbers."""

    @property
    def filters(self) -> bool:
        """True if some tokens may not be drawn."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    @property
    def penalises(self) -> bool:
        """True if a token's chance depends on the tokens before it beyond what the model makes of them."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


@dataclass(frozen=True, slots=True)
class Draws:
    """Texts that are drawn for the gate `distribution`, each a request of its own."""

    texts: Requests
    """Texts of every role."""
    tokens: Steps = 4
    """Tokens of each text, the first one, which prefill gives, included."""
    prompt_tokens: Positions = 16
    """Length of the prompt, which is the beginning of the point's first one."""
