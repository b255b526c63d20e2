"""Raw blocks → cells and comparisons. Pure: the same journal gives the same figures, so a verdict can be recomputed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

from specgate.analysis.cell_figures import (
    active_values,
    asked_again,
    cache_hits,
    draft_values,
    ended_early,
    latency_values,
    series,
    speed_values,
)
from specgate.analysis.checks.contradictions import UNKNOWN, CheckFacts, Contradiction, contradictions
from specgate.analysis.checks.served import clock_values
from specgate.analysis.grouping import grouped, measured_by_cell
from specgate.analysis.intervals.between_runs import ASSUMED
from specgate.analysis.load.figures import load_values
from specgate.analysis.load.sweeps import compared
from specgate.analysis.machine.disturbed_blocks import SetAside, timed
from specgate.analysis.paired_blocks import compare
from specgate.analysis.prompt_acceptance import by_prompt, total_of
from specgate.analysis.requests.figures import distributions
from specgate.analysis.requests.timing import requests_of
from specgate.analysis.tokens.checking import check_tokens, repeats_of
from specgate.analysis.tokens.near_ties import SCORED
from specgate.analysis.tokens.repetition import repeat_values
from specgate.analysis.tokens.rescoring import check_scores
from specgate.contract import (
    BASELINE,
    LOSSY,
    BaselineText,
    BetweenRuns,
    Block,
    Cell,
    CellResult,
    Comparison,
    Divergence,
    Followed,
    LogitSample,
    Margin,
    NearTies,
    Plan,
    Point,
    Rescoring,
    Round,
    ScoreCheck,
    TimeEnd,
    TimeEnds,
    TokenCheck,
    TokenChecks,
    Value,
)
from specgate.contract.metrics import PER_REQUEST, STATISTICS, per_request
from specgate.errors import InvalidResult

SPEEDS = (
    *("output_tok_s", "output_tok_s_per_user", "decode_tok_s", "decode_tok_s_per_user", "goodput_share"),
    *("joint_decode_tok_s", "joint_tpot_ms"),
    *("step_ms", "goodput_req_s", "throughput_req_s"),
    *(per_request(statistic, quantity) for quantity in PER_REQUEST if quantity != "ttft" for statistic in STATISTICS),
)
"""Metrics that may not be quoted for a spec cell whose tokens are not the baseline's."""
UNMEASURED: Mapping[str, BetweenRuns] = {}
"""Nothing is known of what differs between runs."""
ENDLESS: TimeEnds = {}
"""No point was measured until its time was spent."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Records, stored beside the blocks, that their tokens are checked by.

    `rescorings`: point key → scores of its tokens by a second engine.
    `asked`: how far the run set out to check tokens.
    """

    texts: Sequence[BaselineText] = ()
    logits: Sequence[LogitSample] = ()
    rescorings: Mapping[str, Rescoring] = field(default_factory=dict)
    asked: TokenChecks = field(default_factory=TokenChecks)
    followed: Sequence[Followed] = ()


class Deferred(Mapping[str, Value]):
    """The figures of a cell, computed when the first of them is asked for."""

    def __init__(self, compute: Callable[[], Mapping[str, Value]]) -> None:
        self._compute = compute

    @cached_property
    def _values(self) -> Mapping[str, Value]:
        return self._compute()

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@dataclass(frozen=True, slots=True)
class Known:
    """Cache of results per cell, keyed by the identity of its blocks. Keep the blocks alive as long as the cache.

    `results`: of cells, by everything that they follow from. `sound`: ids of blocks without a contradiction.
    """

    results: dict[tuple[object, ...], CellResult] = field(default_factory=dict)
    sound: set[int] = field(default_factory=set)


