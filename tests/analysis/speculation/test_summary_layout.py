"""Tables of acceptance: which requests a row holds, which tables there are, and what may not be compared."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.analysis.speculation.summary import VALUES, Key, Request, layout_of, layouts_of
from tests.analysis.speculation.evidence import request, stepped


def asked(prompt: str, *accepted: int, k: int = 3, **changes: Any) -> Request:
    return request(stepped(accepted or (1, 2), k=k), prompt=(prompt, 0), **changes)


MANY = st.lists(
    st.builds(
        lambda prompt, engine, kind, context, k: asked(prompt, engine=engine, prompt_class=kind, context=context, k=k),
        prompt=st.sampled_from("abc"),
        engine=st.sampled_from(("cupy", "vllm")),
        kind=st.sampled_from(("code", "prose")),
        context=st.sampled_from((512, 16_384, 32_768)),
        k=st.sampled_from((2, 3)),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25)
@given(MANY, st.sampled_from((None, *VALUES, "position")))
def test_every_request_is_in_one_row_of_every_table(requests: list[Request], by: Key | None) -> None:
    layout = layout_of(requests, by)
    expected = Counter((r.record.k, VALUES[by](r) if by is not None and by in VALUES else None) for r in requests)
    assert {(s.group.k, s.group.value): s.requests for s in layout.rows} == expected


def test_other_pairs_lengths_and_sources_are_never_pooled() -> None:
    requests = [
        asked("x", k=k, acceptance=source, pair=pair)
        for k in (3, 2)
        for pair, source in (("demo", "real"), ("demo", "forced"), ("another", "real"))
    ]
    rows = [(s.group.pair, s.group.acceptance, s.group.k) for s in layout_of(requests, None).rows]
    assert rows == [(*of, k) for of in (("another", "real"), ("demo", "forced"), ("demo", "real")) for k in (2, 3)]


def test_rows_stand_in_the_order_of_their_numbers() -> None:
    requests = [asked("x", context=context) for context in (32_768, 512, 4096)]
    rows = layout_of(requests, "context").rows
    assert [s.group.value for s in rows] == [512, 4096, 32_768]


def test_the_usual_tables_are_those_that_say_more_than_the_whole() -> None:
    requests = [asked("x", context=512), asked("y", context=4096)]
    assert [layout.by for layout in layouts_of(requests)] == [None, "context", "position"]


def test_pairs_that_differ_in_engine_too_are_not_laid_out_by_engine() -> None:
    requests = [asked("x", pair="demo", engine="cupy"), asked("x", pair="planted", engine="vllm")]
    assert [layout.by for layout in layouts_of(requests)] == [None, "position"]


@pytest.mark.parametrize(
    ("theirs", "texts"), [(("a", "b"), ()), (("b", "c", "d"), ("prompts of cupy 2, vllm 3; 1 in common",))]
)
def test_engines_that_were_asked_other_prompts_are_said(theirs: tuple[str, ...], texts: tuple[str, ...]) -> None:
    requests = [asked(p, engine="cupy") for p in "ab"] + [asked(p, engine="vllm") for p in theirs]
    assert layout_of(requests, "engine").unlike == texts
    assert layout_of(requests, "class").unlike == ()


@pytest.mark.parametrize("by", [None, "class", "position"])
def test_requests_decoded_in_other_ways_are_never_pooled(by: Key | None) -> None:
    ways = ("", "temperature 1", "a tree")
    layout = layout_of([asked("a", decoding=way) for way in ways for _ in range(2)], by)
    assert [(row.group.decoding, row.requests) for row in layout.rows] == [(way, 2) for way in sorted(ways)]


def test_engines_that_decode_in_other_ways_are_not_said_to_rest_on_other_prompts() -> None:
    requests = [asked("a", engine="cupy"), asked("b", engine="vllm", decoding="a tree")]
    assert layout_of(requests, "engine").unlike == ()
