"""Raw blocks → cells and comparisons. Pure: the same journal gives the same figures, so a verdict can be recomputed."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specgate.analysis.block_figures import block_figures, ms_per_token
from specgate.analysis.checks.contradictions import UNKNOWN, Contradiction, Grounds, contradictions
from specgate.analysis.checks.drafting import missed_steps
from specgate.analysis.checks.identities import draft_errors
from specgate.analysis.checks.served import clock_values, served_steps
from specgate.analysis.context_depth import by_depth
from specgate.analysis.intervals.between_runs import ASSUMED
from specgate.analysis.load.compared import compared
from specgate.analysis.load.figures import load_values
from specgate.analysis.machine.disturbed_blocks import SetAside, timed
from specgate.analysis.paired_blocks import compare
from specgate.analysis.prompt_acceptance import PromptRecords, by_prompt, length_values, pooled, position_values
from specgate.analysis.requests.distributions import distributions
from specgate.analysis.requests.figures import request_values
from specgate.analysis.requests.goodput import goodput_values
from specgate.analysis.requests.percentiles import ERROR
from specgate.analysis.requests.timing import requests_of
from specgate.analysis.stats import planned_looks
from specgate.analysis.tokens.comparison import check_tokens, first_difference, repeats_of
from specgate.analysis.tokens.following import check_followed, parted_texts
from specgate.analysis.tokens.repetition import repeated_ngram_share
from specgate.analysis.tokens.rescoring import Draw, check_scores, draws
from specgate.core import (
    BASELINE,
    BaselineText,
    BetweenRuns,
    Block,
    Budget,
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
    Scenario,
    ScoreCheck,
    TokenCheck,
    TokenChecks,
    Value,
)
from specgate.core.acceptance import AcceptanceRecord
from specgate.core.metrics import PER_REQUEST, STATISTICS, per_request
from specgate.errors import InvalidResult

SPEEDS = (
    *("output_tok_s", "output_tok_s_per_user", "decode_tok_s", "decode_tok_s_per_user", "goodput_share"),
    *("tpot_ms", "step_ms", "e2e_ms", "icl_ms", "goodput_req_s", "throughput_req_s"),
    *(per_request(statistic, quantity) for quantity in PER_REQUEST if quantity != "ttft" for statistic in STATISTICS),
)
"""Metrics that may not be quoted for a spec cell whose tokens are not the baseline's."""
UNMEASURED: Mapping[str, BetweenRuns] = {}
"""Nothing is known of what differs between runs."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What was recorded beside the blocks to check their tokens by.

    `rescorings`: point key → how its tokens were scored by a second engine.
    `asked`: how far the run set out to check tokens; None in runs stored before there were such checks.
    """

    texts: Sequence[BaselineText] = ()
    logits: Sequence[LogitSample] = ()
    rescorings: Mapping[str, Rescoring] = field(default_factory=dict)
    asked: TokenChecks | None = None
    run_id: str = ""
    followed: Sequence[Followed] = ()


@dataclass(frozen=True, slots=True)
class Known:
    """What earlier calls over the same blocks have found. Blocks are told apart by identity, so they have to live on.

    `results`: of cells, by everything that they follow from. `sound`: blocks that hold by themselves.
    """

    results: dict[tuple[object, ...], CellResult] = field(default_factory=dict)
    sound: set[int] = field(default_factory=set)


