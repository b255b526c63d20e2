"""The standing of a subject in the ledger, and its status.

The chain says that entries were not changed. It does not say that there ever was such a run, or that it was made here:
a ledger can be copied, and made up from the first line on. So an entry counts as a green run only if it was made here:
its `host` is this one, and its run folder lies beside the ledger or in an archive. The manifest there must be the one
that the entry names, and its gates.json the one that the manifest lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from specgate.contract import Promotion
from specgate.files.manifest import ENDING, MANIFEST, listings, vouched
from specgate.files.writing import sha256_of
from specgate.machine import host
from specgate.planning.request import Request
from specgate.planning.resolution import resolve
from specgate.promotion.claim import ENGINE_KEYS, claim_of, digests, software_of
from specgate.promotion.green_runs import NEEDED, Claim, GreenRuns, assuming_last_engine, green_runs
from specgate.promotion.ledger import Entry, History, Ledger
from specgate.promotion.micro_gates import micro_gates

NOBODY: Final[Mapping[str, str]] = {}
OTHER_MANIFEST: Final = f"its {MANIFEST} is not the one that the entry names"


def doubts(ledger: Ledger) -> Callable[[Entry], str | None]:
    """Return a function that says why a green entry of `ledger` is not believed on this host, or None if it is."""
    here = host.identity()

    def doubt(entry: Entry) -> str | None:
        folder = folder_of(entry, ledger)
        return doubt_of_origin(entry, here, folder) or (doubt_of_folder(entry, folder) if folder else None)

    return doubt


def doubt_of_comparison(entry: Entry, folder: Path) -> str | None:
    """Return why the entry of a comparison, whatever its word, is not believed; None if it is."""
    if unfit := doubt_of_origin(entry, host.identity(), folder):
        return unfit
    return None if vouched(folder / MANIFEST, entry.manifest_sha256) else OTHER_MANIFEST


def doubt_of_origin(entry: Entry, here: str, folder: Path | None) -> str | None:
    """Return why an entry was not made here. `folder`: its run folder, or None."""
    if entry.host != here:
        return f"it ran on another host ({entry.host or 'not recorded'})"
    return None if folder else "its run folder is missing (name the place of moved ones with --archive)"


def doubt_of_folder(entry: Entry, folder: Path) -> str | None:
    """Return why the run folder does not bear out its entry. Only the manifest and the hash of gates.json are read."""
    manifest, gates = folder / MANIFEST, folder / "gates.json"
    if (folder / ENDING).is_file():
        return f"its ending was cut: specgate {entry.kind} --resume {folder} finishes it"
    if not vouched(manifest, entry.manifest_sha256):
        return OTHER_MANIFEST
    if not gates.is_file() or sha256_of(gates) != listings(manifest).get("gates.json"):
        return f"its gates.json is not the one that {MANIFEST} lists"
    return None


def folder_of(entry: Entry, ledger: Ledger) -> Path | None:
    """The run folder of an entry, beside the ledger or in one of its archives; None if it is in neither."""
    if Path(entry.run).name != entry.run or entry.run == "..":
        return None  # it would lead out of the folder
    places = (place / entry.run for place in (ledger.folder, *ledger.archives))
    return next((place for place in places if place.is_dir()), None)


@dataclass(frozen=True, slots=True)
class PromotionStatus:
    """The ledger and its entries, what has to be green, and how often in a row it has been green on this machine."""

    ledger: Ledger
    history: History
    claim: Claim
    promotion: Promotion
    green: GreenRuns


def promotion_status(request: Request, taking_part: Mapping[str, str] = NOBODY) -> PromotionStatus:
    """The promotion status of a full run with the options of `request`.

    `taking_part`: keys of the fingerprint that name who measures in this machine's place. Weights and device are
    assumed to be those of the last micro run. Raises InvalidResult if the ledger was changed, and the error that the
    full run itself would be refused with because of its options.
    """
    ledger = Ledger(request.out, request.archives)
    history = ledger.read()
    config = resolve(request)
    gates, command = micro_gates(request, config)
    rests_on = software_of(config)
    rests_on = replace(rests_on, facts={**rests_on.facts, **taking_part})
    unloaded = claim_of(config, digests(gates), rests_on)
    claim = assuming_last_engine(unloaded, history.entries, ENGINE_KEYS)
    current = green_runs(history.entries, claim, datetime.now(UTC), doubts(ledger))
    promotion = Promotion(gates=claim.gates, needed=NEEDED, streak=current.length, command=command)
    return PromotionStatus(ledger, history, claim, promotion, current)
