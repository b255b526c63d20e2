"""How often in a row the micro gates have been green: a pure function of the ledger's entries and the time.

Counted are micro runs with the claim's subject that ran at least one of its scenarios, oldest first:

    fingerprint differs         the streak starts anew
    PASS, IMPROVED              one more, if the run measured every scenario of the claim, whole and unchanged, in a
                                process and a run folder that have not been counted yet; else no change
    FAIL, INVALID               the streak starts anew
    INCONCLUSIVE                no change; the second one in a row starts it anew
    ENV_REJECTED                nothing happened

A green run counts for `EXPIRY`; one that lies in the future (a clock was set back) counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from specgate.core import State
from specgate.promotion.ledger import Entry

NEEDED: Final = 3
EXPIRY: Final = timedelta(hours=72)
CLOCK_STEP: Final = timedelta(minutes=1)
"""How far a time server may set a clock back without an entry seeming to come from the future."""
GREEN: Final = (State.PASS, State.IMPROVED)
RED: Final = (State.FAIL, State.INVALID)


@dataclass(frozen=True, slots=True)
class Claim:
    """What has to be green: `gates` (scenario → SHA-256) of `subject`, as `fingerprint` has it; see `ledger.Entry`."""

    subject: Mapping[str, str]
    gates: Mapping[str, str]
    fingerprint: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Streak:
    """The green runs that count, oldest first, and every run that had a say with what it did."""

    runs: tuple[Entry, ...]
    steps: tuple[tuple[Entry, str], ...]

    @property
    def length(self) -> int:
        return len(self.runs)

    @property
    def complete(self) -> bool:
        return self.length >= NEEDED

    @property
    def expires(self) -> datetime | None:
        """When the oldest of the last `NEEDED` green runs ceases to count."""
        return at(self.runs[-NEEDED:][0]) + EXPIRY if self.runs else None


def streak(entries: Iterable[Entry], claim: Claim, now: datetime) -> Streak:
    counted: list[Entry] = []
    doubts, steps = 0, []
    for entry in relevant(entries, claim):
        green = entry.state in GREEN
        if entry.state is State.ENV_REJECTED:
            effect = "no change"
        elif key := changed(entry, claim):
            counted, doubts, effect = [], 0, f"starts anew: {key} is another one"
        elif entry.state in RED:
            counted, doubts, effect = [], 0, "starts anew"
        elif not green:
            doubts += 1
            effect = "starts anew: the second in a row" if doubts > 1 else "no change"
            counted = [] if doubts > 1 else counted
        else:
            doubts = 0
            flaw = why_not(entry, claim, counted) or aged(entry, now)
            effect = f"no change: {flaw}" if flaw else "one more"
            counted = counted if flaw else [*counted, entry]
        steps.append((entry, effect))
    return Streak(tuple(counted), tuple(steps))


def relevant(entries: Iterable[Entry], claim: Claim) -> Iterator[Entry]:
    for entry in entries:
        if entry.kind == "micro" and entry.subject == claim.subject and entry.gates.keys() & claim.gates.keys():
            yield entry


def changed(entry: Entry, claim: Claim) -> str | None:
    """The first part of the fingerprint that both know and that differs."""
    both = (key for key in claim.fingerprint if key in entry.fingerprint)
    return next((key for key in both if entry.fingerprint[key] != claim.fingerprint[key]), None)


def why_not(entry: Entry, claim: Claim, counted: Sequence[Entry]) -> str | None:
    """Why a green run does not count."""
    if missing := [name for name in claim.gates if name not in entry.gates]:
        return f"{', '.join(missing)} did not run"
    if other := [name for name, sha256 in claim.gates.items() if entry.gates[name] != sha256]:
        return f"{', '.join(other)} ran with other settings"
    if entry.fingerprint.keys() != claim.fingerprint.keys():
        return "its fingerprint is incomplete"
    if any(entry.run == other.run for other in counted):
        return "the same run was counted before"
    if any((entry.pid, entry.process_started) == (other.pid, other.process_started) for other in counted):
        return "the same process was counted before"
    return None


def aged(entry: Entry, now: datetime) -> str | None:
    age = now - at(entry)
    if age > EXPIRY:
        return f"more than {EXPIRY // timedelta(hours=1)} h ago"
    return "its time lies in the future" if age < -CLOCK_STEP else None


def at(entry: Entry) -> datetime:
    return datetime.fromisoformat(entry.time)


def completed(claim: Claim, entries: Iterable[Entry], keys: Sequence[str]) -> Claim:
    """The claim with the fingerprint's `keys`, which only an engine knows, as the last run with figures had them."""
    last = next((e for e in reversed(list(relevant(entries, claim))) if set(keys) <= e.fingerprint.keys()), None)
    assumed = {key: last.fingerprint[key] for key in keys} if last else {}
    return Claim(claim.subject, claim.gates, {**claim.fingerprint, **assumed})
