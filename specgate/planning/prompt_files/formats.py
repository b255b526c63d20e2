"""Meaning of the records of prompt files: specgate's own lines, plain lines, and local copies of public data sets.

Nothing is downloaded. A data set's own prompt templates are not applied: what becomes the prompt stands below and in
docs/scenarios.md. Of a conversation only the first question is asked. A record that is in order and has no prompt is
left out and counted; any other one is refused with file, line, key and value.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeGuard

from specgate.contract.scenarios.own_prompts import left_out_in_words
from specgate.contract.scenarios.workload import FormatName
from specgate.errors import UsageError
from specgate.files.json_text import parse_json, shown
from specgate.planning.prompt_files.chat import Chat, Message
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

CATEGORY: Final = 80
"""Characters of a category, which becomes a part of metrics' names."""

REASONS: Final = 16
"""Reasons that are counted each by itself."""

Content = tuple[int, ...] | str | Chat | HashedPrompt
"""Token ids, text, a chat, or the hashes of its parts."""


class LeftOut(Exception):
    """A record that is in order and has no prompt; its text says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One prompt of a file, before it has tokens. `where`, `number`: as in `Record`. `stamp`: as the record has it."""

    where: str
    number: int
    content: Content
    category: str | None = None
    stamp: Stamp = NO_STAMP


@dataclass(frozen=True, slots=True)
class PromptFile:
    """The prompts of a file. `left_out`: reason → number of records that have none."""

    entries: tuple[Entry, ...]
    left_out: Mapping[str, int]

    @property
    def answered(self) -> int:
        """Number of chats whose record has an answer at its end, which is no part of the prompt."""
        return sum(isinstance(e.content, Chat) and e.content.answered for e in self.entries)


@dataclass(frozen=True, slots=True)
class Fields:
    """The keys of one record. Whatever is wrong raises UsageError with file, line, key and value."""

    where: str
    data: Mapping[str, Any]

    def has(self, key: str) -> bool:
        """Return whether there is such a key, and it is not null."""
        return self.data.get(key) is not None

    def wrong(self, key: str, value: object, why: str) -> NoReturn:
        """Refuse the value of `key`."""
        raise UsageError(f"{self.where}: {key}: {shown(value)}: {why}")

    def of(self, key: str) -> Any:
        """The value of `key`, which must be there."""
        if key not in self.data:
            raise UsageError(f"{self.where}: {key}: this key is required; there are: {self.keys}")
        return self.data[key]

    @property
    def keys(self) -> str:
        """The first keys, for a message."""
        return ", ".join(shown(k, 40) for k in list(self.data)[:8]) or "none"

    def first(self, *keys: str) -> str:
        """The first of `keys` that has a value, or else the first one."""
        return next(filter(self.has, keys), keys[0])

    def text(self, *keys: str) -> str:
        """A text that is not empty, in the first of `keys` that is there."""
        key = self.first(*keys)
        value = self.of(key)
        if not isinstance(value, str) or not value:
            self.wrong(key, value, "a text was expected, of one character or more")
        return value

    def category(self, *keys: str) -> str | None:
        """The category, from the first of `keys` that is there: a short printable text or a whole number, as text."""
        if (value := self.data.get(key := self.first(*keys))) is None:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int):
            self.wrong(key, value, "a text or a whole number was expected")
        text = shown(value, CATEGORY + 2) if isinstance(value, int) else value
        if not text or len(text) > CATEGORY or not text.isprintable():
            self.wrong(key, value, f"1 to {CATEGORY} printable characters were expected")
        if set(text) & set("[]"):
            self.wrong(key, value, "no [ or ] in a category, please: it becomes a part of metrics' names")
        return text


# ── chats ────────────────────────────────────────────────────────────────────────────────────────────────────────────

