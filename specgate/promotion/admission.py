"""The order micro → full in the life of a run: before it begins, when its engine is loaded, after it has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from specgate.core import EngineFacts, Order, Run, State
from specgate.errors import ExitCode, UsageError
from specgate.files.run_folder import Config, RunFolder
from specgate.planning.request import Request
from specgate.promotion.claim import admit, after_micro, claim_of, digests, entry_of, standing
from specgate.promotion.ledger import Ledger
from specgate.promotion.micro_gates import micro_gates
from specgate.promotion.streak import NEEDED


def order_of(request: Request, config: Config, ledger: Ledger) -> Order:
    """Where this run stands, before anything is loaded.

    Raises OrderRefused for a full run whose micro gates have not been green often enough, InvalidResult where the
    ledger was changed.
    """
    if request.resume:
        began = RunFolder.open(request.resume).read_run().order
        if began is None:
            raise UsageError(f"{request.resume}: run.json has no order: another version began it", hint="begin anew")
        order = replace(began, override=request.override_order or began.override)
    else:
        gates, command = micro_gates(request, config)
        order = Order(digests(gates), NEEDED, 0, command, request.override_order)
    claim = claim_of(config, order.gates)
    if request.kind == "full":
        return admit(ledger, claim, order)
    return replace(order, streak=standing(ledger, claim).length)


def admission(request: Request, config: Config, ledger: Ledger, order: Order) -> Callable[[EngineFacts], None]:
    """What has to hold of a loaded engine before its first block: a full run's weights are the micro runs'."""

    def check(facts: EngineFacts) -> None:
        if request.kind == "full":
            admit(ledger, claim_of(config, order.gates), order, facts)

    return check


def record(run: Run, config: Config, folder: Path, ledger: Ledger, state: State, code: ExitCode) -> list[str]:
    """Enter the run, which has ended, in the ledger. Returns what there is to say of it, in lines."""
    torn = ledger.append(entry_of(run, config, state, code, folder))
    said = [f"warning: {ledger.file}: a torn line was moved to ledger.torn.jsonl"] if torn else []
    if run.kind == "micro" and run.order:
        said.append(after_micro(ledger, claim_of(config, run.order.gates), run.order, run))
    return said
