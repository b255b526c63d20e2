"""Texts of runs side by side, and the near ties where they diverge.

The reference's engine is loaded again and asked for its two largest logits at these places.

Acceptance is compared only on prompts for which both engines wrote the same text. The comparison is then one of
drafting alone: an engine that uses the reference's auxiliary hidden-state layers, attention window, vocabulary and
positions accepts the same draft tokens. Apart from reading the samples, the functions here are pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import reduce
from itertools import groupby
from operator import add, itemgetter
from pathlib import Path

from specgate.analysis.prompt_acceptance import record_of
from specgate.analysis.tokens.comparison import divergence_in
from specgate.analysis.two_builds.estimates import Counts
from specgate.archive.comparing.engines import CellId, by_cell, cell_id, columns_of, same_prompts, target_of
from specgate.archive.comparing.two_samples import log_ratio_of_ratios
from specgate.archive.stored_runs import StoredRun
from specgate.contract import Block, Cell, Divergence, Finish, NearTies, Plan, Point, Run, State
from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.comparisons import Agreement, Match, Share
from specgate.errors import InvalidResult, UsageError
from specgate.planning.plan import build_plan
from specgate.planning.prompts import Prompts
from specgate.run.beginning import fitting_prompts
from specgate.run.runner import answer_timeout_s, open_request
from specgate.run.worker import EngineWorker

Place = tuple[CellId, int, int, int, int]
"""(cell, prompt set, round, slot, position): where a sequence differs first."""


def with_margins(agreement: Agreement, reference: StoredRun, ties: NearTies, folder: Path) -> Agreement:
    """`agreement` with the top-2 margin of every divergence: the gap between the two largest logits of the reference.

    `Divergence.judged` says which are near ties. The engine's log goes to `folder`. If no text differs, no engine is
    loaded. Raises InvalidResult if the run's prompts cannot be built again, and BackendError if the engine does not
    start.
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


Records = Mapping[int, AcceptanceRecord]
"""Prompt set → its acceptance record, summed over slots and rounds, as a server counts."""


def agreement_of(runs: Sequence[StoredRun], margin_pct: float) -> Agreement:
    """Compare every cell of runs[1:] with the same cell of runs[0], the reference.

    `margin_pct`: how far acceptance may lie from the reference's, either way, in percent. Raises UsageError if a run is
    not a full run, has loaded no engine, or has no cell in common with the reference.
    """
    for run in runs:
        check_full_run(run)
    reference, *others = runs
    sides = {column.run.id: column for column in columns_of([run.run for run in runs])}
    if silent := next((side for side in sides.values() if side.engine is None), None):
        raise UsageError(f"run {silent.run.id} has loaded no engine")
    theirs = by_cell(reference.blocks())
    matches: list[Match] = []
    for other in others:
        side = sides.get(other.run.id)
        own_matches = list(matches_of(reference.run, theirs, other, side.label, margin_pct)) if side else []
        if not own_matches:
            raise UsageError(f"{other.path}: no cell of it is also in {reference.path}")
        matches += own_matches
    return Agreement(tuple(sides[run.run.id] for run in runs), tuple(matches), margin_pct)


def check_full_run(run: StoredRun) -> None:
    if run.run.kind != "full":
        hint = "measure with specgate full: steps of one engine are not steps of another, requests are"
        raise UsageError(f"{run.path} is a {run.run.kind} run: its engines wrote texts of different lengths", hint=hint)


def matches_of(
    reference: Run, theirs: Mapping[Cell, Sequence[Block]], other: StoredRun, label: str, margin_pct: float
) -> Iterator[Match]:
    cells = {cell_id(cell): cell for cell in theirs}
    for cell, blocks in by_cell(other.blocks()).items():
        if cell_id(cell) in cells:
            mine = cells[cell_id(cell)]
            why_not = incomparable(reference, mine, other.run, cell)
            yield match_of(label, cell, theirs[mine], blocks, margin_pct, why_not)


def incomparable(reference: Run, mine: Cell, other: Run, cell: Cell) -> str | None:
    """Reason for which a cell's texts and acceptance may differ between the two runs; None if they must agree."""
    if not same_prompts(reference, mine.point, other, cell.point):
        return "other prompts"
    if target_of(reference, mine.point) != target_of(other, cell.point):
        return "another target"
    sources = reference.acceptance, other.acceptance
    if cell.role.speculative and (sources[0] != sources[1] or sources[0] not in ("real", "planted")):
        return f"acceptance is {sources[0]} there, {sources[1]} here"
    return None


def match_of(
    label: str, cell: Cell, theirs: Sequence[Block], blocks: Sequence[Block], margin_pct: float, why_not: str | None
) -> Match:
    pairs = [] if why_not else list(paired(theirs, blocks))
    divergences = tuple(d for a, b in pairs for d in divergences_of(a, b))
    differing = {d.prompt_set for d in divergences}
    alike = [(a, b) for a, b in pairs if a.prompt_set not in differing]
    cut = any(has_short_chains(b) for _, b in alike)
    shares = list(shares_of(alike, cut, margin_pct)) if cell.role.speculative else []
    return Match(
        label=label,
        cell=cell,
        compared_tokens=sum(min(len(x), len(y)) for a, b in pairs for x, y in zip(a.tokens, b.tokens, strict=True)),
        prompt_sets=len({a.prompt_set for a, _ in pairs}),
        alike=len({a.prompt_set for a, _ in alike}),
        divergences=divergences,
        shares=tuple(shares),
        cut=cut,
        why_not=why_not,
    )


