"""Untimed samples beside the blocks: longer baseline texts, digests of logits, and a second engine's scores."""

from __future__ import annotations

from dataclasses import dataclass

from specgate.contract.samples.block import Finishes
from specgate.contract.scenarios.plan import Point
from specgate.contract.token_check import Margin
from specgate.contract.types import Count, Counts, Digest, Finite, Tokens


@dataclass(frozen=True, slots=True)
class BaselineText:
    """The baseline's text of one prompt set, decoded once more, untimed, as far as the longest speculative text goes.

    A speculative block emits more tokens than the baseline block beside it. This is what the rest is compared with.

    `tokens[slot]`: token ids, beginning with the prefill token.
    `span_ns`: as in `Block`.
    `steps`: how many steps were decoded in that span, all slots together in each; 0 where slots were decoded one by
        one, and in older runs.
    """

    point: Point
    prompt_set: int
    worker_generation: int
    tokens: Tokens
    finish: Finishes
    span_ns: tuple[int, int]
    steps: Count = 0


@dataclass(frozen=True, slots=True)
class LogitSample:
    """Digests of the logits that single tokens of a cell were chosen from, out of an untimed block.

    `positions`: indices into the tokens of every slot.
    `tokens[slot][i]`, `digests[slot][i]`: the token at `positions[i]`, and the SHA-256 of its row of target logits
        (float32, little-endian, one per vocabulary entry).
    """

    cell: str
    prompt_set: int
    worker_generation: int
    positions: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]
    digests: tuple[tuple[Digest, ...], ...]
    span_ns: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Score:
    """Score of one token of a text by a target model, all tokens before it given.

    `best`: the token with the largest logit.
    `best_logit`, `logit`: of `best` and of the token itself, in float32. Log-probabilities will do, since only their
        difference is used.
    """

    best: Count
    best_logit: Finite
    logit: Finite


@dataclass(frozen=True, slots=True)
class RescoredText:
    """A sample of the tokens that one block emitted in one slot, each with its score by the second engine.

    `positions`: indices into the slot's tokens.
    `starts`: a sample of its cycles, each by the index of the last token before it. `drafted`: how many tokens the
        pair's draft, run by the second engine, has right there. Both are () where drafts were not checked.
    """

    cell: str
    prompt_set: int
    round: int
    slot: int
    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    scores: tuple[Score, ...]
    starts: Counts = ()
    drafted: Counts = ()


@dataclass(frozen=True, slots=True)
class SecondLook:
    """Logits of the tokens that the second engine would not have chosen in the scenario's dtype, and of the most likely
    ones beside them.

    `places`: one per token. `top_tokens` are the second engine's most likely ones, `second` their logits in the
        scenario's dtype, `float32` those in float32; the measured engine shows nothing there.
    `unscored`: why there are none in float32; None where there are.
    `span_ns`: as in `Block`. The first point that the engine in float32 is asked about carries the time to load it.
    """

    places: tuple[Margin, ...]
    unscored: str | None
    span_ns: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Rescoring:
    """Scores of one point's tokens by a second engine, after all timing.

    `engine`: the back end that scored. `device` and `dtype`: what it computed with; None where it did not load.
    `unscored`: why nothing was scored; None where something was.
    `span_ns`: as in `Block`. The first point that an engine scores carries the time to load it.
    `again`: its look at the tokens that it would not have chosen; None where there are none, or in float32.
    `seed`: what the draw of tokens and cycles follows from, made when the last token was there; None in older runs.
    `count`: how many tokens of a cell it was to draw, at least.
    `lost`: its process was ended, stopped answering or failed, and so did a second one.
    `undrafted`: why it did not run the pair's draft along the texts; None where it did, or was not to.
    """

    point: str
    engine: str
    device: str | None
    dtype: str | None
    texts: tuple[RescoredText, ...]
    unscored: str | None
    span_ns: tuple[int, int]
    again: SecondLook | None = None
    seed: str | None = None
    count: Count = 0
    lost: bool = False
    undrafted: str | None = None
