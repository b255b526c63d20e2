from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors

from specgate.contract import PairRef, Scenario, Schedule, Workload
from specgate.contract.load import Load
from specgate.contract.scenarios.own_prompts import in_words
from specgate.contract.scenarios.workload import FormatName
from specgate.errors import UsageError
from specgate.planning.prompt_files.choosing import CATEGORIES, OwnPrompts, in_order
from specgate.planning.prompt_files.formats import Entry
from specgate.planning.prompt_files.records import sha256_of
from specgate.planning.prompts import PromptSet, build_prompts
from specgate.planning.resolution import settled
from specgate.planning.scenario import of_file
from tests.pairs.tiny import BOS, write_tokenizer
from tests.support.factories import scenario

VOCAB = 258
TEXTS = [{"text": "a" * n, "id": n} for n in range(1, 31)]
"""Prompts of 1 to 30 tokens: every byte is one."""


def asking(
    folder: Path,
    lines: Iterable[Any] = TEXTS,
    *,
    context: tuple[int, ...] = (64,),
    batch: int = 1,
    sets: int = 4,
    warmup: int = 1,
    shared_prefix: int = 0,
    format_: FormatName = "auto",
    **limits: Any,
) -> Scenario:
    (folder / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    workload = Workload(1, sets, warmup, shared_prefix=shared_prefix, format=format_, **limits)
    small_scenario = scenario(context=context, batch=(batch,), prompt_sets=sets)
    return replace(small_scenario, workload=of_file(workload, folder / "p.jsonl"))


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    return tmp_path / "tokenizer.json"


def lengths(sets: tuple[PromptSet, ...]) -> list[int]:
    return [n for s in sets for n in s.lengths]


def test_a_point_measures_prompts_of_its_class_of_length_only(tmp_path: Path, tokenizer: Path) -> None:
    request = asking(tmp_path, context=(8, 20))
    short, long = (build_prompts(request, c, 1, tokenizer, VOCAB) for c in (8, 20))
    assert {n <= 8 for n in lengths(short.measured + short.warmup)} == {True}
    assert {8 < n <= 20 for n in lengths(long.measured + long.warmup)} == {True}


def test_limits_leave_shorter_and_longer_prompts_out(tmp_path: Path, tokenizer: Path) -> None:
    made = build_prompts(asking(tmp_path, min_tokens=5, max_tokens=9), 64, 1, tokenizer, VOCAB)
    assert sorted(lengths(made.measured + made.warmup)) == [5, 6, 7, 8, 9]


def test_measured_and_warm_up_prompts_differ_and_repeat_only_where_the_file_is_too_small(
    tmp_path: Path, tokenizer: Path
) -> None:
    made = build_prompts(asking(tmp_path, batch=2), 64, 2, tokenizer, VOCAB)
    every = [ids for s in (*made.measured, *made.warmup) for ids in s.token_ids]
    assert len(set(every)) == len(every) == 10 and "warmup" not in made.about
    few = build_prompts(asking(tmp_path, TEXTS[:4], warmup=2), 64, 1, tokenizer, VOCAB)
    assert set(few.warmup) <= set(few.measured) and "repeats measured prompts" in str(few.about["warmup"])


@settings(max_examples=25)
@given(st.permutations(range(30)), st.integers(0, 99))
def test_the_order_of_the_lines_decides_nothing_and_the_seed_everything(order: list[int], seed: int) -> None:
    entries = [Entry(f"p:{n}", n, "a" * (n + 1)) for n in range(30)]
    first, other = in_order(entries, seed), in_order([entries[n] for n in order], seed)
    assert first == other and in_order(entries, seed + 1) != first


@settings(max_examples=25)
@given(st.sets(st.integers(0, 29), max_size=29))
def test_prompts_that_are_taken_out_of_the_file_leave_the_order_of_the_others(gone: set[int]) -> None:
    entries = [Entry(f"p:{n}", n, (n, n + 1)) for n in range(30)]
    left = [e for e in entries if e.number not in gone]
    assert in_order(left, 7) == tuple(e for e in in_order(entries, 7) if e.number not in gone)


def test_a_larger_batch_measures_what_a_smaller_one_does(tmp_path: Path, tokenizer: Path) -> None:
    small, large = (build_prompts(asking(tmp_path, batch=b), 64, b, tokenizer, VOCAB) for b in (1, 4))
    assert [ids for s in small.measured for ids in s.token_ids] == [ids for s in large.measured for ids in s.token_ids][
        :4
    ]


def test_prompts_of_other_lengths_that_had_their_turn_are_counted(tmp_path: Path, tokenizer: Path) -> None:
    made = build_prompts(asking(tmp_path, min_tokens=5, max_tokens=9), 64, 1, tokenizer, VOCAB)
    file: Any = made.about["file"]
    every = build_prompts(asking(tmp_path, min_tokens=5, max_tokens=9, sets=5), 64, 1, tokenizer, VOCAB)
    assert "25 passed over: shorter or longer than asked for" in str(in_words(every.about)), (
        "30 but 5, and none is left"
    )
    assert 0 < file["passed_over"] <= 25
    assert "passed over" not in str(in_words(build_prompts(asking(tmp_path), 64, 1, tokenizer, VOCAB).about))


def test_equal_prompts_count_once(tmp_path: Path, tokenizer: Path) -> None:
    made = build_prompts(asking(tmp_path, [{"text": "b"}, *TEXTS[:4], {"text": "b"}]), 64, 1, tokenizer, VOCAB)
    assert made.about["file"] == {
        "name": "p.jsonl",
        "sha256": sha256_of((tmp_path / "p.jsonl").read_bytes()),
        "format": "lines",
        "prompts": 6,
        "duplicates": 1,
    }
    with pytest.raises(UsageError, match="6 sets × batch 1 = 6 prompts are needed, and 5 that differ"):
        build_prompts(asking(tmp_path, [{"text": "b"}, *TEXTS[:4], {"text": "b"}], sets=6), 64, 1, tokenizer, VOCAB)


def test_too_few_prompts_are_said_with_what_the_file_has(tmp_path: Path, tokenizer: Path) -> None:
    with pytest.raises(UsageError) as caught:
        build_prompts(asking(tmp_path, min_tokens=29, batch=1), 64, 1, tokenizer, VOCAB)
    message = str(caught.value)
    assert "p.jsonl: 4 sets × batch 1 = 4 prompts are needed, and 2 that differ have 29 to 64 tokens" in message
    assert "(those in the file: 1 to 30 tokens)" in message
    assert "prompt_sets" not in message, "two prompts are too few for any scenario"
    assert message.endswith("right would be other lengths or more prompts"), "no batch is smaller than 1"


def test_fewer_sets_are_offered_only_where_the_scenario_may_have_them(tmp_path: Path, tokenizer: Path) -> None:
    texts = [{"text": "b" * n, "timestamp": n} for n in range(1, 23)]

    def hint(batch: int = 2, **changes: Any) -> str:
        with pytest.raises(UsageError) as caught:
            build_prompts(replace(asking(tmp_path, texts, sets=32), **changes), 64, batch, tokenizer, VOCAB)
        return str(caught.value.hint)

    whole_sets = Schedule(rounds=2, warmup_rounds=1)
    assert hint(schedule=whole_sets).startswith("right would be prompt_sets: 11 (--prompt-sets), or other lengths")
    assert hint(schedule=Schedule(rounds=1, warmup_rounds=1)).startswith("right would be other lengths"), "11 is odd"
    assert "load.per_client" in hint(kind="load", load=Load(2, arrivals="trace"), schedule=whole_sets)
    assert "prompt_sets" not in hint(32, schedule=replace(whole_sets, until="decided")), "no set is whole"


def trace(folder: Path, lines: Iterable[Any], sets: int, *, step_ms: int = 500) -> Workload:
    stamped = [{"timestamp": step_ms * i, "output_length": 3 + i, **line} for i, line in enumerate(lines)]
    return asking(folder, stamped, sets=sets).workload


def test_a_load_sends_the_prompts_of_a_small_file_again_and_says_so(tmp_path: Path, tokenizer: Path) -> None:
    load = replace(asking(tmp_path, TEXTS[:9], sets=2), kind="load", load=Load(8))
    made = build_prompts(load, 64, 8, tokenizer, VOCAB)
    assert len(lengths(made.measured)) == 16 and set(lengths(made.measured)) == set(range(1, 10))
    assert "16 requests with 9 of 9 prompts" in str(in_words(made.about))


def test_a_trace_keeps_its_order_its_times_and_its_lengths(tmp_path: Path, tokenizer: Path) -> None:
    """Twelve requests, one every 500 ms: each is due one request after the one before it."""
    load = replace(asking(tmp_path), kind="load", load=Load(4, rates=(9.0,), arrivals="trace"))
    made = build_prompts(replace(load, workload=trace(tmp_path, TEXTS[:12], 2)), 64, 4, tokenizer, VOCAB)
    first, second = made.measured
    assert (first.lengths, second.lengths) == ((1, 2, 3, 4), (5, 6, 7, 8))
    assert [(p.due, p.new_tokens) for p in second.prompts] == [(4, 7), (5, 8), (6, 9), (7, 10)]


def test_prompts_of_mooncakes_traces_share_what_their_hashes_share(tmp_path: Path, tokenizer: Path) -> None:
    lines = [
        {"input_length": n, "hash_ids": ids} for n, ids in ((600, [1, 2]), (900, [1, 3]), (512, [1]), (600, [1, 2]))
    ]
    load = replace(asking(tmp_path), kind="load", load=Load(2, rates=(9.0,), arrivals="trace"))
    made = build_prompts(replace(load, workload=trace(tmp_path, lines, 2)), 1024, 2, tokenizer, VOCAB)
    (a, b), (c, d) = (s.token_ids for s in made.measured)
    assert (len(a), len(b)) == (600, 900) and a[:512] == b[:512] == c and a[512:] != b[512:600] and a == d
    assert "random tokens" in str(in_words(made.about))


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            [{"timestamp": 5}, {"timestamp": 4}],
            r"p.jsonl:2: timestamp: 4 ms: it lies before the request above it, at 5 ms",
        ),
        ([{"timestamp": 5}, {}], "p.jsonl:2: timestamp: missing: milliseconds were expected, or a date"),
        ([{"timestamp": 5}, {"timestamp": 5}], "all requests have the same"),
        ([{"timestamp": 1}, {"timestamp": 5, "output_length": 0}], "output_length: 0: a number of tokens"),
        ([{"timestamp": "2026-11-29T12:00:01"}, {"timestamp": "2026-11-29T12:00:00"}], "lies before the request"),
    ],
)
def test_what_is_wrong_with_a_trace_is_named_with_its_line(tmp_path: Path, lines: list[Any], says: str) -> None:
    stamped = asking(tmp_path, [{"ids": [1, i], **line} for i, line in enumerate(lines)])
    with pytest.raises(UsageError, match=says):
        OwnPrompts(replace(stamped, kind="load", load=Load(1, arrivals="trace")), None, VOCAB)


