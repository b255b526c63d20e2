"""Option `-o specpv=…`, and its refusal where no kernel is made for it."""

from __future__ import annotations

from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import MAX_ROWS
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.lib.specpv.plan import REFRESH, SPECPV, PartialPlan, plan_partial
from specgate.contract.protocols import OpenRequest
from specgate.errors import UsageError

ELSEWHERE = "--backend reference has it"


def asked_plan(request: OpenRequest) -> PartialPlan | None:
    """Return the plan that the options ask for; None without one.

    Raises UsageError for what cannot be meant, for options that it does not go with, and for what no kernel is made
    for.
    """
    plan = plan_partial(request.options)
    if plan is None:
        return None
    if request.sampling is not None:
        raise UsageError(f"option {SPECPV} with sampling: it verifies greedily", hint="leave one of them out")
    if plan.lossless:
        raise UsageError(
            f"option {SPECPV} = lossless: back end cupy verifies in part with {SPECPV} = lossy alone",
            hint=f"{SPECPV}=lossy; {ELSEWHERE}",
        )
    if (ranks := request.options.get("tp", "1")) != "1":
        raise UsageError(
            f"option {SPECPV} with tp = {ranks}: GPUs that share a target verify all chains in full",
            hint="leave one of them out",
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
