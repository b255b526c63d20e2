"""Data becomes a noun: every problem with its key, in our words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from specgate.contract.reading import Malformed, filled_in_keys, from_data, from_json, from_stored, problems_of
from specgate.contract.types import FILLED_IN, Check, Convert, Digest, Finite, Integer, Length, Range, Size, dotted


@dataclass(frozen=True, slots=True)
class Limit:
    steps: Size | None = None
    tokens: Size | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.tokens is None):
            raise ValueError("set exactly one of steps and tokens")


def even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


def as_text(value: object) -> object:
    return str(value) if isinstance(value, int) else value


@dataclass(frozen=True, slots=True)
class Noun:
    name: Annotated[str, FILLED_IN]
    limit: Limit
    kind: Literal["micro", "full"] = "micro"
    factor: Annotated[float, Range(gt=0, le=1e6)] = 1.0
    sha256: Digest = "0" * 64
    pairs: Annotated[int, Check(even)] = 2
    options: Mapping[str, Annotated[str, Convert(as_text, {"type": "integer"})]] = field(default_factory=dict)
    details: Mapping[str, str | bool | Integer | Finite] = field(default_factory=dict)
    by_rows: Mapping[Size, Mapping[str, int]] = field(default_factory=dict)
    others: Mapping[str, Limit] = field(default_factory=dict)
    axis: Annotated[tuple[Size, ...], Length(1, 3)] = (1,)
    file: Path | None = None


GOOD: dict[str, Any] = {"name": "n", "limit": {"steps": 3}}


def test_lists_paths_and_keys_become_what_the_noun_declares() -> None:
    read = from_data(Noun, {**GOOD, "axis": [1, 2], "file": "/a/b", "by_rows": {"8": {"x": 1}}, "options": {"a": 7}})
    assert read == Noun("n", Limit(3), axis=(1, 2), file=Path("/a/b"), by_rows={8: {"x": 1}}, options={"a": "7"})
    assert problems_of(Noun, read) == ()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"limit": {}}, "limit: set exactly one of steps and tokens"),
        ({"limit": 3}, "limit: a mapping was expected; keys: steps, tokens"),
        ({"limit": {"steps": 0}}, "limit.steps: must be at least 1"),
        ({"limit": {"stepz": 1}}, "limit.stepz: no such key; did you mean 'steps'? known: steps, tokens"),
        ({"limit": {"steps": "3"}}, "limit.steps: must be an integer"),
        ({"limit": {"steps": True}}, "limit.steps: must be an integer"),
        ({"limit": {"steps": 10**90}}, "limit.steps: must be at most 9223372036854775807"),
        ({"kind": "mikro"}, "kind: not one of 'micro' or 'full'"),
        ({"factor": float("inf")}, "factor: must be a finite number"),
        ({"factor": 2e6}, "factor: must be at most 1000000"),
        ({"factor": 0}, "factor: must be more than 0"),
        ({"sha256": "0"}, "sha256: must match ^[0-9a-f]{64}$"),
        ({"pairs": 3}, "pairs: must be even"),
        ({"options": []}, "options: a mapping was expected"),
        ({"options": {"a": []}}, "options.a: must be text"),
        ({"details": {"a": []}}, "details.a: must be text, or true or false, or an integer, or a number"),
        ({"by_rows": {"x": {}}}, "by_rows.x: the key must be an integer"),
        ({"others": {"a": {"x": 1}}}, "others.a.x: no such key; known: steps, tokens"),
        ({"axis": []}, "axis: must not be empty"),
        ({"axis": [1, 2, 3, 4]}, "axis: must have at most 3, has 4"),
        ({"axis": ["a"]}, "axis[0]: must be an integer"),
        ({"axis": 1}, "axis: must be a list"),
        ({"others": {"a": {"steps": 1}, "b": {"steps": "\ud800"}}}, "others.b.steps: half a surrogate pair is no text"),
    ],
)  # fmt: skip
def test_a_problem_has_its_key_and_says_what_would_be_right(data: dict[str, Any], problem: str) -> None:
    with pytest.raises(Malformed) as caught:
        from_data(Noun, {**GOOD, **data})
    assert [f"{dotted(p.key)}: {p.why}" for p in caught.value.problems][:1] == [problem]
    if "surrogate" not in problem:  # which no JSON text of others gets as far as
        with pytest.raises(Malformed) as again:
            from_json(Noun, json.dumps({**GOOD, **data}))
        assert again.value.problems == caught.value.problems


def test_every_problem_is_listed() -> None:
    with pytest.raises(Malformed) as caught:
        from_data(Noun, {"kind": 1, "axis": [0, 1, "x"], "name": "n", "extra": 1})
    assert [dotted(p.key) for p in caught.value.problems] == ["limit", "kind", "axis[0]", "axis[2]", "extra"]


def test_what_specgate_stored_may_have_more_keys_and_has_the_same_constraints() -> None:
    assert from_stored(Noun, {**GOOD, "newer": 1}) == Noun("n", Limit(3))
    with pytest.raises(Malformed, match=r"^limit\.steps: must be at least 1$"):
        from_stored(Noun, {"name": "n", "limit": {"steps": 0}})


def test_no_json_at_all_is_one_problem() -> None:
    with pytest.raises(Malformed, match=r"^the data: invalid JSON"):
        from_json(Noun, b"{")


def test_a_noun_built_in_code_can_be_checked() -> None:
    (problem,) = problems_of(Noun, Noun("n", Limit(-3)))
    assert (problem.key, problem.why) == (("limit", "steps"), "must be at least 1")


def test_fields_that_specgate_fills_in_are_seen() -> None:
    assert list(filled_in_keys(Noun, {"name": 3, "others": {"a": {"name": 1}}})) == [("name",)]