def paired(theirs: Sequence[Block], blocks: Sequence[Block]) -> Iterator[tuple[Block, Block]]:
    """Pairs of (reference's, engine's) blocks with the same prompt set and round."""
    of = {(b.prompt_set, b.round): b for b in theirs}
    yield from ((of[key], b) for b in blocks if (key := (b.prompt_set, b.round)) in of)


def divergences_of(reference: Block, engine: Block) -> Iterator[Divergence]:
    """For each sequence that differs from the reference's, the first place where it does."""
    texts = zip(reference.tokens, reference.finish, engine.tokens, engine.finish, strict=True)
    for slot, (expected, why, got, their_why) in enumerate(texts):
        if divergence := divergence_in(engine, slot, (expected, why), (got, their_why)):
            yield divergence


# ── acceptance ───────────────────────────────────────────────────────────────────────────────────────────────────────


def has_short_chains(block: Block) -> bool:
    """True if a server drafted chains shorter than K, as llama.cpp does when a request has fewer tokens left."""
    record = block.served.acceptance if block.served is not None else None
    return record is not None and record.drafted < record.k * record.steps


def shares_of(alike: Sequence[tuple[Block, Block]], cut: bool, margin_pct: float) -> Iterator[Share]:
    reference = records((a for a, _ in alike), cut)
    engine = records((b for _, b in alike), cut=False)
    if not all(any(r.steps for r in side.values()) for side in (reference, engine)):
        return
    yield share("acceptance_length", lengths(reference), lengths(engine), margin_pct)
    if all(r.hist for side in (reference, engine) for r in side.values()):
        k = next(iter(reference.values())).k
        for i in range(k):
            yield share(f"accepted[{i + 1}]", at_position(reference, i), at_position(engine, i), margin_pct)


def records(blocks: Iterator[Block], cut: bool) -> Records:
    of: dict[int, list[AcceptanceRecord]] = defaultdict(list)
    for block in blocks:
        of[block.prompt_set] += records_of(block, cut)
    return {prompt_set: reduce(add, of_set) for prompt_set, of_set in of.items()}


def records_of(block: Block, cut: bool) -> list[AcceptanceRecord]:
    if block.served is not None and block.served.acceptance is not None:
        return [block.served.acceptance]
    return [cut_record(block, slot) if cut else record_of([block], slot) for slot in range(len(block.tokens))]


def cut_record(block: Block, slot: int) -> AcceptanceRecord:
    """The slot's acceptance record as if drafting ended with the request.

    That is, as if no chain were longer than the tokens that the request has left, minus one for the bonus token. A
    server that shortens its chains counts in this way, so the reference is counted alike.

    It makes a difference only in the last step of a request that ended at its length limit. That step emitted accepted
    − truncated + 1 tokens, which were all that were left. If only one token was left, there is no draft.
    """
    drafted = [row[slot] for row in block.drafted]
    accepted = [row[slot] for row in block.accepted]
    if block.finish[slot] is Finish.LENGTH:
        last = max(i for i, d in enumerate(drafted) if d >= 0)
        drafted[last] = accepted[last] = max(0, accepted[last] - block.truncated[slot])
    emitted = len(block.tokens[slot]) - 1 - sum(d == 0 for d in drafted)
    return AcceptanceRecord.from_steps(block.role.k, [(a,) for a in accepted], [(d,) for d in drafted], emitted, 0)


def lengths(of: Records) -> Counts:
    """(accepted + steps, steps) of every prompt set, whose ratio is the acceptance length. It stands for slot 0."""
    return {(prompt_set, 0): (r.accepted + r.steps, r.steps) for prompt_set, r in of.items() if r.steps}


def at_position(of: Records, i: int) -> Counts:
    """(steps that accepted draft i, steps) of every prompt set; `i` counts from 0."""
    return {(prompt_set, 0): (r.accepted_at_pos[i], r.steps) for prompt_set, r in of.items() if r.steps}


def share(name: str, reference: Counts, engine: Counts, margin_pct: float) -> Share:
    a, b = (sum(n for n, _ in side.values()) / sum(d for _, d in side.values()) for side in (reference, engine))
    estimate = log_ratio_of_ratios(reference, engine, paired=True)
    low, high = map(math.exp, estimate.interval()) if estimate else (None, None)
    ratio = b / a if a else None
    return Share(name, a, b, ratio, low, high, state_of(low, high, margin_pct))


def state_of(low: float | None, high: float | None, margin_pct: float) -> State:
    """PASS if the interval of the ratio lies inside the margin, FAIL if it lies outside, else INCONCLUSIVE.

    The margin is the range from 1 / (1 + margin_pct / 100) to 1 + margin_pct / 100.
    """
    if low is None or high is None:
        return State.INCONCLUSIVE
    widest = 1 + margin_pct / 100
    if 1 / widest <= low and high <= widest:
        return State.PASS
    return State.FAIL if high < 1 / widest or low > widest else State.INCONCLUSIVE