CONVERSATIONS: Final = ("conversations", "conversation", "dialogue", "dialog", "chat", "turns", "messages")
"""Keys that data sets have for the turns of a conversation."""
ROLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("human", "user", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "assistant", "bot", "model", "bing", "bard"), "assistant"),
    **dict.fromkeys(("function", "tool", "observation"), "tool"),
    "system": "system",
}
"""Names that data sets have for the roles of a chat → those of a chat template."""
SPEAKER: Final = ("role", "from")
WORDS: Final = ("content", "value", "text")
NO_TEXT: Final = ("image", "images", "video", "videos", "audio", "audios")
"""Keys of a conversation about something that is no text."""
VARIABLES: Final = ("tools", "documents", "reasoning_effort")
"""Keys of a request to a chat end point that its template may read, beside those in `chat_template_kwargs`."""


def turns_of(fields: Fields, key: str) -> list[Message]:
    """The turns of a chat as `{"role": …, "content": …}` with their other keys. Raises LeftOut for a chat about more
    than text.
    """
    value = fields.of(key)
    if other := next((name for name in NO_TEXT if fields.data.get(name)), None):
        raise LeftOut(f"{other} in it")
    if not isinstance(value, list) or not all(isinstance(t, dict) for t in value):
        fields.wrong(key, value, 'a list of {"role": …, "content": …} was expected')
    turns = list[Message]()
    for index, turn in enumerate(value):
        place, usual = f"{fields.where}: {key}[{index}]", "assistant" if index % 2 else "user"
        pair = bool(turn) and turn.keys() <= ROLES.keys()  # {"human": …, "assistant": …}
        single = [{"from": role, "value": text} for role, text in turn.items()] if pair else [turn]
        turns += [turn_of(Fields(place, data), usual) for data in single]
    return turns


def turn_of(fields: Fields, usual: str) -> Message:
    """One turn. `usual`: its role where none is said."""
    speaker, words = fields.first(*SPEAKER), fields.first(*WORDS)
    role, content = fields.data.get(speaker, usual), fields.data.get(words)
    if not isinstance(role, str) or not role:
        fields.wrong(speaker, role, "a text was expected")
    role = ROLES.get(role.lower(), role) if speaker == "from" else role
    if isinstance(content, list):
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            if not isinstance(part, dict) or not isinstance(kind, str):
                fields.wrong(words, content, "a text or a list of parts with a type was expected")
            if kind != "text" or not isinstance(part.get("text"), str):
                raise LeftOut(f"content of type {shown(kind, 40)}")
    elif not isinstance(content, str) and not (content is None and fields.has("tool_calls")):
        fields.wrong(words, content, "a text was expected")
    others = {key: value for key, value in fields.data.items() if key not in (*SPEAKER, *WORDS)}
    return {"role": role, "content": content, **others}


def messages(fields: Fields, key: str) -> Chat:
    """A chat whose last message gets answered. An answer at its end is not a part of the prompt."""
    turns = turns_of(fields, key)
    count = len(turns)
    while turns and turns[-1]["role"] == "assistant":
        turns.pop()
    if not turns:
        raise LeftOut("no question before the answer" if fields.of(key) else "no turns")
    variables = {name: fields.data[name] for name in VARIABLES if fields.has(name)}
    if isinstance(tools := variables.get("tools"), str):  # some data sets have JSON in a text there
        try:
            variables["tools"] = parse_json(tools)
        except ValueError as error:
            fields.wrong("tools", tools, f"not JSON: {error}")
    more = fields.data.get("chat_template_kwargs") or {}
    if not isinstance(more, dict):
        fields.wrong("chat_template_kwargs", more, "an object was expected")
    if fields.data.get("tool_choice") == "none" or variables.get("tools") == []:
        variables.pop("tools", None)
    return Chat(tuple(turns), {**variables, **more}, answered=len(turns) < count)


def first_question(turns: Sequence[Message]) -> str | Chat:
    """The first question, with what the system says before it. Raises LeftOut where the chat begins otherwise."""
    before = list[Message]()
    for turn in turns:
        role, content = turn["role"], turn["content"]
        if role == "user":
            if not content:
                raise LeftOut("the question is empty")
            plain = isinstance(content, str) and not before
            return content if plain else Chat((*before, {"role": "user", "content": content}))
        if role != "system":
            known = role in ROLES.values()
            raise LeftOut(f"first turn is the {role}'s" if known else f"first turn is that of {shown(role, 40)}")
        if content:
            before.append({"role": "system", "content": content})
    raise LeftOut("no question" if turns else "no turns")


