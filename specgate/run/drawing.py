"""Have an engine draw texts after one short prompt, after all timing, so that their distribution can be judged.

The measuring engine draws, every role the same number of texts. It then shows the distribution that it draws from,
after the beginnings that were drawn often: it alone knows how it rounds. A second engine, the policy's
`checks.rescored_by`, shows the target's after the same ones. Where neither can, roles are held against each other
alone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from specgate.analysis.draws.fit_tests import often_drawn
from specgate.contract import FORBIDS_ENDS, OWN_NUMBERS, Draws, Plan, Point, Role
from specgate.contract.draws import DrawnTexts, TokenLaw
from specgate.errors import BackendError, SpecgateError
from specgate.files.run_folder import RunFolder
from specgate.planning.prompts import Prompts
from specgate.run.worker import EngineWorker

AT_A_TIME: Final = 512
"""Requests of one call."""
LEAST_SHARE: Final = 0.1
"""Tokens that are expected less often than so many draws are not listed: they share a bin."""

Texts = tuple[tuple[tuple[int, ...], int], ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn of a point.

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
        """Whether texts of `point` are asked for and not stored yet."""
        return self.plan.scenarios[point.scenario].draws is not None and point.key not in self.done

    def draw(self, point: Point, engine: EngineWorker) -> None:
        """Draw the texts of every role with the engine that measured `point`."""
        asked = self.plan.scenarios[point.scenario].draws
        if asked is None or not self.wanting(point):
            return
        began, texts = time.monotonic_ns(), dict[str, Texts]()
        for turn, role in enumerate(self.plan.scenarios[point.scenario].roles):
            counts = texts_of(engine, role, self.prompt(point, asked), asked, turn * asked.texts)
            if counts is None:
                self._drawn[point] = Drawn(began, {}, f"back end {point.backend} draws no texts")
                return
            texts[role.name] = tuple(sorted(counts.items()))
        self._drawn[point] = self._shown_by_itself(point, Drawn(began, texts), engine)

    def _shown_by_itself(self, point: Point, drawn: Drawn, engine: EngineWorker) -> Drawn:
        """`drawn` with the distributions that the engine itself shows, or with why it shows none."""
        facts = engine.facts()
        alone = None
        if FORBIDS_ENDS in facts.details:
            alone = f"{facts.backend} gives tokens that end a text no chance, which another engine does"
        try:
            laws = self._laws(point, drawn.texts, engine)
        except SpecgateError as error:
            return replace(drawn, why=error.message, alone=alone)
        own = OWN_NUMBERS in facts.details
        how = "by log-probabilities of its own" if own else f"{facts.dtype}, {facts.device}"
        return replace(drawn, laws=laws, engine=f"{facts.backend}, {how}", alone=alone)

    def finish(
        self, why_not: Callable[[Point], str | None], opened: Callable[[Point, int, str], EngineWorker], name: str
    ) -> None:
        """Ask the second engine, called `name`, about what was drawn, and store the points. `why_not`: why it cannot
        be asked about a point. An engine that fails costs the distributions, never the draws.
        """
        for point, drawn in self._drawn.items():
            laws, said = tuple[TokenLaw, ...](), None
            why = drawn.undrawn or drawn.alone or why_not(point)
            if why is None:
                try:
                    laws, said = self._asked_of_another(point, drawn.texts, opened, name)
                except SpecgateError as error:
                    why = str(error)
            if why is not None and drawn.why is not None:
                why = f"{drawn.why}; {why}"
            asked = self.plan.scenarios[point.scenario].draws
            assert asked is not None
            prompt, span_ns = self.prompt(point, asked), (drawn.began, time.monotonic_ns())
            found = DrawnTexts(
                *(point.key, prompt, drawn.texts, laws, said, why, drawn.undrawn, span_ns),
                own_laws=drawn.laws,
                own_engine=drawn.engine,
                own_unshown=drawn.why,
            )
            self.folder.append(found)
            self.done[point.key] = found
        self._drawn.clear()

    def _asked_of_another(
        self, point: Point, texts: Mapping[str, Texts], opened: Callable[[Point, int, str], EngineWorker], name: str
    ) -> tuple[tuple[TokenLaw, ...], str]:
        """The distributions that the engine called `name` shows, and what it computed with."""
        asked = self.plan.scenarios[point.scenario].draws
        assert asked is not None
        worker = opened(point, asked.prompt_tokens + asked.tokens, "distribution.log")
        try:
            return self._laws(point, texts, worker), f"{name}, {worker.facts().dtype}, {worker.facts().device}"
        finally:
            worker.close()

    def _laws(self, point: Point, texts: Mapping[str, Texts], engine: EngineWorker) -> tuple[TokenLaw, ...]:
        """The distribution after the beginnings drawn often, as `engine` shows it."""
        asked = self.plan.scenarios[point.scenario].draws
        assert asked is not None
        laws = list[TokenLaw]()
        for given in often_drawn(texts):
            law = engine.distribution(self.prompt(point, asked), given, LEAST_SHARE / asked.texts)
            if law is None:
                raise BackendError(f"back end {engine.facts().backend} shows no distribution")
            laws.append(law)
        return tuple(laws)

    def prompt(self, point: Point, asked: Draws) -> tuple[int, ...]:
        """The beginning of the point's first prompt."""
        return tuple(self.prompts[point.key].measured[0].token_ids[0][: asked.prompt_tokens])


def texts_of(
    engine: EngineWorker, role: Role, prompt: Sequence[int], asked: Draws, first: int
) -> Counter[tuple[int, ...]] | None:
    """How often each text was drawn; None where the engine draws none.

    Roles get requests of other numbers, `first` and up: with the same random numbers, their texts would be the same,
    and would say less of the role that is held against another.
    """
    counts: Counter[tuple[int, ...]] = Counter()
    for number in range(0, asked.texts, AT_A_TIME):
        count = min(AT_A_TIME, asked.texts - number)
        texts = engine.draw(role, prompt, asked.tokens, first + number, count)
        if texts is None:
            return None
        counts.update(texts)
    return counts
