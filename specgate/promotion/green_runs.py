"""Green micro runs in a row: a pure function of the ledger's entries and the time.

Only micro runs that have the claim's subject and ran at least one of its scenarios are looked at, oldest first. The
first line of this table that applies to a run says what the run does to the green runs in a row:

    ENV_REJECTED, NOT_JUDGED    no change
    fingerprint differs         they start anew
    FAIL, INVALID               they start anew
    INCONCLUSIVE                no change; the second one in a row starts them anew
    PASS, IMPROVED              one more, if the run measured every scenario of the claim with the claim's content, in a
                                process and a run folder that have not been counted yet; else no change

A green run counts for as long as `EXPIRY`. A run that lies in the future, because a clock was set back, does not count.
Neither does one that is not believed (see `standing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from specgate.contract import State
from specgate.contract.samples.engine_facts import OF_ENGINE
from specgate.promotion.fingerprint import changes, in_words, incomplete
from specgate.promotion.ledger import Entry

NEEDED: Final = 3
"""Green runs in a row that a full run needs."""
EXPIRY: Final = timedelta(hours=72)
"""How long a green run counts."""
CLOCK_STEP: Final = timedelta(minutes=1)
"""How far in the future an entry may lie: a time server may have set the clock back a little since it was written."""
GREEN: Final = (State.PASS, State.IMPROVED)
RED: Final = (State.FAIL, State.INVALID)


@dataclass(frozen=True, slots=True)
class Claim:
    """Gates that have to be green before a full run may begin.

    The `gates` (scenario → SHA-256) must be green for this `subject` and with this `fingerprint`; the three fields are
    described in `claim` and `ledger.Entry`.
    """

    subject: Mapping[str, str]
    gates: Mapping[str, str]
    fingerprint: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class GreenRuns:
    """`runs`: the green runs that count, oldest first. `steps`: every run that was looked at, and what it did."""

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
        """Return when the oldest of the last `NEEDED` green runs stops counting; None if there are no green runs."""
        return time_of(self.runs[-NEEDED:][0]) + EXPIRY if self.runs else None


def no_doubt(entry: Entry) -> None:
    """Every entry is believed."""


def green_runs(
    entries: Iterable[Entry], claim: Claim, now: datetime, doubt: Callable[[Entry], str | None] = no_doubt
) -> GreenRuns:
    """The green micro runs in a row for `claim`, by the table above.

    `doubt`: why a green entry is not believed, or None if it is. Only entries that would count are asked about.
    """
    counted: list[Entry] = []
    doubts, steps = 0, []
    for entry in relevant(entries, claim):
        green = entry.state in GREEN
        if entry.state in (State.ENV_REJECTED, State.NOT_JUDGED):
            effect = "no change"
        elif changed := changes(entry.fingerprint, claim.fingerprint):
            counted, doubts, effect = [], 0, f"starts anew: {in_words(changed)}"
        elif entry.state in RED:
            counted, doubts, effect = [], 0, "starts anew"
        elif not green:
            doubts += 1
            effect = "starts anew: the second in a row" if doubts > 1 else "no change"
            counted = [] if doubts > 1 else counted
        else:
            doubts = 0
            flaw = why_not_counted(entry, claim, counted) or out_of_time(entry, now) or doubt(entry)
            effect = f"no change: {flaw}" if flaw else "one more"
            counted = counted if flaw else [*counted, entry]
        steps.append((entry, effect))
    return GreenRuns(tuple(counted), tuple(steps))


def relevant(entries: Iterable[Entry], claim: Claim) -> Iterator[Entry]:
    """The micro runs with the claim's subject that ran at least one of its scenarios."""
    for entry in entries:
        if entry.kind == "micro" and entry.subject == claim.subject and entry.gates.keys() & claim.gates.keys():
            yield entry


def why_not_counted(entry: Entry, claim: Claim, counted: Sequence[Entry]) -> str | None:
    """Return why a green run does not count, apart from its age; None if it does. `counted`: the runs counted before
    it.
    """
    if missing := [name for name in claim.gates if name not in entry.gates]:
        return f"{', '.join(missing)} did not run"
    if other := [name for name, sha256 in claim.gates.items() if entry.gates[name] != sha256]:
        return f"{', '.join(other)} ran with other settings"
    if flaw := incomplete(entry.fingerprint, claim.fingerprint):
        return flaw
    if any(entry.run == other.run for other in counted):
        return "the same run was counted before"
    if any((entry.pid, entry.process_started) == (other.pid, other.process_started) for other in counted):
        return "the same process was counted before"
    return None


def out_of_time(entry: Entry, now: datetime) -> str | None:
    """Return why the age of a green run keeps it from counting: it has expired or lies in the future. None if it
    counts.
    """
    age = now - time_of(entry)
    if age > EXPIRY:
        return f"more than {EXPIRY // timedelta(hours=1)} h ago"
    return "its time lies in the future" if age < -CLOCK_STEP else None


def time_of(entry: Entry) -> datetime:
    """Return when the run ended."""
    return datetime.fromisoformat(entry.time)


def assuming_last_engine(claim: Claim, entries: Iterable[Entry], keys: Sequence[str]) -> Claim:
    """`claim` with the `keys` of the fingerprint that only an engine knows, taken from the last relevant run that has
    them.

    If there is no such run, the claim is returned as it is.
    """
    last = next((e for e in reversed(list(relevant(entries, claim))) if set(keys) <= e.fingerprint.keys()), None)
    known = last.fingerprint if last else {}
    assumed = {key: value for key, value in known.items() if key in keys or key.startswith(OF_ENGINE)}
    return Claim(claim.subject, claim.gates, {**claim.fingerprint, **assumed})
