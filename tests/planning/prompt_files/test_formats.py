from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.checkpoints.chat_template import Chat
from specgate.contract.scenarios.workload import FormatName
from specgate.errors import UsageError
from specgate.planning.prompt_files.formats import (
    FORMATS,
    Entry,
    PromptFile,
    prompts_in,
    read_prompts,
    recognise,
    spelt,
)
from specgate.planning.prompt_files.records import records_of

SAMPLES: Mapping[str, Mapping[str, Any]] = {
    "speed-bench": {
        "question_id": "a2",
        "category": "roleplay",
        "sub_category": "chef",
        "turns": ["You cook.", "And then?"],
        "source": "own",
        "src_id": "1",
        "difficulty": None,
        "multiturn": True,
    },
    "mt-bench": {"question_id": 81, "category": "writing", "turns": ["Compose a post.", "Rewrite it."]},
    "humaneval": {"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "canonical_solution": "  1"},
    "mbpp": {"task_id": 1, "text": "Write f.", "code": "def f(): 1", "test_list": ["assert f()"]},
    "gsm8k": {"question": "How many?", "answer": "3 #### 3"},
    "math": {"problem": "1 + 1?", "solution": "2", "answer": "2", "subject": "Algebra", "level": 1},
    "alpaca": {"instruction": "Translate.", "input": "Haus", "output": "house"},
    "longbench": {"input": "Who?", "context": "Long ago.", "answers": ["I"], "dataset": "qasper", "_id": "8d0b"},
    "sharegpt": {"id": "x_0", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]},
    "openai-batch": {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": "Why?"}]},
    },
    "lines": {"text": "Once"},
}
"""Format → a record as its data set has it."""


def written(folder: Path, *records: Any, name: str = "p.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return file


def read(folder: Path, *records: Any, format_: FormatName = "auto") -> PromptFile:
    file = written(folder, *records)
    return prompts_in(file, *recognise(file, format_))


def entries(folder: Path, *records: Any, format_: FormatName = "auto") -> tuple[Entry, ...]:
    return read(folder, *records, format_=format_).entries


def refused(folder: Path, *records: Any, format_: FormatName = "lines") -> str:
    with pytest.raises(UsageError) as caught:
        entries(folder, *records, format_=format_)
    return str(caught.value)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_is_recognised_by_its_first_record(name: str, tmp_path: Path) -> None:
    assert recognise(written(tmp_path, SAMPLES[name]), "auto").format == name


def test_what_each_data_set_asks_becomes_the_prompt(tmp_path: Path) -> None:
    prompts = {name: entries(tmp_path, sample)[0] for name, sample in SAMPLES.items()}
    assert {name: (e.content, e.category) for name, e in prompts.items()} == {
        "speed-bench": ("You cook.", "roleplay"),
        "mt-bench": ("Compose a post.", "writing"),
        "humaneval": ("def f():\n", None),
        "mbpp": ("Write f.", None),
        "gsm8k": ("How many?", None),
        "math": ("1 + 1?", "Algebra"),
        "alpaca": ("Translate.\n\nHaus", None),
        "longbench": ("Long ago.\n\nWho?", "qasper"),
        "sharegpt": ("Hi", None),
        "openai-batch": (Chat((ASKED,)), None),
        "lines": ("Once", None),
    }


ASKED = {"role": "user", "content": "Why?"}
ANSWER = {"role": "assistant", "content": "So."}
BRIEF = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("record", "name", "content"),
    [
        ({"task_id": 3, "prompt": "Write f.", "code": "x", "test_list": []}, "mbpp", "Write f."),
        ({"question": "Who?", "answers": {}, "context": "Long ago."}, "gsm8k", "Long ago.\n\nWho?"),
        ({"instruction": "Sum up.", "context": "Ago.", "response": "x", "category": "qa"}, "alpaca", "Sum up.\n\nAgo."),
        ({"instruction": "Sing.", "input": "", "output": "La"}, "alpaca", "Sing."),
        ({"question": "Who?", "choices": ["I", "you"], "answer": 0}, "gsm8k", "Who?\n\nA. I\nB. you"),
        ({"prompt": [ASKED], "chosen": [ANSWER]}, "lines", Chat((ASKED,))),
        ({"prompt": [3, 4]}, "lines", (3, 4)),
        ({"prompt": "Why?", "prompt_id": "0", "messages": [ASKED, ANSWER]}, "lines", Chat((ASKED,), answered=True)),
        (
            {"messages": [BRIEF, ASKED, ANSWER, ASKED, ANSWER]},
            "lines",
            Chat((BRIEF, ASKED, ANSWER, ASKED), answered=True),
        ),
        ({"messages": [{"from": "human", "value": "Why?"}]}, "lines", Chat((ASKED,))),
        ({"conversation": [ASKED, ANSWER], "language": "English"}, "sharegpt", "Why?"),
        ({"conversation": [{"human": "Why?", "assistant": "So."}]}, "sharegpt", "Why?"),
        ({"conversations": [{"content": "Why?"}, {"content": "So."}]}, "sharegpt", "Why?"),
        ({"turns": [{"from": "Human", "value": "Why?"}]}, "sharegpt", "Why?"),
        ({"conversations": [{"from": "system", "value": "Be brief."}, ASKED]}, "sharegpt", Chat((BRIEF, ASKED))),
        ({"custom_id": "a", "body": {"prompt": "Once"}}, "openai-batch", "Once"),
        (
            {
                "messages": [ASKED],
                "tools": '[{"type": "function"}]',
                "chat_template_kwargs": {"enable_thinking": False},
            },
            "lines",
            Chat((ASKED,), {"tools": [{"type": "function"}], "enable_thinking": False}),
        ),
        (
            {"messages": [ASKED], "tools": [{}], "tool_choice": "none", "reasoning_effort": "high"},
            "lines",
            Chat((ASKED,), {"reasoning_effort": "high"}),
        ),
    ],
)
def test_other_forms_that_data_sets_have(record: Any, name: str, content: object, tmp_path: Path) -> None:
    assert recognise(written(tmp_path, record), "auto").format == name
    assert entries(tmp_path, record)[0].content == content


