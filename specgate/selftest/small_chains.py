"""Texts of small Markov chains, drawn with and without a fault.

Target and draft are tables of probabilities: row x has those of the token that follows x. There is no model, so that
tens of thousands of texts are drawn in well under a second.

The gate judges a stored run whose draws are replaced by these, so that nothing of its way from counts to a verdict is
left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from specgate.analysis.draws.fit_tests import check_draws, often_drawn
from specgate.contract import BASELINE, Rule, Sampling, State
from specgate.contract.draws import DrawnTexts, TokenLaw
from specgate.files.run_folder import RunFolder
from specgate.planning.gates import verdicts_of
from specgate.sampling.keys import Floats, Integers, Keys, Purpose, race, uniforms
from specgate.sampling.rejection import Verified, draft_sample, verify_by_rejection, verify_coupled

Verify = Callable[[Floats, Floats, Integers, Keys], Verified]
"""(target [B, K + 1, V], draft [B, K, V], drafts [B, K], keys) → what is emitted."""


def by_coupling(target: Floats, draft: Floats, drafts: Integers, keys: Keys) -> Verified:
    """`verify_coupled` with the arguments of the others."""
    return verify_coupled(target, drafts, keys)


def always_greedy(target: Floats, draft: Floats, drafts: Integers, keys: Keys) -> Verified:
    """A fault: the verify takes the target's likeliest tokens, whatever the temperature."""
    best = np.argmax(target, axis=-1)
    accepted = np.cumprod(best[:, :-1] == drafts, axis=1).sum(axis=1)
    return Verified(accepted, best)


def one_too_many(target: Floats, draft: Floats, drafts: Integers, keys: Keys) -> Verified:
    """A fault: the first rejected draft token is emitted in the place of its replacement."""
    right = verify_by_rejection(target, draft, drafts, keys)
    accepted = np.arange(drafts.shape[1]) <= right.accepted[:, None]
    tokens = right.tokens.copy()
    tokens[:, :-1] = np.where(accepted, drafts, tokens[:, :-1])
    return Verified(right.accepted, tokens)


def residual_forgotten(target: Floats, draft: Floats, drafts: Integers, keys: Keys) -> Verified:
    """A fault: a rejected draft token is replaced by a draw from the target, and not from what the draft left of it."""
    right = verify_by_rejection(target, draft, drafts, keys)
    tokens = right.tokens.copy()
    for i in range(drafts.shape[1]):
        here = np.flatnonzero(right.accepted == i)
        tokens[here, i] = race(target[here, i], keys.of(here).after(i), Purpose.RESIDUAL)
    return Verified(right.accepted, tokens)


def ratio_forgotten(target: Floats, draft: Floats, drafts: Integers, keys: Keys) -> Verified:
    """A fault: a draft token is accepted with the target's chance of it, not divided by the draft's."""
    k, each = drafts.shape[1], np.arange(len(drafts))
    chances = np.stack([target[each, i, drafts[:, i]] for i in range(k)], axis=1)
    draws = np.concatenate([uniforms(keys.after(i), Purpose.ACCEPT, 1) for i in range(k)], axis=1)
    accepted = np.cumprod(draws < chances, axis=1).sum(axis=1)
    tokens = np.concatenate((drafts, np.zeros((len(drafts), 1), np.int64)), axis=1)
    for i in range(k + 1):
        here = np.flatnonzero(accepted == i)
        left = target[here, i] if i == k else np.maximum(target[here, i] - draft[here, i], 1e-12)
        tokens[here, i] = race(left, keys.of(here).after(i), Purpose.RESIDUAL)
    return Verified(accepted, tokens)


FAULTS: Final[Mapping[str, Verify]] = {
    "verify that is always greedy": always_greedy,
    "verify that accepts one draft too many": one_too_many,
    "verify that forgets the residual": residual_forgotten,
    "verify that forgets the draft's share": ratio_forgotten,
}


def plain_texts(target: Floats, first: int, length: int, keys: Keys) -> Integers:
    """Texts int64 [B, length] that plain sampling draws after the token `first`."""
    texts = np.empty((len(keys.requests), length), np.int64)
    last = np.full(len(texts), first)
    for i in range(length):
        texts[:, i] = last = race(target[last], keys.after(i), Purpose.TARGET)
    return texts


