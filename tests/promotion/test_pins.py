"""Pins in the ledger: which one counts, and whom it is believed from."""

from __future__ import annotations

from dataclasses import replace

from specgate.promotion.ledger import Entry
from specgate.promotion.pins import key_of, pins
from tests.promotion.entries import ENTRY

HERE = replace(ENTRY, fingerprint={"gpu_uuid": "GPU-1", "host": None})
THERE = replace(ENTRY, run="run-there", fingerprint={"gpu_uuid": "GPU-2", "host": None})
OTHER = replace(HERE, run="run-other", subject={"policy": "other", "pair": "démo"})
LATER = replace(HERE, run="run-1")


def pinned(entry: Entry) -> Entry:
    return replace(entry, kind="pin")


def current(*entries: Entry) -> set[str]:
    return {entry.run for entry in pins(entries).values()}


def test_the_last_pin_of_a_kind_a_subject_and_a_machine_counts() -> None:
    ends = (HERE, THERE, OTHER, LATER)
    assert current(*ends) == set()
    assert current(*ends, pinned(HERE), pinned(THERE), pinned(OTHER)) == {"run-0", "run-there", "run-other"}
    assert current(*ends, pinned(HERE), pinned(THERE), pinned(LATER)) == {"run-1", "run-there"}
    assert current(*ends, pinned(HERE), pinned(THERE), replace(HERE, kind="unpin")) == {"run-there"}
    assert pins([*ends, pinned(HERE)]).keys() == {key_of("micro", HERE.subject, HERE.fingerprint)}
    assert current(pinned(HERE)) == set()  # nothing says what kind of run it was
