"""Acceptance tapes: the accept counts of a run, to be replayed in another for its speed alone.

A replayed run drafts and verifies at full cost but accepts what the tape says, so its tokens are wrong: it can be
compared in speed at equal acceptance, and satisfies no gate on acceptance or tokens.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specgate.errors import EnvironmentRefused, UsageError

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
        """The count to replay; a tape that is narrower or shorter than the run begins anew.

        A slot that had ended before its first cycle was recorded without a count: it accepts nothing.
        """
        slots = self.specs[k][prompt_set]
        counts = slots[slot % len(slots)]
        return counts[cycle % len(counts)] if counts else 0

    @property
    def text(self) -> str:
        """What a tape file holds."""
        content = {
            "schema": SCHEMA,
            "origin": dict(self.origin),
            "prompts_sha256": list(self.prompts),
            "accepted": {f"spec-{k}": sets for k, sets in self.specs.items()},
        }
        return json.dumps(content) + "\n"

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def save(self, file: Path) -> None:
        """Raises EnvironmentRefused where `file` cannot be written."""
        try:
            file.write_text(self.text, encoding="utf-8")
        except OSError as error:
            raise EnvironmentRefused(f"{file}: cannot be written: {error.strerror}", hint="name another file") from None

    @classmethod
    def load(cls, file: Path) -> Tape:
        """Raises UsageError with file, key, value and what would be right."""
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"{file}: not readable as a tape ({error})", hint=MADE_BY) from error
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            said = content.get("schema") if isinstance(content, dict) else None
            raise wrong(file, "schema", said, f"{SCHEMA} is needed: {MADE_BY}")
        if unknown := [key for key in content if key not in KEYS]:
            raise wrong(file, unknown[0], content[unknown[0]], f"no such key; known: {', '.join(KEYS)}")
        prompts = content.get("prompts_sha256")
        if not is_list_of(prompts, str) or not prompts:
            raise wrong(file, "prompts_sha256", prompts, "a list of the recorded prompt sets' hashes is needed")
        recorded = content.get("accepted")
        if not isinstance(recorded, dict) or not recorded:
            raise wrong(file, "accepted", recorded, "an object of accept counts by role is needed")
        specs = dict(checked(file, role, sets, len(prompts)) for role, sets in recorded.items())
        origin = content.get("origin")
        if not isinstance(origin, dict) or not is_list_of(list(origin.values()), str):
            raise wrong(file, "origin", origin, "an object of texts is needed")
        return cls(origin, tuple(prompts), specs)


KEYS: Final = ("schema", "origin", "prompts_sha256", "accepted")
MADE_BY: Final = "specgate tape RUN FILE writes one"


def wrong(file: Path, key: str, value: object, right: str) -> UsageError:
    shown = repr(value)
    return UsageError(f"{file}: {key} = {shown if len(shown) <= 60 else shown[:57] + '…'}", hint=right)


def checked(file: Path, role: str, sets: object, count: int) -> tuple[int, tuple[Slots, ...]]:
    """(K, sets) of one role, every count seen to lie between 0 and K."""
    # Written plainly, so that no two keys mean one K.
    if not re.fullmatch("spec-[1-9][0-9]{0,3}", role):
        raise wrong(file, f"accepted.{role}", sets, "roles are named spec-1, spec-2, …")
    k = int(role.removeprefix("spec-"))
    if not isinstance(sets, list) or len(sets) != count:
        raise wrong(file, f"accepted.{role}", sets, f"one entry per prompt set is needed: {count}")
    for i, slots in enumerate(sets):
        if not is_list_of(slots, list) or not slots or not all(is_list_of(c, int) for c in slots):
            raise wrong(file, f"accepted.{role}[{i}]", slots, "lists of accept counts by slot are needed")
        for slot, counts in enumerate(slots):
            if beyond := [c for c in counts if not 0 <= c <= k]:
                raise wrong(file, f"accepted.{role}[{i}][{slot}]", beyond[0], f"0 to {k} drafts can be accepted")
    return k, tuple(tuple(tuple(counts) for counts in slots) for slots in sets)


def is_list_of(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(v, kind) and not isinstance(v, bool) for v in value)


def sha256_of_ids(prompts: Sequence[Sequence[int]]) -> str:
    """SHA-256 of the ids in decimal, a comma between ids, a newline after each prompt."""
    digest = hashlib.sha256()
    for ids in prompts:
        digest.update((",".join(map(str, ids)) + "\n").encode())
    return digest.hexdigest()
