"""Answers of a model, and the keys that they are held against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specgate.contract.types import Count


@dataclass(frozen=True, slots=True)
class AnswerKey:
    """The right answer to a question: a number, the letter of a choice, or a short text."""

    kind: Literal["number", "choice", "text"]
    value: str


@dataclass(frozen=True, slots=True)
class Answered:
    """Answer of one cell to one question.

    `place`: cell key, prompt set and prompt, joined by `#`. `got`: what the rule found in the text, None where it found
    nothing. `cut`: the text ended at the token budget.
    """

    place: str
    cell: str
    prompt_set: Count
    prompt: Count
    got: str | None
    right: bool
    cut: bool = False