def measure(
    plan: Plan,
    blocks: Sequence[Block],
    margins: Sequence[Margin],
    ties: NearTies,
    checked: Checked | None = None,
    *,
    forced: bool = False,
    grounds: Grounds = UNKNOWN,
    known: Known | None = None,
    aside: SetAside | None = None,
    between: Mapping[str, BetweenRuns] = UNMEASURED,
) -> tuple[tuple[CellResult, ...], tuple[Comparison, ...]]:
    """Every cell of `plan`, and every spec cell compared with its baseline. Warm-up blocks are left out.

    `blocks` must come from whole rounds.
    `ties`: which recorded top-2 margins are near ties.
    `forced`: acceptance was forced, so tokens are not compared.
    `grounds`: what the records are held against beside each other.
    `known`: what earlier calls over the same blocks and `grounds` have left; this call adds its own.
    `aside`: rounds whose times are left out. Their tokens and drafts count like those of any other.
    `between`: `Run.between_runs`.

    A cell has failed where its records contradict themselves: none of its figures may then be quoted.
    """
    checked, aside, known = checked or Checked(), aside or {}, known or Known()
    of, broken = sound_blocks(plan, blocks, margins, grounds, known.sound)
    by_point: dict[Point, list[Block]] = {point: [] for point in plan.points}
    for cell, found in of.items():
        by_point[cell.point] += found
    texts: dict[Point, list[BaselineText]] = defaultdict(list)
    for text in checked.texts:
        texts[text.point].append(text)

    def tokens_of(cell: Cell) -> TokenCheck:
        if forced:
            return TokenCheck(0, ())
        mine = [b for b in by_point[cell.point] if b.role in (BASELINE, cell.role)]
        pairs = compared(mine, plan.scenarios[cell.point.scenario])
        beside, whole = (texts[cell.point], checked.logits), checked.asked is not None
        check = check_tokens(cell, pairs, margins, ties, *beside, whole=whole)
        most = checked.asked.followed if checked.asked else None
        if not most or not ties.ulps:
            return check
        parted = parted_texts(cell, pairs, check.divergences, most)
        return replace(check, followed=check_followed(parted, checked.followed, ties))

    comparisons = tuple(
        compare(plan, cell, timed(by_point[cell.point], aside), tokens_of(cell), between.get(cell.key, ASSUMED))
        for cell in plan.cells
        if cell.role.speculative and plan.scenarios[cell.point.scenario].baseline
    )
    unlike = {c.cell for c in comparisons if c.tokens.mismatches or (c.tokens.followed and c.tokens.followed.wrong)}
    measured_rounds = {point: measured(plan.rounds_of(point)) for point in plan.points}

    def reduced(cell: Cell) -> CellResult:
        rounds = measured_rounds[cell.point]
        left_out = aside.get(cell.point.key, frozenset())
        beside = tuple(map(id, texts[cell.point])), sum(m.cell == cell.key for m in margins) if ties else 0
        key = (cell, rounds, tuple(map(id, of[cell])), beside, cell in unlike, left_out)
        if key not in known.results:
            repeats = repeats_of(cell, of[cell], margins, ties, texts[cell.point])
            known.results[key] = reduce_cell(
                plan, cell, of[cell], rounds, checked.texts, repeats, withhold=cell in unlike, aside=aside
            )
        return known.results[key]

    cells = tuple(reduced(cell) if of[cell] else failed(cell, broken.get(cell)) for cell in plan.cells)
    scores = {
        point: scores_of(by_point[point], comparisons, seen, checked)
        for point in plan.points
        if (seen := checked.rescorings.get(point.key)) is not None and by_point[point]
    }
    return tuple(rescored(result, scores.get(result.cell.point, {})) for result in cells), comparisons


def measured(rounds: Iterable[Round]) -> tuple[tuple[int, int], ...]:
    """(prompt set, round) of the rounds that are no warm-up."""
    return tuple((r.prompt_set, r.index) for r in rounds if not r.warmup)


def sound_blocks(
    plan: Plan, blocks: Iterable[Block], margins: Sequence[Margin], grounds: Grounds, sound: set[int] | None = None
) -> tuple[dict[Cell, list[Block]], dict[Cell, Contradiction]]:
    """(cell → its measured blocks, cell → the contradiction in its records, whose blocks are then left out).

    `sound`: see `contradictions`.
    """
    of: dict[Cell, list[Block]] = defaultdict(list)
    for block in blocks:
        if not block.warmup:
            of[block.cell].append(block)
    broken = contradictions(plan, of, margins, grounds, sound)
    for cell in broken:
        of[cell] = []
    return of, broken


Scores = Mapping[Cell, ScoreCheck | str]
"""Cell → what a second engine said of its tokens, or why that contradicts the journal."""


def scores_of(blocks: Sequence[Block], comparisons: Sequence[Comparison], found: Rescoring, checked: Checked) -> Scores:
    """What a second engine said of the tokens of one point. `blocks`: its measured blocks."""
    if checked.asked is None:
        return {}
    asked = to_be_scored(blocks, comparisons, checked)
    scores: dict[Cell, ScoreCheck | str] = {}
    for cell in {b.cell for b in blocks}:
        try:
            scores[cell] = check_scores(cell, [d for d in asked if d.block.cell == cell], found, checked.asked)
        except InvalidResult as error:
            scores[cell] = str(error)
    return scores


def to_be_scored(blocks: Sequence[Block], comparisons: Sequence[Comparison], checked: Checked) -> list[Draw]:
    """The tokens of one point that a second engine is asked about. `blocks`: its measured blocks that are sound."""
    assert checked.asked is not None
    return draws(checked.run_id, blocks, near_ties_of(comparisons, blocks), checked.asked.positions)


