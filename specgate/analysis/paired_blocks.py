"""Spec blocks compared with the baseline blocks of their pairs: how much faster are they?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from specgate.analysis.intervals.between_runs import ASSUMED
from specgate.analysis.intervals.decision import interval as interval_of
from specgate.analysis.intervals.other_prompts import like_these
from specgate.analysis.requests.joint_decoding import NO_JOINT_DECODING, joint_decoding, judged_jointly
from specgate.analysis.rounds import pairs_of
from specgate.analysis.stats import Pairs
from specgate.contract import BetweenRuns, Block, Cell, Comparison, Plan, Scenario, TokenCheck, Value
from specgate.contract.metrics import BATCH_SPEEDUPS
from specgate.errors import InvalidResult


def compare(
    plan: Plan, cell: Cell, blocks: Sequence[Block], tokens: TokenCheck, between: BetweenRuns = ASSUMED
) -> Comparison:
    """Compare the speed of a spec cell with that of the baseline of its point. `tokens`: what is known of its text.

    `between`: what differs between runs.
    """
    scenario = plan.scenarios[cell.point.scenario]
    whole_requests = scenario.whole_requests
    block_pairs = [(a, b) for a, b in pairs_of(blocks, cell) if a.emitted and b.emitted]
    open_loop = cell.point.rate is not None
    ratios = latency_log_ratios(block_pairs) if open_loop else log_ratios(block_pairs, whole_requests)
    pairs = paired(plan, block_pairs, ratios)
    columns = (tuple(pairs.log_ratios), tuple(pairs.orders), tuple(pairs.prompt_sets), tuple(pairs.turns))
    if not whole_requests:
        sums = throughput_ratio("decode_throughput_ratio", block_pairs, False, tokens)
        decoded = speedup(pairs, tokens, between, "decode_speedup_ratio")
        together, harmonic = jointly(pairs, block_pairs)
        of_batch = speedup(together, tokens, between, "joint_decode_speedup_ratio")
        in_queue = (speedup(harmonic, tokens, between, "harmonic_decode_speedup_ratio"),) if harmonic.turns else ()
        if not any(judged_jointly(scenario, spec) for _, spec in block_pairs):
            beside: tuple[Value, ...] = (of_batch, *in_queue) if in_queue else ()
            return Comparison(cell, tokens, *columns, decoded, (*beside, sums, like_these(pairs, decoded)))
        others = like_these(together, of_batch)
        columns = tuple(together.log_ratios), tuple(together.orders), tuple(together.prompt_sets), tuple(together.turns)
        if not together.turns and not tokens.defects:
            of_batch = replace(of_batch, n=len(block_pairs), reason_code=NO_JOINT_DECODING)
        return Comparison(cell, tokens, *columns, of_batch, (decoded, *in_queue, sums, others))
    if scenario.load is not None:
        name = "latency_speedup_ratio" if open_loop else "speedup_vs_ar_ratio"
        sums = throughput_ratio("throughput_ratio", block_pairs, True, tokens)
        return Comparison(cell, tokens, *columns, speedup(pairs, tokens, between, name), (sums,))
    whole = speedup(pairs, tokens, between)
    decoding = replace(pairs, log_ratios=log_ratios(block_pairs, False))
    beside = (
        throughput_ratio("throughput_ratio", block_pairs, True, tokens),
        speedup(decoding, tokens, between, "decode_speedup_ratio"),
        throughput_ratio("decode_throughput_ratio", block_pairs, False, tokens),
        like_these(pairs, whole),
    )
    return Comparison(cell, tokens, *columns, whole, beside)


def paired(plan: Plan, block_pairs: Sequence[tuple[Block, Block]], log_ratios: Sequence[float]) -> Pairs:
    """`log_ratios` of (baseline, spec) pairs of one cell, with the order, the prompt set and the turn of each."""
    rounds = plan.rounds_of(block_pairs[0][1].point) if block_pairs else ()
    turns = {(r.prompt_set, r.index): n for n, r in enumerate(r for r in rounds if not r.warmup)}
    return Pairs(
        log_ratios=log_ratios,
        orders=[1 if baseline.position_in_round < spec.position_in_round else -1 for baseline, spec in block_pairs],
        prompt_sets=[spec.prompt_set for _, spec in block_pairs],
        turns=[turns[spec.prompt_set, spec.round] for _, spec in block_pairs],
    )


def jointly(pairs: Pairs, block_pairs: Sequence[tuple[Block, Block]]) -> tuple[Pairs, Pairs]:
    """`pairs` with the ratios of joint decoding: of its tokens per second, and of its time per token, the mean over
    requests. The latter is a ratio of harmonic means of speeds, since a slow request keeps its place longer: what a
    server gains whose places are always taken.

    Both are empty of single requests, and if one block has no joint part: which ones have none depends on how fast they
    were, so that the others would be a choice of them.
    """
    both = [(joint_decoding(a), joint_decoding(b)) for a, b in block_pairs if len(b.tokens) > 1]
    known = [(base, spec) for base, spec in both if base is not None and spec is not None]
    if len(known) < len(block_pairs):
        return Pairs([], [], [], []), Pairs([], [], [], [])
    arithmetic = [math.log(spec.tok_s / base.tok_s) for base, spec in known]
    harmonic = [math.log(base.tpot_ms / spec.tpot_ms) for base, spec in known]
    return replace(pairs, log_ratios=arithmetic), replace(pairs, log_ratios=harmonic)


def other_speedups(comparison: Comparison) -> dict[str, float]:
    """The speed-ups of a batch's decoding beside the one that is judged, by metric; empty of single requests."""
    values = {value.metric: value.value for value in comparison.beside}
    if values.get("harmonic_decode_speedup_ratio") is None:
        return {}
    return {name: value for name in BATCH_SPEEDUPS if (value := values.get(name)) is not None}


