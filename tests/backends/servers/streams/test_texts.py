"""Answers without token ids are compared as texts, and their tokens counted by the usage record."""

from __future__ import annotations

from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.servers.texts import ENCODED, NAMED, SLICED, Piece, TextTokens
from specgate.contract import BASELINE, Budget, Role
from tests.backends.servers.helpers import attached, running_stub

TEXTS = st.lists(st.text(max_size=6), min_size=1, max_size=8)


@given(TEXTS, st.integers(1, 40))
def test_a_text_has_as_many_tokens_as_the_server_counts_at_times_that_it_came(texts: list[str], count: int) -> None:
    pieces = [Piece(10 * i, text) for i, text in enumerate(texts)]
    made = TextTokens(97, ends=(5,)).made(pieces, count)
    assert len(made.tokens) == sum(made.counts) == count and min(made.counts) >= 1
    assert made.how == SLICED and made.times[0] == 0 and list(made.times) == sorted(set(made.times))
    assert made.times[-1] == (10 * (len(texts) - 1) if count > 1 else 0), "the end of an answer is that of its stream"
    assert all(token < 97 and token != 5 for token in made.tokens)


@given(TEXTS, TEXTS, st.integers(1, 40))
def test_equal_texts_have_equal_tokens_however_they_were_cut(a: list[str], b: list[str], count: int) -> None:
    def tokens(texts: list[str]) -> tuple[int, ...]:
        return TextTokens(1 << 40).made([Piece(i, text) for i, text in enumerate(texts)], count).tokens

    cut = [*accumulate("".join(a))] or [""]
    again = [cut[0], *(text[len(before) :] for before, text in pairwise(cut))]
    assert tokens(a) == tokens(again)
    assert (tokens(a) == tokens(b)) == ("".join(a) == "".join(b))


def test_named_tokens_part_where_their_bytes_do() -> None:
    def tokens(*names: bytes) -> tuple[int, ...]:
        made = TextTokens(1 << 40).made([Piece(7, "", names)], len(names) + 1)
        assert made.how == NAMED and made.counts == (len(names),), "the last one counted ended the text"
        return made.tokens

    a, b = tokens(b"a", b"\xc3", b"\xa9", b"z"), tokens(b"a", b"\xc3", b"\xa8", b"z")
    assert [x == y for x, y in zip(a, b, strict=True)] == [True, True, False, True]


def test_the_targets_tokenizer_counts_where_it_agrees_with_the_server() -> None:
    texts = TextTokens(300, encode=lambda text: [ord(character) for character in text])
    pieces = [Piece(1, "ab"), Piece(2, "c")]
    assert texts.made(pieces, 3).tokens == texts.made(pieces, 4).tokens == (97, 98, 99)
    assert texts.made(pieces, 3).how == ENCODED and texts.made(pieces, 3).counts == (1, 2), "one token of prefill"
    assert texts.made(pieces, 5).how == SLICED, "tokens that have no text: of channels, or of tools"


@pytest.mark.slow("starts two servers")
def test_a_gateway_that_drops_ids_leaves_texts_to_be_compared(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with (
        running_stub("vllm", 3, "--fault", "no_ids") as url,
        running_stub("vllm", 0, "--fault", "no_ids") as plain,
        attached(tmp_path, pair, "vllm", {"url": url, "url.baseline": plain}) as engine,
    ):
        engine.prefill([(1, 2, 3), (4, 5)], draft=True)
        spec, baseline = (engine.decode(role, Budget(steps=40), ()) for role in (Role(3), BASELINE))
    assert spec.tokens == baseline.tokens and {len(tokens) for tokens in spec.tokens} == {41}
    assert spec.counters["answers_as_texts"] == 2
