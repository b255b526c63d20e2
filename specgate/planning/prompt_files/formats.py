"""Meaning of the records of prompt files: specgate's own lines, plain lines, and local copies of public data sets.

Nothing is downloaded. A data set's own prompt templates are not applied: what becomes the prompt stands below and in
docs/scenarios.md. Of a conversation, the first question is the prompt, and the later ones stand beside it. A record
that is in order and has no prompt is left out and counted; any other one is refused with file, line, key and value.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from specgate.analysis.quality.exact_match import boxed, key_of
from specgate.checkpoints.chat_template import ANSWER, Chat
from specgate.contract.samples.answers import AnswerKey
from specgate.contract.scenarios.own_prompts import left_out_in_words
from specgate.contract.scenarios.workload import FormatName
from specgate.errors import UsageError
from specgate.planning.prompt_files.conversations import (
    CONVERSATIONS,
    first_question,
    later_questions,
    messages,
    turns_of,
    with_system,
)
from specgate.planning.prompt_files.fields import Content, Fields, LeftOut, Question, is_chat, is_texts
from specgate.planning.prompt_files.records import (
    ONE_PER_LINE,
    Record,
    content_of,
    is_plain,
    plain_records_of,
    records_of,
    sha256_of,
)
from specgate.planning.prompt_files.trace import HASHED, NO_STAMP, HashedPrompt, Stamp

REASONS: Final = 16
"""Reasons that are counted each by itself."""


UNRESOLVED: Final = "FULL BENCHMARK DATA SHOULD BE FETCHED"
"""Beginning of a turn of SPEED-Bench whose text lies in another data set."""
SPEED_BENCH_KEYS: Final = frozenset(("turns", "category", "sub_category"))
LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Names of the choices of a question that has none of its own."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One prompt of a file, before it has tokens. `where`, `number`: as in `Record`. The rest: as in `Question`, and
    `stamp` as the record has it.
    """

    where: str
    number: int
    content: Content
    category: str | None = None
    later: tuple[str, ...] = ()
    answer: AnswerKey | None = None
    stamp: Stamp = NO_STAMP
    turn: int = 1
    """Which turn of its record it asks."""


@dataclass(frozen=True, slots=True)
class PromptFile:
    """The prompts of a file. `left_out`: reason → number of records that have none."""

    entries: tuple[Entry, ...]
    left_out: Mapping[str, int]

    @property
    def answered(self) -> int:
        """Number of chats whose record has an answer at its end, which is no part of the prompt."""
        return sum(isinstance(e.content, Chat) and e.content.answered for e in self.entries)


PLACE: Final = "specgate.place"
"""Key of a record that stands for one of another file: where that one is, and its number."""


def place_of(record: Record) -> tuple[str, int]:
    """Return where a record is, for a message, and its number: of a copy with a server's tokens, in the user's file."""
    match record.data.get(PLACE):
        case [str(where), int(number)]:
            return where, number
    return record.where, record.number


Reading = Callable[[Fields], Question]
"""A record → its prompt with what stands beside it. Raises LeftOut where it has none."""


def own_line(fields: Fields) -> Question:
    """`{"ids": …}`, `{"text": …}`, `{"prompt": …}` or `{"messages": …}`, with `category` or `subset`, and `answer`."""
    there = [key for key in OWN_KEYS if fields.has(key)]
    category = fields.category("category", "subset")
    if there == ["prompt", "messages"]:  # the prompt once more, with its answer
        chat = messages(fields, "messages")
        if any(turn["content"] == fields.data["prompt"] for turn in chat.turns):
            return Question(chat, category)
    if there == ["ids", "messages"]:  # as a server has read the chat
        chat, ids = messages(fields, "messages"), content_in(fields, "ids")
        assert isinstance(ids, tuple)
        return Question(replace(chat, ids=ids), category, answer=fields.own_answer)
    if len(there) != 1:
        what = f"{' and '.join(there)} together" if there else "none of them"
        raise UsageError(
            f"{fields.where}: exactly one of {', '.join(OWN_KEYS)} is needed, here: {what} ({fields.keys})"
        )
    return Question(content_in(fields, there[0]), category, answer=fields.own_answer)


def content_in(fields: Fields, key: str) -> Content:
    """The prompt in one of `OWN_KEYS`. `prompt` may hold what any of the others does."""
    value = fields.of(key)
    if key == "ids" or (key == "prompt" and isinstance(value, list) and value and type(value[0]) is int):
        return token_ids(fields, key)
    return messages(fields, key) if key == "messages" or is_chat(value) else fields.text(key)


