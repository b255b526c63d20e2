"""Speed-ups against what verification costs: a cycle is no shorter than a baseline step.

To verify K drafts, the target runs over K + 1 tokens where the baseline runs over one, and reads the same weights and
the same cache. Drafting comes on top. So a cell is faster than its baseline by no more than the tokens that it emits
per step: speed-up = tokens per step × (baseline step / cycle), and the second factor is at most 1. Where an engine says
how long its target's passes take, the same holds of these alone.

What breaks this either does not verify (it answers from memory, say) or has a baseline that is slower than it need be.

Prefill takes its share of whole requests, and would hide that. So their decoding is held against it alone, and the
baseline's prefill takes no longer than spec's, which fills the draft's cache as well.

The baseline decodes on after a timed block, untimed, and the harness's clock sees how long that takes. A timed step
that takes longer is slow because it is timed.

All of it must be so with the confidence that a speed verdict asks for. In the stored runs (docs/results, built-in
engine, vLLM, SGLang and LMDeploy on H200s) a cycle takes 1.0 to 2.2 steps, the baseline's pass 0.65 to 0.99 of the
cycle's, its prefill 0.68 to 0.99 of spec's, and a timed step 0.97 to 0.999 of an untimed one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

from specgate.analysis.checks.identities import place_of
from specgate.analysis.paired_blocks import speed
from specgate.analysis.requests.joint_decoding import joint_decoding, judged_jointly
from specgate.analysis.stats import Pairs
from specgate.contract import BaselineText, Block, Scenario
from specgate.contract.samples.counters import JOINED_OUTPUTS
from specgate.errors import InvalidResult

TOLERANCE: Final = 0.03
"""How far a cycle may be shorter than a baseline step, as a share of it: a draft may cost next to nothing, and kernels
may run no slower over K + 1 tokens than over one.
"""
PASS: Final = 0.05
"""How far the target's pass over K + 1 tokens may be shorter than that over one, by the engine's own phases."""
SLOWER_PREFILL: Final = 0.10
"""How far a baseline's prefill of whole requests may be longer than spec's."""
UNTIMED: Final = 0.05
"""How far a timed step of the baseline may be longer than an untimed one."""
FIRST_STEP: Final = 0.10
"""How far a stated prefill and step may be from the wait for a single step, beside `SLACK_NS`. Also which share of the
decoding may have moved between the two, beside `PREFILL`.
"""
SLACK_NS: Final = 5_000_000
PREFILL: Final = 0.02
"""How far a prefill may be from another one of the same prompts, beside that."""
MOSTLY: Final = 0.25
"""The same where times scatter too much to tell less: then three of four blocks must be so far off."""
MANY: Final = 8
CPU: Final = "cpu"
PASSES: Final = "verify"
"""The phase of an engine's steps that holds the target's pass, in every role."""
FEW: Final = 2.0
"""With too few pairs for an interval, how many times faster than possible a cell must be to be refused."""


def check_verification(pairs: Sequence[tuple[Block, Block]], scenario: Scenario, device: str | None = None) -> None:
    """Check the speed-up of (baseline, spec) pairs of one cell. Raises InvalidResult with both figures.

    `device`: the engine's (`EngineFacts.device`). On a CPU, a matrix product of one row may honestly take longer than
    one of several, since another kernel computes it, so that passes are not compared there.
    """
    judged = [(a, b, most) for a, b in pairs if a.emitted and b.emitted and (most := tokens_per_step(b)) is not None]
    if not judged:
        return
    first = {b.prompt_set: b.round for _, b, _ in reversed(judged)}
    later = [j for j in judged if j[1].round != first[j[1].prompt_set]]
    for some in filter(None, (judged, later)):
        check_cycles(some, [log_ratio(a, b, scenario) for a, b, _ in some])
        if scenario.whole_requests and scenario.load is None:
            decoding = [(trio, ln) for trio in some if (ln := decoding_log_ratio(*trio[:2])) is not None]
            check_cycles([trio for trio, _ in decoding], [ln for _, ln in decoding])
    if scenario.whole_requests and scenario.load is None:
        check_prefills([(a, b) for a, b, _ in judged])
    if device != CPU:
        check_passes([(a, b) for a, b, _ in judged])


def check_cycles(judged: Sequence[tuple[Block, Block, float]], log_speedups: Sequence[float]) -> None:
    """Check that a cycle is no shorter than a step, in all rounds of a cell or in those that repeat a prompt set, whose
    answers may be remembered. Raises InvalidResult.

    `judged`: (baseline, spec, its most tokens per step), each with the logarithm of its speed-up.
    """
    log_ratios = [ln - math.log(most) for ln, (_, _, most) in zip(log_speedups, judged, strict=True)]
    if surely_beyond(log_ratios, [(a, b) for a, b, _ in judged], TOLERANCE):
        per_step = statistics.geometric_mean(most for _, _, most in judged)
        ratio = math.exp(statistics.fmean(log_ratios)) * per_step
        raise InvalidResult(
            f"{place_of(judged[0][1])} and {len(judged) - 1} more: faster than verification allows: {ratio:.3g} times "
            f"the baseline's speed with {per_step:.3g} tokens per step, so that a cycle would take "
            f"{per_step / ratio:.2g} of a baseline step, which reads no more than a cycle has to"
        )


def check_prefills(pairs: Sequence[tuple[Block, Block]]) -> None:
    """Check that the baseline's prefill takes no longer than spec's. Raises InvalidResult.

    That of a server holds the client's way to it and back, which one role may take more slowly than the other. So much
    is let pass as makes a whole request no faster than cycles may be: `TOLERANCE` of the baseline's, up to `SLACK_NS`.
    """
    pairs = [(a, b) for a, b in pairs if min(a.prefill_ns, b.prefill_ns) > 0]
    way = [min(SLACK_NS, TOLERANCE * (a.prefill_ns + a.elapsed_ns)) if a.served else 0 for a, _ in pairs]
    longer = [math.log(a.prefill_ns / (b.prefill_ns + ns)) for (a, b), ns in zip(pairs, way, strict=True)]
    if surely_beyond(longer, pairs, SLOWER_PREFILL):
        base, spec = (statistics.fmean(b.prefill_ns for b in role) / 1e6 for role in zip(*pairs, strict=True))
        raise InvalidResult(
            f"{place_of(pairs[0][1])} and {len(pairs) - 1} more: prefill takes {base:.4g} ms in the baseline and "
            f"{spec:.4g} ms with the draft: the baseline is slower than it need be"
        )


def check_passes(pairs: Sequence[tuple[Block, Block]]) -> None:
    """Check that the target's pass over one token takes no longer than over K + 1, by the engine's own phases. Raises
    InvalidResult.
    """
    pairs = [(a, b) for a, b in pairs if min(a.phase_ns.get(PASSES, 0), b.phase_ns.get(PASSES, 0)) > 0]
    log_ratios = [math.log(pass_ns(a) / pass_ns(b)) for a, b in pairs]
    if surely_beyond(log_ratios, pairs, PASS):
        base, spec = (statistics.fmean(map(pass_ns, role)) / 1e6 for role in zip(*pairs, strict=True))
        raise InvalidResult(
            f"{place_of(pairs[0][1])} and {len(pairs) - 1} more: the target's pass over one token takes {base:.3g} ms "
            f"in the baseline, and over {pairs[0][1].role.k + 1} tokens {spec:.3g} ms: the baseline is slower than "
            "it need be"
        )


def check_untimed(blocks: Sequence[Block], texts: Sequence[BaselineText]) -> None:
    """Check that timed steps of the baseline take no longer than untimed ones, by the harness's clock. Raises
    InvalidResult.

    `blocks`: of one point. `texts`: longer texts of the baseline's prompts there, each with how many steps were decoded
    for it, in how long.
    """
    pairs = [
        (block, text)
        for block in blocks
        for text in texts
        if block.step_ns and text.steps
        if (text.prompt_set, text.worker_generation) == (block.prompt_set, block.worker_generation)
    ]
    timed = [sum(b.step_ns) / len(b.step_ns) for b, _ in pairs]
    untimed = [(t.span_ns[1] - t.span_ns[0]) / t.steps for _, t in pairs]
    log_ratios = [math.log(a / b) for a, b in zip(timed, untimed, strict=True) if min(a, b) > 0]
    if len(log_ratios) == len(pairs) and surely_beyond(log_ratios, [(b, b) for b, _ in pairs], UNTIMED):
        raise InvalidResult(
            f"{place_of(pairs[0][0])} and {len(pairs) - 1} more: a step takes {statistics.fmean(timed) / 1e6:.3g} ms "
            f"where it is timed, and {statistics.fmean(untimed) / 1e6:.3g} ms where the same text goes on untimed"
        )


def check_first_steps(blocks: Sequence[Block]) -> None:
    """Check that prefill and step, as an engine states them of its blocks, are what the harness waited for a single
    step. Raises InvalidResult.

    Time that moves from one to the other is decoding told as prefill, or prefill told as decoding.
    """
    timed = [(b, b.one_step_ns) for b in blocks if b.one_step_ns is not None and b.step_ns]
    stated = [b.prefill_ns + sum(b.step_ns) / len(b.step_ns) for b, _ in timed]
    longer = [math.log(max(ns, 1) / (alone + SLACK_NS)) for ns, (_, alone) in zip(stated, timed, strict=True)]
    shorter = [math.log(max(alone - SLACK_NS, 1) / max(ns, 1)) for ns, (_, alone) in zip(stated, timed, strict=True)]
    pairs = [(b, b) for b, _ in timed]
    seen = any(surely_beyond(of, pairs, FIRST_STEP) or mostly_beyond(of, MOSTLY) for of in (longer, shorter))
    if seen or any(surely_beyond(*moved_share(timed, sign), FIRST_STEP) for sign in (1, -1)):
        alone = statistics.fmean(ns for _, ns in timed)
        raise InvalidResult(
            f"{place_of(timed[0][0])} and {len(timed) - 1} more: the engine says that its prefill and a step take "
            f"{statistics.fmean(stated) / 1e6:.4g} ms, but the harness waits {alone / 1e6:.4g} ms for a single step"
        )


def moved_share(timed: Sequence[tuple[Block, int]], sign: int) -> tuple[list[float], list[tuple[Block, Block]]]:
    """(Per prompt set: the time that `sign` times moved from decoding to prefill, as a share of decoding, its block).

    `timed`: blocks, each with the wait for its prefill and a single step, ns. That is one measurement for all rounds of
    a set, so a set counts once. A prefill may differ from it by `SLACK_NS` and `PREFILL`.
    """
    by_set: dict[int, list[float]] = {}
    last: dict[int, Block] = {}
    for block, alone in timed:
        decoding = sum(block.step_ns)
        moved = sign * (block.prefill_ns + decoding / len(block.step_ns) - alone)
        by_set.setdefault(block.prompt_set, []).append((moved - SLACK_NS - PREFILL * alone) / decoding)
        last[block.prompt_set] = block
    return [statistics.fmean(shares) for shares in by_set.values()], [(b, b) for b in last.values()]


def mostly_beyond(log_ratios: Sequence[float], tolerance: float) -> bool:
    """True if three of four ratios, of eight at least, lie more than `tolerance` above 1, however they scatter."""
    return len(log_ratios) >= MANY and sorted(log_ratios)[(len(log_ratios) - 1) // 4] > math.log1p(tolerance)


def surely_beyond(log_ratios: Sequence[float], pairs: Sequence[tuple[Block, Block]], tolerance: float) -> bool:
    """True if the mean ratio surely lies more than `tolerance` above 1. It does not where no single one does."""
    if max(log_ratios, default=0.0) <= math.log1p(tolerance):
        return False
    beyond = Pairs(
        log_ratios=list(log_ratios),
        orders=[1 if a.position_in_round < b.position_in_round else -1 for a, b in pairs],
        prompt_sets=[b.prompt_set for _, b in pairs],
        turns=list(range(len(pairs))),
    )
    interval = beyond.interval()
    least = interval.low if interval else statistics.fmean(log_ratios) - math.log(FEW)
    return least > math.log1p(tolerance)


def pass_ns(block: Block) -> float:
    """Mean time of the target's passes of a block, ns."""
    return block.phase_ns[PASSES] / max(1, len(block.step_ns))


