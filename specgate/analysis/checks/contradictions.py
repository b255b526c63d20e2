"""All checks over the cells of a run: which cells contradict themselves, and why. None of their figures is quoted."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from specgate.analysis.checks.clocks import check_pairs, check_times, check_unexplained
from specgate.analysis.checks.floors import check_floor
from specgate.analysis.checks.identities import check_block
from specgate.analysis.checks.pace import check_engine_clock, check_first_chunks, check_steps
from specgate.analysis.checks.repeats import check_repeats
from specgate.analysis.checks.verification import check_first_steps, check_untimed, check_verification
from specgate.analysis.grouping import grouped
from specgate.analysis.prompt_acceptance import total_of
from specgate.analysis.rounds import pairs_of
from specgate.analysis.speculation.drafting import check_draft_counts, check_reported_counts
from specgate.analysis.speculation.rewinds import check_rewinds
from specgate.contract import BASELINE, BaselineText, Block, Budget, Cell, EngineFacts, Margin, Plan
from specgate.contract.cycle_budget import Bandwidth
from specgate.errors import InvalidResult


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Reason that the records of a cell cannot be true: a code, and a sentence with the figures."""

    reason_code: str
    message: str


@dataclass(frozen=True, slots=True)
class CheckFacts:
    """Facts that records are compared with: the engines' own, and the machine's.

    `engines`: point key → the engine's facts; without them, vocabulary and floors are not checked.
    `bandwidth`: of this machine's memory; None where it was not measured.
    `lossy`: keys of spec cells whose tokens may differ from the baseline's by the policy's word.
    """

    engines: Mapping[str, EngineFacts]
    bandwidth: Bandwidth | None
    lossy: Collection[str] = ()


UNKNOWN = CheckFacts({}, None)
"""Of blocks whose engine is not known."""


def contradictions(
    plan: Plan,
    of: Mapping[Cell, Sequence[Block]],
    margins: Sequence[Margin],
    check_facts: CheckFacts,
    sound: set[int] | None = None,
    texts: Sequence[BaselineText] = (),
) -> dict[Cell, Contradiction]:
    """Cell → the first contradiction among its blocks (`of`, without warm-up) and its margins, where there is one.

    `texts`: untimed texts of the baseline.

    `sound`: ids of blocks in which an earlier call with the same `check_facts` saw no contradiction. This call adds its
    own.
    """
    sound = set() if sound is None else sound
    known = grouped(margins, lambda margin: margin.cell)
    of_point = grouped(texts, lambda text: text.point)
    broken: dict[Cell, Contradiction] = {}
    for cell, blocks in of.items():
        if blocks and (why := contradiction(plan, cell, blocks, known[cell.key], check_facts, sound)):
            broken[cell] = why
    for cell, blocks in of.items():
        if cell not in broken:
            untimed = of_point[cell.point] if real_clock(cell, check_facts) else ()
            of_untimed = (
                ("clocks_disagree", partial(check_first_steps, blocks)),
                ("slow_where_timed", partial(check_untimed, blocks, untimed)),
            )
            if why := first_of(of_untimed):
                broken[cell] = why
    for cell, blocks in of.items():
        baseline = Cell(cell.point, BASELINE)
        # Only clocks that stand up by themselves are compared with each other.
        if cell.role.speculative and broken.keys().isdisjoint((cell, baseline)):
            pairs = list(pairs_of([*of.get(baseline, ()), *blocks], cell))
            whole = whole_requests(plan, cell)
            repeats = blocks if repeats_accepts(plan, cell, check_facts) else ()
            scenario, facts = plan.scenarios[cell.point.scenario], check_facts.engines.get(cell.point.key)
            device = facts.device if facts else None
            checks = (
                ("accepts_do_not_repeat", partial(check_repeats, repeats)),
                ("clocks_disagree", partial(check_pairs, pairs, whole)),
                ("clocks_disagree", partial(check_first_chunks, [] if whole else pairs)),
                ("clocks_disagree", partial(check_engine_clock, pairs)),
                ("faster_than_verification", partial(check_verification, pairs, scenario, device)),
            )
            if why := first_of(checks):
                broken[cell] = why
    return broken


