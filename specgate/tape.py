"""Acceptance tapes: the accept counts of a run, to be replayed in another for its speed alone.

A replayed run drafts and verifies at full cost but accepts what the tape says, so its tokens are wrong: it can be
compared in speed at equal acceptance, and satisfies no gate on acceptance or tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specgate.errors import UsageError

SCHEMA: Final = "specgate.tape/v1"

Slots = tuple[tuple[int, ...], ...]
"""Accept counts per slot and cycle."""


@dataclass(frozen=True, slots=True)
class Tape:
    """`prompts`: SHA-256 of every recorded prompt set; `specs`: K → the slots of each of these sets. `origin` says in
    words what was recorded.
    """

    origin: Mapping[str, str]
    prompts: tuple[str, ...]
    specs: Mapping[int, tuple[Slots, ...]]

    def index_of(self, prompts_sha256: str, turn: int) -> int:
        """The recorded set with these prompts, else the one whose turn it is."""
        if prompts_sha256 in self.prompts:
            return self.prompts.index(prompts_sha256)
        return turn % len(self.prompts)

    def accepted(self, k: int, prompt_set: int, slot: int, cycle: int) -> int:
        """The count to replay; a tape that is narrower or shorter than the run begins anew."""
        slots = self.specs[k][prompt_set]
        counts = slots[slot % len(slots)]
        return counts[cycle % len(counts)]

    def save(self, file: Path) -> None:
        content = {
            "schema": SCHEMA,
            "origin": dict(self.origin),
            "prompts_sha256": list(self.prompts),
            "accepted": {f"spec-{k}": sets for k, sets in self.specs.items()},
        }
        file.write_text(json.dumps(content) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, file: Path) -> Tape:
        """Raises UsageError with file, key, value and what would be right."""
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{file}: not readable as a tape ({error})", hint=MADE_BY) from error
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            said = content.get("schema") if isinstance(content, dict) else None
            raise UsageError(f"{file}: schema = {said!r}", hint=f"{SCHEMA} is needed: {MADE_BY}")
        prompts = content.get("prompts_sha256")
        if not is_list_of(prompts, str) or not prompts:
            raise UsageError(f"{file}: prompts_sha256", hint="a list of the recorded prompt sets' hashes is needed")
        recorded = content.get("accepted")
        if not isinstance(recorded, dict) or not recorded:
            raise UsageError(f"{file}: accepted", hint="an object of accept counts by role is needed")
        specs = dict(checked(file, role, sets, len(prompts)) for role, sets in recorded.items())
        origin = content.get("origin", {})
        if not isinstance(origin, dict):
            raise UsageError(f"{file}: origin = {origin!r}", hint="an object is needed")
        return cls({str(k): str(v) for k, v in origin.items()}, tuple(prompts), specs)


MADE_BY: Final = "specgate tape RUN FILE writes one"


def checked(file: Path, role: str, sets: object, count: int) -> tuple[int, tuple[Slots, ...]]:
    """(K, sets) of one role, every count seen to lie between 0 and K."""
    digits = role.removeprefix("spec-")
    if not role.startswith("spec-") or not digits.isdecimal() or int(digits) < 1:
        raise UsageError(f"{file}: accepted.{role}", hint="roles are named spec-1, spec-2, …")
    k = int(digits)
    if not isinstance(sets, list) or len(sets) != count:
        raise UsageError(f"{file}: accepted.{role}", hint=f"one entry per prompt set is needed: {count}")
    for i, slots in enumerate(sets):
        if not is_list_of(slots, list) or not slots or not all(is_list_of(c, int) and c for c in slots):
            raise UsageError(f"{file}: accepted.{role}[{i}]", hint="lists of accept counts by slot are needed")
        if wrong := [c for counts in slots for c in counts if not 0 <= c <= k]:
            raise UsageError(f"{file}: accepted.{role}[{i}] holds {wrong[0]}", hint=f"0 to {k} drafts can be accepted")
    return k, tuple(tuple(tuple(counts) for counts in slots) for slots in sets)


def is_list_of(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(v, kind) and not isinstance(v, bool) for v in value)


def sha256_of_ids(prompts: Sequence[Sequence[int]]) -> str:
    """SHA-256 of the ids in decimal, a comma between ids, a newline after each prompt."""
    digest = hashlib.sha256()
    for ids in prompts:
        digest.update((",".join(map(str, ids)) + "\n").encode())
    return digest.hexdigest()