def log_ratios(pairs: Sequence[tuple[Block, Block]], whole_requests: bool) -> list[float]:
    """ln(spec / baseline) of the tokens per second of every (baseline, spec) pair."""
    return [math.log(speed(spec, whole_requests) / speed(baseline, whole_requests)) for baseline, spec in pairs]


def latency_log_ratios(pairs: Sequence[tuple[Block, Block]]) -> list[float]:
    """ln(baseline / spec) of the mean E2E latency of every (baseline, spec) pair of an open loop.

    Both are offered the same requests at the same times, so their throughput is the same as long as they keep up. What
    speculation changes is how long the requests take.
    """
    return [math.log(mean_e2e_ns(baseline) / mean_e2e_ns(spec)) for baseline, spec in pairs]


def mean_e2e_ns(block: Block) -> float:
    """The mean E2E latency of a server's block."""
    assert block.served is not None
    return statistics.fmean(request.e2e_ns for request in block.served.requests)


def throughput_ratio(
    name: str, pairs: Sequence[tuple[Block, Block]], whole_requests: bool, tokens: TokenCheck
) -> Value:
    """Spec's throughput over the baseline's. A throughput is Σ tokens / Σ seconds, as the field has it: long requests
    weigh more than in the geometric mean over pairs.
    """
    n = len(pairs)
    if not n or tokens.defects:
        return Value(name, None, n=n, reason_code="token_mismatch" if n else "no_pairs")
    base, spec = (throughput([pair[side] for pair in pairs], whole_requests) for side in (0, 1))
    return Value(name, spec / base, "ratio_of_sums", n)


def speedup(pairs: Pairs, tokens: TokenCheck, between: BetweenRuns, name: str = "speedup_vs_ar_ratio") -> Value:
    """The speed-up: the geometric mean over the pairs, with its 95 % interval where there are enough. None where tokens
    differ.
    """
    n = len(pairs.turns)
    if not n:
        return Value(name, None, n=0, reason_code="no_pairs")
    if tokens.defects:
        return Value(name, None, n=n, reason_code="token_mismatch")
    interval = interval_of(pairs, between)
    if interval is None:
        return Value(name, math.exp(statistics.fmean(pairs.log_ratios)), "geomean", n, reason_code="few_pairs")
    return Value(name, math.exp(interval.mean), "geomean", n, math.exp(interval.low), math.exp(interval.high))


def speed(block: Block, whole_requests: bool) -> float:
    """Tokens per second of a block: of its decode run or, with `whole_requests`, of prefill and decode with the prefill
    token.
    """
    return throughput([block], whole_requests)


def judged_speed(scenario: Scenario, block: Block) -> float:
    """Tokens per second of a block of `scenario`, as a speed rule takes them: of whole requests, of joint decoding, or
    of decoding alone. Raises InvalidResult where all requests of a server's batch have no time to decode jointly.
    """
    if not judged_jointly(scenario, block):
        return speed(block, scenario.whole_requests)
    if (joint := joint_decoding(block)) is None:
        raise InvalidResult(
            f"{block.cell.key}: there is no time at which all {len(block.tokens)} requests decode: ask for more new "
            "tokens (steps), or for a smaller batch; where a request waits in the engine's queue, give it more places "
            "or a larger cache"
        )
    return joint.tok_s


def throughput(blocks: Sequence[Block], whole_requests: bool) -> float:
    """Σ tokens / Σ seconds of `blocks`, which must not be empty; see `speed`."""
    if whole_requests:
        tokens = sum(sum(map(len, b.tokens)) for b in blocks)
        return tokens / (sum(b.prefill_ns + b.elapsed_ns for b in blocks) / 1e9)
    return sum(b.emitted for b in blocks) / (sum(b.elapsed_ns for b in blocks) / 1e9)