def real_clock(cell: Cell, check_facts: CheckFacts) -> bool:
    """True if steps of `cell`, a baseline, were timed and not scripted."""
    facts = check_facts.engines.get(cell.point.key)
    return not cell.role.speculative and not (facts and facts.acceptance == "scripted")


def repeats_accepts(plan: Plan, cell: Cell, check_facts: CheckFacts) -> bool:
    """True if the drafts of `cell` follow from its text alone: nothing is drawn, forced, scripted or shared by load."""
    scenario, facts = plan.scenarios[cell.point.scenario], check_facts.engines.get(cell.point.key)
    own = facts is not None and facts.acceptance not in ("forced", "scripted")
    return own and scenario.sampling is None and scenario.load is None


def contradiction(
    plan: Plan, cell: Cell, blocks: Sequence[Block], margins: Sequence[Margin], check_facts: CheckFacts, sound: set[int]
) -> Contradiction | None:
    """The first contradiction within `cell`; None where there is none. `sound`: see `contradictions`."""
    budget, facts = plan.scenarios[cell.point.scenario].budget, check_facts.engines.get(cell.point.key)
    unseen = [block for block in blocks if id(block) not in sound]
    failure = first_of(
        (
            ("drafts_beyond_k", partial(check_draft_counts, unseen)),
            ("counter_identity", partial(check_records, blocks, unseen, budget, facts)),
            ("unexpected_rewind", partial(check_rewinds, unseen)),
            ("counter_identity", partial(check_reported_counts, unseen)),
            ("counter_identity", partial(check_steps, blocks)),
            ("clocks_disagree", partial(check_clocks, blocks, whole_requests(plan, cell), unseen)),
            ("faster_than_memory", partial(check_floor, blocks, facts, check_facts.bandwidth)),
            ("margin_impossible", partial(check_margins, margins)),
        )
    )
    if failure is None:
        sound.update(map(id, unseen))
    return failure


def first_of(checks: Iterable[tuple[str, Callable[[], None]]]) -> Contradiction | None:
    """Return the failure of the first of `checks` (reason code, check) that fails; None if all hold."""
    for code, check in checks:
        try:
            check()
        except InvalidResult as error:
            return Contradiction(code, str(error))
    return None


def check_records(blocks: Sequence[Block], unseen: Sequence[Block], budget: Budget, facts: EngineFacts | None) -> None:
    """The counts of every block that is `unseen`, and the sums of all. Raises InvalidResult."""
    for block in unseen:
        check_block(block, budget, facts)
    if blocks[0].role.speculative:
        total_of(blocks)


def check_clocks(blocks: Sequence[Block], whole: bool, unseen: Sequence[Block] | None = None) -> None:
    """The times of every block that is `unseen` (None: of all), and what all leave unexplained. Raises InvalidResult.

    `whole`: with own prefill.
    """
    for block in blocks if unseen is None else unseen:
        check_times(block, whole)
    check_unexplained(blocks, whole)


def check_margins(margins: Sequence[Margin]) -> None:
    """The largest logit is at least the second largest, and both are numbers. Raises InvalidResult."""
    for m in margins:
        if not (math.isfinite(m.top1) and math.isfinite(m.top2) and m.top1 >= m.top2):
            raise InvalidResult(
                f"{m.cell} set {m.prompt_set} round {m.round} slot {m.slot}: the two largest logits at token "
                f"{m.position} are {m.top1:g} and {m.top2:g}: the first must be a number that is not below the second"
            )


def whole_requests(plan: Plan, cell: Cell) -> bool:
    """True if the blocks of `cell` include their own prefill."""
    return plan.scenarios[cell.point.scenario].whole_requests