def measure(
    plan: Plan,
    blocks: Sequence[Block],
    margins: Sequence[Margin],
    ties: NearTies,
    records: Checked | None = None,
    *,
    forced: bool = False,
    check_facts: CheckFacts = UNKNOWN,
    known: Known | None = None,
    aside: SetAside | None = None,
    between: Mapping[str, BetweenRuns] = UNMEASURED,
    ends: TimeEnds = ENDLESS,
    brief: bool = False,
) -> tuple[tuple[CellResult, ...], tuple[Comparison, ...]]:
    """Every cell of `plan`, and every spec cell compared with its baseline. Warm-up blocks are left out.

    `blocks` must come from whole rounds.
    `ties`: which recorded top-2 margins are near ties.
    `forced`: acceptance was forced, so tokens are not compared.
    `check_facts`: facts of engines and machine that the records are compared with.
    `known`: what earlier calls over the same blocks and `check_facts` have left; this call adds its own.
    `aside`: rounds whose times are left out. Their tokens and drafts count like those of any other.
    `between`: `Run.between_runs`. `ends`: `Run.time_ends`.
    `brief`: cells have what gates judge alone. What only pages show (`series_ms`, `distributions`) is left out.

    A cell has failed where its records contradict themselves: none of its figures may then be quoted.
    """
    records, aside, known = records or Checked(), aside or {}, known or Known()
    ties = replace(ties, cells=max(1, sum(cell.role.speculative for cell in plan.cells)))
    engines = ((point, check_facts.engines.get(point.key)) for point in plan.points)
    ties_of = {point: ties.in_cache(facts.kv_cache) if facts else ties for point, facts in engines}
    of, broken = sound_blocks(plan, blocks, margins, check_facts, known.sound, records.texts)
    by_point: dict[Point, list[Block]] = {point: [] for point in plan.points}
    for cell, cell_blocks in of.items():
        by_point[cell.point] += cell_blocks
    texts = grouped(records.texts, lambda text: text.point)

    def tokens_of(cell: Cell) -> TokenCheck:
        if forced or not plan.scenarios[cell.point.scenario].repeats_baseline:
            return TokenCheck(0, ())
        mine = [b for b in by_point[cell.point] if b.role in (BASELINE, cell.role)]
        pairs = compared(mine, plan.scenarios[cell.point.scenario])
        beside = texts[cell.point], records.logits, records.followed
        check = check_tokens(cell, pairs, margins, ties_of[cell.point], *beside, records.asked.followed)
        return replace(check, lossy=is_lossy(cell, check_facts))

    comparisons = tuple(
        compare(plan, cell, timed(by_point[cell.point], aside), tokens_of(cell), between.get(cell.key, ASSUMED))
        for cell in plan.cells
        if cell.role.speculative and plan.scenarios[cell.point.scenario].baseline
    )
    unlike = {c.cell for c in comparisons if c.tokens.defects}
    measured_rounds = {point: measured(plan.rounds_of(point)) for point in plan.points}

    def reduced(cell: Cell) -> CellResult:
        rounds = measured_rounds[cell.point]
        left_out, spent = aside.get(cell.point.key, frozenset()), ends.get(cell.point.key, ())
        beside = tuple(map(id, texts[cell.point])), seen(cell, margins) if ties else 0
        key = (cell, rounds, tuple(map(id, of[cell])), beside, cell in unlike, left_out, spent)
        if key not in known.results:
            repeats = repeats_of(cell, of[cell], margins, ties_of[cell.point], texts[cell.point])
            known.results[key] = reduce_cell(
                plan, cell, of[cell], rounds, records.texts, repeats, withhold=cell in unlike, aside=aside, ends=spent
            )
        return known.results[key]

    def in_brief(cell: Cell) -> CellResult:
        without = without_figures(cell, of[cell], measured_rounds[cell.point], aside)
        return replace(without, values=Deferred(lambda: reduced(cell).values))

    result_of = in_brief if brief else reduced
    cells = tuple(result_of(cell) if of[cell] else failed(cell, broken.get(cell)) for cell in plan.cells)
    scores = {
        point: scores_of(by_point[point], rescoring, SCORED / len(plan.cells))
        for point in plan.points
        if (rescoring := records.rescorings.get(point.key)) is not None and by_point[point]
    }
    return tuple(rescored(result, scores.get(result.cell.point, {})) for result in cells), comparisons


def seen(cell: Cell, margins: Sequence[Margin]) -> int:
    """Return how much is known of the gaps of `cell`."""
    return sum(1 + len(m.again) + len(m.float32) + len(m.second) for m in margins if m.cell == cell.key)


def is_lossy(cell: Cell, check_facts: CheckFacts) -> bool:
    """True if the engine declares that speculation may emit other tokens than the baseline, or the policy marks it."""
    facts = check_facts.engines.get(cell.point.key)
    declared = facts is not None and LOSSY in facts.details
    return cell.role.speculative and (declared or cell.key in check_facts.lossy)


def measured(rounds: Iterable[Round]) -> tuple[tuple[int, int], ...]:
    """(prompt set, round) of the rounds that are no warm-up."""
    return tuple((r.prompt_set, r.index) for r in rounds if not r.warmup)


