"""The order micro → full: which micro gates a run rests on, how often they have been green, and whether it may begin.

What must agree between the micro runs and the full run: the subject (policy, pair, back end and options, by name), the
content of the micro scenarios, and the fingerprint (source tree, policy rules, weights, device, GPU, driver, clock
policy). Weights are known once an engine is loaded: until then those of the last micro run are assumed, and `admit`
checks them before the first block.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil

from specgate.core import EngineFacts, Order, Policy, Run, Scenario, State
from specgate.errors import ExitCode, OrderRefused
from specgate.files.run_folder import Config, to_plain
from specgate.machine import inventory
from specgate.promotion.ledger import Entry, Ledger
from specgate.promotion.streak import Claim, Streak, completed, streak

OF_THE_ENGINE: Final = ("target_sha256", "draft_sha256", "device", "tape_sha256", "tuned_sha256")
"""The fingerprint's keys that only a loaded engine knows: fields of `core.EngineFacts`."""


def claim_of(config: Config, gates: Mapping[str, str]) -> Claim:
    """What has to be green before `config` may run in full, but for the keys `OF_THE_ENGINE`."""
    return Claim(subject_of(config), gates, here(config.policy))


def subject_of(config: Config) -> dict[str, str]:
    options = " ".join(f"{key}={value}" for key, value in sorted(config.options.items()))
    return {"policy": config.policy.name, "pair": config.pair.name, "backend": config.backend, "options": options}


def here(policy: Policy) -> dict[str, str | None]:
    """The fingerprint's keys that are known without an engine."""
    gpu = inventory.visible_gpu() or {}
    stated = {"gpu_uuid": gpu.get("uuid"), "driver": gpu.get("driver"), "clock_policy": clock_policy(gpu)}
    return {
        "source_tree_sha256": inventory.source_tree_sha256(),
        "policy_sha256": _sha256([to_plain(type(rule), rule) for rule in policy.rules]),
        **{key: None if value is None else str(value) for key, value in stated.items()},
    }


def clock_policy(gpu: Mapping[str, object]) -> str | None:
    """`observed` where clocks move freely or the driver does not say, `locked` where it says so; None without a GPU."""
    return str(gpu.get("clock_policy") or "observed") if gpu else None


def of_engine(facts: EngineFacts) -> dict[str, str | None]:
    return {key: getattr(facts, key) for key in OF_THE_ENGINE}


def digests(scenarios: Sequence[Scenario]) -> dict[str, str]:
    """Name → SHA-256 of what a scenario measures: where its file lies and how it is worded do not matter."""
    silent = {"source_file": None, "question": "", "default": True}
    return {s.name: _sha256({**to_plain(Scenario, s), **silent}) for s in scenarios}


def _sha256(plain: object) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# ── may it begin ─────────────────────────────────────────────────────────────────────────────────────────────────────


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


def admit(ledger: Ledger, claim: Claim, order: Order, facts: EngineFacts | None = None) -> Order:
    """The order that a full run begins in. Raises OrderRefused where the micro gates are not green often enough."""
    found = standing(ledger, claim, facts)
    if not found.complete and order.override is None:
        raise refusal(claim, order, found)
    return replace(order, streak=found.length)


def refusal(claim: Claim, order: Order, found: Streak) -> OrderRefused:
    lines = [
        f"full run refused: its micro gates have been green {found.length} of {order.needed} times in a row",
        *(f"  {line}" for line in missing(claim, order, found)),
    ]
    override = "or add --override-order REASON: the ledger and the first line of every report will say so"
    return OrderRefused("\n".join(lines), hint=override)


def missing(claim: Claim, order: Order, found: Streak) -> list[str]:
    """What is wanting, in words, and the command to run."""
    left = order.needed - found.length
    if left <= 0:
        return []
    said = [f"missing: {left} green run{'s' if left > 1 else ''} of {', '.join(order.gates)} ({described(claim)})"]
    if found.steps:
        entry, effect = found.steps[-1]
        said.append(f"last: {entry.state} {entry.run} ({effect})")
    return [*said, f"run: {order.command}"]


def described(claim: Claim) -> str:
    words = {"policy": "policy", "pair": "pair", "backend": "back end", "options": "options"}
    return ", ".join(f"{words[key]} {value}" for key, value in claim.subject.items() if value)


# ── what a run leaves ────────────────────────────────────────────────────────────────────────────────────────────────


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
        override=run.order.override if run.order else None,
    )


def after_micro(ledger: Ledger, claim: Claim, order: Order, run: Run) -> str:
    """What the micro run `run`, which the ledger has, did to the streak, in words."""
    found = standing(ledger, claim, next(iter(run.engines.values()), None))
    effect = next((effect for entry, effect in reversed(found.steps) if entry.run == run.id), "none of the gates ran")
    count = f"micro gates of policy {claim.subject['policy']}: green {found.length} of {order.needed} times in a row"
    return f"{count} (this run: {effect})"
