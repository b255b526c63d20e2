"""Gate `validity`: may this cell be judged at all?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from specgate.analysis.checks.drafting import inflated_length
from specgate.analysis.intervals.decision import FALSE_FAIL
from specgate.analysis.speculation.drafting import (
    SINGLE_TOKEN,
    SINGLE_TOKEN_MODE,
    promises_k,
    short_of,
    shortness_in_words,
    single_token,
)
from specgate.analysis.speculation.forced import forced_of, looks_forced, unlike_positions, wrong_shape
from specgate.contract import (
    BASELINE,
    MAY_NOT_DRAFT,
    PREFIX_CACHE,
    AcceptanceRecord,
    Cell,
    CellResult,
    Rule,
    RunView,
    State,
    Value,
    Verdict,
)
from specgate.errors import InvalidResult
from specgate.gates.select import CellGate, inflated, sets_lengths, steps_lost, verdict

SLOW: Final = 3.0
"""A baseline step that takes more than so many times as long as its bytes is named. Those of the built-in engine's
stored runs read 1.7 to 4.1 TB/s of an H200's 4.8.
"""


class Validity(CellGate):
    """PASS if the draft was used, every planned block is there, no prompt came from a cache (unless it is switched on),
    the acceptance record adds up, the emitted tokens explain its acceptance length, not all drafts are single tokens
    where K is larger, and forced acceptance has the distribution that was asked for and says that it is forced; else
    INVALID.

    Cells whose records contradict themselves, or whose clocks do, have no figures, and so are INVALID as well.
    """

    name = "validity"
    kinds = ("validity",)
    needs = "the blocks and their accept counts"
    params: Mapping[str, type] = {}

    def judge_cell(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        key = result.cell.key
        if trouble := run.draft_trouble(result):
            plain = result.values.get("disabled_draft_error")
            return verdict(
                rule,
                key,
                State.INVALID,
                "draft_unusable",
                f"the draft could not be used: {trouble}",
                {"disabled_draft_error": plain.value if plain else None},
                "mend the draft (the engine's log has the details), then start a new run",
            )
        if result.status != "ok":
            message = result.reason or "incomplete"
            return verdict(
                rule, key, State.INVALID, "incomplete", message, {"blocks": result.blocks}, "continue with --resume"
            )
        hits, reuse = result.values.get("cache_hit_tokens"), tuple(reused(result, run))
        if hits is not None and hits.value and not reuse:
            message = f"{hits.value:.0f} prompt tokens came from a cache instead of a prefill"
            step = "distinct prompts, and an engine that forgets them between blocks; -o prefix_cache=on means to reuse"
            return verdict(rule, key, State.INVALID, "cache_hit", message, {"cache_hit_tokens": hits.value}, step)
        if result.cell.role.speculative:
            record = result.acceptance
            if record is None or record.steps == 0:
                message = "no step had a draft: speculation was silently off" + known_cause(result, run)
                return verdict(rule, key, State.INVALID, "no_drafts", message, next_step="see the engine's log")
            try:
                record.check()
            except InvalidResult as error:
                return verdict(rule, key, State.INVALID, "counter_identity", str(error))
            if lost := steps_lost(rule, result):
                return lost
            if not sets_lengths(result, run) and (lengths := inflated_length(result)):
                return inflated(rule, key, *lengths)
            if single := one_draft_a_step(rule, result, record, run):
                return single
            if forced := made_up(rule, result, record, run):
                return forced
            if others := not_the_drafts(rule, result):
                return others
            drafts = (*skipped(record), *short_drafts(result, record, run), *positions(result, record, run))
            return complete(rule, result, *reuse, *drafts, *drafted_along(result))
        return complete(rule, result, *reuse, *slow_for_its_bytes(result, run))


def complete(rule: Rule, result: CellResult, *also: str) -> Verdict:
    """The verdict on a cell with nothing wrong. `also`: what its figures have to be read with."""
    message = "; ".join((f"{result.blocks} blocks, records add up", *also))
    return verdict(rule, result.cell.key, State.PASS, "complete", message, {"blocks": result.blocks})


def reused(result: CellResult, run: RunView) -> Iterator[str]:
    """Say how much a cell reused, and how much its baseline did, if the engine's prefix cache is on by option."""
    facts = run.engines.get(result.cell.point.key)
    if facts is None or facts.details.get(PREFIX_CACHE) != "on":
        return
    hits, beside = result.values.get("cache_hit_tokens"), run.result(Cell(result.cell.point, BASELINE).key)
    text = f"{per_block(hits)} prompt tokens reused per block" if hits else "what is reused is not told"
    if result.cell.role.speculative and beside and (plain := beside.values.get("cache_hit_tokens")):
        text += f", {per_block(plain)} by the baseline"
    yield f"the prefix cache is on: {text}"


def per_block(total: Value) -> str:
    """Return a total over blocks as a count per block."""
    return f"{(total.value or 0) / max(total.n, 1):,.0f}"


def repeats_of(result: CellResult, run: RunView) -> float:
    """Number of runs of each prompt."""
    return result.blocks / run.scenarios[result.cell.point.scenario].workload.prompt_sets


def error_of(run: RunView) -> float:
    """The share that one cell has of the chance to refuse a run with nothing wrong."""
    return FALSE_FAIL / max(1, sum(r.cell.role.speculative for r in run.cells))


def requests_of(result: CellResult, run: RunView) -> int:
    """The requests of a cell, at most: a server under load may have refused some."""
    point = result.cell.point
    return result.blocks * run.scenarios[point.scenario].prompts_in_set(point.batch, point.rate)