def near_ties_of(comparisons: Sequence[Comparison], blocks: Sequence[Block]) -> dict[Cell, list[Divergence]]:
    """Cell → its near ties, for the cells of `blocks`."""
    cells = {b.cell for b in blocks}
    return {c.cell: [d for d in c.tokens.divergences if d.near_tie] for c in comparisons if c.cell in cells}


def rescored(result: CellResult, scores: Scores) -> CellResult:
    """`result` with what a second engine said of its tokens. It has failed where that contradicts the journal."""
    found = scores.get(result.cell)
    if result.status == "failed" or found is None:
        return result
    if isinstance(found, str):
        return failed(result.cell, Contradiction("scores_contradict", found))
    return replace(result, rescored=found)


def failed(cell: Cell, why: Contradiction | None) -> CellResult:
    """The result of a cell without figures: `why` its records contradict themselves, or None where it has none."""
    if why is None:
        return CellResult(cell, "failed", "no block was measured", 0, None, {}, ())
    return CellResult(cell, "failed", why.message, 0, None, {}, (), reason_code=why.reason_code)


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
) -> CellResult:
    """The result of one cell with blocks. With `withhold`, its speeds are left out because its tokens are wrong.

    `rounds`: (prompt set, round) of every planned round, in running order. `texts_beside`: the untimed baseline texts,
    which a baseline cell has to repeat. `repeats`: see `texts`. `aside`: see `measure`.
    """
    clocked = timed(blocks, aside)
    planned, scenario = len(rounds), plan.scenarios[cell.point.scenario]
    prompts = by_prompt(blocks) if cell.role.speculative else {}
    acceptance = pooled(prompts) if cell.role.speculative else None
    whole_requests, version = scenario.whole_requests, scenario.definitions
    values = {
        v.metric: v
        for v in (
            *(load_values(clocked) if scenario.load is not None else speed_values(clocked, whole_requests, version)),
            *(latency_values(clocked, scenario) if version > 1 and clocked else ()),
            *active_values(blocks),
            *draft_values(blocks, prompts, acceptance, scenario.budget),
            *texts(blocks, [] if cell.role.speculative else texts_beside, repeats),
            *cache_hits(blocks),
            *clock_values(clocked),
        )
    }
    if withhold:
        values |= {
            m: Value(m, None, v.stat, v.n, reason_code="token_mismatch") for m, v in values.items() if m in SPEEDS
        }
    missing = planned - len(blocks)
    return CellResult(
        cell=cell,
        status="partial" if missing else "ok",
        reason=f"{missing} of {planned} blocks are missing" if missing else None,
        blocks=len(blocks),
        acceptance=acceptance,
        values=values,
        series_ms=series(rounds, clocked),
        by_depth=by_depth(blocks, withhold=withhold, aside=aside.get(cell.point.key, frozenset())),
        distributions={} if withhold else distributions(clocked, whole_requests=whole_requests, definitions=version),
        set_aside=len(blocks) - len(clocked),
    )


# ── figures of a cell ────────────────────────────────────────────────────────────────────────────────────────────────


def speed_values(blocks: Sequence[Block], whole_requests: bool, definitions: int) -> Iterator[Value]:
    """Medians over the blocks. A block that emitted nothing (every request ended at its prefill token) has no speed."""
    live = [b for b in blocks if b.emitted]
    for name, of in block_figures(live, whole_requests, definitions).items():
        yield Value(name, statistics.median(map(of, live)), "p50", len(live))


def latency_values(blocks: Sequence[Block], scenario: Scenario) -> Iterator[Value]:
    """The times of the cell's requests, and of a server's its goodput where the scenario has limits.

    The error of an interval is split equally over the interim looks: a rule on the tail may decide at each.
    """
    whole_requests, error = scenario.whole_requests, ERROR / len(planned_looks(scenario))
    requests = [list(requests_of(block, whole_requests)) for block in blocks]
    yield from request_values(requests, error)
    if scenario.goodput is not None and all(block.served for block in blocks):
        seconds = sum(block.prefill_ns + block.elapsed_ns for block in blocks) / 1e9
        turned_away = [len(block.served.refused) if block.served else 0 for block in blocks]
        yield from goodput_values(requests, seconds, scenario.goodput, error, turned_away)


def active_values(blocks: Sequence[Block]) -> Iterator[Value]:
    """How many slots were active, and how many tokens an active slot emitted per step."""
    counts = active_counts(blocks)
    if not counts:
        yield from served_steps(blocks)
        return
    request_steps = sum(counts)
    yield Value("emitted_per_step", sum(b.emitted for b in blocks) / request_steps, "tok_weighted", request_steps)
    yield Value("active_count_min", float(min(counts)), "min", len(counts))
    yield Value("active_count_avg", statistics.fmean(counts), "mean", len(counts))
    yield Value("active_count_max", float(max(counts)), "max", len(counts))