# ── the formats ──────────────────────────────────────────────────────────────────────────────────────────────────────

Reading = Callable[[Fields], tuple[Content, str | None]]
"""A record → (prompt, category). Raises LeftOut where it has none."""


def own_line(fields: Fields) -> tuple[Content, str | None]:
    """`{"ids": …}`, `{"text": …}`, `{"prompt": …}` or `{"messages": …}`, with `category` or `subset`."""
    there = [key for key in OWN_KEYS if fields.has(key)]
    category = fields.category("category", "subset")
    if there == ["prompt", "messages"]:  # the prompt once more, with its answer
        chat = messages(fields, "messages")
        if any(turn["content"] == fields.data["prompt"] for turn in chat.turns):
            return chat, category
    if len(there) != 1:
        what = f"{' and '.join(there)} together" if there else "none of them"
        raise UsageError(
            f"{fields.where}: exactly one of {', '.join(OWN_KEYS)} is needed, here: {what} ({fields.keys})"
        )
    return content_in(fields, there[0]), category


def content_in(fields: Fields, key: str) -> Content:
    """The prompt in one of `OWN_KEYS`. `prompt` may hold what any of the others does."""
    value = fields.of(key)
    if key == "ids" or (key == "prompt" and isinstance(value, list) and value and type(value[0]) is int):
        return token_ids(fields, key)
    return messages(fields, key) if key == "messages" or is_chat(value) else fields.text(key)


def is_chat(value: object) -> bool:
    """Return whether the value is a list of one object or more, as turns of a chat are."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def is_texts(value: object) -> TypeGuard[list[str]]:
    """Return whether the value is a list of texts, as the choices of a question are."""
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def token_ids(fields: Fields, key: str) -> tuple[int, ...]:
    """A list of whole numbers, 0 or more; whether the target has such tokens is looked at later."""
    value = fields.of(key)
    if not isinstance(value, list) or not value:
        fields.wrong(key, value, "a list of token ids was expected, of one or more")
    for index, number in enumerate(value):
        if type(number) is not int or number < 0:
            fields.wrong(f"{key}[{index}]", number, "a token id was expected: a whole number, 0 or more")
    return tuple(value)


def openai_batch(fields: Fields) -> tuple[Content, str | None]:
    """A request of OpenAI's batch interface: `body` with `messages` or `prompt`."""
    body = fields.of("body")
    if not isinstance(body, dict):
        fields.wrong("body", body, "an object was expected")
    return own_line(Fields(f"{fields.where}: body", body))


def mt_bench(fields: Fields) -> tuple[Content, str | None]:
    """MT-Bench and Spec-Bench: the first of `turns` (on Hugging Face: of `prompt`)."""
    key = fields.first("turns", "prompt")
    turns = fields.of(key)
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str) or not turns[0]:
        fields.wrong(key, turns, "a list of questions was expected")
    return turns[0], fields.category("category")


def longbench(fields: Fields) -> tuple[Content, str | None]:
    """LongBench: `context`, an empty line, `input`; the category is `dataset`."""
    question = fields.of("input")
    if not isinstance(question, str):
        fields.wrong("input", question, "a text was expected")
    return "\n\n".join(filter(None, (fields.text("context"), question))), fields.category("dataset")


def sharegpt(fields: Fields) -> tuple[Content, str | None]:
    """ShareGPT and its like: the first question of the conversation, with what the system says before it."""
    key = fields.first(*CONVERSATIONS)
    return first_question(turns_of(fields, key)), fields.category("category", "subset")


