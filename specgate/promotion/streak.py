"""Green micro runs in a row: which gates count, and since when.

They are the scenarios that the policy lists under `micro`, or, if it lists none, all micro scenarios that this machine
runs by default. Of these, only the ones written for the pair to be measured count. If none is, all of them count and
must be green on that pair.

Only micro runs that have the claim's subject and ran at least one of its scenarios are looked at, oldest first. The
first line of this table that applies to a run says what the run does to the streak:

    ENV_REJECTED, NOT_JUDGED    no change
    fingerprint differs         the streak starts anew
    FAIL, INVALID               the streak starts anew
    INCONCLUSIVE                no change; the second one in a row starts the streak anew
    PASS, IMPROVED              one more, if the run measured every scenario of the claim with the claim's content, in a
                                process and a run folder that have not been counted yet; else no change

A green run counts for as long as `EXPIRY`. A run that lies in the future, because a clock was set back, does not count.
Neither does one that is not believed (see `standing`).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from specgate.analysis.environment_diff import differences
from specgate.contract import VARIANT_MARK, LastGreen, Run, Scenario, State
from specgate.contract.samples.engine_facts import OF_ENGINE
from specgate.errors import SpecgateError
from specgate.files.config import Config
from specgate.files.run_folder import RunFolder
from specgate.files.writing import without_home
from specgate.planning.policy import micro_scenarios
from specgate.planning.request import Request
from specgate.planning.resolution import fitted
from specgate.planning.scenario import SHIPPED, override, select
from specgate.planning.usual import machine_size
from specgate.promotion.claim import subject_of
from specgate.promotion.fingerprint import changes, in_words, incomplete
from specgate.promotion.ledger import Entry


def micro_gates(request: Request, config: Config) -> tuple[list[Scenario], str]:
    """The micro scenarios that must be green for this request, as `specgate micro` would run them, and that command."""
    size = machine_size()
    listed = micro_scenarios(config.policy) or select((), None, "micro", size)
    asking = [s for s in listed if s.pair == config.pair.name]
    pair = list(pair_options(request))
    if not asking and not pair:
        pair = ["--pair", config.pair.name]
    gates = [override(s, baseline=request.baseline) for s in asking or listed]
    words = ["specgate", "micro"]
    if [s.name for s in gates] != [s.name for s in select((), None, "micro", size)]:
        words += [word for name in dict.fromkeys(map(_said, gates)) for word in ("--scenario", name)]
    words += [*pair, *other_options(request)]
    other_target = not {"--pair", "--target", "--tokenizer"}.isdisjoint(pair)
    return fitted(gates, config.pair, other_target=other_target, backend=config.backend), shlex.join(words)


def pair_options(request: Request) -> Iterator[str]:
    """The options of `request` that name the pair, as words of a command line."""
    named = ("--pair", request.pair), ("--target", request.target), ("--draft", request.draft)
    for option, value in (*named, ("--tokenizer", request.tokenizer)):
        if value is not None:
            yield from (option, str(value))


def other_options(request: Request) -> Iterator[str]:
    """The other options of `request` that the micro runs must share, as words of a command line."""
    for option, value in (("--backend", request.backend), ("--policy", request.policy)):
        if value is not None:
            yield from (option, value)
    for key, value in request.options.items():
        yield from ("-o", f"{key}={value}")
    if not request.baseline:
        yield "--no-baseline"
    if request.out != Path("runs"):
        yield from ("--out", str(request.out))


def _said(scenario: Scenario) -> str:
    """Return what a command line calls the scenario. A variant runs with the scenario that it is one of."""
    file = scenario.source_file
    return scenario.name.partition(VARIANT_MARK)[0] if file is None or file.parent == SHIPPED else str(file)


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
class Streak:
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


def streak(
    entries: Iterable[Entry], claim: Claim, now: datetime, doubt: Callable[[Entry], str | None] = no_doubt
) -> Streak:
    """The streak of green micro runs for `claim`, by the table above.

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
    return Streak(tuple(counted), tuple(steps))


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


def previous_green(run: Run, config: Config, entries: Iterable[Entry]) -> Entry | None:
    """The entry of the last green run with the same kind and subject that ended before `run` started, or None."""
    started, subject = datetime.fromisoformat(run.started), subject_of(config)
    same = [e for e in entries if e.run != run.id and e.kind == run.kind and e.subject == subject]
    # `max` takes the first of equals; times are whole seconds, and the later line is the later run.
    return max((e for e in reversed(same) if e.state in GREEN and time_of(e) <= started), key=time_of, default=None)


def compared(run: Run, green: Entry | None, folder: Path) -> LastGreen | None:
    """Return what differs between `run`, which has ended, and the green run, whose run folder lies in `folder`.

    None if there is no green run. The differences are None if its run folder cannot be read.
    """
    if green is None:
        return None
    try:
        before = RunFolder.open(folder / green.run, read_only=True).read_run()
    except SpecgateError:  # moved away, or of another schema
        return LastGreen(green.run, green.time, None)
    return LastGreen(green.run, green.time, tuple(differences(compared_facts(before), compared_facts(run))))


def compared_facts(run: Run) -> dict[str, object]:
    """The fingerprint and the environment of a run, as they are stored."""
    facts: dict[str, object] = json.loads(without_home(json.dumps({"fingerprint": run.fingerprint, **run.environment})))
    return facts
