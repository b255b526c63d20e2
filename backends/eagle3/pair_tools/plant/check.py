"""Decode a planted pair, and compare acceptance with the tokens and with the prediction."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specgate.analysis.tokens.repetition import repeated_ngram_share
from specgate.backends.eagle3.lib.planted.recipe import Recipe, recipe_of
from specgate.backends.eagle3.lib.planted.tables import tables
from specgate.backends.eagle3.pair_tools.plant.decoder import Decoder
from specgate.backends.eagle3.pair_tools.plant.orbit import HISTORY, Orbit, chain_hits, period, planted_share
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.hf_keys import PLANTED, read_config
from specgate.checkpoints.turbomind import read_either
from specgate.contract import Budget, PairRef, Role
from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.protocols import Decoded
from specgate.errors import UsageError


@dataclass(frozen=True, slots=True)
class Load:
    """Decoding for a check: `prompts` prompts of `context` random tokens in one batch, for `steps` cycles."""

    context: int
    prompts: int
    steps: int
    seed: int = 0

    def token_ids(self, vocab: int) -> list[list[int]]:
        generator = random.Random(f"check/{self.seed}/{self.context}")
        return [generator.choices(range(vocab), k=self.context) for _ in range(self.prompts)]


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement of spec-K.

    `decided`: draft tokens that were compared with the target's. `strays`: those of them that a faithful draft would
    not have proposed. `hits` of `visits`: how many of the target's tokens were the planted ones. `shortest_period`: of
    the texts that loop, None where none does. `repeated_share`: mean share of repeated n-grams.
    """

    k: int
    context: int
    acceptance_length: float
    cycles: int
    decided: int
    strays: int
    hits: int
    visits: int
    shortest_period: int | None
    repeated_share: float

    @property
    def planted_share(self) -> float:
        return self.hits / self.visits

    @property
    def faithful_share(self) -> float:
        """Share of decided draft tokens that a faithful draft would have proposed."""
        return 1 - self.strays / self.decided

    def keys(self) -> dict[str, object]:
        return {
            "spec": self.k,
            "context": self.context,
            "cycles": self.cycles,
            "acceptance_length": round(self.acceptance_length, 4),
            "planted_share": round(self.planted_share, 4),
            "faithful_share": round(self.faithful_share, 6),
        }


def pair_recipe(pair: PairRef) -> Recipe:
    """The recipe of the pair's draft. Raises UsageError where the pair was not planted."""
    if pair.draft is None or not (section := read_either(pair.draft).part(PLANTED)).values:
        raise UsageError(
            f"pair {pair.name}: its draft was not planted",
            hint="specgate diagnose pair, for pairs of any kind; specgate engine plant makes planted ones",
        )
    return recipe_of(section)


def check(pair: PairRef, ks: Sequence[int], load: Load, decoder: Decoder) -> Iterator[Measured]:
    """Decode with spec-K for each K of `ks`, after a single prefill. Raises UsageError for too short prompts."""
    if load.context < HISTORY:
        raise UsageError(
            f"context {load.context}", hint=f"planted tokens depend on the past: at least {HISTORY} are needed"
        )
    recipe = pair_recipe(pair)
    vocab = target_geometry(read_config(pair.target)).vocab
    orbit = Orbit(recipe, tables(recipe, vocab))
    budget, longest = Budget(steps=load.steps), max(ks)
    positions = load.context + budget.longest(longest) + longest + 2
    prompts = load.token_ids(vocab)
    with decoder.opened(pair, batch=load.prompts, positions=positions, k=longest) as engine:
        engine.prefill(prompts, draft=True)
        for k in ks:
            yield measured(orbit, prompts, engine.decode(Role(k), budget, ()), k)


def measured(orbit: Orbit, prompts: Sequence[Sequence[int]], decoded: Decoded, k: int) -> Measured:
    """Measure the pair on a decode run."""
    record = AcceptanceRecord.from_steps(
        k, decoded.accepted, decoded.drafted, sum(len(t) - 1 for t in decoded.tokens), sum(decoded.truncated)
    )
    record.check()
    length = record.acceptance_length
    assert length is not None
    decided = strays = hits = visits = 0
    for slot, (prompt, tokens) in enumerate(zip(prompts, decoded.tokens, strict=True)):
        accepts = [row[slot] for row in decoded.accepted if row[slot] >= 0]
        decided += sum(min(a + 1, k) for a in accepts)
        strays += count_strays(orbit, prompt, tokens, accepts, k)
        hit, visit = planted_share(orbit, prompt, tokens)
        hits, visits = hits + hit, visits + visit
    periods = [p for tokens in decoded.tokens if (p := period(tokens)) is not None]
    return Measured(
        k=k,
        context=len(prompts[0]),
        acceptance_length=length,
        cycles=record.steps,
        decided=decided,
        strays=strays,
        hits=hits,
        visits=visits,
        shortest_period=min(periods, default=None),
        repeated_share=sum(map(repeated_ngram_share, decoded.tokens)) / len(decoded.tokens),
    )


def count_strays(orbit: Orbit, prompt: Sequence[int], tokens: Sequence[int], accepts: Sequence[int], k: int) -> int:
    """Cycles that accepted another number of draft tokens than the text implies: one of theirs was not the faithful
    one.
    """
    text, last, strays = [*prompt, *tokens], len(prompt), 0
    for accepted in accepts:
        strays += chain_hits(orbit, text, last, k) != accepted
        last += accepted + 1
    return strays


def predictions(pair: PairRef) -> dict[int, float]:
    """K → acceptance length predicted at calibration, from the config of the pair's draft."""
    pair_recipe(pair)
    assert pair.draft is not None
    section = read_config(pair.draft).part(PLANTED).part("predicted_acceptance_length")
    return {int(name.removeprefix("spec-")): section.number(name) for name in section.values}
