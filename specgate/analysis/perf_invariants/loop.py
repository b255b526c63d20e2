"""Invariants of the decode loop, its kernels, and its slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from specgate.analysis.perf_invariants.evidence import Evidence, total_of, unseen
from specgate.analysis.traces.cuda_calls import allocations, count_copies, unknown_calls, waits
from specgate.analysis.traces.families import strangers
from specgate.contract import Block, BlockTrace, CellResult, EngineFacts, Held, Invariant
from specgate.contract.samples.counters import TUNED_BY_RULE, TUNED_HITS, TUNED_TOTAL

SHOWN_KERNELS: Final = 20


def own_kernels(facts: EngineFacts | None, trace: BlockTrace | None) -> Invariant:
    """I1: every kernel of the traced block is on the engine's list of its own kernels, or on that of the user."""
    if trace is None or trace.unseen is not None:
        return unseen("I1", trace)
    if trace.allowed is None and (facts is None or facts.kernels is None):
        table = most_frequent(trace.kernels) if trace.source == "server-profiler" else {}
        return Invariant("I1", Held.UNSEEN, "no_allow_list", "the engine names no kernels of its own to allow", table)
    if trace.allowed is not None:
        foreign, whose = strangers(trace.kernels, trace.allowed), "on the list of those that are allowed"
    else:
        own = facts.kernels if facts is not None and facts.kernels is not None else ()
        foreign, whose = {name: n for name, n in trace.kernels.items() if name not in own}, "the engine's own"
    if foreign:
        worst = max(foreign, key=lambda name: foreign[name])
        message = f"{len(foreign)} kernels in the loop are not {whose}, e.g. {worst} ({foreign[worst]} launches)"
        evidence = foreign if trace.allowed is None else most_frequent(foreign)
        return Invariant("I1", Held.BROKEN, "fallback_kernel", message, evidence)
    if trace.partial is not None:
        return Invariant("I1", Held.UNSEEN, "not_whole", trace.partial)
    launches = sum(trace.kernels.values())
    message = f"{launches} launches of {len(trace.kernels)} kernels in {trace.steps} steps, all {whose}"
    return Invariant("I1", Held.HELD, "own_kernels", message, {"launches": launches, "source": trace.source})


def most_frequent(kernels: Mapping[str, int]) -> dict[str, int]:
    """The kernels that are launched most, as many as a page can show: a server has hundreds."""
    return dict(sorted(kernels.items(), key=lambda entry: (-entry[1], entry[0]))[:SHOWN_KERNELS])


def tuned_kernels(blocks: Sequence[Block], trace: BlockTrace | None) -> Invariant:
    """I2: every product of the traced block was launched as the configuration that was tuned for its weight has it.

    The engine states the products and their launches; what was launched, the profiler saw. Look-ups that the engine
    counts in the timed blocks can break the invariant and hold nothing.
    """
    total, hits = (total_of(name, blocks) for name in (TUNED_TOTAL, TUNED_HITS))
    counted: Evidence = {} if total is None or hits is None else {TUNED_HITS: hits, TUNED_TOTAL: total}
    by_rule = sum(block.counters.get(TUNED_BY_RULE, 0) for block in blocks)
    if total is not None and hits is not None and hits + by_rule < total:
        message = f"{total - hits - by_rule} of {total} look-ups found no tuned configuration"
        return Invariant("I2", Held.BROKEN, "untuned_kernel", message, counted)
    if trace is not None and trace.products:
        return unseen("I2", trace) if trace.unseen is not None else launched_as_tuned(trace, counted)
    if not total:
        return Invariant("I2", Held.UNSEEN, "no_tuning_table", "the engine counts no look-ups of tuned configurations")
    message = f"the engine says: {hits} of {total} look-ups found their tuned configuration; it states no launches"
    return Invariant("I2", Held.UNSEEN, "engines_own_word", message, counted)


def launched_as_tuned(trace: BlockTrace, counted: Evidence) -> Invariant:
    """I2 by the launches of a traced block, of an engine that states its products."""
    untuned = [product.name for product in trace.products if product.launch is None]
    tuned = {product.launch: product.name for product in trace.products if product.launch is not None}
    others = {name: n for name, n in trace.launches.items() if name not in tuned}
    kernels = {product.kernel for product in trace.products}
    unnamed = sum(trace.kernels.get(kernel, 0) for kernel in kernels) - sum(trace.launches.values())
    missing = [f"{name}: {launch}" for launch, name in tuned.items() if launch not in trace.launches]
    if untuned:
        message = f"no configuration is tuned for {len(untuned)} of {len(trace.products)} products, e.g. {untuned[0]}"
        return Invariant("I2", Held.BROKEN, "untuned_kernel", message, counted)
    if others:
        worst = max(others, key=lambda name: others[name])
        message = f"{sum(others.values())} launches are of no tuned configuration, e.g. {others[worst]} of {worst}"
        return Invariant("I2", Held.BROKEN, "untuned_kernel", message, {**counted, **most_frequent(others)})
    if (why := trace.partial or ("the profiler tells no grid of some launches" if unnamed else None)) is not None:
        return Invariant("I2", Held.UNSEEN, "not_whole", why, counted)
    if missing:
        message = f"{len(missing)} tuned products were not launched as tuned, e.g. {missing[0]}"
        return Invariant("I2", Held.BROKEN, "untuned_kernel", message, counted)
    if by_rule := [product.name for product in trace.products if product.by_rule]:
        message = f"{len(by_rule)} of {len(trace.products)} products run more rows than were tuned, e.g. {by_rule[0]}"
        return Invariant("I2", Held.BROKEN, "untuned_rows", message, counted)
    launches = sum(trace.launches.values())
    message = f"all {launches} launches of {len(trace.products)} products are those of their tuned configurations"
    return Invariant("I2", Held.HELD, "launched_as_tuned", message, {**counted, "source": trace.source})


