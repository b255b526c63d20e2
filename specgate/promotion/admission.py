"""The order micro → full in the life of a run: before it begins, when its engine is loaded, after it has ended."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

from specgate.core import EngineFacts, Promotion, Run, State
from specgate.errors import ExitCode, OrderRefused, UsageError
from specgate.files.config import Config
from specgate.files.run_folder import RunFolder
from specgate.planning.request import Request
from specgate.promotion.claim import OF_THE_ENGINE, claim_of, digests, here, of_engine, subject_of
from specgate.promotion.ledger import Entry, Ledger
from specgate.promotion.micro_gates import micro_gates
from specgate.promotion.streak import NEEDED, Claim, Streak, completed, streak


def promotion_of(request: Request, config: Config, ledger: Ledger) -> Promotion:
    """Where this run stands, before anything is loaded.

    Raises OrderRefused for a full run whose micro gates have not been green often enough, InvalidResult where the
    ledger was changed.
    """
    if request.resume:
        began = RunFolder.open(request.resume).read_run().promotion
        if began is None:
            raise UsageError(f"{request.resume}: run.json has no order: another version began it", hint="begin anew")
        promotion = replace(began, override=request.override_order or began.override)
    else:
        gates, command = micro_gates(request, config)
        promotion = Promotion(digests(gates), NEEDED, 0, command, request.override_order)
    claim = claim_of(config, promotion.gates)
    if request.kind == "full":
        return admit(ledger, claim, promotion)
    return replace(promotion, streak=standing(ledger, claim).length)


def admission(request: Request, config: Config, ledger: Ledger, promotion: Promotion) -> Callable[[EngineFacts], None]:
    """What has to hold of a loaded engine before its first block: a full run's weights are the micro runs'."""

    def check(facts: EngineFacts) -> None:
        if request.kind == "full":
            admit(ledger, claim_of(config, promotion.gates), promotion, facts)

    return check


def record(run: Run, config: Config, folder: Path, ledger: Ledger, state: State, code: ExitCode) -> list[str]:
    """Enter the run, which has ended, in the ledger. Returns what there is to say of it, in lines."""
    torn = ledger.append(entry_of(run, config, state, code, folder))
    said = [f"warning: {ledger.file}: a torn line was moved to ledger.torn.jsonl"] if torn else []
    if run.kind == "micro" and run.promotion:
        said.append(after_micro(ledger, claim_of(config, run.promotion.gates), run.promotion, run))
    return said


def standing(ledger: Ledger, claim: Claim, facts: EngineFacts | None = None) -> Streak:
    """The streak now; without an engine's `facts`, for the weights of the last micro run.

    Raises InvalidResult where the ledger was changed.
    """
    entries = ledger.read().entries
    if facts is None:
        claim = completed(claim, entries, OF_THE_ENGINE)
    else:
        claim = replace(claim, fingerprint={**claim.fingerprint, **of_engine(facts)})
    return streak(entries, claim, datetime.now(UTC))


def admit(ledger: Ledger, claim: Claim, promotion: Promotion, facts: EngineFacts | None = None) -> Promotion:
    """How a full run stands when it begins. Raises OrderRefused where the micro gates are not green often enough."""
    found = standing(ledger, claim, facts)
    if not found.complete and promotion.override is None:
        raise refusal(claim, promotion, found)
    return replace(promotion, streak=found.length)


def refusal(claim: Claim, promotion: Promotion, found: Streak) -> OrderRefused:
    lines = [
        f"full run refused: its micro gates have been green {found.length} of {promotion.needed} times in a row",
        *(f"  {line}" for line in missing(claim, promotion, found)),
    ]
    override = "or add --override-order REASON: the ledger and the first line of every report will say so"
    return OrderRefused("\n".join(lines), hint=override)


def missing(claim: Claim, promotion: Promotion, found: Streak) -> list[str]:
    """What is wanting, in words, and the command to run."""
    left = promotion.needed - found.length
    if left <= 0:
        return []
    said = [f"missing: {left} green run{'s' if left > 1 else ''} of {', '.join(promotion.gates)} ({described(claim)})"]
    if found.steps:
        entry, effect = found.steps[-1]
        said.append(f"last: {entry.state} {entry.run} ({effect})")
    return [*said, f"run: {promotion.command}"]


def described(claim: Claim) -> str:
    words = {"policy": "policy", "pair": "pair", "backend": "back end", "options": "options"}
    return ", ".join(f"{words[key]} {value}" for key, value in claim.subject.items() if value)


def entry_of(run: Run, config: Config, state: State, code: ExitCode, folder: Path) -> Entry:
    """The line that `run`, which has just ended, gets in the ledger."""
    facts = next(iter(run.engines.values()), None)
    manifest = folder / "MANIFEST.sha256"
    process = psutil.Process()
    known = {**here(config.policy), "source_tree_sha256": run.fingerprint["source_tree_sha256"]}
    return Entry(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        run=run.id,
        kind=run.kind,
        subject=subject_of(config),
        gates=digests(list(config.scenarios.values())),
        fingerprint={**known, **(of_engine(facts) if facts else {})},
        state=state,
        exit_code=int(code),
        pid=os.getpid(),
        process_started=datetime.fromtimestamp(process.create_time(), UTC).isoformat(timespec="milliseconds"),
        manifest_sha256=hashlib.sha256(manifest.read_bytes()).hexdigest() if manifest.is_file() else None,
        override=run.promotion.override if run.promotion else None,
    )


def after_micro(ledger: Ledger, claim: Claim, promotion: Promotion, run: Run) -> str:
    """What the micro run `run`, which the ledger has, did to the streak, in words."""
    found = standing(ledger, claim, next(iter(run.engines.values()), None))
    effect = next((effect for entry, effect in reversed(found.steps) if entry.run == run.id), "none of the gates ran")
    count = (
        f"micro gates of policy {claim.subject['policy']}: green {found.length} of {promotion.needed} times in a row"
    )
    return f"{count} (this run: {effect})"
