"""Acceptance that is made up: has it the distribution that was asked for, and does any look so without saying it?

Engines can be told to accept a given number of draft tokens, so that speed can be measured without a draft. The right
mean is not enough: with another spread, steps differ in work and length, and the speed is that of another distribution
(ATOM pull request 1948). What engines document for an acceptance length of L, bonus token included:

    vllm         ⌊L⌋ − 1 draft tokens or one more, drawn for every request and step (0.25.1,
                 `SpeculativeConfig._acceptance_length_to_rates`: the smallest variance)
    sglang       the same two counts, drawn once per step for the whole batch (0.5.17, `SGLANG_SIMULATE_ACC_LEN` with
                 `SGLANG_SIMULATE_ACC_METHOD=match-expected`)
    trtllm       the same two counts, drawn for every request and step (`TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS`;
                 versions that read whole numbers only force nothing where L is none)
    llamacpp     a mean (`--spec-synth-len`), of whatever shape

Position by position: drafts up to ⌊L⌋ − 1 are always accepted, the next one with the probability L − ⌊L⌋, none beyond.
The certain positions are held to that exactly, the drawn one by an exact binomial test.

A planted pair's drafts are accepted with one probability, whatever the position, once the draft before was accepted
(`plant/thresholds.py`). An engine that shows unlike rates runs its later draft steps differently from the
first.

Pure functions of counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from specgate.contract import FORCED_LENGTH, EngineFacts
from specgate.contract.acceptance import AcceptanceRecord

OFFLINE: Final = "-offline"
"""Ends the name of a back end that drives the engine without a server."""
CONSTANT_STEPS: Final = 64
"""Steps that all accept the same count, between 0 and K, from which on that is no text. A draft that accepts one count
in nine steps of ten does so in all of 64 with a chance of 0.1 %.
"""
TWO_COUNTS_STEPS: Final = 300
"""The same of two neighbouring counts between 0 and K. Text of which 2 % of the steps accept nothing, or everything,
shows no such step among 300 with a chance of 0.2 %.
"""

LEAST_EXPECTED: Final = 5.0
"""Counts below which a chi-square is not taken for one."""

Shape = Literal["two counts", "mean"]
SHAPES: Final[Mapping[str, tuple[Shape, bool]]] = {
    "vllm": ("two counts", False),
    "sglang": ("two counts", True),
    "trtllm": ("two counts", False),
    "llamacpp": ("mean", False),
}
"""Engine → (what it documents, whether one draw holds for all requests of a step)."""


@dataclass(frozen=True, slots=True)
class Forced:
    """Acceptance that an engine was told to simulate.

    `length`: tokens per step, bonus token included. `shared`: whether one draw holds for all requests of a step.
    """

    length: float
    shape: Shape
    shared: bool

    def least(self, k: int) -> int:
        """The smaller of the two counts of draft tokens."""
        return min(int(self.length - 1), k)

    def share(self, k: int) -> float:
        """The probability of the larger one."""
        return self.length - 1 - self.least(k) if self.least(k) < k else 0.0


def forced_by(backend: str, length: float | None) -> Forced | None:
    """Forced acceptance of `backend` with this length; None if nothing is forced, or its shape is not documented."""
    shape = SHAPES.get(backend.removesuffix(OFFLINE))
    return None if length is None or shape is None else Forced(length, *shape)


def forced_of(facts: EngineFacts | None) -> Forced | None:
    """Forced acceptance of the engine of `facts`; None if nothing is forced, or its shape is unknown."""
    length = facts.details.get(FORCED_LENGTH) if facts is not None and facts.acceptance == "forced" else None
    return forced_by(facts.backend, float(length)) if facts is not None and isinstance(length, int | float) else None


def asked_in_words(forced: Forced, k: int) -> str:
    """`1 or 2`, or the mean."""
    least = forced.least(k)
    if forced.shape == "mean":
        return f"{forced.length - 1:g} on average"
    return f"{least} or {least + 1}" if forced.share(k) else f"{least}"


def wrong_shape(record: AcceptanceRecord, forced: Forced, *, error: float, requests: int, batch: int) -> str | None:
    """Reason that `record` has not the distribution that was forced; None if it may have.

    `error`: the chance that a right one is refused. `requests`: over how many the record is; an engine that drafts no
    more than a request has left, or trims what it accepts to that, may accept less in the last step of each. `batch`:
    requests that share a step.
    """
    k, steps = record.k, record.steps
    # Where nothing counts as cut off, the engine may have trimmed what its last steps accepted: some SGLang versions
    # do, and draft K all the same. Where cut-off tokens are counted beside whole drafts, every step shows its count.
    cut = requests if record.drafted < k * steps or not record.truncated else 0
    draws = max(1, steps // batch) if forced.shared else steps
    mean = record.accepted / steps
    if forced.shape == "mean":
        reach = k * (math.sqrt(math.log(2 / error) / (2 * draws)) + cut / steps)  # Hoeffding (1963)
        if abs(mean - (forced.length - 1)) > reach:
            return f"{mean:.3f} draft tokens per step, {forced.length - 1:g} were asked for (± {reach:.3f} in {draws})"
        return None
    least, share, expected = forced.least(k), forced.share(k), asked_in_words(forced, k)
    if record.hist:
        outside = sum(n for count, n in enumerate(record.hist) if count != least and (count != least + 1 or not share))
        if outside > cut:
            return f"{outside} of {steps} steps accepted something else than {expected}: {list(record.hist)}"
    more = record.accepted - least * steps  # steps that accepted the larger count
    if not -cut * k <= more <= (steps if share else 0):
        return f"{record.accepted} draft tokens in {steps} steps, each of which was to accept {expected}"
    if share and (chance := two_sided(min(steps, max(0, more)), steps, draws, share, cut)) < error:
        return (
            f"{max(0, more)} of {steps} steps accepted {least + 1}, {100 * share:.3g} % were asked for "
            f"(chance {chance:.2g})"
        )
    return None


def two_sided(count: int, steps: int, draws: int, share: float, cut: int) -> float:
    """The chance of a count as far from `share` as `count` of `steps`, where only `draws` of these are independent.

    Exact binomial, twice the smaller tail. `cut`: so many steps may belong to either side.
    """
    from scipy.special import bdtr

    low, high = (min(draws, max(0.0, x * draws / steps)) for x in (count - cut, count + cut))
    below = float(bdtr(math.ceil(high), draws, share))
    above = 1.0 if low < 1 else 1 - float(bdtr(math.floor(low) - 1, draws, share))
    return min(1.0, 2 * min(below, above))


def looks_forced(record: AcceptanceRecord, repeats: float = 1.0) -> str | None:
    """Reason that a record looks forced, in words; None if it does not.

    A forced length has the smallest variance that its mean allows: one count in every step, or two that are
    neighbours. Text has steps that accept nothing and steps that accept everything. `repeats`: how often each prompt
    ran, since rounds repeat the same greedy text and are no new evidence. A record without a histogram says nothing.
    """
    counts = [count for count, steps in enumerate(record.hist) if steps]
    evidence = record.steps / max(repeats, 1.0)
    if not counts or counts[0] == 0 or counts[-1] == record.k or counts[-1] - counts[0] > 1:
        return None
    if evidence < (CONSTANT_STEPS if len(counts) == 1 else TWO_COUNTS_STEPS):
        return None
    counts_in_words = " or ".join(map(str, counts))
    return f"all {record.steps:,} steps accepted {counts_in_words} of {record.k} draft tokens, none fewer and none more"


def unlike_positions(record: AcceptanceRecord, error: float, repeats: float = 1.0) -> str | None:
    """Rates that differ between the draft positions of a planted pair, in words; None if they may be the same.

    A chi-square test of homogeneity over the positions, with the error `error`. `repeats`: as in `looks_forced`.
    """
    from scipy.special import chdtrc

    accepted, k = record.accepted_at_pos, record.k
    if k < 2 or not accepted or record.drafted < k * record.steps:
        return None
    reached = (record.steps, *accepted[:-1])
    pooled = sum(accepted) / sum(reached) if sum(reached) else 0.0
    scale = 1 / max(repeats, 1.0)
    if min(reached) * scale * min(pooled, 1 - pooled) < LEAST_EXPECTED:
        return None
    apart = sum(
        scale * (a - n * pooled) ** 2 / (n * pooled * (1 - pooled)) for a, n in zip(accepted, reached, strict=True)
    )
    if float(chdtrc(k - 1, apart)) >= error:
        return None
    rates = ", ".join(f"{100 * a / n:.1f} %" for a, n in zip(accepted, reached, strict=True))
    return f"drafts are accepted in {rates} of the steps that reach them, which are alike in a planted pair"
