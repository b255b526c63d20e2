"""Verification over a part of the cache (SpecPV) in a decode run: the option, the schedule, and the counters.

The host does not know how many tokens a step will emit. It takes the most for the tokens that no full verification has
seen, so that these are never more than `refresh` and one step's; and the least for the length of a request, so that a
part is read only where something is left out of every request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from specgate.backends.eagle3.cupy.engine.decode_run import STEPS_PER_GRAPH, graph_sizes
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import MAX_ROWS
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.partial import FULL, PARTIAL, PLAIN, Kind
from specgate.backends.eagle3.lib.refusals import ELSEWHERE
from specgate.backends.eagle3.lib.specpv import BLOCK, REFRESH, SPECPV, PartialPlan, plan_partial
from specgate.contract.protocols import OpenRequest
from specgate.contract.samples.counters import (
    SPECPV_CACHED,
    SPECPV_CHECKED,
    SPECPV_COUNTED,
    SPECPV_FULL,
    SPECPV_FULL_ACCEPTED,
    SPECPV_OVERRULED,
    SPECPV_PARTIAL,
    SPECPV_PARTIAL_ACCEPTED,
    SPECPV_READ,
    SPECPV_SHORT,
)
from specgate.errors import UsageError


def asked_plan(request: OpenRequest) -> PartialPlan | None:
    """Return the plan that the options ask for; None without one.

    Raises UsageError for what cannot be meant, and for what no kernel is made for.
    """
    plan = plan_partial(request.options)
    if plan is None:
        return None
    if plan.lossless:
        raise UsageError(
            f"option {SPECPV} = lossless: back end cupy verifies in part with {SPECPV} = lossy alone",
            hint=f"{SPECPV}=lossy; {ELSEWHERE}",
        )
    return plan


def used_plan(request: OpenRequest, plan: PartialPlan | None) -> PartialPlan | None:
    """`plan`, where any request can be so long that something is left out of it; else None: all verify in full.

    Raises UsageError for more rows in a full verification than products take.
    """
    if plan is None or not request.max_k or not plan.leaves_out(request.max_positions):
        return None
    rows = Sizes(request.max_batch, request.max_positions, request.max_k + 1, partial=plan).most_rows
    if request.max_batch * rows > MAX_ROWS:
        drafted = request.max_k + 1
        refresh = MAX_ROWS // request.max_batch - 2 * drafted + 1
        right = f"a {REFRESH} of at most {refresh}" if refresh > 0 else "fewer draft tokens"
        raise UsageError(
            f"option {REFRESH} = {plan.refresh}: a full verification of batch {request.max_batch} runs up to "
            f"{request.max_batch * rows} rows, {rows} of each request; at most {MAX_ROWS} are supported",
            hint=f"a smaller batch, or {right}",
        )
    return plan


def kinds_of(sizes: Sizes, k: int, lengths: Sequence[int], steps: int) -> tuple[Kind, ...]:
    """Return how each of `steps` steps of spec-`k` verifies, behind prompts of these lengths. Where none can verify in
    part, all are plain.
    """
    plan, most = sizes.partial, sizes.partial_passes_of(k)
    kinds = list[Kind]()
    while len(kinds) < steps and plan is not None and most:
        long = plan.leaves_out(min(lengths) + len(kinds))
        kinds += [FULL, *[PARTIAL] * (most if long else 0)]
    return tuple(kinds[:steps]) if PARTIAL in kinds[:steps] else (PLAIN,) * steps


def graphs_of(kinds: Sequence[Kind]) -> list[tuple[Kind, ...]]:
    """The steps of each graph, one graph after the other: as many as a graph has at most, and no full verification but
    as the first of one. What is left over at the end of a run are graphs of one step.
    """
    runs, graphs = list[list[Kind]](), list[tuple[Kind, ...]]()
    for kind in kinds:
        if not runs or kind == FULL:
            runs.append([])
        runs[-1].append(kind)
    longest = max(map(len, runs), default=0)
    for run in runs:
        whole = run[0] == FULL and len(run) == longest  # it comes again and again
        at = 0
        for size in graph_sizes(len(run)) if not whole else [STEPS_PER_GRAPH] * -(-len(run) // STEPS_PER_GRAPH):
            graphs.append(tuple(run[at : at + size]))
            at += size
    return graphs


def counters_of(
    plan: PartialPlan, kinds: Sequence[Kind], accepted: Sequence[Sequence[int]], lengths: Sequence[int], overruled: int
) -> dict[str, int]:
    """Counters of a run of steps of these `kinds` that accepted so many drafts per step and slot (negative: the slot
    did not run), behind prompts of these `lengths`. `overruled`: the tokens that full verifications would not have
    chosen.
    """
    counters = Counter(dict.fromkeys(SPECPV_COUNTED, 0))
    for slot, prompt in enumerate(lengths):
        length, verified, dropped = prompt, prompt, 0
        for kind, row in zip(kinds, accepted, strict=False):
            if (a := row[slot]) < 0:
                break
            counters[SPECPV_CACHED] += length
            if kind == "partial":
                counters.update({SPECPV_PARTIAL: 1, SPECPV_PARTIAL_ACCEPTED: a, SPECPV_READ: length - dropped})
            else:
                buffered = length - verified
                counters.update({SPECPV_FULL: 1, SPECPV_FULL_ACCEPTED: a})
                counters.update({SPECPV_READ: verified, SPECPV_CHECKED: buffered})
                counters[SPECPV_SHORT] += not plan.leaves_out(length)
                dropped = max(0, plan.first_of_window(length) - plan.sink - plan.retrieval) * BLOCK
                verified = length + a + 1
            length += a + 1
    counters[SPECPV_OVERRULED] += overruled
    return dict(counters)
