"""Have an engine draw texts after one short prompt, after all timing, so that their distribution can be judged.

The measuring engine draws, every role the same number of texts. It then shows the distribution that it draws from,
after the beginnings that were drawn often: it alone knows how it rounds. A second engine, the policy's
`checks.rescored_by`, shows the target's after the same ones. Where neither can, roles are compared with each other
alone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from specgate.analysis.draws.fit_tests import often_drawn
from specgate.contract import FORBIDS_ENDS, OWN_NUMBERS, Draws, Plan, Point, Role
from specgate.contract.draws import DrawnTexts, TokenLaw
from specgate.errors import BackendError, SpecgateError
from specgate.files.run_folder import RunFolder
from specgate.planning.prompts import Prompts
from specgate.run.second_engine import SecondEngines
from specgate.run.worker import EngineWorker

AT_A_TIME: Final = 512
"""Requests of one call."""
LEAST_SHARE: Final = 0.1
"""Tokens that are expected less often than so many draws are not listed: they share a bin."""

Texts = tuple[tuple[tuple[int, ...], int], ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    """Texts drawn of a point.

    `laws`: what the engine shows by itself. `engine`: what it computed with. `why`: why it shows nothing. `alone`: why
    no other engine can be asked; None where nothing stands against it.
    """

    began: int
    texts: Mapping[str, Texts]
    undrawn: str | None = None
    laws: tuple[TokenLaw, ...] = ()
    engine: str | None = None
    why: str | None = None
    alone: str | None = None


class Drawer:
    """Draws the texts of a run and stores them in its folder. Points that have some are left out."""

    def __init__(self, plan: Plan, prompts: Mapping[str, Prompts], folder: RunFolder) -> None:
        self.plan, self.prompts, self.folder = plan, prompts, folder
        self.done = folder.keyed(DrawnTexts)
        self._drawn: dict[Point, Drawn] = {}

    def wanting(self, point: Point) -> bool:
        """True if texts of `point` are asked for and not stored yet."""
        return self.plan.scenarios[point.scenario].draws is not None and point.key not in self.done

    def draw(self, point: Point, engine: EngineWorker) -> None:
        """Draw the texts of every role with the engine that measured `point`."""
        draws = self.plan.scenarios[point.scenario].draws
        if draws is None or not self.wanting(point):
            return
        began, texts = time.monotonic_ns(), dict[str, Texts]()
        for turn, role in enumerate(self.plan.scenarios[point.scenario].roles):
            counts = texts_of(engine, role, self.prompt(point, draws), draws, turn * draws.texts)
            if counts is None:
                self._drawn[point] = Drawn(began, {}, f"back end {point.backend} draws no texts")
                return
            texts[role.name] = tuple(sorted(counts.items()))
        self._drawn[point] = self._shown_by_itself(point, Drawn(began, texts), engine)

    def _shown_by_itself(self, point: Point, texts_drawn: Drawn, engine: EngineWorker) -> Drawn:
        """`texts_drawn` with the distributions that the engine itself shows, or with why it shows none."""
        facts = engine.facts()
        alone = None
        if FORBIDS_ENDS in facts.details:
            alone = f"{facts.backend} gives tokens that end a text no chance, which another engine does"
        try:
            laws = self._laws(point, texts_drawn.texts, engine)
        except SpecgateError as error:
            return replace(texts_drawn, why=error.message, alone=alone)
        own = OWN_NUMBERS in facts.details
        how = "by log-probabilities of its own" if own else f"{facts.dtype}, {facts.device}"
        return replace(texts_drawn, laws=laws, engine=f"{facts.backend}, {how}", alone=alone)

    def finish(self, second: SecondEngines) -> None:
        """Ask the second engine about what was drawn, and store the points. An engine that fails costs the
        distributions, never the draws.
        """
        for point, texts_drawn in self._drawn.items():
            laws, other_engine = tuple[TokenLaw, ...](), None
            why = texts_drawn.undrawn or texts_drawn.alone or second.why_not(point)
            if why is None:
                try:
                    laws, other_engine = self._asked_of_another(point, texts_drawn.texts, second)
                except SpecgateError as error:
                    why = str(error)
            if why is not None and texts_drawn.why is not None:
                why = f"{texts_drawn.why}; {why}"
            draws = self.plan.scenarios[point.scenario].draws
            assert draws is not None
            prompt, span_ns = self.prompt(point, draws), (texts_drawn.began, time.monotonic_ns())
            stored = DrawnTexts(
                *(point.key, prompt, texts_drawn.texts, laws, other_engine, why, texts_drawn.undrawn, span_ns),
                own_laws=texts_drawn.laws,
                own_engine=texts_drawn.engine,
                own_unshown=texts_drawn.why,
            )
            self.folder.append(stored)
            self.done[point.key] = stored
        self._drawn.clear()

    def _asked_of_another(
        self, point: Point, texts: Mapping[str, Texts], second: SecondEngines
    ) -> tuple[tuple[TokenLaw, ...], str]:
        """The distributions that the second engine shows, and what it computed with."""
        draws = self.plan.scenarios[point.scenario].draws
        assert draws is not None
        worker, name = second.opened(point, draws.prompt_tokens + draws.tokens, "distribution.log"), second.name
        try:
            return self._laws(point, texts, worker), f"{name}, {worker.facts().dtype}, {worker.facts().device}"
        finally:
            worker.close()

    def _laws(self, point: Point, texts: Mapping[str, Texts], engine: EngineWorker) -> tuple[TokenLaw, ...]:
        """The distribution after the beginnings drawn often, as `engine` shows it."""
        draws = self.plan.scenarios[point.scenario].draws
        assert draws is not None
        laws = list[TokenLaw]()
        for beginning in often_drawn(texts):
            law = engine.distribution(self.prompt(point, draws), beginning, LEAST_SHARE / draws.texts)
            if law is None:
                raise BackendError(f"back end {engine.facts().backend} shows no distribution")
            laws.append(law)
        return tuple(laws)

    def prompt(self, point: Point, draws: Draws) -> tuple[int, ...]:
        """The beginning of the point's first prompt."""
        return tuple(self.prompts[point.key].measured[0].token_ids[0][: draws.prompt_tokens])


def texts_of(
    engine: EngineWorker, role: Role, prompt: Sequence[int], draws: Draws, first: int
) -> Counter[tuple[int, ...]] | None:
    """Count how often each text was drawn; None if the engine draws none.

    Roles get requests of other numbers, `first` and up: with the same random numbers, their texts would be the same,
    and would say less of the role that is compared with another.
    """
    counts: Counter[tuple[int, ...]] = Counter()
    for number in range(0, draws.texts, AT_A_TIME):
        count = min(AT_A_TIME, draws.texts - number)
        texts = engine.draw(role, prompt, draws.tokens, first + number, count)
        if texts is None:
            return None
        counts.update(texts)
    return counts
