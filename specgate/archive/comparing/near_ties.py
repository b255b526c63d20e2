"""Find out how near to a tie the target model was at the places where another engine's text differs.

The reference's engine is loaded again and asked for its two largest logits at these places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from specgate.archive.comparing.engines import CellId, cell_id
from specgate.archive.stored_runs import StoredRun
from specgate.contract import Divergence, NearTies, Plan, Point
from specgate.contract.agreement import Agreement, Match
from specgate.errors import InvalidResult
from specgate.planning.plan import build_plan
from specgate.planning.prompts import Prompts
from specgate.run.beginning import fitting_prompts
from specgate.run.runner import answer_timeout_s, open_request
from specgate.run.worker import EngineWorker

Place = tuple[CellId, int, int, int, int]
"""(cell, prompt set, round, slot, position): where a sequence differs first."""


def with_margins(agreement: Agreement, reference: StoredRun, ties: NearTies, folder: Path) -> Agreement:
    """`agreement` with the top-2 margin of every divergence: the gap between the two largest logits of the reference.

    `Divergence.judged` says which are near ties. The engine's log goes to `folder`. If
    no text differs, no engine is loaded. Raises InvalidResult if the run's prompts cannot be built again, and
    BackendError if the engine does not start.
    """
    places = [place(match, d) for match in agreement.matches for d in match.divergences]
    margins = margins_at(places, reference, folder) if places else {}

    def explained(match: Match) -> Match:
        judged = (d.judged(margins.get(place(match, d)), ties) for d in match.divergences)
        return replace(match, divergences=tuple(judged))

    matches = map(explained, agreement.matches)
    return replace(agreement, matches=tuple(matches))


def place(match: Match, d: Divergence) -> Place:
    return cell_id(match.cell), d.prompt_set, d.round, d.slot, d.position


def margins_at(places: Sequence[Place], reference: StoredRun, folder: Path) -> dict[Place, float]:
    plan = build_plan(tuple(reference.config.scenarios.values()), reference.config.backend)
    prompts = the_same_prompts(plan, reference)
    texts = {(cell_id(b.cell), b.prompt_set, b.round): b.tokens for b in reference.blocks()}
    margins = {}
    for point in plan.points:
        here = sorted({p for p in places if p[0][:3] == (point.scenario, point.context, point.batch)})
        for place, top2 in answers(plan, point, here, prompts[point.key], texts, reference, folder) if here else ():
            margins[place] = top2[0] - top2[1]
    return margins


def answers(
    plan: Plan,
    point: Point,
    places: Sequence[Place],
    prompts: Prompts,
    texts: Mapping[tuple[CellId, int, int], Sequence[Sequence[int]]],
    reference: StoredRun,
    folder: Path,
) -> Iterator[tuple[Place, tuple[float, float]]]:
    """(place, the two largest logits there) for every place of a point that the engine can tell them of."""
    request = open_request(plan, [point], reference.config, folder)
    engine = EngineWorker(point.backend, request, answer_timeout_s(plan, [point]), folder / "reference.log")
    with closing(engine):
        for prompt_set, of_set in groupby(sorted(places, key=itemgetter(1)), key=itemgetter(1)):
            engine.prefill(prompts.measured[prompt_set].token_ids, draft=False)
            for place in of_set:
                cell, _, round_, slot, position = place
                top2 = engine.top2(slot, texts[cell, prompt_set, round_][slot][:position])
                if top2 is not None:
                    yield place, top2


def the_same_prompts(plan: Plan, reference: StoredRun) -> dict[str, Prompts]:
    """Build the prompts of the run again. Raises InvalidResult if they are not the same ones."""
    prompts = fitting_prompts(plan, reference.config)
    for key, made in prompts.items():
        stored = reference.run.prompts.get(key, {}).get("sha256")
        if stored != made.sha256:
            hint = "another tokenizer, or other texts in the cache, than those it was measured with"
            raise InvalidResult(f"{reference.path}: {key}: its prompts cannot be made again", hint=hint)
    return prompts
