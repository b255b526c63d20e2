"""Answers as models and data sets write them."""

from __future__ import annotations

import pytest

from specgate.analysis.quality.exact_match import extracted, is_right, key_of
from specgate.contract.samples.answers import AnswerKey

NUMBER, CHOICE, TEXT = AnswerKey("number", "18"), AnswerKey("choice", "B"), AnswerKey("text", "\\frac{1}{2}")


@pytest.mark.parametrize(
    ("text", "key", "got", "right"),
    [
        ("16 - 3 - 4 = <<16-3-4=9>>9 eggs, 9 * 2 = $18.\n#### 18", NUMBER, "18", True),
        ("So the answer is $18.00 a day, not 20.", NUMBER, "18.00", True),
        ("Total: \\boxed{1,018}", NUMBER, "1018", False),
        ("She has 20-2 = 18", NUMBER, "18", True),
        ("<think>It may be 18.</think> The answer is 17.", NUMBER, "17", False),
        ("<think>18, 18, and the budget ends", NUMBER, None, False),
        ("I see 18 apples.</think>\nThere are 17.", NUMBER, "17", False),
        ("I doubt it: (A) or B?</think>\nC", CHOICE, "C", False),
        ("I do not know.", NUMBER, None, False),
        ("The answer is (B).", CHOICE, "B", True),
        ("B. Because A is wrong", CHOICE, "B", True),
        ("Both seem right, (A) and (C), but I choose (B)", CHOICE, "B", True),
        ("Answer: **C**", CHOICE, "C", False),
        ("Because of gravity", CHOICE, None, False),
        ("Half, so $\\boxed{\\dfrac{1}{2}}$.", TEXT, "\\dfrac{1}{2}", True),
        ("A long way\n\n1/2", TEXT, "1/2", False),
        ("The answer is Paris.\nIt lies on the Seine.", AnswerKey("text", "paris"), "Paris.", True),
    ],
)
def test_an_answer_is_found_where_the_rule_looks_first(text: str, key: AnswerKey, got: str | None, right: bool) -> None:
    assert extracted(text, key) == got
    assert is_right(got, key) is right


@pytest.mark.parametrize(
    ("answer", "key"),
    [
        ("Natalia sold 48/2 = <<48/2=24>>24 clips.\n#### 72", NUMBER.__class__("number", "72")),
        ("$1,250.50", AnswerKey("number", "1250.50")),
        ("C", AnswerKey("choice", "C")),
        ("\\boxed{x^2}", AnswerKey("text", "x^2")),
        ("a\nb", None),
        ("", None),
    ],
)
def test_a_key_is_what_the_data_set_calls_the_answer(answer: str, key: AnswerKey | None) -> None:
    assert key_of(answer) == key