def mooncake(fields: Fields) -> tuple[Content, str | None]:
    """A request of Mooncake's traces: `input_length` tokens, with a hash for every `HASHED` of them."""
    length, hashes = fields.of("input_length"), fields.of("hash_ids")
    if type(length) is not int or length < 1:
        fields.wrong("input_length", length, "a number of tokens was expected, 1 or more")
    if not isinstance(hashes, list) or any(type(number) is not int for number in hashes):
        fields.wrong("hash_ids", hashes, "a list of whole numbers was expected")
    if len(hashes) != -(-length // HASHED):
        fields.wrong("hash_ids", hashes, f"{len(hashes)} hashes of {HASHED} tokens each, for {length} tokens")
    return HashedPrompt(length, tuple(hashes)), None


def question_in(*keys: str, before: str = "", behind: Sequence[str] = (), category: Sequence[str] = ()) -> Reading:
    """Return a reading of the question in the first of `keys` that is there. Texts in the keys `before` and `behind`
    stand around it, if there are any, with empty lines between them.
    """

    def reading(fields: Fields) -> tuple[Content, str | None]:
        parts = [fields.data.get(before), fields.text(*keys), *map(fields.data.get, behind)]
        texts = ["\n".join(part) if is_texts(part) else part for part in parts]
        text = "\n\n".join(part for part in texts if isinstance(part, str) and part)
        return text, fields.category("category", "subset", *category)

    return reading


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
MT_BENCH: Final[FormatName] = "mt-bench"
SHAREGPT: Final[FormatName] = "sharegpt"
FORMATS: Final[Mapping[str, Format]] = {
    f.name: f
    for f in (
        Format(MT_BENCH, mt_bench, (), True),
        Format(SHAREGPT, sharegpt, (), True),
        Format("openai-batch", openai_batch, ("custom_id", "body"), False),
        Format("mooncake", mooncake, ("input_length", "hash_ids"), False),
        Format("humaneval", question_in("prompt"), ("task_id", "prompt", "entry_point"), False),
        Format("mbpp", question_in("text", "prompt"), ("code", "test_list"), True),
        Format("longbench", longbench, ("context", "input", "dataset"), False),
        Format("gsm8k", question_in("question", before="context", behind=("choices", "options")), ("question",), True),
        Format("math", question_in("problem", category=("subject", "type")), ("problem",), True),
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
        return MT_BENCH
    if data.get("messages") is not None:
        return LINES
    named = (f.name for f in FORMATS.values() if f.keys and set(f.keys) <= data.keys())
    return next(named, LINES if set(OWN_KEYS) & data.keys() else None)


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
    if (name := format_of(record.data)) is None:
        raise UsageError(
            f"{record.where}: not a prompt in a known format; its keys: {Fields(record.where, record.data).keys}",
            hint=f"a line has one of {', '.join(OWN_KEYS)}; or say the format: {', '.join(FORMATS)}",
        )
    return Recognised(sha256, name)


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
    if not file.entries:
        why = f": {left_out_in_words(file.left_out)}" if file.left_out else ""
        raise UsageError(f"{path}: no prompts in it{why}", hint=ONE_PER_LINE)
    return file


def read_prompts(records: Iterable[Record], reading: Reading) -> PromptFile:
    """The prompts of `records`, and why some have none."""
    entries, left_out = list[Entry](), Counter[str]()
    for record in records:
        try:
            content, category = reading(Fields(record.where, record.data))
            entries.append(Entry(record.where, record.number, content, category, Stamp.of(record.data)))
        except LeftOut as reason:
            left_out[str(reason) if str(reason) in left_out or len(left_out) < REASONS else "other reasons"] += 1
    return PromptFile(tuple(entries), left_out)


def spelt(entry: Entry) -> bytes:
    """The prompt as bytes, the same for equal prompts: what duplicates are found and the order is drawn by."""
    match entry.content:
        case str() as text:
            return b"text " + text.encode()
        case Chat() as chat:
            return b"messages " + json.dumps([chat.turns, chat.variables], sort_keys=True).encode()
        case HashedPrompt() as prompt:
            return f"hashes {prompt}".encode()
        case ids:
            return b"ids " + ",".join(map(str, ids)).encode()
