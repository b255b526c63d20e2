"""Constraints that a noun's fields carry, and the aliases that several nouns share.

A constraint stands in an annotation: `rounds: Annotated[int, Range(ge=1, le=10_000)]`. Building a noun in code checks
nothing; `contract.reading` checks data on its way in. Nothing here imports pydantic, which is slow to import: pydantic
calls the constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final

LARGEST: Final = (1 << 63) - 1
"""The largest integer that is read: it fits into 64 bits."""
FROM_ENGINE: Final = "from an engine"
"""The context in which an engine's answer is validated."""


class Constraint:
    """Base of the constraints. `keys`: what they add to pydantic's schema of the annotated type."""

    def __init__(self, **keys: object) -> None:
        self.keys = {key: value for key, value in keys.items() if value is not None}

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Return the schema of `source` with this constraint."""
        return {**handler(source), **self.keys}


class Range(Constraint):
    """Limits of an integer, or of a float, which is then finite too. `hint`: what a message about them adds."""

    def __init__(
        self,
        *,
        ge: float | None = None,
        gt: float | None = None,
        le: float | None = None,
        lt: float | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(ge=ge, gt=gt, le=le, lt=lt)
        self.hint = hint

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Return the schema of `source` with these limits."""
        schema = super().__get_pydantic_core_schema__(source, handler)
        return {**schema, "allow_inf_nan": False} if schema["type"] == "float" else schema


class Length(Constraint):
    """Limits of the length of text, of a tuple or of a mapping."""

    def __init__(self, least: int = 0, most: int | None = None) -> None:
        super().__init__(min_length=least, max_length=most)


class Pattern(Constraint):
    """A regular expression that text matches."""

    def __init__(self, regex: str) -> None:
        super().__init__(pattern=regex)


class FailFast(Constraint):
    """Stop at the first wrong item of a tuple: one of millions of items needs no million messages."""

    def __init__(self) -> None:
        super().__init__(fail_fast=True)


class Check:
    """A function that raises ValueError for values that the type and its limits let through.

    It returns the value to use.
    """

    def __init__(self, check: Callable[[Any], object]) -> None:
        self.check = check

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Return the schema of `source`, followed by the check."""
        return {"type": "function-after", "schema": handler(source), "function": _plain(self.check)}


class Convert:
    """A function that turns another notation of a value into the one that is then checked.

    It returns what it does not know as it is, and tuples in the place of lists. `notation`: the JSON schema of the
    other notation.
    """

    def __init__(self, convert: Callable[[Any], object], notation: Mapping[str, object]) -> None:
        self.convert, self.notation = convert, notation

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Return the schema of `source`, after the conversion."""
        return {"type": "function-before", "schema": handler(source), "function": _plain(self.convert)}

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Return the JSON schema of both notations."""
        return {"anyOf": [handler(schema), dict(self.notation)]}


def ascending(values: Sequence[float]) -> Sequence[float]:
    """Return `values`. Raises ValueError unless they strictly ascend."""
    if any(later <= earlier for earlier, later in pairwise(values)):
        raise ValueError(f"must ascend without repeats: {sorted(set(values))}")
    return values


ASCENDING: Final = Check(ascending)


def _plain(function: Callable[[Any], object]) -> dict[str, object]:
    return {"type": "no-info", "function": function}


class FilledIn:
    """Mark of a field that specgate fills in: stored files have it, and a file that a user writes cannot set it."""


class LeavesOut:
    """Base of a noun of which the fields `LEFT_OUT` are not stored where they are None, False or their default."""

    __slots__ = ()
    LEFT_OUT: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Return the schema of `source`, written without those fields."""
        schema = handler(source)
        writing = {"type": "function-wrap", "function": cls.without_unset, "is_field_serializer": False}
        handler.resolve_ref_schema(schema)["serialization"] = writing
        return schema

    @classmethod
    def without_unset(cls, value: object, write: Callable[[object], dict[str, object]]) -> dict[str, object]:
        """Return what is stored of `value`."""
        default = {f.name: f.default for f in fields(cls)}  # type: ignore[arg-type]  # every noun is a dataclass
        return {k: v for k, v in write(value).items() if k not in cls.LEFT_OUT or v not in (None, False, default[k])}