def sound_blocks(
    plan: Plan,
    blocks: Iterable[Block],
    margins: Sequence[Margin],
    check_facts: CheckFacts,
    sound: set[int] | None = None,
    texts: Sequence[BaselineText] = (),
) -> tuple[dict[Cell, list[Block]], dict[Cell, Contradiction]]:
    """(cell → its measured blocks, cell → the contradiction in its records, whose blocks are then left out).

    `sound`, `texts`: see `contradictions`.
    """
    of = measured_by_cell(blocks)
    broken = contradictions(plan, of, margins, check_facts, sound, texts)
    for cell in broken:
        of[cell] = []
    return of, broken


Scores = Mapping[Cell, ScoreCheck | str]
"""Cell → what a second engine said of its tokens, or why that contradicts the journal."""


def scores_of(blocks: Sequence[Block], rescoring: Rescoring, error: float) -> Scores:
    """Check a second engine's scores of the tokens of one point. `blocks`: its measured blocks. `error`: as in
    `check_scores`.
    """
    scores: dict[Cell, ScoreCheck | str] = {}
    for cell in {b.cell for b in blocks}:
        try:
            scores[cell] = check_scores(cell, blocks, rescoring, error)
        except InvalidResult as contradiction:
            scores[cell] = str(contradiction)
    return scores


def rescored(result: CellResult, scores: Scores) -> CellResult:
    """`result` with what a second engine said of its tokens. It has failed where that contradicts the journal."""
    score = scores.get(result.cell)
    if result.status == "failed" or score is None:
        return result
    if isinstance(score, str):
        return failed(result.cell, Contradiction("scores_contradict", score))
    return replace(result, rescored=score)


def failed(cell: Cell, why: Contradiction | None) -> CellResult:
    """The result of a cell without figures: `why` its records contradict themselves, or None where it has none."""
    if why is None:
        return CellResult(cell, "failed", "no block was measured", 0, None, {}, ())
    message = why.message.removeprefix(cell.key).lstrip(": ")
    return CellResult(cell, "failed", message, 0, None, {}, (), reason_code=why.reason_code)


def without_figures(
    cell: Cell, blocks: Sequence[Block], rounds: Sequence[tuple[int, int]], aside: SetAside
) -> CellResult:
    """The result of one cell with blocks, its `values` and all that only pages show left out. See `reduce_cell`."""
    missing = len(rounds) - len(blocks)
    return CellResult(
        cell=cell,
        status="partial" if missing else "ok",
        reason=f"{missing} of {len(rounds)} blocks are missing" if missing else None,
        blocks=len(blocks),
        acceptance=total_of(blocks) if cell.role.speculative else None,
        values={},
        series_ms=(),
        set_aside=len(blocks) - len(timed(blocks, aside)),
    )


def reduce_cell(
    plan: Plan,
    cell: Cell,
    blocks: Sequence[Block],
    rounds: Sequence[tuple[int, int]],
    texts_beside: Sequence[BaselineText],
    repeats: Sequence[Divergence],
    *,
    withhold: bool,
    aside: SetAside,
    ends: Sequence[TimeEnd],
) -> CellResult:
    """The result of one cell with blocks. With `withhold`, its speeds are left out because its tokens are wrong.

    `rounds`: (prompt set, round) of every planned round, in running order. `texts_beside`: the untimed baseline texts,
    which a baseline cell has to repeat. `repeats`: see `repeat_values`. `aside`: see `measure`. `ends`: of its point.
    """
    result, clocked = without_figures(cell, blocks, rounds, aside), timed(blocks, aside)
    scenario = plan.scenarios[cell.point.scenario]
    prompts = by_prompt(blocks) if cell.role.speculative else {}
    whole_requests = scenario.whole_requests
    requests = [list(requests_of(block, whole_requests)) for block in clocked]
    values = {
        v.metric: v
        for v in (
            *(load_values(clocked) if scenario.load is not None else speed_values(clocked, whole_requests)),
            *(latency_values(clocked, requests, scenario, ends) if clocked else ()),
            *active_values(blocks),
            *draft_values(blocks, prompts, result.acceptance, scenario.budget),
            *repeat_values(blocks, [] if cell.role.speculative else texts_beside, repeats),
            *cache_hits(blocks),
            *asked_again(blocks),
            *ended_early(blocks),
            *clock_values(clocked),
        )
    }
    if withhold:
        values |= {
            m: Value(m, None, v.stat, v.n, reason_code="token_mismatch") for m, v in values.items() if m in SPEEDS
        }
    return replace(
        result,
        values=values,
        series_ms=series(rounds, clocked),
        distributions={} if withhold else distributions(chain.from_iterable(requests)),
    )