def test_the_later_questions_of_a_conversation_stand_beside_the_first(tmp_path: Path) -> None:
    talk = [BRIEF, ASKED, ANSWER, {"role": "user", "content": "How?"}, ANSWER, {"role": "user", "content": "When?"}]
    tools = [ASKED, ANSWER, {"role": "tool", "content": "7"}, {"role": "user", "content": "How?"}]
    speed, mt_bench, long, short = (
        entries(tmp_path, record)[0]
        for record in (SAMPLES["speed-bench"], SAMPLES["mt-bench"], {"conversations": talk}, {"conversations": tools})
    )
    assert (speed.later, mt_bench.later) == (("And then?",), ("Rewrite it.",))
    assert (long.content, long.later) == (Chat((BRIEF, ASKED)), ("How?", "When?"))
    assert short.later == ()
    turns = entries(tmp_path, SAMPLES["mt-bench"], SAMPLES["speed-bench"], format_="conversations")
    assert [(e.category, e.turn) for e in turns] == [("turn 1", 1), ("turn 2", 2), ("roleplay", 1), ("roleplay", 2)]


@pytest.mark.parametrize("key", ["system", "system_prompt"])
def test_a_systems_turn_beside_the_conversation_comes_first(key: str, tmp_path: Path) -> None:
    record = {key: "Be brief.", "conversations": [ASKED, ANSWER]}
    assert entries(tmp_path, record)[0].content == Chat((BRIEF, ASKED))
    assert entries(tmp_path, {**record, "conversations": [{**BRIEF, "content": "Be long."}, ASKED]})[0].content == Chat(
        ({"role": "system", "content": "Be long."}, ASKED)
    )


@pytest.mark.parametrize(
    ("record", "kind", "value"),
    [
        ({"question": "How many?", "answer": "5 - 3 = <<5-3=2>>2 left.\n#### 1,002"}, "number", "1002"),
        ({"question": "How many?", "answer": 7}, "number", "7"),
        ({"question": "Who?", "choices": ["I", "you"], "answer": 1}, "choice", "B"),
        ({"question": "Who?", "options": ["I", "you"], "answer": "you"}, "choice", "B"),
        ({"question": "Who?", "choices": {"label": ["1", "2"], "text": ["I", "you"]}, "answerKey": "2"}, "choice", "2"),
        ({"problem": "1/2?", "solution": "It is $\\boxed{\\frac{1}{2}}$.", "level": "1"}, "text", "\\frac{1}{2}"),
        ({"text": "The capital of France?", "answer": "Paris"}, "text", "Paris"),
    ],
)
def test_the_key_of_an_answer_travels_with_its_question(record: Any, kind: str, value: str, tmp_path: Path) -> None:
    answer = entries(tmp_path, record)[0].answer
    assert answer is not None and (answer.kind, answer.value) == (kind, value)