def token_ids(fields: Fields, key: str) -> tuple[int, ...]:
    """A list of whole numbers, 0 or more; whether the target has such tokens is looked at later."""
    value = fields.of(key)
    if not isinstance(value, list) or not value:
        fields.wrong(key, value, "a list of token ids was expected, of one or more")
    for index, number in enumerate(value):
        if type(number) is not int or number < 0:
            fields.wrong(f"{key}[{index}]", number, "a token id was expected: a whole number, 0 or more")
    return tuple(value)


def openai_batch(fields: Fields) -> Question:
    """A request of OpenAI's batch interface: `body` with `messages` or `prompt`."""
    body = fields.of("body")
    if not isinstance(body, dict):
        fields.wrong("body", body, "an object was expected")
    return own_line(Fields(f"{fields.where}: body", body))


def mt_bench(fields: Fields) -> Question:
    """MT-Bench, Spec-Bench and SPEED-Bench: the first of `turns` (on Hugging Face: of `prompt`), with `system`."""
    key = fields.first("turns", "prompt")
    turns = fields.of(key)
    if not is_texts(turns) or not turns or not turns[0]:
        fields.wrong(key, turns, "a list of questions was expected")
    if any(turn.startswith(UNRESOLVED) for turn in turns):
        raise LeftOut("turns still to be fetched, by prepare_data.py of specdec_bench")
    return Question(with_system(fields, turns[0]), fields.category("category"), tuple(filter(None, turns[1:])))


def longbench(fields: Fields) -> Question:
    """LongBench: `context`, an empty line, `input`; the category is `dataset`."""
    question = fields.of("input")
    if not isinstance(question, str):
        fields.wrong("input", question, "a text was expected")
    return Question("\n\n".join(filter(None, (fields.text("context"), question))), fields.category("dataset"))


def sharegpt(fields: Fields) -> Question:
    """ShareGPT and its like: the first question of the conversation, with what the system says before it."""
    turns = turns_of(fields, fields.first(*CONVERSATIONS))
    question = with_system(fields, first_question(turns))
    return Question(question, fields.category("category", "subset"), later_questions(turns))


def conversation(fields: Fields) -> Question:
    """MT-Bench, SPEED-Bench or ShareGPT with all turns: each becomes a prompt of its own (`unrolled`). SPEED-Bench's
    report has a figure per category over all turns, so that its categories stay.
    """
    if (format := format_of(fields.data)) == SPEED_BENCH:
        return mt_bench(fields)
    return (mt_bench(fields) if format == MT_BENCH else sharegpt(fields))._replace(category=None)


def unrolled(entry: Entry) -> Iterator[Entry]:
    """Yield a prompt for every turn of a conversation, with the turns before it; their answers are still to be given.
    Its category is its turn, if the record has none.
    """
    match entry.content:
        case Chat() as chat:
            turns = chat.turns
        case text:
            chat, turns = Chat(()), ({"role": "user", "content": text},)
    for number, question in enumerate(("", *entry.later), 1):
        if question:
            turns = (*turns, ANSWER, {"role": "user", "content": question})
        category = entry.category or f"turn {number}"
        yield replace(entry, content=replace(chat, turns=turns), category=category, later=(), turn=number)