def laid_out(result: CellResult, blocks: Sequence[Block]) -> Invariant:
    """I5: the tokens of every slot account for its steps. The measurement checks this identity; a cell that breaks it
    has failed.

    A server shows no steps. Seen from outside, each of its answers has a stream of its own, whose tokens are as many
    as its usage record and all chunks say, and those of all answers account for the server's counters.
    """
    if not blocks or result.status == "failed":
        return Invariant("I5", Held.BROKEN, "counter_identity", result.reason or "no block was measured")
    if all(streams_of_their_own(b) for b in blocks):
        answers = sum(len(b.tokens) for b in blocks)
        message = f"each of {answers} answers has its own stream, with as many tokens as its chunks and usage say"
        return Invariant("I5", Held.HELD, "per_answer", message, {"answers": answers})
    if any(b.served is not None for b in blocks):
        return Invariant("I5", Held.UNSEEN, "no_steps", "a server does not show the steps of its slots")
    slots = sum(len(b.tokens) for b in blocks)
    message = f"the tokens of {slots} slots in {len(blocks)} blocks account for their own steps"
    return Invariant("I5", Held.HELD, "per_slot", message, {"slots": slots})


def streams_of_their_own(block: Block) -> bool:
    """True if each slot is an answer of a server whose chunks hold just its tokens."""
    if block.served is None or len(block.served.requests) != len(block.tokens):
        return False
    return all(sum(r.chunk_tokens) == len(t) for r, t in zip(block.served.requests, block.tokens, strict=True))


def quiet_loop(trace: BlockTrace | None) -> Invariant:
    """I6: the traced block has no copy to the host, no wait and no allocation."""
    if trace is None or trace.unseen is not None:
        return unseen("I6", trace)
    counts = {
        "d2h_in_loop": count_copies(trace.copies, True),
        "sync_in_loop": waits(trace.calls),
        "alloc_in_loop": allocations(trace.calls),
    }
    if trace.source == "server-profiler" and any(counts.values()):
        return counted_per_step(trace, counts)
    for code, times in counts.items():
        if times:
            noun = {"d2h_in_loop": "copies to the host", "sync_in_loop": "waits", "alloc_in_loop": "allocations"}[code]
            return Invariant("I6", Held.BROKEN, code, f"{times} {noun} in {trace.steps} steps of the loop", counts)
    if (why := trace.partial or unknown_in(trace)) is not None:
        return Invariant("I6", Held.UNSEEN, "not_whole", why, counts)
    launches = sum(trace.calls.values())
    message = f"no copy to the host, wait or allocation among {launches} CUDA calls in {trace.steps} steps"
    return Invariant("I6", Held.HELD, "quiet", message, {**counts, "source": trace.source})


def unknown_in(trace: BlockTrace) -> str | None:
    """The calls and copies of a trace of which it is not known whether they belong to I6; None if all are known."""
    if calls := unknown_calls(trace.calls):
        return f"it is not known whether these calls wait or allocate: {', '.join(sorted(calls)[:SHOWN_KERNELS])}"
    if count_copies(trace.copies, None):
        return "it is not known where each of its copies leads"
    return None


def counted_per_step(trace: BlockTrace, counts: Mapping[str, int]) -> Invariant:
    """I6 of a server: broken, with how much of it there is in a step.

    A server has to hand out tokens, and copies them to the host in every step. How many bytes these are, and whether
    its loop waits for them, makes the difference.
    """
    steps, loop = max(1, trace.steps), trace.loop
    copies, waits, allocations = (counts[code] / steps for code in ("d2h_in_loop", "sync_in_loop", "alloc_in_loop"))
    size = f" ({loop.bytes_to_host / steps:,.0f} bytes)" if loop and loop.bytes_to_host is not None else ""
    elsewhere = (
        f" ({loop.waits_elsewhere / steps:.2f} on other threads than the loop's)"
        if loop and loop.waits_elsewhere is not None and waits
        else ""
    )
    message = (
        f"per step {copies:.2f} copies to the host{size}, {waits:.2f} waits{elsewhere} and {allocations:.2f} "
        f"allocations, in {trace.steps} steps"
    )
    if trace.partial:
        message = "at least {} copies to the host, {} waits and {} allocations".format(*counts.values())
    evidence: dict[str, float | int | str | None] = {**counts, "steps": trace.steps, "source": trace.source}
    if loop is not None:
        evidence |= {
            "bytes_to_host": loop.bytes_to_host,
            "waits_elsewhere": loop.waits_elsewhere,
            "gpu_busy_share": round(loop.busy_share, 4),
            "longest_gap_ns": loop.longest_gap_ns,
        }
    code = next(code for code, times in counts.items() if times)
    return Invariant("I6", Held.BROKEN, code, message, evidence)
