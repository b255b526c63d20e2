"""Micro before full, in the life of one run: what is checked before it begins and when its engine is loaded, and what
is recorded after it has ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil

from specgate.analysis.verdict import dead_rules
from specgate.analysis.verdict import in_words as not_judged_in_words
from specgate.contract import EXPLORED, EngineFacts, Promotion, Run, State
from specgate.errors import ExitCode, OrderRefused, SpecgateError, UsageError
from specgate.files.config import Config
from specgate.files.run_folder import RunFolder
from specgate.machine import host
from specgate.machine.software import Software
from specgate.planning.request import Request
from specgate.promotion.claim import (
    ENGINE_KEYS,
    begun_with,
    claim_of,
    digests,
    engine_fingerprint,
    machine_fingerprint,
    subject_of,
)
from specgate.promotion.fingerprint import changes, in_words
from specgate.promotion.green_runs import NEEDED, Claim, GreenRuns, assuming_last_engine, green_runs
from specgate.promotion.ledger import Entry, Ledger
from specgate.promotion.micro_gates import micro_gates
from specgate.promotion.standing import doubts

NO_ORDER: Final = Promotion({}, 0, 0, "")
"""Of a load run, which no micro gates come before."""


def promotion_of(request: Request, config: Config, ledger: Ledger, software: Software) -> Promotion:
    """Return which micro gates this run depends on and how often they have been green, before anything is loaded. A
    load run depends on none.

    A resumed run keeps the gates that it began with. Raises OrderRefused for a full run whose micro gates have not been
    green often enough, InvalidResult if the ledger was changed, and UsageError if the run.json of the run to be resumed
    has no promotion.
    """
    if request.kind == "load":
        return NO_ORDER
    if request.resume:
        began = RunFolder.open(request.resume).read_run().promotion
        if began is None:
            raise UsageError(f"{request.resume}: run.json has no promotion", hint="begin anew")
        promotion = replace(began, override=request.override_order or began.override)
    else:
        gates, command = micro_gates(request, config)
        promotion = Promotion(
            digests(gates), NEEDED, 0, command, EXPLORED if request.explore else request.override_order
        )
    claim = claim_of(config, promotion.gates, software)
    if request.kind == "full":
        return admit(ledger, claim, promotion)
    return replace(promotion, streak=current_green_runs(ledger, claim).length)


def admission(
    request: Request, config: Config, ledger: Ledger, promotion: Promotion, software: Software
) -> Callable[[EngineFacts], None]:
    """The check that a loaded engine must pass before its first block.

    Before the engine is loaded, a full run assumes the weights and the device of the last micro run. The check that is
    returned compares these with the engine's own facts, and raises OrderRefused if the micro gates are not green for
    them. It does nothing in a micro run.
    """

    def check(facts: EngineFacts) -> None:
        if request.kind == "full":
            admit(ledger, claim_of(config, promotion.gates, software), promotion, facts)

    return check


def sampling(
    config: Config, ledger: Ledger, promotion: Promotion, software: Software
) -> Callable[[EngineFacts], str | None]:
    """Return the green run that allows this one to compare a sample of its texts only. The function that is returned
    needs the facts of the loaded engine.

    It is one of the green runs in a row of the same fingerprint, and compared its own texts whole. There is none
    where the policy wants every run to do so.
    """

    def found(facts: EngineFacts) -> str | None:
        if config.policy.checks.text != "sampled":
            return None
        counted = current_green_runs(ledger, claim_of(config, promotion.gates, software), facts).runs
        return next((entry.run for entry in counted if compared_whole(ledger.folder / entry.run)), None)

    return found


def compared_whole(path: Path) -> bool:
    """Return whether the run in the folder `path` compared its texts whole; false where it cannot be read."""
    try:
        return RunFolder.open(path, read_only=True).read_run().sampled_after is None
    except SpecgateError:
        return False


def lines_on(run: Run, config: Config, ledger: Ledger, torn: str | None) -> Iterator[str]:
    """Yield the lines to print about a run that has been entered in the ledger. `torn`: see `Ledger.append`."""
    if torn:
        yield f"warning: {ledger.file}: a torn line was moved to ledger.torn.jsonl"
    if run.kind == "micro" and run.promotion:
        software = Software({key: value for key, value in begun_with(run).items() if value is not None}, {})
        yield from after_micro(ledger, claim_of(config, run.promotion.gates, software), run.promotion, run)


def current_green_runs(ledger: Ledger, claim: Claim, facts: EngineFacts | None = None) -> GreenRuns:
    """The green micro runs in a row as of now.

    Without an engine's `facts`, the weights and the device of the last micro run are assumed. Raises InvalidResult if
    the ledger was changed.
    """
    entries = ledger.read().entries
    if facts is None:
        claim = assuming_last_engine(claim, entries, ENGINE_KEYS)
    else:
        claim = replace(claim, fingerprint={**claim.fingerprint, **engine_fingerprint(facts)})
    return green_runs(entries, claim, datetime.now(UTC), doubts(ledger))


def admit(ledger: Ledger, claim: Claim, promotion: Promotion, facts: EngineFacts | None = None) -> Promotion:
    """Allow a full run to begin: returns `promotion` with the current count of green runs.

    Raises OrderRefused if the micro gates have not been green often enough and the order is not overridden.
    """
    current = current_green_runs(ledger, claim, facts)
    if not current.complete and promotion.override is None:
        raise refusal(claim, promotion, current)
    return replace(promotion, streak=current.length)


def refusal(claim: Claim, promotion: Promotion, current: GreenRuns) -> OrderRefused:
    """The error that refuses a full run: how green its micro gates are, what is missing, and how to override."""
    missing = what_is_missing(claim, promotion, current)
    last = [f"last: {entry.state} {entry.run} ({effect})" for entry, effect in current.steps[-1:]]
    lines = [
        f"full run refused: its micro gates have been green {current.length} of {promotion.needed} times in a row",
        *(f"  {line}" for line in (*missing[:1], *last, *missing[1:])),
    ]
    override = (
        "or add --explore: all figures, and never green; or --override-order REASON: the ledger and the first line of "
        "every report will say so"
    )
    return OrderRefused("\n".join(lines), hint=override)


def what_is_missing(claim: Claim, promotion: Promotion, current: GreenRuns) -> list[str]:
    """The lines that say which green runs are missing and which command to run. [] if none are."""
    left = promotion.needed - current.length
    if left <= 0:
        return []
    gates = f"{', '.join(promotion.gates)} ({subject_in_words(claim)})"
    return [f"missing: {left} green run{'s' if left > 1 else ''} of {gates}", f"run: {promotion.command}"]


def subject_in_words(claim: Claim) -> str:
    words = {"policy": "policy", "pair": "pair", "backend": "back end", "options": "options"}
    return ", ".join(f"{words[key]} {value}" for key, value in claim.subject.items() if value)


def entry_of(run: Run, config: Config, state: State, code: ExitCode, manifest_sha256: str) -> Entry:
    """The ledger entry of a run that has just ended."""
    facts = next(iter(run.engines.values()), None)
    process = psutil.Process()
    known = {**begun_with(run), **machine_fingerprint(config.policy)}
    return Entry(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        run=run.id,
        kind=run.kind,
        subject=subject_of(config),
        gates=digests(list(config.scenarios.values())),
        fingerprint={**known, **(engine_fingerprint(facts) if facts else {})},
        state=state,
        exit_code=int(code),
        pid=os.getpid(),
        process_started=datetime.fromtimestamp(process.create_time(), UTC).isoformat(timespec="milliseconds"),
        manifest_sha256=manifest_sha256,
        override=run.promotion.override if run.promotion else None,
        host=host.identity(),
        not_judged=(*map(not_judged_in_words, run.not_judged), *dead_rules(run)),
    )


def after_micro(ledger: Ledger, claim: Claim, promotion: Promotion, run: Run) -> list[str]:
    """Return lines on what a micro run that is already in the ledger did to the number of green runs in a row, and on
    what has changed since the micro run before it. There are none if no gate's scenario ran.
    """
    if promotion.gates.keys().isdisjoint(run.scenarios):
        return []
    current = current_green_runs(ledger, claim, next(iter(run.engines.values()), None))
    own = next((n for n, (entry, _) in reversed(list(enumerate(current.steps))) if entry.run == run.id), None)
    effect = "does not count" if own is None else current.steps[own][1]
    lines = [f"green micro runs in a row: {current.length} of {promotion.needed} (this run: {effect})"]
    if own and not effect.startswith("starts anew: "):
        (before, _), (entry, _) = current.steps[own - 1 : own + 1]
        changed = changes(before.fingerprint, entry.fingerprint)
        lines += [f"  starts anew: {in_words(changed)}"] if changed else []
    return lines