class HarnessOnly:
    """Mark of an optional field that the harness fills in. An engine that states it is refused."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Return the schema of `source`, followed by a look at who states the value."""
        refuse = {"type": "with-info", "function": self.refuse_engine}
        return {"type": "function-after", "function": refuse, "schema": handler(source)}

    @staticmethod
    def refuse_engine(value: object, info: Any) -> object:
        """Return `value`. Raise ValueError if an engine states it."""
        if value not in (None, False) and info.context == FROM_ENGINE:
            raise ValueError("must be null: only the harness fills it in")
        return value


FILLED_IN: Final = FilledIn()
HARNESS_ONLY: Final = HarnessOnly()
FAIL_FAST: Final = FailFast()

# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────

# They lie far above what is measured anywhere, and far below what would fill memory or take minutes to lay out.
# `planning.bounds` has those of products.

POSITIONS: Final = 1 << 24
"""Tokens of one prompt, and positions of a RoPE scaling."""
BATCH: Final = 4096
DRAFT_TOKENS: Final = 64
"""Draft tokens per step; n-gram and suffix methods draft the most."""
VALUES: Final = 64
"""Values of one axis of a grid."""
STEPS: Final = 1 << 20
"""Engine steps, or new tokens, of one block."""
REPEATS: Final = 10_000
"""Rounds, warm-up rounds, prompt sets, warm-up sets."""
SEED: Final = (1 << 63) - 1
SECONDS: Final = 1e6
"""The longest time-out: eleven days."""
REQUESTS: Final = 1 << 16
"""Requests of one block of a load scenario, and of one of its clients."""
RATE: Final = 1e6
"""Requests per second."""
FACTOR: Final = 1e6
"""Numbers of a RoPE scaling."""
PARAMETER: Final = 1e12
"""Numbers of a policy: margins, floors and counts."""

# ── aliases ──────────────────────────────────────────────────────────────────────────────────────────────────────────

Count = Annotated[int, Range(ge=0, le=LARGEST)]
Size = Annotated[int, Range(ge=1, le=LARGEST)]
Integer = Annotated[int, Range(ge=-LARGEST, le=LARGEST)]
Finite = Annotated[float, Range()]
Positive = Annotated[float, Range(gt=0)]
Share = Annotated[float, Range(ge=0, le=1)]
Text = Annotated[str, Length(1, 4096)]
Positions = Annotated[int, Range(ge=1, le=POSITIONS)]
Repeats = Annotated[int, Range(ge=1, le=REPEATS)]
Steps = Annotated[int, Range(ge=1, le=STEPS)]
Requests = Annotated[int, Range(ge=1, le=REQUESTS)]
Seed = Annotated[int, Range(ge=0, le=SEED)]
Factor = Annotated[float, Range(gt=0, le=FACTOR)]
Digest = Annotated[str, Pattern("^[0-9a-f]{64}$")]
"""SHA-256 in hexadecimal digits."""
Tally = Annotated[int, Range(ge=-1, le=LARGEST)]
"""A count of draft tokens, or -1 where the slot had already finished."""
Counts = Annotated[tuple[Count, ...], FAIL_FAST]
"""A list of counts, of times in nanoseconds or of token ids."""
Tallies = Annotated[tuple[Annotated[tuple[Tally, ...], FAIL_FAST], ...], FAIL_FAST]
"""Counts of draft tokens: one row per step, with one entry per slot."""
Tokens = Annotated[tuple[Annotated[tuple[Count, ...], Length(1), FAIL_FAST], ...], FAIL_FAST]
"""Token ids of every slot, beginning with the prefill token."""


KeyPath = tuple[str | int, ...]
"""The place of a value inside mappings and lists."""


def dotted(key: KeyPath) -> str:
    """`("grid", "context", 1)` → `grid.context[1]`. A key that cannot be printed is shown as Python writes it."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{_printable(part)}" for part in key).lstrip(".")


def _printable(text: str) -> str:
    return shortened(text if text.isprintable() else ascii(text))


def shortened(text: str) -> str:
    """Return `text`, with an ellipsis at the end of what is longer than 60 characters."""
    return text if len(text) <= 60 else text[:57] + "…"


def fields_of(noun: type[Any], value: object) -> dict[str, Any]:
    """Return field → value for the fields that the dataclass `noun` declares."""
    return {field.name: getattr(value, field.name) for field in fields(noun)}
