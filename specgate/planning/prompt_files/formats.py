"""Meaning of the records of prompt files: specgate's own lines, plain lines, and local copies of public data sets.

Nothing is downloaded. A data set's own prompt templates are not applied: what becomes the prompt stands below and in
docs/scenarios.md. Of a conversation only the first question is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from specgate.contract.scenarios.workload import FormatName
from specgate.errors import UsageError
from specgate.files.json_text import shown
from specgate.planning.prompt_files.records import (
    ONE_PER_LINE,
    Record,
    content_of,
    is_plain,
    plain_records_of,
    records_of,
    sha256_of,
)

NAME: Final = 200
"""Characters of an id."""
CATEGORY: Final = 80
"""Characters of a category, which becomes a part of metrics' names."""

Message = Mapping[str, str]
"""`role` and `content` of one turn of a chat."""
Content = tuple[int, ...] | str | tuple[Message, ...]
"""Token ids, text, or the messages of a chat."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One prompt of a file, before it has tokens. `where` and `number`: as in `Record`."""

    where: str
    number: int
    content: Content
    name: str | None = None
    category: str | None = None


@dataclass(frozen=True, slots=True)
class Fields:
    """The keys of one record. Whatever is wrong raises UsageError with file, line, key and value."""

    record: Record

    def has(self, key: str) -> bool:
        """Return whether there is such a key, and it is not null."""
        return self.record.data.get(key) is not None

    def wrong(self, key: str, value: object, why: str) -> NoReturn:
        """Refuse the value of `key`."""
        raise UsageError(f"{self.record.where}: {key}: {shown(value)}: {why}")

    def of(self, key: str) -> Any:
        """The value of `key`, which must be there."""
        if key not in self.record.data:
            keys = ", ".join(shown(k, 40) for k in list(self.record.data)[:8]) or "none"
            raise UsageError(f"{self.record.where}: {key}: this key is required; there are: {keys}")
        return self.record.data[key]

    def text(self, key: str) -> str:
        """A text that is not empty."""
        value = self.of(key)
        if not isinstance(value, str) or not value:
            self.wrong(key, value, "a text was expected, of one character or more")
        return value

    def label(self, key: str, longest: int) -> str | None:
        """A short printable text or a whole number, as text; None where the key is not there."""
        value = self.record.data.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int):
            self.wrong(key, value, "a text or a whole number was expected")
        text = shown(value, longest + 2) if isinstance(value, int) else value
        if not text or len(text) > longest or not text.isprintable():
            self.wrong(key, value, f"1 to {longest} printable characters were expected")
        return text

    def category(self, *keys: str) -> str | None:
        """The category, from the first of `keys` that is there."""
        key = next(filter(self.has, keys), None)
        label = None if key is None else self.label(key, CATEGORY)
        if key is not None and label is not None and set(label) & set("[]"):
            self.wrong(key, label, "no [ or ] in a category, please: it becomes a part of metrics' names")
        return label


# ── the formats ──────────────────────────────────────────────────────────────────────────────────────────────────────


def own_line(fields: Fields) -> tuple[Content, str | None, str | None]:
    """`{"ids": …}`, `{"text": …}`, `{"prompt": …}` or `{"messages": …}`, with `id` and `category` or `subset`."""
    there = [key for key in OWN_KEYS if fields.has(key)]
    if len(there) != 1:
        what = f"{' and '.join(there)} together" if there else "none of them"
        keys = ", ".join(shown(k, 40) for k in list(fields.record.data)[:8]) or "none"
        raise UsageError(
            f"{fields.record.where}: exactly one of {', '.join(OWN_KEYS)} is needed, here: {what} ({keys})"
        )
    readings: Mapping[str, Callable[[Fields, str], Content]] = {"ids": token_ids, "messages": messages}
    content = readings.get(there[0], Fields.text)(fields, there[0])
    return content, fields.label("id", NAME), fields.category("category", "subset")