@pytest.mark.parametrize(
    "record",
    [
        {"question": "Who?", "answers": {"text": ["I"]}},
        {"question": "Who?", "choices": ["I", "you"], "answer": 2},
        {"text": "Why?", "answer": "Because " * 20},
        {"text": "Why?", "answer": True},
    ],
)
def test_what_no_answer_can_equal_is_no_key(record: Any, tmp_path: Path) -> None:
    assert entries(tmp_path, record)[0].answer is None


IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {}}, {"type": "text", "text": "What?"}]}


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (
            {"conversations": [{"from": "gpt", "value": "I"}, {"from": "human", "value": "you"}]},
            "first turn is the assistant's",
        ),
        ({"conversations": [{"from": "tool", "value": "I"}]}, "first turn is the tool's"),
        ({"conversations": []}, "no turns"),
        ({"conversations": [{"from": "system", "value": "I"}]}, "no question"),
        ({"conversations": [{"from": "human", "value": ""}]}, "the question is empty"),
        ({"conversations": [IMAGE]}, "content of type 'image_url'"),
        ({"conversations": [{"from": "human", "value": "What?"}], "image": "a.png"}, "image in it"),
        ({"conversations": [{"from": "narrator", "value": "Ago"}]}, "first turn is that of 'narrator'"),
    ],
)
def test_a_record_without_a_prompt_is_left_out_and_counted_with_the_reason(
    record: Any, why: str, tmp_path: Path
) -> None:
    file = read(tmp_path, record, SAMPLES["sharegpt"], record)
    assert [e.content for e in file.entries] == ["Hi"] and file.left_out == {why: 2}
    assert f"no prompts in it: 1 left out: {why}" in refused(tmp_path, record, format_="auto")


def test_messages_without_a_question_are_left_out_too(tmp_path: Path) -> None:
    file = read(tmp_path, {"messages": [ASKED]}, {"messages": [ANSWER]}, {"messages": []}, {"messages": [IMAGE]})
    assert file.left_out == {"no question before the answer": 1, "no turns": 1, "content of type 'image_url'": 1}


def test_vllms_custom_lines_are_questions_and_have_to_be_asked_for(tmp_path: Path) -> None:
    line = {"prompt": "What is the capital of India?", "output_tokens": 10}
    assert recognise(written(tmp_path, line), "auto").format == "lines"
    (entry,) = entries(tmp_path, line, format_="vllm-custom")
    assert entry.content == line["prompt"] and FORMATS["vllm-custom"].question