def speculative_texts(
    target: Floats, draft: Floats, first: int, length: int, keys: Keys, k: int, verify: Verify, *, coupled: bool = False
) -> tuple[Integers, Integers]:
    """Texts int64 [B, length] after the token `first`, drawn with chains of `k` draft tokens, and int64 [B, steps] of
    draft tokens that each step accepted; −1 where a text was complete.
    """
    batch = len(keys.requests)
    texts, done = np.zeros((batch, length + k + 1), np.int64), np.zeros(batch, np.int64)
    last, accepted = np.full(batch, first), list[Integers]()
    while (left := np.flatnonzero(done < length)).size:
        now = keys.of(left)
        now = Keys(now.seed, now.requests, now.positions + done[left])
        rows = [last[left]]
        for i in range(k):
            rows.append(draft_sample(draft[rows[-1]], now.after(i), coupled=coupled))
        before = np.stack(rows, axis=1)
        verified = verify(target[before], draft[before[:, :-1]], before[:, 1:], now)
        for i in range(k + 1):
            emitted = left[i <= verified.accepted]
            texts[emitted, done[emitted] + i] = verified.tokens[i <= verified.accepted, i]
        done[left] += verified.accepted + 1
        last[left] = texts[left, done[left] - 1]
        accepted.append(np.full(batch, -1))
        accepted[-1][left] = verified.accepted
    return texts[:, :length], np.stack(accepted, axis=1)


DRAWS: Final = 20_000
TOKENS: Final = 8
LENGTH: Final = 4
SURE: Final = 1e-9
"""The false alarm at which a fault must be seen."""
USUAL: Final = 1e-6
"""That at which a right verify must pass."""
RIGHT: Final[Mapping[str, Verify]] = {"verify by rejection": verify_by_rejection, "coupled verify": by_coupling}


def chains() -> tuple[Floats, Floats]:
    """A target and a draft that it often rejects: probabilities float64 [TOKENS, TOKENS], a row after each token."""
    source = np.random.default_rng(1)
    rows = source.dirichlet(np.full(TOKENS, 0.6), (2, TOKENS))
    return rows[0], (rows[0] + rows[1]) / 2


def distribution_verdicts(run_folder: Path, verify: Verify, alpha: float) -> list[tuple[State, str]]:
    """The verdicts of the gate `distribution` on a stored run, as (state, reason code), if its spec cells had drawn
    their texts with `verify`, at the false alarm `alpha`.
    """
    rule = Rule("drawn", "distribution", True, role="spec-*", params={"alpha": alpha, "min_draws": DRAWS})
    run = RunFolder.open(run_folder).read_run()
    scenarios = {name: replace(s, sampling=Sampling()) for name, s in run.scenarios.items()}
    draws = {}
    for cell in (result.cell for result in run.cells):
        texts = texts_drawn(cell.point.key, cell.role.name, max(cell.role.k, 1), verify)
        draws[cell.key] = check_draws(texts, cell.role)
    judged = verdicts_of(rule, replace(run, scenarios=scenarios, draws=draws))
    return [(v.state, v.reason_code) for v in judged]


def texts_drawn(point: str, role: str, k: int, verify: Verify) -> DrawnTexts:
    """Texts of the baseline and of a role that drafts `k` tokens, with the law of the chain that they come from."""
    target, draft = chains()
    requests, begin = np.arange(DRAWS, dtype=np.uint64), np.zeros(DRAWS, np.int64)
    plain = plain_texts(target, 0, LENGTH, Keys(1, requests, begin))
    spec, _ = speculative_texts(target, draft, 0, LENGTH, Keys(2, requests, begin), k, verify)
    texts = {role: counted(spec), BASELINE.name: counted(plain)}
    tokens = tuple(range(TOKENS))
    laws = tuple(TokenLaw(g, tokens, tuple(target[g[-1] if g else 0].tolist())) for g in often_drawn(texts))
    return DrawnTexts(point, (0,), texts, laws, "the chain itself", None, None, (0, 0))


def counted(texts: Integers) -> tuple[tuple[tuple[int, ...], int], ...]:
    """(text, how often it was drawn) of texts int64 [B, length]."""
    return tuple(sorted(Counter(map(tuple, texts.tolist())).items()))
