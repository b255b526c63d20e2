"""A file of prompts as a trace: when each request was sent, and how long its answer was.

Keys of a record, in any format: `timestamp`, in milliseconds or as a date in ISO 8601, and `output_length`, in tokens.
Mooncake's traces (kvcache-ai/Mooncake, FAST25-release) have no texts but `input_length` and `hash_ids`: a hash per 512
tokens of the prompt, the same for prompts that begin alike. Such a prompt becomes random tokens, the same per hash.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from specgate.contract.types import STEPS
from specgate.errors import UsageError
from specgate.files.json_text import shown

HASHED: Final = 512
"""Tokens that one hash of Mooncake's stands for."""


@dataclass(frozen=True, slots=True)
class HashedPrompt:
    """A prompt of `length` tokens that is known by the hashes of its parts alone."""

    length: int
    hashes: tuple[int, ...]

    def token_ids(self, vocab: int) -> tuple[int, ...]:
        """Return random tokens of a vocabulary of `vocab`: prompts share as long a prefix as their hashes."""
        parts = (random.Random(f"hash {number}").choices(range(vocab), k=HASHED) for number in self.hashes)
        return tuple(token for part in parts for token in part)[: self.length]


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a record says of its request, as it stands there; None for a key that it lacks."""

    timestamp: Any = None
    output_length: Any = None

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Stamp:
        return cls(data.get("timestamp"), data.get("output_length"))

    def at_ms(self, where: str) -> float:
        """Return the time of the request in ms. Raises UsageError where the record says none."""
        value = self.timestamp
        if isinstance(value, str):
            try:
                return datetime.fromisoformat(value).timestamp() * 1e3
            except ValueError:
                pass
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
            right = "milliseconds were expected, or a date such as 2026-11-29T12:00:00.250"
            raise UsageError(f"{where}: timestamp: {'missing' if value is None else shown(value)}: {right}")
        return float(value)

    def new_tokens(self, where: str) -> int | None:
        """Return the tokens of the answer, two at least so that it has a time per token; None where none are said.

        Raises UsageError for what is no number of tokens.
        """
        value = self.output_length
        if value is None:
            return None
        if type(value) is not int or not 1 <= value <= STEPS:
            raise UsageError(f"{where}: output_length: {shown(value)}: a number of tokens was expected, 1 to {STEPS:,}")
        return max(value, 2)


NO_STAMP: Final = Stamp()


@dataclass(frozen=True, slots=True)
class Trace:
    """The requests of a trace, by the `number` of their record.

    `due`: when each was sent, counted in requests at the trace's mean rate. `rate`: that rate, per second.
    `new_tokens`: the tokens of each answer; None where the record does not say.
    """

    due: Mapping[int, float]
    new_tokens: Mapping[int, int | None]
    rate: float

    @classmethod
    def of(cls, stamped: Sequence[tuple[str, int, Stamp]]) -> Trace:
        """Return the trace of (place, number, stamp) per record. Raises UsageError where a time is missing or earlier
        than the one before it, and for fewer than two times.
        """
        at = [stamp.at_ms(where) for where, _, stamp in stamped]
        for (where, _, _), earlier, later in zip(stamped[1:], at, at[1:], strict=False):
            if later < earlier:
                why = f"it lies before the request above it, at {earlier:.0f} ms"
                raise UsageError(f"{where}: timestamp: {later:.0f} ms: {why}", hint="sort the trace by its timestamps")
        seconds = (at[-1] - at[0]) / 1e3
        if not seconds:
            raise UsageError(f"{stamped[0][0]}: timestamp: all requests have the same", hint="a trace has two at least")
        rate = (len(at) - 1) / seconds
        return cls(
            {number: (ms - at[0]) / 1e3 * rate for (_, number, _), ms in zip(stamped, at, strict=True)},
            {number: stamp.new_tokens(where) for where, number, stamp in stamped},
            rate,
        )
