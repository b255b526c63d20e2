"""Recorded acceptance (a tape): the accept counts of one run, replayed in another run to measure its speed alone.

A replayed run drafts and verifies at full cost but accepts as many drafts as the tape says, so its tokens are wrong.
Its speed can be compared at equal acceptance. No gate on acceptance or tokens accepts it.
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

OPTION: Final = "tape"
"""The option of a back end that names the file to replay."""
SCHEMA: Final = "specgate.tape/v1"

Slots = tuple[tuple[int, ...], ...]
"""Accepted draft tokens by slot and cycle."""


@dataclass(frozen=True, slots=True)
class Tape:
    """The recorded accept counts of one point.

    `origin`: what was recorded, in words.
    `prompts`: SHA-256 of every recorded prompt set.
    `specs`: draft length K → the counts of each of these prompt sets.
    """

    origin: Mapping[str, str]
    prompts: tuple[str, ...]
    specs: Mapping[int, tuple[Slots, ...]]

    def index_of(self, prompts_sha256: str, turn: int) -> int:
        """The recorded prompt set with this hash, else the one at position `turn`, counted round and round."""
        if prompts_sha256 in self.prompts:
            return self.prompts.index(prompts_sha256)
        return turn % len(self.prompts)

    def accepted(self, k: int, prompt_set: int, slot: int, cycle: int) -> int:
        """The accept count to replay. Where the run has more slots or cycles than the tape, the tape starts again.

        A slot that had ended before its first cycle has no recorded count: it accepts nothing.
        """
        slots = self.specs[k][prompt_set]
        counts = slots[slot % len(slots)]
        return counts[cycle % len(counts)] if counts else 0

    @property
    def text(self) -> str:
        """The content of a tape file."""
        content = {
            "schema": SCHEMA,
            "origin": dict(self.origin),
            "prompts_sha256": list(self.prompts),
            "accepted": {f"spec-{k}": sets for k, sets in self.specs.items()},
        }
        return json.dumps(content) + "\n"

    @property
    def sha256(self) -> str:
        """SHA-256 of `text`."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def save(self, file: Path) -> None:
        """Write the tape to `file`. Raises EnvironmentRefused where it cannot be written."""
        try:
            file.write_text(self.text, encoding="utf-8")
        except OSError as error:
            raise EnvironmentRefused(f"{file}: cannot be written: {error.strerror}", hint="name another file") from None

    @classmethod
    def load(cls, file: Path) -> Tape:
        """Read a tape file. Raises UsageError with file, key, value and what would be right."""
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"{file}: not readable as a tape ({error})", hint=MADE_BY) from error
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            schema = content.get("schema") if isinstance(content, dict) else None
            raise tape_error(file, "schema", schema, f"{SCHEMA} is needed: {MADE_BY}")
        if unknown := [key for key in content if key not in KEYS]:
            raise tape_error(file, unknown[0], content[unknown[0]], f"no such key; known: {', '.join(KEYS)}")
        prompts = content.get("prompts_sha256")
        if not is_list_of(prompts, str) or not prompts:
            raise tape_error(file, "prompts_sha256", prompts, "a list of the recorded prompt sets' hashes is needed")
        recorded = content.get("accepted")
        if not isinstance(recorded, dict) or not recorded:
            raise tape_error(file, "accepted", recorded, "an object of accept counts by role is needed")
        specs = dict(checked_role(file, role, sets, len(prompts)) for role, sets in recorded.items())
        origin = content.get("origin")
        if not isinstance(origin, dict) or not is_list_of(list(origin.values()), str):
            raise tape_error(file, "origin", origin, "an object of texts is needed")
        return cls(origin, tuple(prompts), specs)


KEYS: Final = ("schema", "origin", "prompts_sha256", "accepted")
MADE_BY: Final = "specgate engine tape RUN FILE writes one"


def tape_error(file: Path, key: str, value: object, right: str) -> UsageError:
    """The error for `key` in `file`: it has `value`, and `right` says what would be right."""
    name, text = key if key.isprintable() else ascii(key), repr(value)
    return UsageError(f"{file}: {name[:80]} = {text if len(text) <= 60 else text[:57] + '…'}", hint=right)


def checked_role(file: Path, role: str, sets: object, count: int) -> tuple[int, tuple[Slots, ...]]:
    """(K, counts per prompt set) of one role. Raises UsageError unless every count lies between 0 and K."""
    # Exactly one spelling per K, so that no two keys mean the same one.
    if not re.fullmatch("spec-[1-9][0-9]{0,3}", role):
        raise tape_error(file, f"accepted.{role}", sets, "roles are named spec-1, spec-2, …")
    k = int(role.removeprefix("spec-"))
    if not isinstance(sets, list) or len(sets) != count:
        raise tape_error(file, f"accepted.{role}", sets, f"one entry per prompt set is needed: {count}")
    for i, slots in enumerate(sets):
        if not is_list_of(slots, list) or not slots or not all(is_list_of(c, int) for c in slots):
            raise tape_error(file, f"accepted.{role}[{i}]", slots, "lists of accept counts by slot are needed")
        for slot, counts in enumerate(slots):
            if beyond := [c for c in counts if not 0 <= c <= k]:
                raise tape_error(file, f"accepted.{role}[{i}][{slot}]", beyond[0], f"0 to {k} drafts can be accepted")
    return k, tuple(tuple(tuple(counts) for counts in slots) for slots in sets)


def is_list_of(value: object, kind: type) -> bool:
    """True if `value` is a list of `kind`; a bool does not count as an int."""
    return isinstance(value, list) and all(isinstance(v, kind) and not isinstance(v, bool) for v in value)


def sha256_of_ids(prompts: Sequence[Sequence[int]]) -> str:
    """SHA-256 of prompts of token ids, written as decimal numbers with a comma between ids and a newline after each
    prompt.
    """
    digest = hashlib.sha256()
    for ids in prompts:
        digest.update((",".join(map(str, ids)) + "\n").encode())
    return digest.hexdigest()
