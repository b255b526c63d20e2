"""Faults of a verify at a temperature: texts of small chains are drawn with each, and the gate must see it.

The gate judges a stored run whose draws are replaced by these, so that nothing of its way from counts to a verdict is
left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from specgate.analysis.draws.fit_tests import check_draws, often_drawn
from specgate.contract import BASELINE, Rule, Sampling, State
from specgate.contract.draws import DrawnTexts, TokenLaw
from specgate.files.run_folder import RunFolder
from specgate.planning.gates import verdicts_of
from specgate.sampling.keys import Floats, Integers, Keys
from specgate.sampling.rejection import verify_by_rejection
from specgate.selftest.small_chains import Verify, by_coupling, plain_texts, speculative_texts

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
