"""One record of a prompt file: its keys, and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn, TypeGuard

from specgate.analysis.quality.exact_match import key_of
from specgate.checkpoints.chat_template import Chat
from specgate.contract.samples.answers import AnswerKey
from specgate.errors import UsageError
from specgate.files.json_text import shown
from specgate.planning.prompt_files.trace import HashedPrompt

CATEGORY: Final = 80
"""Characters of a category, which becomes a part of metrics' names."""

Content = tuple[int, ...] | str | Chat | HashedPrompt
"""Token ids, text, a chat, or the hashes of its parts."""


class LeftOut(Exception):
    """A record that is in order and has no prompt; its text says why."""


class Question(NamedTuple):
    """The meaning of one record.

    `later`: the questions of a conversation behind the first, each asked once the one before has been answered.
    `answer`: the key that an answer is held against; None where the record has none.
    """

    content: Content
    category: str | None = None
    later: tuple[str, ...] = ()
    answer: AnswerKey | None = None


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

    @property
    def own_answer(self) -> AnswerKey | None:
        """The key in `answer`: a number or a short text, or the text behind the `####` of a longer one."""
        value = self.data.get("answer")
        whole = isinstance(value, int | float) and not isinstance(value, bool)
        return key_of(str(value)) if whole or isinstance(value, str) else None

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


def is_chat(value: object) -> bool:
    """Return whether the value is a list of one object or more, as turns of a chat are."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def is_texts(value: object) -> TypeGuard[list[str]]:
    """Return whether the value is a list of texts, as the choices of a question are."""
    return isinstance(value, list) and all(isinstance(text, str) for text in value)
