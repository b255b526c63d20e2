"""Messages for a server's chat end point, and what its chat template must make of them.

A server that puts no template around messages, or another one than the model was trained on, decodes other texts: these
often repeat themselves, and acceptance looks better than it is. So what a server says that it has read is held against
the rendering by the target's own template: token by token where it tells the prompt's ids, else by their number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specgate.backends.servers.answers import Answer
from specgate.backends.servers.exchange import Json
from specgate.backends.servers.options import SERVERS_OWN, Options
from specgate.checkpoints.chat_template import ANSWER, VARIABLES, Chat, ChatTemplate, chat_template
from specgate.checkpoints.tokenizer_file import read_tokenizer
from specgate.checkpoints.tokenizer_settings import DEFAULT, TokenizerSettings, read_settings
from specgate.contract.protocols import ChatPrompt
from specgate.contract.tape import sha256_of_ids
from specgate.errors import BackendError, UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Renderer:
    """The target's tokenizer and the settings beside it, its chat template among them. `unknown`: why there is no
    template to hold a server to; "" where there is one.
    """

    tokenizer: Tokenizer
    settings: TokenizerSettings
    unknown: str = ""

    @classmethod
    def of(cls, file: Path, options: Options) -> Renderer | None:
        """Return the renderer of the tokenizer in `file`; None without such a file. `options`: may name a template.

        Raises CheckpointError for a tokenizer that cannot be read, UsageError for a template that cannot.
        """
        if not file.is_file():
            return None
        tokenizer, settings = read_tokenizer(file), read_settings(file)
        settings.give_to(tokenizer)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if options.chat_template == SERVERS_OWN:
            return cls(tokenizer, settings, f"-o chat_template={SERVERS_OWN}")
        if options.chat_template is not None:
            named = Path(options.chat_template)
            text = named.read_text(encoding="utf-8")
            settings = replace(settings, templates={DEFAULT: text}, template_file=named)
        template = chat_template(settings)
        return cls(tokenizer, settings, template if isinstance(template, str) else "")

    def ids(self, chat: Chat, today: datetime) -> Ids:
        """The token ids of the chat on the date `today`. Raises UsageError where the template refuses it."""
        text = ChatTemplate(self.settings, today).render(chat, "a prompt")
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    @property
    def dated(self) -> bool:
        """True if the template puts in the date."""
        return not self.unknown and ChatTemplate(self.settings).dated

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a prompt, without special tokens."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text


CONSTRAINTS: Final = ("response_format", "structured_outputs", "tool_choice")
"""Keys of a chat request that the form of its answer follows from."""


class Chats:
    """The chats that prompts of token ids stand for, as the options complete them.

    A prompt that is no chat becomes the text of a single user's turn. `known`: the chats among a run's prompts.
    `answer`: asks the server for the answer to the fields of a request, of an earlier turn of a conversation.
    """

    def __init__(
        self, known: Sequence[ChatPrompt], renderer: Renderer | None, options: Options, answer: Callable[[Json], str]
    ) -> None:
        self.known = {chat.sha256: chat.request for chat in known}
        self.renderer, self.options, self.answer = renderer, options, answer
        self._answers: dict[str, str] = {}
        self._fields: dict[Ids, Json] = {}
        self._ids: dict[tuple[Ids, datetime], Ids] = {}

    def fields(self, prompt: Ids) -> Json:
        """The fields of the chat request for `prompt`. Raises BackendError for ids that nobody can read."""
        if prompt not in self._fields:
            request = self.known.get(sha256_of_ids([prompt]))
            self._fields[prompt] = self._completed(json.loads(request) if request else self._plain(prompt))
        return self._fields[prompt]

    def _plain(self, prompt: Ids) -> dict[str, Any]:
        if self.renderer is None:
            raise BackendError(
                "a prompt of token ids for a chat end point, and no tokenizer to write it as text",
                hint="--tokenizer FILE|DIR, or prompts with messages",
            )
        return {"messages": [{"role": "user", "content": self.renderer.decode(prompt)}]}

    def _completed(self, request: dict[str, Any]) -> dict[str, Any]:
        options, messages = self.options, list(request["messages"])
        if options.system is not None and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": options.system}, *messages]
        kwargs = {**options.chat_template_kwargs, **request.get("chat_template_kwargs", {})}
        for at, message in enumerate(messages[:-1]):
            if message == ANSWER:
                messages[at] = {**ANSWER, "content": self._answered({**request, "messages": messages[:at]}, kwargs)}
        shape = {} if options.response_format is None else {"response_format": options.response_format}
        return {**shape, **request, "messages": messages, **({"chat_template_kwargs": kwargs} if kwargs else {})}

    def _answered(self, request: dict[str, Any], kwargs: Mapping[str, object]) -> str:
        """The server's answer to the turns so far, asked for once."""
        fields = {**request, **({"chat_template_kwargs": kwargs} if kwargs else {})}
        key = json.dumps(fields, sort_keys=True)
        if key not in self._answers:
            self._answers[key] = self.answer(fields)
        return self._answers[key]

    def is_conversation(self, prompt: Ids) -> bool:
        """True if earlier turns of the prompt have still to be answered."""
        request = self.known.get(sha256_of_ids([prompt]))
        return request is not None and ANSWER in json.loads(request)["messages"]

    def lost_in_completions(self, prompt: Ids) -> str:
        """What of a prompt a completions end point does not take and which changes its answer; "" if nothing does."""
        if self.is_conversation(prompt):
            return "earlier turns to be answered"
        request = json.loads(self.known.get(sha256_of_ids([prompt]), "{}"))
        harmless = {"tool_choice": ("auto", "none"), "response_format": ({"type": "text"},)}
        return next((key for key in CONSTRAINTS if key in request and request[key] not in harmless.get(key, ())), "")

    def warnings(self) -> Iterator[str]:
        """Yield what readers must know: nothing holds the server to a template."""
        if self.renderer is None or self.renderer.unknown:
            why = self.renderer.unknown if self.renderer else "the target's tokenizer is not known here"
            yield f"what the server makes of messages is not held against a chat template: {why}"

    def ids(self, prompt: Ids) -> Ids | None:
        """The tokens of the chat by the target's template; None where no template is known here."""
        if self.renderer is None or self.renderer.unknown:
            return None
        return self._rendered(prompt, self.fields(prompt), self._days()[0])

    def check(self, prompts: Sequence[Ids], answers: Sequence[Answer], where: str) -> None:
        """Hold what the server has read against the template. Raises BackendError, which names the difference."""
        for slot, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            self._check(self.fields(prompt), prompt, answer, f"{where}, slot {slot}")

    def _check(self, fields: Json, prompt: Ids, answer: Answer, where: str) -> None:
        if answer.prompt and len(answer.prompt) != answer.usage.prompt:
            raise BackendError(
                f"{where}: its usage record counts {answer.usage.prompt} prompt tokens, and it repeats "
                f"{len(answer.prompt)} of them",
                hint="does a gateway in between change one of the two?",
            )
        if self.renderer is None or self.renderer.unknown:
            return
        meant = [self._rendered(prompt, fields, day) for day in self._days()]
        if any(answer.prompt == ids if answer.prompt else answer.usage.prompt == len(ids) for ids in meant):
            return
        bare = self._bare(fields)
        count = answer.usage.prompt
        looks = ": it looks as if no template is put around the messages" if count <= bare + 2 else ""
        raise BackendError(
            f"{where}: {difference(meant[0], answer, self.renderer)}{looks}; acceptance would be that of other texts",
            hint=f"the template is that of {self.renderer.settings.template_file}: -o chat_template=FILE names "
            f"another, ={SERVERS_OWN} leaves it to the server",
        )

    def _days(self) -> list[datetime]:
        """The dates that a server may have told its template: today's, by its clock and time zone or by UTC."""
        now = datetime.now(UTC)
        return [now + timedelta(days=days) for days in (0, -1, 1)] if self.renderer and self.renderer.dated else [now]

    def _rendered(self, prompt: Ids, fields: Json, today: datetime) -> Ids:
        assert self.renderer is not None
        key = prompt, today.replace(hour=0, minute=0, second=0, microsecond=0) if self.renderer.dated else datetime.min
        if key not in self._ids:
            try:
                self._ids[key] = self.renderer.ids(chat_of(fields), today)
            except UsageError as error:
                raise BackendError(
                    error.message, hint=f"-o chat_template={SERVERS_OWN} leaves it to the server"
                ) from error
        return self._ids[key]

    def _bare(self, fields: Json) -> int:
        """Tokens of the messages' contents alone."""
        assert self.renderer is not None
        return len(self.renderer.tokenizer.encode(chat_of(fields).text, add_special_tokens=False).ids)


def chat_of(fields: Json) -> Chat:
    """The chat in the fields of a request."""
    messages, kwargs = fields["messages"], fields.get("chat_template_kwargs") or {}
    assert isinstance(messages, list) and isinstance(kwargs, Mapping)
    return Chat(tuple(messages), {**{key: fields[key] for key in VARIABLES if key in fields}, **kwargs})


def difference(meant: Ids, answer: Answer, renderer: Renderer) -> str:
    """How what a server has read differs from the tokens `meant`, in words."""
    if not answer.prompt:
        return f"it counts {answer.usage.prompt} prompt tokens, and the chat template makes {len(meant)}"
    at = next((i for i, (a, b) in enumerate(zip(meant, answer.prompt, strict=False)) if a != b), None)
    if at is None:
        return f"it has read {len(answer.prompt)} prompt tokens, and the chat template makes {len(meant)}"
    theirs, ours = (
        repr(renderer.tokenizer.decode([ids[at]], skip_special_tokens=False)) for ids in (answer.prompt, meant)
    )
    return f"its prompt has {theirs} as token {at}, and the chat template makes {ours}"