def test_ids_are_taken_as_they_are_and_text_is_given_its_opening(tmp_path: Path, tokenizer: Path) -> None:
    opened = Tokenizer.from_file(str(tokenizer))
    bos = opened.token_to_id(BOS)
    opened.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bos)])
    opened.enable_truncation(3)
    opened.save(str(tokenizer))
    lines = [{"ids": [5, 5, 5]}, {"text": "abcdef"}, {"text": "gh"}, {"text": "ij"}]
    made = build_prompts(asking(tmp_path, lines, warmup=1), 64, 1, tokenizer, VOCAB)
    plain = {len(ids): ids for s in made.measured for ids in s.token_ids}
    assert plain[7] == (
        bos,
        *Tokenizer.from_file(str(tokenizer)).encode("abc", add_special_tokens=False).ids,
        *plain[7][4:],
    )
    assert (5, 5, 5) in [ids for s in made.measured for ids in s.token_ids]
    assert made.about["rendered"] == {"ids": 1, "text": 3} or made.about["rendered"] == {"text": 3, "ids": 1}


def with_template(tokenizer: Path) -> None:
    tokenizer.with_name("chat_template.jinja").write_text("<{{ messages[0].content }}>")


@pytest.mark.parametrize(
    ("format_", "chat", "template", "how"),
    [
        ("gsm8k", None, True, "chat template"),
        ("gsm8k", None, False, "text"),
        ("gsm8k", False, True, "text"),
        ("vllm-custom", None, True, "chat template"),
        ("lines", None, True, "text"),
        ("lines", True, True, "chat template"),
    ],
)
def test_questions_go_into_the_chat_template_where_there_is_one(
    format_: FormatName, chat: bool | None, template: bool, how: str, tmp_path: Path, tokenizer: Path
) -> None:
    if template:
        with_template(tokenizer)
    key = "question" if format_ == "gsm8k" else "prompt"
    lines = [{key: "a" * n, "answer": ""} for n in range(2, 7)]
    made = build_prompts(asking(tmp_path, lines, format_=format_, chat=chat), 64, 1, tokenizer, VOCAB)
    assert made.about["rendered"] == {how: 4}
    every = lengths(made.measured + made.warmup)
    assert sorted(every) == [n + (2 if how == "chat template" else 0) for n in range(2, 7)]