def token_ids(fields: Fields, key: str) -> tuple[int, ...]:
    """A list of whole numbers, 0 or more; whether the target has such tokens is looked at later."""
    value = fields.of(key)
    if not isinstance(value, list) or not value:
        fields.wrong(key, value, "a list of token ids was expected, of one or more")
    for index, number in enumerate(value):
        if type(number) is not int or number < 0:
            fields.wrong(f"{key}[{index}]", number, "a token id was expected: a whole number, 0 or more")
    return tuple(value)


def messages(fields: Fields, key: str) -> tuple[Message, ...]:
    """The turns of a chat, each `{"role": …, "content": …}`. The last one gets answered."""
    value = fields.of(key)
    if not isinstance(value, list) or not value:
        fields.wrong(key, value, 'a list of {"role": …, "content": …} was expected, of one or more')
    for index, turn in enumerate(value):
        place = f"{key}[{index}]"
        if not isinstance(turn, dict) or turn.keys() != {"role", "content"}:
            fields.wrong(place, turn, "an object with role and content was expected, and nothing else")
        for part in ("role", "content"):
            if not isinstance(turn[part], str) or (part == "role" and not turn[part]):
                fields.wrong(f"{place}.{part}", turn[part], "a text was expected")
    if value[-1]["role"] == "assistant":
        fields.wrong(
            f"{key}[{len(value) - 1}].role", "assistant", "the last message is what gets answered: leave it out"
        )
    return tuple(value)


def mt_bench(fields: Fields) -> tuple[Content, str | None, str | None]:
    """MT-Bench and Spec-Bench: the first of `turns` (on Hugging Face: of `prompt`)."""
    key = "turns" if "turns" in fields.record.data else "prompt"
    turns = fields.of(key)
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str) or not turns[0]:
        fields.wrong(key, turns, "a list of questions was expected")
    name = fields.label("question_id" if fields.has("question_id") else "prompt_id", NAME)
    return turns[0], name, fields.category("category")


def humaneval(fields: Fields) -> tuple[Content, str | None, str | None]:
    """HumanEval: `prompt`, the head of a function."""
    return fields.text("prompt"), fields.label("task_id", NAME), fields.category("category", "subset")


def gsm8k(fields: Fields) -> tuple[Content, str | None, str | None]:
    """GSM8K: `question`."""
    return fields.text("question"), None, fields.category("category", "subset")


def longbench(fields: Fields) -> tuple[Content, str | None, str | None]:
    """LongBench: `context`, an empty line, `input`; the category is `dataset`."""
    question = fields.of("input")
    if not isinstance(question, str):
        fields.wrong("input", question, "a text was expected")
    parts = (fields.text("context"), question)
    return "\n\n".join(filter(None, parts)), fields.label("_id", NAME), fields.category("dataset")


def sharegpt(fields: Fields) -> tuple[Content, str | None, str | None] | None:
    """ShareGPT: the first message, where it is a human's. Other conversations are left out: None."""
    turns = fields.of("conversations")
    if not isinstance(turns, list) or not all(isinstance(t, dict) for t in turns):
        fields.wrong("conversations", turns, 'a list of {"from": …, "value": …} was expected')
    first = turns[0] if turns else {}
    if first.get("from", first.get("role")) not in ("human", "user"):
        return None
    text = first.get("value", first.get("content"))
    if not isinstance(text, str):
        fields.wrong("conversations[0].value", text, "a text was expected")
    return (text, fields.label("id", NAME), None) if text else None


def vllm_custom(fields: Fields) -> tuple[Content, str | None, str | None]:
    """`vllm bench serve --dataset-name custom`: `prompt`. `output_tokens` is not read: the budget says that."""
    return fields.text("prompt"), None, fields.category("category", "subset")


