"""Status: may a full run begin now? Nothing is loaded to find out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from specgate.contract import Promotion
from specgate.machine import host
from specgate.planning.request import Request
from specgate.planning.resolution import resolve
from specgate.promotion.claim import ENGINE_KEYS, claim_of, digests, software_of
from specgate.promotion.fingerprint import FLEET, measured_by
from specgate.promotion.green_runs import (
    NEEDED,
    Claim,
    GreenRuns,
    assuming_last_engine,
    green_runs,
    relevant,
)
from specgate.promotion.ledger import Entry, History, Ledger
from specgate.promotion.micro_gates import micro_gates
from specgate.promotion.standing import doubts


@dataclass(frozen=True, slots=True)
class PromotionStatus:
    """The ledger and its entries, what has to be green, and how often in a row it has been green: on this machine, and
    for the `others` whose runs the ledger has.
    """

    ledger: Ledger
    history: History
    claim: Claim
    promotion: Promotion
    green: GreenRuns
    others: tuple[OtherRuns, ...] = ()


@dataclass(frozen=True, slots=True)
class OtherRuns:
    """Green micro runs in a row of others than this machine alone.

    `last`: their newest run. `begun_here`: a fleet whose runs were begun on this machine, so that its `full` could be
    begun here; they are held to the software that is here now. The runs of others are held to what their last one
    rested on, which is all that is known of them here.
    """

    green: GreenRuns
    last: Entry
    begun_here: bool


def promotion_status(request: Request) -> PromotionStatus:
    """The promotion status of a full run with the options of `request`.

    The weights and the device are assumed to be those of the last micro run. Raises InvalidResult if the ledger was
    changed, and whatever error the full run itself would be refused with because of its options.
    """
    ledger = Ledger(request.out, request.archives)
    history = ledger.read()
    config = resolve(request)
    gates, command = micro_gates(request, config)
    unloaded, now = claim_of(config, digests(gates), software_of(config)), datetime.now(UTC)
    claim = assuming_last_engine(unloaded, history.entries, ENGINE_KEYS)
    current = green_runs(history.entries, claim, now, doubts(ledger))
    promotion = Promotion(gates=claim.gates, needed=NEEDED, streak=current.length, command=command)
    return PromotionStatus(ledger, history, claim, promotion, current, tuple(others(ledger, history, unloaded, now)))


def others(ledger: Ledger, history: History, claim: Claim, now: datetime) -> Iterator[OtherRuns]:
    """Yield the green runs of others than this machine alone, those who measured last first.

    `claim`: of this machine, without what only an engine knows.
    """
    of: dict[str, list[Entry]] = {}
    for entry in relevant(history.entries, claim):
        if (who := measured_by(entry.fingerprint)) and who != measured_by(claim.fingerprint):
            of[who] = [*of.pop(who, []), entry]  # at the end, so that who measured last comes last
    for theirs in reversed(of.values()):
        last = theirs[-1]
        here = FLEET in last.fingerprint and last.host == host.identity() and same_machine(last, claim)
        known = {**claim.fingerprint, FLEET: last.fingerprint[FLEET]} if here else last.fingerprint
        assumed = assuming_last_engine(replace(claim, fingerprint=known), theirs, ENGINE_KEYS)
        yield OtherRuns(green_runs(history.entries, assumed, now, doubts(ledger, last.host)), last, here)


def same_machine(entry: Entry, claim: Claim) -> bool:
    """Return whether an entry was made on the machine of the claim, for itself or for a fleet."""
    return all(entry.fingerprint.get(key) == claim.fingerprint.get(key) for key in ("gpu_uuid", "host"))
