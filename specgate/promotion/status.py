"""Where a full run would stand if it began now, without loading anything."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from specgate.core import Promotion
from specgate.planning.request import Request
from specgate.planning.resolution import resolve
from specgate.promotion.claim import OF_THE_ENGINE, claim_of, digests
from specgate.promotion.ledger import History, Ledger
from specgate.promotion.micro_gates import micro_gates
from specgate.promotion.streak import NEEDED, Claim, Streak, completed, streak


@dataclass(frozen=True, slots=True)
class PromotionStatus:
    """The ledger and its history, what has to be green, and how often in a row it has been."""

    ledger: Ledger
    history: History
    claim: Claim
    promotion: Promotion
    streak: Streak


def promotion_status(request: Request) -> PromotionStatus:
    """Raises InvalidResult where the ledger was changed, and whatever the request itself would be refused for."""
    ledger = Ledger(request.out)
    history = ledger.read()
    config = resolve(request)
    gates, command = micro_gates(request, config)
    claim = completed(claim_of(config, digests(gates)), history.entries, OF_THE_ENGINE)
    found = streak(history.entries, claim, datetime.now(UTC))
    promotion = Promotion(gates=claim.gates, needed=NEEDED, streak=found.length, command=command)
    return PromotionStatus(ledger, history, claim, promotion, found)