def log_ratio(baseline: Block, spec: Block, scenario: Scenario) -> float:
    """ln(spec / baseline) of a pair's speeds, as a speed rule takes them, or of decoding where none is to be had."""
    if judged_jointly(scenario, spec):
        joint = joint_decoding(baseline), joint_decoding(spec)
        if joint[0] is not None and joint[1] is not None:
            return math.log(joint[1].tok_s / joint[0].tok_s)
    return math.log(speed(spec, scenario.whole_requests) / speed(baseline, scenario.whole_requests))


def decoding_log_ratio(baseline: Block, spec: Block) -> float | None:
    """ln(spec / baseline) of the speeds after each request's first arrival; None where nothing came after it."""
    speeds = list[float]()
    for block in (baseline, spec):
        first = sum(r.chunk_tokens[0] - 1 for r in block.served.requests) if block.served else 0
        if block.emitted <= first or not block.decoding_ns:
            return None
        speeds.append((block.emitted - first) / block.decoding_ns)
    return math.log(speeds[1] / speeds[0])


def tokens_per_step(block: Block) -> float | None:
    """The most tokens that a request of a spec block emitted per step of its own; None where that is not known, as
    where a server lost steps from its counters.

    A server counts its steps over all requests of a block. Their mean is a bound only if all requests are equally long.
    """
    if block.served is None:
        steps = [sum(row[slot] >= 0 for row in block.accepted) for slot in range(len(block.tokens))]
        return max(((len(t) - 1) / n for t, n in zip(block.tokens, steps, strict=True) if n), default=None)
    record = block.served.acceptance
    if record is None or block.counters.get(JOINED_OUTPUTS) or len({len(tokens) for tokens in block.tokens}) > 1:
        return None
    counted = record.steps + (block.steps_without_draft or 0)
    return block.emitted / counted if counted else None