Reading = Callable[[Fields], tuple[Content, str | None, str | None] | None]
"""A record → (prompt, id, category), or None where it has no prompt."""


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
FORMATS: Final[Mapping[str, Format]] = {
    f.name: f
    for f in (
        Format("mt-bench", mt_bench, ("category", "turns"), True),
        Format("humaneval", humaneval, ("task_id", "prompt", "entry_point"), False),
        Format("gsm8k", gsm8k, ("question", "answer"), True),
        Format("longbench", longbench, ("context", "input", "dataset"), False),
        Format("sharegpt", sharegpt, ("conversations",), True),
        Format("vllm-custom", vllm_custom, (), True),
        Format(LINES, own_line, (), False),
        Format(PLAIN, own_line, (), False),
    )
}
"""Name → format; the more telling ones first. `vllm-custom` looks like `lines`, and has to be asked for."""


class Recognised(NamedTuple):
    """A prompt file as a scenario fixes it: SHA-256 of its bytes, and the name of its format."""

    sha256: str
    format: FormatName


def recognise(path: Path, stated: FormatName) -> Recognised:
    """The file's hash, and its format: the one that is `asked` for, or with `auto` the one that its first record tells.

    Raises UsageError where it cannot be read, has no record, or its first record is of no known format.
    """
    content = content_of(path)
    sha256 = sha256_of(content)
    if stated != "auto":
        return Recognised(sha256, stated)
    if is_plain(path, content):
        return Recognised(sha256, PLAIN)
    record = next(records_of(path, content), None)
    if record is None:
        raise UsageError(f"{path}: no prompts in it", hint=ONE_PER_LINE)
    for format_ in FORMATS.values():
        if format_.keys and set(format_.keys) <= record.data.keys():
            return Recognised(sha256, format_.name)
    if isinstance(record.data.get("prompt"), list) and "category" in record.data:
        return Recognised(sha256, "mt-bench")
    if not set(OWN_KEYS) & record.data.keys():
        keys = ", ".join(shown(k, 40) for k in list(record.data)[:8]) or "none"
        known = ", ".join(FORMATS)
        raise UsageError(
            f"{record.where}: not a prompt in a known format; its keys: {keys}",
            hint=f"a line has one of {', '.join(OWN_KEYS)}; or say the format: {known}",
        )
    return Recognised(sha256, LINES)


@lru_cache(maxsize=1)  # a run reads the same file for every point
def entries_of(path: Path, sha256: str, format_: str) -> tuple[Entry, ...]:
    """Every prompt of the file.

    Raises UsageError where the file is not the one with this SHA-256, a record is wrong, or an id is there twice.
    """
    content = content_of(path)
    if (now := sha256_of(content)) != sha256:
        raise UsageError(
            f"{path}: its SHA-256 is {now}; the scenario was made with {sha256}",
            hint="put that file back, or start a new run",
        )
    records = plain_records_of if format_ == PLAIN else records_of
    entries = tuple(read_entries(records(path, content), FORMATS[format_].reading))
    if not entries:
        raise UsageError(f"{path}: no prompts in it", hint=ONE_PER_LINE)
    return entries


def read_entries(records: Iterable[Record], reading: Reading) -> Iterator[Entry]:
    """The prompts of `records`. Raises UsageError for an id that is there twice."""
    names: dict[str, str] = {}
    for record in records:
        fields = Fields(record)
        if (read := reading(fields)) is None:
            continue
        content, name, category = read
        if name is not None and (first := names.setdefault(name, record.where)) != record.where:
            raise UsageError(f"{record.where}: id: {shown(name)}: there already: {first}", hint="give each its own")
        yield Entry(record.where, record.number, content, name, category)


def spelt(entry: Entry) -> bytes:
    """The prompt as bytes, the same for equal prompts: what duplicates are found and the order is drawn by."""
    if isinstance(entry.content, str):
        return b"text " + entry.content.encode()
    if entry.content and isinstance(entry.content[0], int):
        return b"ids " + ",".join(map(str, entry.content)).encode()
    turns = chain.from_iterable((t["role"], t["content"]) for t in entry.content if isinstance(t, Mapping))
    return b"messages " + b"\x00".join(part.encode() for part in turns)