def test_a_chat_without_a_template_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    chats = [{"messages": [{"role": "user", "content": "a"}]}]
    with pytest.raises(UsageError, match=r"p\.jsonl:1: messages need a chat template, and the target's tokenizer has"):
        build_prompts(asking(tmp_path, chats), 64, 1, tokenizer, VOCAB)
    with pytest.raises(UsageError, match=r"p\.jsonl: chat: true, and the target's tokenizer has no chat template"):
        build_prompts(asking(tmp_path, chat=True), 64, 1, tokenizer, VOCAB)


def test_without_a_tokenizer_only_ids_are_prompts(tmp_path: Path) -> None:
    ids = [{"ids": [n, n]} for n in range(6)]
    assert build_prompts(asking(tmp_path, ids), 64, 1, None, VOCAB).about["rendered"] == {"ids": 4}
    with pytest.raises(UsageError, match=r"p\.jsonl:7: text, but the target has no tokenizer\.json"):
        build_prompts(asking(tmp_path, [*ids, {"text": "a"}], sets=7), 64, 1, None, VOCAB)


def test_an_id_beyond_the_vocabulary_is_named_wherever_it_stands(tmp_path: Path) -> None:
    lines = [*({"ids": [n]} for n in range(6)), {"ids": [1, 258]}]
    with pytest.raises(
        UsageError, match=r"p\.jsonl:7: ids\[1\]: 258: the target's vocabulary has 258 tokens: 0 to 257"
    ):
        build_prompts(asking(tmp_path, lines), 64, 1, None, VOCAB)


