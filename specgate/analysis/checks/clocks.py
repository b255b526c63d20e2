"""Two clocks: the times that an engine gives for a block, compared with the harness's own clock around the call.

The harness notes when it asks for a block and when it has the answer: the block's span. An in-process engine on a GPU
times its steps with GPU events, so this holds the GPU's clock against the host's as well.

- Nothing takes longer than the call that it is part of: own prefill + elapsed ≤ span, but for what two quartz clocks
  differ by and what a clock resolves. Where the engine says when its times begin, all of them lie within the span.
- The steps are the run: Σ step times = elapsed, but for `cycle_budget.TOLERANCE` and the reading of the clock in
  between.
- What neither prefill nor elapsed explains is the call itself: the pipe to the engine's process, rewinding, reading
  results. Over the blocks of a cell it is at most `CALL_NS` per call and `CALL_SHARE` of the span. In the stored runs
  (in docs/results: 272 blocks of two engines on H200s and on a CPU, spans of 85 ms to 2.8 s) it is 0.9 ms to 7.6 ms
  per call, with one call of 127 ms, and at most 4.2 % of the span.
- It is the same work in every role. A spec cell whose calls leave much more unexplained than the baseline calls that
  they are paired with claims a speed-up that the harness did not see: more than `PAIR_NS` and `PAIR_SHARE` of the span,
  in at least three of four pairs, so that a busy machine does not fake it. In the stored runs the medians of the two
  roles differ by 0.6 ms at most.
- An engine that prefills anew for every block times that prefill too, and in a micro run it does not count. So it may
  not hold what belongs to decoding: a spec block's prefill is at most `OWN_PREFILL` times that of its baseline block,
  in at least one of four pairs.

A server's client is timed in its own process, before and after which servers are started and their counters waited for.
So a cell of a server is held to `SERVER_NS` in its lower quartile of calls, and not to its baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specgate.analysis.checks.identities import place_of
from specgate.contract import Block
from specgate.contract.cycle_budget import TOLERANCE
from specgate.errors import InvalidResult

CLOCK_SHARE: Final = 1e-3
"""Two quartz clocks differ by less than 1e-4."""
CLOCK_NS: Final = 100_000
STEP_NS: Final = 20_000
"""Time between the end of a step and the beginning of the next that counts to neither."""
CALL_NS: Final = 50_000_000
CALL_SHARE: Final = 0.10
PAIR_NS: Final = 5_000_000
PAIR_SHARE: Final = 0.02
OWN_PREFILL: Final = 2.0
"""How many times the baseline's prefill that of a spec block may take, for the same prompts. A draft of one layer added
3 % at 8B (32,000 tokens, SGLang on an H200: 1.17 s and 1.21 s) and a third at 135M (vLLM on a CPU).
"""
SERVER_NS: Final = 10_000_000_000
"""Counters may settle for 5 s before and after the requests of a block."""


def check_times(block: Block, whole: bool) -> None:
    """Check the times of one block against each other and against its span. Raises InvalidResult with both figures.

    `whole`: the block includes its own prefill.
    """
    where, times = place_of(block), (block.elapsed_ns, block.prefill_ns, *block.step_ns, *block.phase_ns.values())
    if min(times) < 0 or (block.emitted and not block.elapsed_ns):
        raise InvalidResult(f"{where}: it took {ms(min(times))} to emit {block.emitted} tokens: no time is that short")
    if block.served is None:
        check_sum(block, where)
    if block.span_ns is None:
        return
    span, own = span_of(block), own_prefill_ns(block, whole)
    if own + block.elapsed_ns > span * (1 + CLOCK_SHARE) + CLOCK_NS:
        prefill = f" after a prefill of {ms(own)}" if own else ""
        raise InvalidResult(
            f"{where}: the engine says that it took {ms(block.elapsed_ns)}{prefill}, but the harness had the answer "
            f"{ms(span)} after it had asked"
        )
    check_began(block, span, own, where)


def check_began(block: Block, span: int, own: int, where: str) -> None:
    """A block begins after the harness has asked for it, and ends before the harness has it. Raises InvalidResult."""
    if block.began_ns is None or block.span_ns is None:
        return
    before, apart = block.began_ns - block.span_ns[0], span * CLOCK_SHARE + CLOCK_NS
    if before < -apart or before + own + block.elapsed_ns > span + apart:
        raise InvalidResult(
            f"{where}: the engine says that it began {ms(before)} after the harness had asked and took "
            f"{ms(own + block.elapsed_ns)}, but the harness had the answer {ms(span)} after it had asked"
        )


def check_sum(block: Block, where: str) -> None:
    """The step times add up to the decode run. Raises InvalidResult."""
    steps, apart = sum(block.step_ns), TOLERANCE * block.elapsed_ns + STEP_NS * len(block.step_ns)
    if abs(steps - block.elapsed_ns) > apart:
        raise InvalidResult(
            f"{where}: its {len(block.step_ns)} steps add up to {ms(steps)}, but the engine says that the decode run "
            f"took {ms(block.elapsed_ns)}"
        )


def check_unexplained(blocks: Sequence[Block], whole: bool) -> None:
    """Check what the calls of one cell took beside the times that the engine gives. Raises InvalidResult."""
    timed = [b for b in blocks if b.span_ns is not None]
    if not timed:
        return
    left, spans = [unexplained_ns(b, whole) for b in timed], [span_of(b) for b in timed]
    difference = (
        f"{timed[0].cell.key}: the engine says that its {len(timed)} blocks took {ms(sum(spans) - sum(left))}, but the "
        f"harness saw {ms(sum(spans))}"
    )
    if any(b.served is not None for b in timed):
        if (least := sorted(left)[(len(left) - 1) // 4]) > SERVER_NS + CALL_SHARE * max(spans):
            raise InvalidResult(f"{difference}: three calls of four leave more than {ms(least)} unexplained")
    elif sum(left) > CALL_NS * len(timed) + CALL_SHARE * sum(spans):
        raise InvalidResult(f"{difference}: {sum(left) / sum(spans):.0%} of the time is unexplained")


def check_pairs(pairs: Sequence[tuple[Block, Block]], whole: bool) -> None:
    """Check (baseline, spec) pairs of one cell: its calls leave no more unexplained than the baseline's do, and its
    prefills take no longer than they may. Raises InvalidResult.
    """
    if not whole:
        check_own_prefills(pairs)
    pairs = [(a, b) for a, b in pairs if a.span_ns and b.span_ns and a.served is None and b.served is None]
    beyond = [
        unexplained_ns(spec, whole) - unexplained_ns(base, whole) - PAIR_NS - PAIR_SHARE * span_of(spec)
        for base, spec in pairs
    ]
    if not beyond or sorted(beyond)[(len(beyond) - 1) // 4] <= 0:
        return
    base, spec = (sum(span_of(block) for block in role) for role in zip(*pairs, strict=True))
    of_base, of_spec = (sum(own_ns(block, whole) for block in role) for role in zip(*pairs, strict=True))
    raise InvalidResult(
        f"{pairs[0][1].cell.key}: the engine says that {len(pairs)} blocks took {ms(of_spec)}, and those of the "
        f"baseline {ms(of_base)}: {of_base / of_spec:.2f} times as long; the harness saw {ms(spec)} and {ms(base)}: "
        f"{base / spec:.2f} times"
    )


def check_own_prefills(pairs: Sequence[tuple[Block, Block]]) -> None:
    """Check (baseline, spec) pairs of one cell of a micro run: their own prefills, of the same prompts, take about the
    same time. Raises InvalidResult.
    """
    pairs = [(a, b) for a, b in pairs if a.own_prefill and b.own_prefill and a.served is None and b.served is None]
    beyond = sorted(b.prefill_ns - OWN_PREFILL * a.prefill_ns - PAIR_NS for a, b in pairs)
    if not beyond or beyond[(len(beyond) - 1) // 4] <= 0:
        return
    base, spec = (sum(block.prefill_ns for block in role) for role in zip(*pairs, strict=True))
    raise InvalidResult(
        f"{pairs[0][1].cell.key}: the engine says that {len(pairs)} prefills took {ms(spec)}, and those of the same "
        f"prompts for the baseline {ms(base)}: time of decoding may lie in them"
    )


def span_of(block: Block) -> int:
    """Nanoseconds from asking for a block to having it, by the harness's clock; 0 where that was not recorded."""
    return block.span_ns[1] - block.span_ns[0] if block.span_ns else 0


def own_prefill_ns(block: Block, whole: bool) -> int:
    """The prefill that lies within the block's span: that of a whole request, or of an engine that knows no other."""
    return block.prefill_ns if whole or block.own_prefill or block.served is not None else 0


def own_ns(block: Block, whole: bool) -> int:
    """Time that the call took by the engine's own account, in nanoseconds."""
    return own_prefill_ns(block, whole) + block.elapsed_ns


def unexplained_ns(block: Block, whole: bool) -> int:
    """The span without what the engine gives for it."""
    return span_of(block) - own_ns(block, whole)


def ms(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:,.3f} ms"