def mooncake(fields: Fields) -> Question:
    """A request of Mooncake's traces: `input_length` tokens, with a hash for every `HASHED` of them."""
    length, hashes = fields.of("input_length"), fields.of("hash_ids")
    if type(length) is not int or length < 1:
        fields.wrong("input_length", length, "a number of tokens was expected, 1 or more")
    if not isinstance(hashes, list) or any(type(number) is not int for number in hashes):
        fields.wrong("hash_ids", hashes, "a list of whole numbers was expected")
    if len(hashes) != -(-length // HASHED):
        fields.wrong("hash_ids", hashes, f"{len(hashes)} hashes of {HASHED} tokens each, for {length} tokens")
    return Question(HashedPrompt(length, tuple(hashes)))


def question_in(*keys: str, before: str = "", behind: Sequence[str] = (), category: Sequence[str] = ()) -> Reading:
    """Return a reading of the question in the first of `keys` that is there. Texts in the keys `before` and `behind`
    stand around it, if there are any, with empty lines between them.
    """

    def reading(fields: Fields) -> Question:
        parts = [fields.data.get(before), fields.text(*keys), *map(fields.data.get, behind)]
        texts = ["\n".join(part) if is_texts(part) else part for part in parts]
        text = "\n\n".join(part for part in texts if isinstance(part, str) and part)
        return Question(text, fields.category("category", "subset", *category))

    return reading


def gsm8k(fields: Fields) -> Question:
    """GSM8K and questions with choices (MMLU, MMLU-Pro, ARC): `context`, `question`, and the choices by letter.

    The key is `answer` or `answerKey`: of choices a letter, a place from 0, or the text of one of them.
    """
    choices = choices_of(fields)
    parts = (fields.data.get("context"), fields.text("question"), "\n".join(f"{a}. {b}" for a, b in choices.items()))
    text = "\n\n".join(part for part in parts if isinstance(part, str) and part)
    return Question(text, fields.category("category", "subset", "subject"), answer=answer_to(fields, choices))


def choices_of(fields: Fields) -> Mapping[str, str]:
    """Letter → choice, of a list or of ARC's `{"label": […], "text": […]}`; {} where there are none."""
    value = fields.data.get(fields.first("choices", "options"))
    if isinstance(value, dict) and is_texts(texts := value.get("text")):
        labels: object = value.get("label")
        if is_texts(labels) and len(labels) == len(texts):
            return dict(zip(labels, texts, strict=True))
        value = texts
    return dict(zip(LETTERS, value, strict=False)) if is_texts(value) else {}


def answer_to(fields: Fields, choices: Mapping[str, str]) -> AnswerKey | None:
    """The key of a question with these choices; of one without, that in `answer`."""
    if not choices:
        return fields.own_answer
    stated, letters = fields.data.get(fields.first("answer", "answerKey")), list(choices)
    if type(stated) is int and 0 <= stated < len(letters):
        return AnswerKey("choice", letters[stated])
    letter = stated if stated in choices else next((a for a, choice in choices.items() if choice == stated), None)
    return AnswerKey("choice", letter) if isinstance(letter, str) else None


def math_problem(fields: Fields) -> Question:
    """MATH: `problem`; the key is `answer`, else what is boxed in `solution`."""
    solution = fields.data.get("solution")
    in_box = boxed(solution) if isinstance(solution, str) else None
    key = fields.own_answer or (key_of(in_box) if in_box else None)
    return Question(fields.text("problem"), fields.category("category", "subset", "subject", "type"), answer=key)


class Format(NamedTuple):
    """One format. `keys`: what its first record has, by which it is told from others; () where nothing tells.

    `question`: its prompts are questions, which go into the tokenizer's chat template where it has one.
    """

    name: FormatName
    reading: Reading
    keys: tuple[str, ...]
    question: bool


OWN_KEYS: Final = ("ids", "text", "prompt", "messages")
LINES: Final[FormatName] = "lines"
PLAIN: Final[FormatName] = "plain-lines"
EVERY_TURN: Final[FormatName] = "conversations"
MT_BENCH: Final[FormatName] = "mt-bench"
SPEED_BENCH: Final[FormatName] = "speed-bench"
SHAREGPT: Final[FormatName] = "sharegpt"
FORMATS: Final[Mapping[str, Format]] = {
    f.name: f
    for f in (
        Format(MT_BENCH, mt_bench, (), True),
        Format(SPEED_BENCH, mt_bench, (), True),
        Format(SHAREGPT, sharegpt, (), True),
        Format(EVERY_TURN, conversation, (), True),
        Format("openai-batch", openai_batch, ("custom_id", "body"), False),
        Format("mooncake", mooncake, ("input_length", "hash_ids"), False),
        Format("humaneval", question_in("prompt"), ("task_id", "prompt", "entry_point"), False),
        Format("mbpp", question_in("text", "prompt"), ("code", "test_list"), True),
        Format("longbench", longbench, ("context", "input", "dataset"), False),
        Format("gsm8k", gsm8k, ("question",), True),
        Format("math", math_problem, ("problem",), True),
        Format("alpaca", question_in("instruction", behind=("input", "context")), ("instruction",), True),
        Format("vllm-custom", question_in("prompt"), (), True),
        Format(LINES, own_line, (), False),
        Format(PLAIN, own_line, (), False),
    )
}
"""Name → format; the more telling ones first. `vllm-custom` looks like `lines`, and has to be asked for."""


def format_of(data: Mapping[str, Any]) -> FormatName | None:
    """The format that the keys of a record tell, or None."""
    if any(is_chat(data.get(key)) or (key in CONVERSATIONS[:2] and key in data) for key in CONVERSATIONS[:-1]):
        return SHAREGPT
    lists = [key for key in ("turns", "prompt") if isinstance(data.get(key), list)]
    if "turns" in lists or (lists and "category" in data and not is_chat(data["prompt"])):
        return SPEED_BENCH if data.keys() >= SPEED_BENCH_KEYS else MT_BENCH
    if data.get("messages") is not None:
        return LINES
    named = (f.name for f in FORMATS.values() if f.keys and set(f.keys) <= data.keys())
    return next(named, LINES if set(OWN_KEYS) & data.keys() else None)


class Recognised(NamedTuple):
    """A prompt file as a scenario fixes it: SHA-256 of its bytes, and the name of its format."""

    sha256: str
    format: FormatName


def recognise(path: Path, stated: FormatName) -> Recognised:
    """The file's hash, and its format: the one that is `stated`, or with `auto` the one that its first record tells.

    Raises UsageError where it cannot be read, has no record, or the format is none that is known.
    """
    if stated != "auto" and stated not in FORMATS:
        raise UsageError(f"{path}: format {stated!r} is not known", hint=f"one of {', '.join(FORMATS)}")
    content = content_of(path)
    sha256 = sha256_of(content)
    if stated != "auto":
        return Recognised(sha256, stated)
    if is_plain(path, content):
        return Recognised(sha256, PLAIN)
    record = next(records_of(path, content), None)
    if record is None:
        raise UsageError(f"{path}: no prompts in it", hint=ONE_PER_LINE)
    if (name := format_of(record.data)) is None:
        like = nearest(record.data)
        raise UsageError(
            f"{record.where}: not a prompt in a known format{like}; its keys: {Fields(record.where, record.data).keys}",
            hint=f"a line has one of {', '.join(OWN_KEYS)}; or say the format: {', '.join(FORMATS)}",
        )
    return Recognised(sha256, name)


EXPECTED: Final[Mapping[str, tuple[FormatName, tuple[str, ...]]]] = {
    "turns": (SPEED_BENCH, ("question_id", "category", "sub_category")),
    "conversations": (SHAREGPT, ()),
    "question": ("gsm8k", ("answer", "choices", "answerKey")),
    "prompt": ("humaneval", ("task_id", "canonical_solution", "entry_point")),
    "text": ("mbpp", ("task_id", "code", "test_list")),
    "problem": ("math", ("solution", "level")),
}
"""Key of a data set's prompts → (its format, other keys of its records), for a message about records without it."""


def nearest(data: Mapping[str, Any]) -> str:
    """Return the data set that a record is most like, and the key of its prompts; empty where it is like none."""
    keys = [key.lower() for key in data]
    likeness = {
        key: 2 * bool(get_close_matches(key, keys, cutoff=0.75)) + sum(other in keys for other in others)
        for key, (_, others) in EXPECTED.items()
    }
    key = max(likeness, key=lambda key: likeness[key])
    return f"; like {EXPECTED[key][0]}, whose prompt is in {key!r}" if likeness[key] else ""


@lru_cache(maxsize=1)  # a run reads the same file for every point
def prompts_in(path: Path, sha256: str, format_: str) -> PromptFile:
    """Every prompt of the file.

    Raises UsageError where the file is not the one with this SHA-256, a record is wrong, or none has a prompt.
    """
    content = content_of(path)
    if (now := sha256_of(content)) != sha256:
        raise UsageError(
            f"{path}: its SHA-256 is {now}; the scenario was made with {sha256}",
            hint="put that file back, or start a new run",
        )
    records = plain_records_of if format_ == PLAIN else records_of
    file = read_prompts(records(path, content), FORMATS[format_].reading)
    if format_ == EVERY_TURN:
        file = replace(file, entries=tuple(turn for entry in file.entries for turn in unrolled(entry)))
    if not file.entries:
        why = f": {left_out_in_words(file.left_out)}" if file.left_out else ""
        raise UsageError(f"{path}: no prompts in it{why}", hint=ONE_PER_LINE)
    return file


def read_prompts(records: Iterable[Record], reading: Reading) -> PromptFile:
    """The prompts of `records`, and why some have none."""
    entries, left_out = list[Entry](), Counter[str]()
    for record in records:
        try:
            where, number = place_of(record)
            question = reading(Fields(where, record.data))
            entries.append(Entry(where, number, *question, stamp=Stamp.of(record.data)))
        except LeftOut as reason:
            left_out[str(reason) if str(reason) in left_out or len(left_out) < REASONS else "other reasons"] += 1
    return PromptFile(tuple(entries), left_out)


def spelt(entry: Entry) -> bytes:
    """The prompt as bytes, the same for equal prompts: what duplicates are found and the order is drawn by."""
    match entry.content:
        case str() as text:
            return b"text " + text.encode()
        case Chat() as chat:
            spelt_out = json.dumps([chat.turns, chat.variables, chat.fields], sort_keys=True, default=str)
            return b"messages " + spelt_out.encode()
        case HashedPrompt() as prompt:
            return f"hashes {prompt}".encode()
        case ids:
            return b"ids " + ",".join(map(str, ids)).encode()