def test_all_prompts_of_a_set_begin_with_its_first_one(tmp_path: Path, tokenizer: Path) -> None:
    lines = [{"text": chr(ord("a") + n) * (8 + n)} for n in range(12)]
    made = build_prompts(asking(tmp_path, lines, batch=3, sets=3, shared_prefix=6), 64, 3, tokenizer, VOCAB)
    for of in made.measured:
        assert len({ids[:6] for ids in of.token_ids}) == 1 and len({ids[6:] for ids in of.token_ids}) == 3
    plain = build_prompts(asking(tmp_path, lines, batch=3, sets=3), 64, 3, tokenizer, VOCAB)
    assert lengths(made.measured) == lengths(plain.measured)
    assert [s.token_ids[0] for s in made.measured] == [s.token_ids[0] for s in plain.measured]
    short = asking(tmp_path, lines, batch=3, sets=3, shared_prefix=12)
    with pytest.raises(UsageError, match="9 prompts are needed, and 7 that differ have 13 to 64 tokens"):
        build_prompts(short, 64, 3, tokenizer, VOCAB)


def test_categories_and_lines_are_stored_set_by_set_but_no_text(tmp_path: Path, tokenizer: Path) -> None:
    lines = [{"text": "secret " + "x" * n, "category": "ab"[n % 2]} for n in range(12)]
    about = build_prompts(asking(tmp_path, lines, batch=2), 64, 2, tokenizer, VOCAB).describe()
    numbers: Any = about["lines"]
    assert [[lines[n - 1]["category"] for n in of] for of in numbers] == about["categories"]
    assert [[len(str(lines[n - 1]["text"])) for n in of] for of in numbers] == about["lengths"]
    assert "secret" not in json.dumps(about)


