"""Whether a full run could begin now. Nothing is loaded to find out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from specgate.core import Promotion
from specgate.planning.request import Request
from specgate.planning.resolution import resolve
from specgate.promotion.claim import ENGINE_KEYS, claim_of, digests, software_of
from specgate.promotion.ledger import History, Ledger
from specgate.promotion.micro_gates import micro_gates
from specgate.promotion.standing import doubts
from specgate.promotion.streak import NEEDED, Claim, Streak, assuming_last_engine, streak


@dataclass(frozen=True, slots=True)
class PromotionStatus:
    """The ledger and its entries, what has to be green, and how often in a row it has been green."""

    ledger: Ledger
    history: History
    claim: Claim
    promotion: Promotion
    streak: Streak


def promotion_status(request: Request) -> PromotionStatus:
    """The promotion status of a full run with the options of `request`.

    The weights and the device are assumed to be those of the last micro run. Raises InvalidResult if the ledger was
    changed, and whatever error the full run itself would be refused with because of its options.
    """
    ledger = Ledger(request.out, request.archives)
    history = ledger.read()
    config = resolve(request)
    gates, command = micro_gates(request, config)
    claim = assuming_last_engine(claim_of(config, digests(gates), software_of(config)), history.entries, ENGINE_KEYS)
    found = streak(history.entries, claim, datetime.now(UTC), doubts(ledger))
    promotion = Promotion(gates=claim.gates, needed=NEEDED, streak=found.length, command=command)
    return PromotionStatus(ledger, history, claim, promotion, found)
