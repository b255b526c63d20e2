"""A driver's answers about single tokens: whatever is odd about them is a back-end error that says so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.offline.replies import began_of, ranking_of, requests_of, tokens_of
from specgate.contract import TopTokens
from specgate.errors import BackendError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=12,
)


def test_a_ranking_is_read_as_it_was_written() -> None:
    shown = {"tokens": [4, 7], "top": [[-0.5, 7], [-0.5, 3], [-2, 9]]}
    assert ranking_of(shown, 3, 2, 10, "test") == ((4, 7), TopTokens((-0.5, -0.5, -2.0), (7, 3, 9)))
    for few in ([[-0.5, 7]], []):
        assert ranking_of({"tokens": [7], "top": few}, 3, 1, 10, "test") == ((7,), None)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ([[-1.0, 7], [-0.5, 3]], "the most likely first"),
        ([[-0.5, 7], [-1.0, 7]], "2 different tokens"),
        ([[-0.5, 7], [-1.0, 3], [-2.0, 4]], "2 different tokens"),
        ([[-0.5, 7], [-1.0, 10]], "token id 10, but the vocabulary has 10"),
        ([[-0.5, 7], [float("nan"), 3]], "nan is no finite number"),
        ([[-0.5, True], [-1.0, 3]], "True is no count"),
        ([[-0.5], [-1.0, 3]], "not enough values"),
        ({"ok": 1}, "is no list"),
    ],
)
def test_a_ranking_that_is_none_is_refused(reply: object, message: str) -> None:
    with pytest.raises(BackendError, match=f"test: malformed answer: .*{message}"):
        ranking_of({"tokens": [7], "top": reply}, 2, 1, 10, "test")


@pytest.mark.parametrize(
    ("tokens", "message"), [([7, 7], "2 tokens in place of 1"), ([10], "token id 10"), (None, "no l")]
)
def test_a_ranking_behind_other_tokens_than_were_decoded_is_refused(tokens: object, message: str) -> None:
    with pytest.raises(BackendError, match=message):
        ranking_of({"tokens": tokens, "top": []}, 2, 1, 10, "test")


@pytest.mark.parametrize("reply", [None, {}, {"began": None}, {"began": -5}, {"began": 1.5}, [5]])
def test_a_begin_that_is_none_is_refused(reply: object) -> None:
    assert began_of({"began": 5}, "test") == 5
    with pytest.raises(BackendError, match="test: malformed answer"):
        began_of(reply, "test")


@pytest.mark.parametrize(
    ("reply", "message"), [([1], "1 tokens in place of 2"), ([1, 10], "token id 10"), (None, "no l")]
)
def test_a_text_that_is_none_is_refused(reply: object, message: str) -> None:
    assert tokens_of([1, 2], 2, 10, "test") == (1, 2)
    with pytest.raises(BackendError, match=message):
        tokens_of(reply, 2, 10, "test")


@given(JSON)
def test_no_answer_raises_anything_else(reply: object) -> None:
    for read in (lambda raw: ranking_of(raw, 2, 1, 10, "test"), lambda raw: tokens_of(raw, 2, 10, "test")):
        try:
            read(reply)
        except BackendError as error:
            assert error.message.startswith("test: malformed answer: ")


def test_a_count_of_a_request_that_is_none_is_named() -> None:
    counts = {"num_drafts": 2, "num_draft_tokens": 6, "num_accepted_tokens": 3}
    request = {"sent": 0, "chunks": [], "status": "FINISH", "cached": 0, "totals": {**counts, "num_rewound_tokens": -1}}
    with pytest.raises(BackendError, match="num_rewound_tokens = -1 is no count"):
        requests_of({"requests": [request]}, 1, "test")