def one_draft_a_step(rule: Rule, result: CellResult, record: AcceptanceRecord, run: RunView) -> Verdict | None:
    """The verdict on a cell of an engine that promises K drafts and made one in every step: it is no spec-K."""
    facts = run.engines.get(result.cell.point.key)
    if not (promises_k(facts) and single_token(record, requests_of(result, run))):
        return None
    message = f"{SINGLE_TOKEN_MODE}: {shortness_in_words(record, facts.backend if facts else '')}"
    step = f"an engine that drafts {record.k} tokens, or the role spec-1 for one that drafts one"
    return verdict(rule, result.cell.key, State.INVALID, SINGLE_TOKEN, message, next_step=step)


def short_drafts(result: CellResult, record: AcceptanceRecord, run: RunView) -> Iterator[str]:
    """Describe the effect of drafts shorter than K on the acceptance rate, if a chain has not its K in every step."""
    facts = run.engines.get(result.cell.point.key)
    if record.skipped is not None:
        yield f"drafts of {record.drafted / record.steps:.2f} tokens on average, {record.k} at most"
    elif short_of(record, requests_of(result, run)):
        yield shortness_in_words(record, facts.backend if facts else "")


def skipped(record: AcceptanceRecord) -> Iterator[str]:
    """Say how many steps had no draft, of a method that need not draft."""
    if record.skipped is not None:
        length = f"{1 + record.accepted / record.steps:.2f} tokens a step with one"
        yield f"{record.skipped:,} of {record.counted_steps:,} steps had no draft, as they may; {length}"


def positions(result: CellResult, record: AcceptanceRecord, run: RunView) -> Iterator[str]:
    """Describe an odd distribution of the positions at which the drafts of a planted pair are accepted."""
    if run.acceptance == "planted" and (oddity := unlike_positions(record, error_of(run), repeats_of(result, run))):
        yield oddity


def made_up(rule: Rule, result: CellResult, record: AcceptanceRecord, run: RunView) -> Verdict | None:
    """The verdict on acceptance that was forced into another shape than was asked for, or that looks forced without a
    word of it; None for any other.
    """
    key, hist = result.cell.key, ", ".join(map(str, record.hist))
    evidence = {"steps": record.steps, "accepted": record.accepted, "hist": hist or None}
    stated = forced_of(run.engines.get(result.cell.point.key))
    if stated is not None:
        requests, batch = requests_of(result, run), result.cell.point.batch
        wrong = wrong_shape(record, stated, error=error_of(run), requests=requests, batch=batch)
        if wrong is None:
            return None
        message = f"forced acceptance of another distribution than was asked for: {wrong}"
        step = "an engine version that forces as docs/engines.md has it: this speed is that of another distribution"
        return verdict(rule, key, State.INVALID, "forced_shape", message, evidence, step)
    if run.acceptance in ("forced", "scripted"):
        return None
    if (looks := looks_forced(record, repeats_of(result, run))) is None:
        return None
    message = f"acceptance is said to be {run.acceptance}, and looks forced: {looks}"
    step = "look for what forces it: SGLANG_SIMULATE_ACC_LEN, TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS, "
    step += "rejection_sample_method, --spec-synth-len; -o force_al says it"
    return verdict(rule, key, State.INVALID, "looks_forced", message, evidence, step)


def not_the_drafts(rule: Rule, result: CellResult) -> Verdict | None:
    """The verdict on more accepted drafts than the pair's own draft has right along the text, beyond rounding."""
    drafts = result.rescored.drafts if result.rescored else None
    if drafts is None or drafts.claimed <= drafts.allowed:
        return None
    message = (
        f"{drafts.claimed} draft tokens are said to be accepted in {drafts.cycles} cycles, but the pair's draft, run "
        f"along the text by a second engine, has {drafts.drafted} right there ({drafts.allowed:.0f} allowed)"
    )
    evidence = {"cycles": drafts.cycles, "claimed": drafts.claimed, "drafted": drafts.drafted}
    step = "drafts come from elsewhere: another draft, a text that was decoded before, or an earlier request's"
    return verdict(rule, result.cell.key, State.INVALID, "not_the_drafts", message, evidence, step)


def drafted_along(result: CellResult) -> Iterator[str]:
    """Say what the pair's draft has right along the text, or why nobody has looked."""
    drafts = result.rescored.drafts if result.rescored else None
    if drafts is not None and drafts.unchecked is not None:
        yield f"drafts not checked: {drafts.unchecked}"
    elif drafts is not None:
        yield f"{drafts.claimed} drafts accepted in {drafts.cycles} cycles, {drafts.drafted} by the pair's draft alone"


def slow_for_its_bytes(result: CellResult, run: RunView) -> Iterator[str]:
    """Name a baseline whose steps take far longer than their bytes: any speed-up is easy over such a one."""
    budget = run.budgets.get(result.cell.key)
    floor = budget.floor_ms if budget else None
    if budget is not None and floor and budget.cycle_ms > SLOW * floor:
        yield f"a step takes {budget.cycle_ms / floor:.1f} times what its bytes take at the measured bandwidth"


def known_cause(result: CellResult, run: RunView) -> str:
    """Return the engine's warning that explains why nothing was drafted, if there is one."""
    facts = run.engines.get(result.cell.point.key)
    warnings = [w.removeprefix(MAY_NOT_DRAFT) for w in facts.warnings if w.startswith(MAY_NOT_DRAFT)] if facts else []
    return "".join(f" ({text})" for text in warnings)


GATE = Validity()
