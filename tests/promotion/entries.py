"""An entry of a ledger. Writers in processes of their own import it, without pytest."""

from __future__ import annotations

from specgate.contract import State
from specgate.promotion.ledger import Entry

ENTRY = Entry(
    time="2026-11-21T12:00:00+00:00",
    run="run-0",
    kind="micro",
    subject={"policy": "cpu", "pair": "démo"},
    gates={"one": "1"},
    fingerprint={"source": "s", "driver": None},
    state=State.PASS,
    exit_code=0,
    pid=7,
    process_started="2026-11-21T11:59:00.000+00:00",
)
