"""I1 and I2: no GEMM fall-back and no foreign kernel, and no look-up without a tuned configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from specgate.analysis.perf_invariants.evidence import total_of, unseen
from specgate.analysis.traces.families import strangers
from specgate.contract import Block, BlockTrace, EngineFacts, Held, Invariant

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
    launches = sum(trace.kernels.values())
    message = f"{launches} launches of {len(trace.kernels)} kernels in {trace.steps} steps, all {whose}"
    return Invariant("I1", Held.HELD, "own_kernels", message, {"launches": launches, "source": trace.source})


def most_frequent(kernels: Mapping[str, int]) -> dict[str, int]:
    """The kernels that are launched most, as many as a page can show: a server has hundreds."""
    return dict(sorted(kernels.items(), key=lambda entry: (-entry[1], entry[0]))[:SHOWN_KERNELS])


def tuned_kernels(blocks: Sequence[Block]) -> Invariant:
    """I2: every look-up of a tuned configuration in the timed blocks found one."""
    total, hits = (total_of(name, blocks) for name in ("tuned_total", "tuned_hits"))
    if not total or hits is None:
        return Invariant("I2", Held.UNSEEN, "no_tuning_table", "the engine counts no look-ups of tuned configurations")
    evidence = {"tuned_hits": hits, "tuned_total": total}
    if hits < total:
        message = f"{total - hits} of {total} look-ups found no tuned configuration"
        return Invariant("I2", Held.BROKEN, "untuned_kernel", message, evidence)
    return Invariant("I2", Held.HELD, "all_tuned", f"all {total} look-ups found their tuned configuration", evidence)