def draft_values(
    blocks: Sequence[Block], prompts: PromptRecords, record: AcceptanceRecord | None, budget: Budget
) -> Iterator[Value]:
    """Acceptance figures; nothing for a baseline cell, which has no `record`. `prompts`: the records of `blocks`."""
    if record is None:
        return
    rows = list(active_rows(blocks))
    yield Value("disabled_draft_error", float(sum(map(draft_errors, blocks))), "count", sum(map(len, rows)))
    if not record.steps:
        return
    if missed := sum(missed_steps(block, budget) for block in blocks):
        yield Value("undrafted_steps", float(missed), "count", record.steps + missed)
    if (whole := record.k * record.steps) > record.drafted:
        yield Value("drafted_share", record.drafted / whole, "tok_weighted", whole)
    yield from length_values(prompts, record)
    ragged = [1 - (sum(row) / len(row) + 1) / (max(row) + 1) for row in rows if len(row) > 1]
    if ragged:
        yield Value("raggedness_ratio", statistics.fmean(ragged), "mean", len(ragged))
    yield from position_values(prompts, record)


def active_rows(blocks: Sequence[Block]) -> Iterator[list[int]]:
    """For every step with an active slot: the accepted draft tokens of its active slots."""
    return ([a for a in row if a >= 0] for b in blocks for row in b.accepted if max(row, default=-1) >= 0)


def active_counts(blocks: Sequence[Block]) -> list[int]:
    """The number of active slots, for every step that had one."""
    return [len(row) for row in active_rows(blocks)]


def cache_hits(blocks: Sequence[Block]) -> Iterator[Value]:
    """Prompt tokens that a cache saved from prefill. Where there are any, the prefill time says nothing about the
    engine.
    """
    counted = [b.counters["cache_hit_tokens"] for b in blocks if "cache_hit_tokens" in b.counters]
    if counted:
        yield Value("cache_hit_tokens", float(sum(counted)), "count", len(counted))


def texts(
    blocks: Sequence[Block], beside: Sequence[BaselineText] = (), repeats: Sequence[Divergence] = ()
) -> Iterator[Value]:
    """How much of the generated text is loops (once per prompt), and whether rounds over the same prompts gave the same
    tokens. `beside`: untimed texts that must be the same, too. `repeats`: places where a round leaves the first one, or
    an untimed text leaves a round, those of near ties among them; looked for only where there may be some. Blocks in
    which a server refused requests are left out.
    """
    if not (blocks := [block for block in blocks if block.answered_all]):
        return
    first: dict[int, Block] = {}
    # With the token that came: another one at the same place is another parting, and may be a wrong token.
    near_ties = {(d.prompt_set, d.round, d.slot, d.position, d.got) for d in repeats if d.near_tie}
    excused: set[tuple[int, int, int, int, int]] = set()
    mismatches = 0

    def compare(earlier: Block, tokens: Sequence[Sequence[int]], round_: int) -> bool:
        """Whether `tokens`, which are called those of `round_`, leave `earlier` where no near tie explains it."""
        partings = {
            (earlier.prompt_set, round_, slot, at, came[at])
            for slot, (had, came) in enumerate(zip(earlier.tokens, tokens, strict=True))
            if (at := first_difference(had, came)) is not None
        }
        excused.update(partings & near_ties)
        return bool(partings - near_ties)

    for block in blocks:
        mismatches += compare(first.setdefault(block.prompt_set, block), block.tokens, block.round)
    for text in beside:
        if text.point == blocks[0].point and (timed := first.get(text.prompt_set)):
            mismatches += compare(timed, text.tokens, timed.round)
    shares = [repeated_ngram_share(tokens) for block in first.values() for tokens in block.tokens]
    yield Value("repeated_8gram_share", statistics.fmean(shares), "mean", len(shares))
    yield Value("repeat_mismatches", float(mismatches), "count", len(blocks))
    if excused:
        yield Value("repeat_near_ties", float(len(excused)), "count", sum(len(b.tokens) for b in blocks))


def series(rounds: Sequence[tuple[int, int]], blocks: Sequence[Block]) -> tuple[tuple[int, int, float], ...]:
    """(round of the point in running order, position in round, decode ms per token) of every block that emitted.

    `rounds`: see `reduce_cell`.
    """
    return tuple(
        (rounds.index((b.prompt_set, b.round)), b.position_in_round, ms_per_token(b)) for b in blocks if b.emitted
    )