def test_more_categories_than_can_be_told_apart_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    count = CATEGORIES + 1
    lines = [{"text": f"text {n}", "category": f"c{n}"} for n in range(count + 1)]
    with pytest.raises(UsageError, match=rf"p\.jsonl: category: {count} different ones among {count} prompts"):
        build_prompts(asking(tmp_path, lines, sets=count), 64, 1, tokenizer, VOCAB)


# ── prompts that keep their lengths ──────────────────────────────────────────────────────────────────────────────────


def test_the_context_becomes_the_longest_prompt_and_the_choice_stays(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    request = asking(tmp_path, context=(), batch=2)
    own = settled(request, PairRef("tiny", *pair))
    (context,) = own.grid.context
    made = build_prompts(own, context, 2, pair[0] / "tokenizer.json", 320)
    assert max(lengths(made.measured + made.warmup)) == context
    whole = build_prompts(
        replace(request, grid=replace(request.grid, context=(64,))), 64, 2, pair[0] / "tokenizer.json", 320
    )
    assert made.measured == whole.measured and made.warmup == whole.warmup
    assert settled(own, PairRef("tiny", *pair)) is own


def test_a_prompt_that_is_longer_than_the_pair_allows_is_named_with_its_length(
    tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    lines = [*TEXTS, {"text": "b" * 4090}]
    with pytest.raises(UsageError) as caught:
        settled(asking(tmp_path, lines, context=(), sets=30), PairRef("tiny", *pair))
    message = str(caught.value)
    assert "p.jsonl:31: a prompt of 4090 tokens; with 53 positions for the answer it needs 4143" in message
    assert "pair 'tiny' has 4096" in message and "max_tokens: 4043" in message


@pytest.mark.parametrize(
    ("prompts", "batch", "most", "sets"),
    [(64, 8, 8, 8), (20, 8, 8, 2), (30, 8, 8, 3), (64, 1, 8, 8), (64, 1, 10_000, 64), (64, 8, 10_000, 8), (3, 1, 8, 8)],
)
def test_a_question_gets_the_sets_that_the_file_has_prompts_for(
    tmp_path: Path, tokenizer: Path, prompts: int, batch: int, most: int, sets: int
) -> None:
    texts = [{"text": "c" * n} for n in range(1, prompts + 1)]
    own = OwnPrompts(asking(tmp_path, texts, batch=batch), tokenizer, VOCAB)
    assert own.sets(most) == sets, "where there are too few, the least number, which is refused"


def test_every_class_of_length_has_prompts_for_all_sets(tmp_path: Path, tokenizer: Path) -> None:
    own = OwnPrompts(asking(tmp_path, context=(8, 20), batch=2), tokenizer, VOCAB)
    assert own.sets(8) == 4, "8 prompts of up to 8 tokens, 12 of 9 to 20"