@pytest.mark.parametrize("content", [b"Once upon a time\n\n  Twice \n", b"\xef\xbb\xbfOnce upon a time\r\nTwice"])
def test_of_a_file_that_is_not_json_each_line_that_is_not_empty_is_a_prompt(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p.txt").write_bytes(content)
    kind = recognise(tmp_path / "p.txt", "auto")
    assert kind.format == "plain-lines"
    assert [e.content for e in prompts_in(tmp_path / "p.txt", *kind).entries] == ["Once upon a time", "Twice"]


def test_a_broken_json_line_is_not_taken_for_text(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"text": "a"\n')
    with pytest.raises(UsageError, match=r"p\.jsonl:1: not JSON"):
        recognise(tmp_path / "p.jsonl", "auto")


def test_the_hugging_face_copy_of_mt_bench_is_read_too(tmp_path: Path) -> None:
    (entry,) = entries(tmp_path, {"prompt": ["Solve it.", "Again."], "category": "math", "prompt_id": 7})
    assert (entry.content, entry.category) == ("Solve it.", "math")


ROLE = st.sampled_from(["system", "user", "tool"])
TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
MESSAGES = st.lists(st.fixed_dictionaries({"role": ROLE, "content": TEXT}), min_size=1, max_size=3)
IDS = st.lists(st.integers(0, 1 << 20), min_size=1, max_size=5)
PROMPTS = st.one_of(
    IDS.map(lambda v: {"ids": v}),
    TEXT.map(lambda v: {"text": v}),
    TEXT.map(lambda v: {"prompt": v}),
    MESSAGES.map(lambda v: {"messages": v}),
)


def as_json(content: object) -> object:
    return (
        list(content.turns if isinstance(content, Chat) else content) if isinstance(content, Chat | tuple) else content
    )


@settings(max_examples=50)
@given(st.lists(PROMPTS, min_size=1, max_size=6))
def test_every_kind_of_line_is_read_as_it_was_written(lines: list[dict[str, Any]]) -> None:
    numbered = [{**line, "id": n, "category": "c", "kept": "by others"} for n, line in enumerate(lines)]
    content = "\n".join(map(json.dumps, numbered)).encode()
    results = read_prompts(records_of(Path("p.jsonl"), content), FORMATS["lines"].reading).entries
    assert [as_json(e.content) for e in results] == [next(iter(line.values())) for line in lines]
    assert [(e.category, e.number) for e in results] == [("c", n + 1) for n in range(len(lines))]


@settings(max_examples=50)
@given(PROMPTS, PROMPTS)
def test_two_prompts_are_spelt_alike_only_if_they_are_the_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    first, second = (
        read_prompts(records_of(Path("p"), json.dumps(p).encode()), FORMATS["lines"].reading).entries[0] for p in (a, b)
    )
    assert (spelt(first) == spelt(second)) == (first.content == second.content)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({}, "exactly one of ids, text, prompt, messages is needed, here: none of them (none)"),
        ({"txt": "a"}, "none of them ('txt')"),
        ({"text": "a", "ids": [1]}, "here: ids and text together"),
        ({"text": ""}, "text: '': a text was expected, of one character or more"),
        ({"text": 5}, "text: 5: a text was expected"),
        ({"prompt": ["a"]}, "prompt: ['a']: a text was expected"),
        ({"ids": []}, "ids: []: a list of token ids was expected"),
        ({"ids": "1 2"}, "ids: '1 2': a list of token ids"),
        ({"ids": [1, True]}, "ids[1]: True: a token id was expected"),
        ({"ids": [1, 2.0]}, "ids[1]: 2.0: a token id was expected"),
        ({"ids": [-1]}, "ids[0]: -1: a token id was expected"),
        ({"messages": {}}, "messages: {}: a list"),
        ({"messages": ["a"]}, "messages: ['a']: a list"),
        ({"messages": [{"role": "user"}]}, "messages[0]: content: None: a text was expected"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0]: content: ['a']: a text or a list of parts"),
        ({"messages": [{"role": "", "content": "a"}]}, "messages[0]: role: '': a text was expected"),
        ({"messages": [{"role": "user", "content": "a"}], "tools": "{"}, "tools: '{': not JSON"),
        (
            {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": 1},
            "chat_template_kwargs: 1: an object",
        ),
        ({"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "here: prompt and messages together"),
        ({"text": "a", "category": 1.5}, "category: 1.5: a text or a whole number"),
        ({"text": "a", "category": True}, "category: True: a text or a whole number"),
        ({"text": "a", "id": 10**5000}, "not JSON"),
        ({"text": "a", "category": ""}, "category: '': 1 to 80 printable characters"),
        ({"text": "a", "subset": "x" * 81}, "subset: 'xxx"),
        ({"text": "a", "category": "a[0]"}, "category: 'a[0]': no [ or ]"),
    ],
)
def test_a_bad_line_is_named_with_file_line_key_and_value(record: Any, says: str, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    text = json.dumps(record) if record.get("id") != 10**5000 else '{"text": "a", "id": 1' + "0" * 5000 + "}"
    file.write_text('{"text": "fine"}\n\n' + text + "\n", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        prompts_in(file, *recognise(file, "lines"))
    assert str(caught.value).startswith(f"{file}:3: ") and says in str(caught.value)


def test_a_format_that_nobody_knows_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    file = written(tmp_path, {"prompt": "p"})
    with pytest.raises(UsageError, match=r"format 'gsm9k' is not known\n  one of .*\bgsm8k\b"):
        recognise(file, "gsm9k")  # type: ignore[arg-type]  # as a command line may have it


@pytest.mark.parametrize(
    ("format_", "change", "says"),
    [
        ("mt-bench", {"turns": "one"}, "turns: 'one': a list of questions"),
        ("mt-bench", {"turns": []}, "turns: []: a list of questions"),
        ("humaneval", {"prompt": None}, "prompt: None: a text was expected"),
        ("gsm8k", {"question": ""}, "question: '': a text"),
        ("longbench", {"input": 3}, "input: 3: a text"),
        ("longbench", {"context": ""}, "context: '': a text"),
        ("sharegpt", {"conversations": ["a"]}, "conversations: ['a']: a list"),
        ("sharegpt", {"conversations": [{"from": "human"}]}, "conversations[0]: content: None: a text"),
        ("openai-batch", {"body": []}, "body: []: an object"),
        ("openai-batch", {"body": {"input": "a"}}, "body: exactly one of ids, text, prompt, messages is needed"),
        ("alpaca", {"instruction": ""}, "instruction: '': a text"),
    ],
)
def test_a_bad_record_of_a_data_set_is_named(format_: FormatName, change: Any, says: str, tmp_path: Path) -> None:
    message = refused(tmp_path, {**SAMPLES[format_], **change}, format_=format_)
    assert f"{tmp_path / 'p.jsonl'}:1: " in message and says in message


def test_a_missing_key_names_those_that_are_there(tmp_path: Path) -> None:
    message = refused(tmp_path, {"query": "a"}, format_="gsm8k")
    assert "p.jsonl:1: question: this key is required; there are: 'query'" in message


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    for format_ in ("auto", "lines"):
        assert "no prompts in it" in refused(tmp_path, format_=format_)


def test_an_unknown_form_names_the_known_ones(tmp_path: Path) -> None:
    message = refused(tmp_path, {"wish": "a"}, format_="auto")
    assert "p.jsonl:1: not a prompt in a known format; its keys: 'wish'" in message and "sharegpt" in message


@pytest.mark.parametrize(
    ("record", "like"),
    [
        (
            {"Question": "a", "answer": "b"},
            "; like gsm8k, whose prompt is in 'question'; its keys: 'Question', 'answer'",
        ),
        ({"task_id": "HumanEval/0", "entry_point": "f"}, "; like humaneval, whose prompt is in 'prompt'; its keys:"),
        ({"conversatons": [], "id": "0"}, "; like sharegpt, whose prompt is in 'conversations'; its keys:"),
        ({"question_id": "a", "category": "b", "turn": ["c"]}, "; like speed-bench, whose prompt is in 'turns'; its"),
        ({"wish": "a"}, "in a known format; its keys: 'wish'"),
    ],
)
def test_a_data_set_with_another_key_is_told_the_key_of_its_like(record: Any, like: str, tmp_path: Path) -> None:
    assert like in refused(tmp_path, record, format_="auto")


def test_speed_bench_is_read_from_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    file = Path(__file__).parent / "data" / "speed_bench.parquet"
    result = prompts_in(file, *recognise(file, "auto"))
    assert recognise(file, "auto").format == "speed-bench"
    assert [(e.number, e.category, e.later) for e in result.entries] == [
        (1, "coding", ()),
        (2, "roleplay", ("And for dessert?",)),
    ]
    assert result.left_out == {"turns still to be fetched, by prepare_data.py of specdec_bench": 1}


@pytest.mark.parametrize("change", [lambda b: b[:400], lambda b: b.replace(b"coding", b"cod\xffng")])
def test_a_broken_parquet_file_is_named(change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    whole = (Path(__file__).parent / "data" / "speed_bench.parquet").read_bytes()
    assert change(whole) != whole
    (tmp_path / "p.parquet").write_bytes(change(whole))
    with pytest.raises(UsageError, match=r"p\.parquet: not a whole Parquet file"):
        prompts_in(tmp_path / "p.parquet", *recognise(tmp_path / "p.parquet", "speed-bench"))


def test_parquet_without_its_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "p.parquet").write_bytes(b"PAR1 and more")
    with pytest.raises(UsageError, match=r"p\.parquet: a Parquet file, which pyarrow reads") as caught:
        recognise(tmp_path / "p.parquet", "auto")
    assert ".[parquet]" in str(caught.value.hint)


def test_a_file_that_changed_since_is_refused_with_both_hashes(tmp_path: Path) -> None:
    file = written(tmp_path, {"text": "a"})
    before = recognise(file, "auto")
    written(tmp_path, {"text": "b"})
    with pytest.raises(UsageError) as caught:
        prompts_in(file, *before)
    assert before.sha256 in str(caught.value) and recognise(file, "auto").sha256 in str(caught.value)
