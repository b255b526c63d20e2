"""The rule by which an answer is found in a text, and held against its key.

    number  the first number behind the last `####`, else in the last `\\boxed{}`, else behind the last "answer is" or
            "answer:", else the last number of the text. Compared as a number; commas, `$` and `%` do not count.
    choice  the letter at the beginning of one of these places, else of the text, else the last one in parentheses.
    text    the first line in one of these places, else the last line of the text. Compared without case, spaces, `$`,
            quotes and a full stop at its end.

The first place is the one that GSM8K's authors read (`grade_school_math/dataset.py`), the last one that which
lm-evaluation-harness calls flexible extraction. What stands in `<think>…</think>` is no answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Final

from specgate.contract.samples.answers import AnswerKey

LONGEST: Final = 64
"""Characters of a key. A longer text is an explanation, which no answer equals."""
MARK: Final = "####"
BOXED: Final = "\\boxed{"
ANSWER: Final = re.compile(r"answer(?: is|\s*:)\s*", re.IGNORECASE)
NUMBER: Final = re.compile(r"(?:(?<![\w)])-)?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
LETTER: Final = re.compile(r"[\s*(\"'$]*([A-Z])(?![A-Za-z])")
IN_PARENTHESES: Final = re.compile(r"\(([A-Z])\)")
THOUGHT: Final = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
THOUGHT_OUT: Final = "</think>"
"""What ends a thought that the prompt has begun, so that the text does not."""
NO_MEANING: Final = re.compile(r"\s|\$|\\left|\\right|\\[!,;]|[\"'*]")


def key_of(answer: str) -> AnswerKey | None:
    """The key in a data set's answer, behind the last `####` where it has one; None where that is no short answer."""
    value = answer.rpartition(MARK)[2].strip()
    value = boxed(value) or value
    if not value or len(value) > LONGEST or not value.isprintable():
        return None
    if number_in(value) is not None and NUMBER.fullmatch(plain_number(value)):
        return AnswerKey("number", plain_number(value))
    return AnswerKey("choice" if len(value) == 1 and value.isupper() else "text", value)


def extracted(text: str, key: AnswerKey) -> str | None:
    """The answer in a model's text, for a key of this kind; None where there is none."""
    places = list(answer_places(THOUGHT.sub("", text).rpartition(THOUGHT_OUT)[2]))
    if key.kind == "choice":
        return choice_in(places)
    for place, stated in places:
        if matches := NUMBER.findall(place.replace("$", "")) if key.kind == "number" else lines_in(place):
            return plain_number(matches[0 if stated else -1]) if key.kind == "number" else matches[0 if stated else -1]
    return None


def lines_in(text: str) -> list[str]:
    """The lines of a text that are not empty."""
    return [line for line in map(str.strip, text.splitlines()) if line]


def answer_places(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a text that may hold the answer, the surest first: (part, whether the text says so)."""
    if MARK in text:
        yield text.rpartition(MARK)[2], True
    if (inside := boxed(text)) is not None:
        yield inside, True
    for match in list(ANSWER.finditer(text))[-1:]:
        yield text[match.end() :], True
    yield text, False


def choice_in(places: list[tuple[str, bool]]) -> str | None:
    """The letter of the choice that an answer names."""
    for place, _ in places:
        if match := LETTER.match(place):
            return match.group(1)
    matches = IN_PARENTHESES.findall(places[-1][0])
    return matches[-1] if matches else None


def boxed(text: str) -> str | None:
    """What is in the last `\\boxed{}`, braces balanced; None where there is none that is closed."""
    start = text.rfind(BOXED)
    if start < 0:
        return None
    start += len(BOXED)
    depth = 1
    for place, character in enumerate(text[start:], start):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if not depth:
            return text[start:place]
    return None


def is_right(got: str | None, key: AnswerKey) -> bool:
    """True if the answer is the key's, by the rule of its kind."""
    if got is None:
        return False
    if key.kind == "number":
        return number_in(got) is not None and number_in(got) == number_in(key.value)
    return got == key.value if key.kind == "choice" else normal(got) == normal(key.value)


def number_in(text: str) -> Decimal | None:
    """The number that a text is; None where it is none."""
    try:
        return Decimal(plain_number(text))
    except InvalidOperation:
        return None


def plain_number(text: str) -> str:
    """The text without what is written around a number."""
    return text.strip().replace(",", "").strip("$%").rstrip(".").strip()


def normal(text: str) -> str:
    """The text as texts are compared."""
    return NO_MEANING.sub("", text).casefold().rstrip(".").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
