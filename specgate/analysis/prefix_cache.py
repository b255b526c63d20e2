"""Judge a prefix cache by answers with it on and off: what was reused, and texts.

cache     the pair is one: with the cache off nothing is reused, with it on the baseline reuses something, and nothing
          that was not sent or emitted in this pass
reuse     no request reuses fewer prompt tokens with speculation than without, but for a tolerance; some of what is
          reused was computed while decoding
texts     the cache changes no text, but at near ties
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from specgate.contract import State

Turn = Literal["first", "shared prefix", "next turn"]
"""`first`: its prefix is new to the server. `shared prefix`: an earlier request of its group began alike. `next turn`:
it begins with the prompt of an earlier request of its group and the answer to that.
"""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request. `cached`: prompt tokens that came from the cache; None where the server does not say.
    `ttft_ns`: nanoseconds from its sending to its first token. `tokens`: ids, from the first token on.
    """

    cached: int | None
    ttft_ns: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One request, answered by both roles with the cache on and off.

    `group`: requests of one group share a prefix. `reusable`: with how many tokens its prompt begins that the server
    has been sent or has emitted before. `answered`: how many of these are of an earlier answer, so that their keys and
    values were computed while decoding. `on`, `off`: role name → its answer.
    `same_text`: whether each role's own earlier answer is the one that a `next turn` goes on from; where a role's text
    had left it, less can be reused, and the request says nothing of reuse.
    """

    group: int
    turn: Turn
    prompt_tokens: int
    reusable: int
    on: Mapping[str, Reply]
    off: Mapping[str, Reply]
    same_text: bool = True
    answered: int = 0

    @property
    def about_reuse(self) -> bool:
        """True if part of it can be reused, and as much in both roles."""
        return self.turn != "first" and self.same_text

    def of_answer(self, role: str) -> int:
        """Tokens of the earlier answer that `role` took from the cache."""
        return max(0, (self.on[role].cached or 0) - (self.reusable - self.answered)) if self.answered else 0


@dataclass(frozen=True, slots=True)
class CacheDivergence:
    """Divergence of a text with the cache on from the one with it off: token `position` of request `sample`.

    `gap`: how far the lower of both tokens lies below the largest logit there, infinite where it is not among those
    that the server shows; None where the server shows none.
    `unit`: one unit in the last place there; None where it could not be seen.
    """

    role: str
    sample: int
    position: int
    gap: float | None
    unit: float | None


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a check.

    `max_lost_tokens`: prompt tokens that a request may reuse less with speculation than without.
    `margin`: a gap below it, in logits, is a near tie. `units`: so is one of at most so many units in the last place.
    """

    max_lost_tokens: int
    margin: float
    units: float = 0.0

    def near(self, d: CacheDivergence) -> bool:
        """True if the texts part at a near tie."""
        if d.gap is None or not 0 <= d.gap < math.inf:
            return False
        return d.gap < self.margin or (d.unit is not None and d.gap <= self.units * d.unit * (1 + ROUNDING))


ROUNDING: Final = 0.01
"""How far a gap between two log-probabilities, in float32, may be from a multiple of its unit, as a share."""
BASELINE_NAME: Final = "baseline"
CANDIDATES: Final = 20
"""How many of the most likely tokens a server is asked for where texts part."""
UNSEEN: Final = 4
"""So many tokens more may come from the cache than are known to be in it: a server may begin prompts with a token of
its own, and may have verified the last token of an answer as a draft, and so have its keys.
"""
NOTHING: Final = "nothing of these requests can be reused: no prompts share a prefix, no next turn compares"


@dataclass(frozen=True, slots=True)
class Check:
    """One of the checks: what was found, in words and in numbers."""

    name: str
    state: State
    message: str
    evidence: Mapping[str, float | int | None] = field(default_factory=dict)


def judge(
    samples: Sequence[Sample], divergences: Sequence[CacheDivergence], spec: str, limits: Limits
) -> tuple[Check, ...]:
    """All checks, of the role named `spec` beside the baseline. What rests on a pair that is none is left out."""
    cache = check_cache(samples, spec)
    if cache.state is State.INVALID:
        return (cache,)
    return (
        cache,
        check_reuse(samples, spec, limits),
        *(check_texts(samples, divergences, role, limits) for role in (BASELINE_NAME, spec)),
    )


def overall(checks: Sequence[Check]) -> State:
    """The worst of their states."""
    order = (State.INVALID, State.FAIL, State.INCONCLUSIVE)
    return next((state for state in order if any(c.state is state for c in checks)), State.PASS)


# ── is it a pair? ────────────────────────────────────────────────────────────────────────────────────────────────────


def check_cache(samples: Sequence[Sample], spec: str) -> Check:
    for role in (BASELINE_NAME, spec):
        if any(reply.cached is None for s in samples for reply in (s.on[role], s.off[role])):
            hint = "vLLM does with --enable-prompt-tokens-details, or by its metrics"
            message = f"{role}'s server does not say how many prompt tokens came from its cache; {hint}"
            return Check("cache", State.INVALID, message)
        if hits := sum(cached(s.off[role]) for s in samples):
            message = f"with the cache off, {role}'s server took {hits:,} prompt tokens from it: it was not off"
            return Check("cache", State.INVALID, message, {"cached_off": hits})
    if not any(s.reusable for s in samples if s.about_reuse):
        return Check("cache", State.INVALID, NOTHING, {"reusable": 0})
    for role in (BASELINE_NAME, spec):
        for number, s in enumerate(samples, 1):
            if (hits := cached(s.on[role])) > s.reusable + UNSEEN:
                message = (
                    f"request {number} ({s.turn}): {role}'s server took {hits:,} prompt tokens from its cache, and had "
                    f"been sent or had emitted {s.reusable:,} of them in this pass: its cache was not empty; restart it"
                )
                return Check("cache", State.INVALID, message, {"cached": hits, "reusable": s.reusable})
    reused = sum(cached(s.on[BASELINE_NAME]) for s in samples if s.about_reuse)
    if not reused:
        message = (
            "with the cache on, the baseline reused nothing: its prefix cache is off, or shorter prefixes than a block"
        )
        return Check("cache", State.INVALID, message, {"reused": 0})
    return Check("cache", State.PASS, "on it reuses, off it does not", {"reused": reused})


def cached(reply: Reply) -> int:
    return reply.cached or 0


# ── is as much reused? ───────────────────────────────────────────────────────────────────────────────────────────────


def check_reuse(samples: Sequence[Sample], spec: str, limits: Limits) -> Check:
    reusing = [s for s in samples if s.about_reuse]
    reusable = sum(s.reusable for s in reusing)
    if not reusable:
        return Check("reuse", State.INVALID, NOTHING, {"requests": len(reusing), "reusable": 0})
    shares = {role: sum(cached(s.on[role]) for s in reusing) / reusable for role in (BASELINE_NAME, spec)}
    lost = [cached(s.on[BASELINE_NAME]) - cached(s.on[spec]) for s in reusing]
    of_answers = {role: sum(s.of_answer(role) for s in reusing) for role in (BASELINE_NAME, spec)}
    worst, nothing, left_out = (
        max(lost),
        not shares[spec],
        sum(s.turn == "next turn" and not s.same_text for s in samples),
    )
    summary = (
        f"of {reusable:,} prompt tokens that were sent or emitted before, baseline reused "
        f"{100 * shares[BASELINE_NAME]:.1f} %, {spec} {100 * shares[spec]:.1f} % ({len(reusing)} requests); "
        f"at most {max(worst, 0)} tokens less in one request, {limits.max_lost_tokens} are allowed"
    )
    if left_out:
        summary += f"; {left_out} requests left out, whose earlier answers differ between the roles"
    evidence = {
        "requests": len(reusing),
        "reusable": reusable,
        "baseline_share": shares[BASELINE_NAME],
        "spec_share": shares[spec],
        "most_lost": worst,
        "max_lost_tokens": limits.max_lost_tokens,
        "left_out": left_out,
        "baseline_of_answers": of_answers[BASELINE_NAME],
        "spec_of_answers": of_answers[spec],
    }
    if nothing:
        return Check("reuse", State.FAIL, f"{summary}: with speculation nothing is reused", evidence)
    if worst > limits.max_lost_tokens:
        return Check("reuse", State.FAIL, summary, evidence)
    if unseen := [role for role, tokens in of_answers.items() if not tokens]:
        summary += (
            f"; {' and '.join(unseen)} reused nothing that was computed while decoding, so that nothing is known of "
            "that: longer answers (--new-tokens) than a block of the cache, or a server that keeps answers"
        )
        return Check("reuse", State.INCONCLUSIVE, summary, evidence)
    return Check("reuse", State.PASS, summary, evidence)


# ── are the texts the same? ──────────────────────────────────────────────────────────────────────────────────────────


def check_texts(samples: Sequence[Sample], divergences: Sequence[CacheDivergence], role: str, limits: Limits) -> Check:
    mine = [p for p in divergences if p.role == role]
    wrong = [p for p in mine if not limits.near(p)]
    tokens = sum(len(s.on[role].tokens) for s in samples)
    evidence: dict[str, float | int | None] = {"texts": len(samples), "parted": len(mine), "wrong": len(wrong)}
    summary = f"{role}: {len(samples)} texts of {tokens:,} tokens, "
    if not mine:
        return Check("texts", State.PASS, f"{summary}all the same with the cache on and off", evidence)
    if not wrong:
        return Check(
            "texts", State.PASS, f"{summary}{len(mine)} leave theirs without the cache, all at near ties", evidence
        )
    first = wrong[0]
    where = f"request {first.sample + 1} ({samples[first.sample].turn}), token {first.position + 1}"
    why = gap_in_words(first.gap)
    message = (
        f"{summary}{len(wrong)} of {len(mine)} leave theirs without the cache at no near tie: first {where}: {why}"
    )
    return Check("texts", State.FAIL, message, evidence)


def gap_in_words(gap: float | None) -> str:
    if gap is None:
        return "its logits are not shown"
    if math.isinf(gap):
        return f"its token is not among the {CANDIDATES} most likely"
    return f"a gap of {gap:.3g} logits is no near tie"


def rows(samples: Sequence[Sample], roles: Sequence[str]) -> Iterator[tuple[str, str, int, float, float, float]]:
    """Per kind of request and role: (turn, role, requests, share of the prompt that came from the cache, median TTFT in
    ms with the cache on, the same with it off).
    """
    for turn in dict.fromkeys(s.turn for s in samples):
        of_turn = [s for s in samples if s.turn == turn]
        prompts = sum(s.prompt_tokens for s in of_turn)
        for role in roles:
            share = sum(cached(s.on[role]) for s in of_turn) / prompts
            on, off = (
                statistics.median(replies) / 1e6
                for replies in zip(*((s.on[role].ttft_ns, s.off[role].ttft_ns) for s in of_turn), strict=True)
            )
            yield turn, role, len(of_turn), share, on, off
