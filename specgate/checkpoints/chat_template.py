"""The chat template of a tokenizer: messages → the text that the model was trained on.

Templates are Jinja, as `transformers` renders them (`apply_chat_template`): in the sandbox, with `bos_token` and the
tokenizer's other special tokens, `raise_exception`, `tojson` and `strftime_now` at hand. What a server's chat end point
does to messages before that is done here too: arguments of tool calls become objects, and the content becomes a text
or a list of parts, whichever the template can read. The one difference: here `strftime_now` is always `TODAY`, so that
a prompt is the same tomorrow, unless another date is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from specgate.checkpoints.tokenizer_settings import DEFAULT, TokenizerSettings
from specgate.errors import UsageError
from specgate.files.json_text import shown

if TYPE_CHECKING:
    from jinja2 import Template

TODAY: Final = datetime(2024, 7, 26)
"""The date of every chat: that which the templates of Llama 3 have by default."""
LONGEST: Final = 64 << 20
"""Characters of a rendered prompt."""
TOOL_USE: Final = "tool_use"
"""Name of the template for chats with tools, if there are several."""
VARIABLES: Final = ("tools", "documents", "reasoning_effort")
"""Keys of a request to a chat end point that its template may read, beside those in `chat_template_kwargs`."""
ANSWER: Final[Mapping[str, Any]] = {"role": "assistant", "content": ""}
"""A turn that the model is still to give, within a conversation."""
FIELDS: Final = ("response_format", "structured_outputs", "tool_choice", "parallel_tool_calls")
"""Keys of such a request that change its answer, and that no template reads."""
PROBE: Final = "specgate0probe"
"""A text that no template has: it shows in a rendered chat whether the template reads its content."""
REASONING: Final = ("reasoning_content", "thinking", "reasoning")
"""Keys that a message's reasoning may have. Templates read the first or the second."""

Message = Mapping[str, Any]
"""One turn of a chat: `role`, `content`, and what else the template reads, such as `tool_calls`."""


@dataclass(frozen=True, slots=True)
class Chat:
    """The turns of a chat, and variables for the template beside them (`tools`, `documents`, `enable_thinking`, …).

    `answered`: the record has an answer behind them, which is no part of the prompt. `fields`: what a request of it has
    beside these, and no template reads (`response_format`, `tool_choice`, …). `ids`: its tokens, where a server that
    has the template made them; else ().
    """

    turns: tuple[Message, ...]
    variables: Mapping[str, Any] = field(default_factory=dict)
    answered: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)
    ids: tuple[int, ...] = ()

    @property
    def request(self) -> dict[str, Any]:
        """The fields of a request to a chat end point: `messages`, and what stands beside them."""
        own = {key: value for key, value in self.variables.items() if key in VARIABLES}
        kwargs = {key: value for key, value in self.variables.items() if key not in VARIABLES}
        more = {"chat_template_kwargs": kwargs} if kwargs else {}
        return {"messages": [dict(turn) for turn in self.turns], **own, **more, **self.fields}

    @property
    def text(self) -> str:
        """The contents below each other, for a tokenizer without a template."""
        return "\n\n".join(filter(None, (joined(turn.get("content")) for turn in self.turns)))


class ChatTemplate:
    """The templates of one tokenizer: the default one, and one for tools if there are two. `today`: the date that they
    are told.
    """

    def __init__(self, settings: TokenizerSettings, today: datetime = TODAY) -> None:
        assert settings.template_file is not None
        self.today = today
        self.file, self._texts, self._variables = settings.template_file, settings.templates, settings.variables
        self._compiled: dict[str, Template] = {}

    @property
    def name(self) -> str:
        """The name of the file, and the date of the chats if the template asks for it."""
        return f"{self.file.name}, dated {self.today:%d %b %Y}" if self.dated else self.file.name

    @property
    def dated(self) -> bool:
        """True if the template asks for the date."""
        return any("strftime_now" in text for text in self._texts.values())

    def render(self, chat: Chat, where: str) -> str:
        """The text of the chat, with the beginning of the answer. Raises UsageError where the template refuses it or is
        no Jinja.

        `where`: the place of the messages, for the error.
        """
        turns = [self._readable(turn) for turn in chat.turns]
        try:
            try:
                return self._rendered(turns, chat.variables)
            except Exception:
                if all("content" in turn for turn in turns):
                    raise
                # Servers write an empty text beside tool calls; transformers leaves the key out.
                return self._rendered([{"content": "", **turn} for turn in turns], chat.variables)
        except UsageError:
            raise
        except Exception as error:  # a template is a program of somebody else's, and may raise anything
            why = " ".join(str(error).split()) or type(error).__name__
            raise UsageError(
                f"{where}: messages: {self.file}: the chat template refuses them: {shown(why, 200)}"
            ) from None

    def _template(self, name: str) -> Template:
        if name not in self._compiled:
            self._compiled[name] = compiled(f"{self.file}: chat_template", self._texts[name], self.today)
        return self._compiled[name]

    def _rendered(self, turns: Sequence[Message], variables: Mapping[str, Any]) -> str:
        tools = variables.get("tools") is not None and TOOL_USE in self._texts
        pieces, length = list[str](), 0
        usual = {"tools": None, "documents": None, "add_generation_prompt": True}
        context = {**usual, **self._variables, **variables, "messages": turns}
        for piece in self._template(TOOL_USE if tools else DEFAULT).generate(context):
            pieces.append(piece)
            if (length := length + len(piece)) > LONGEST:
                raise ValueError(f"more than {LONGEST} characters")
        return "".join(pieces)

    def _readable(self, turn: Message) -> dict[str, Any]:
        """The turn without empty keys, its content and its tool calls in the form that the template reads."""
        message = {key: value for key, value in turn.items() if value is not None}
        if (reasoning := next((message[key] for key in REASONING if key in message), None)) is not None:
            message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
        if isinstance(calls := message.get("tool_calls"), list):
            message["tool_calls"] = [with_arguments(call) for call in calls]
        match message.get("content"):
            case str() as text if not self._reads_text and self._reads_parts:
                message["content"] = [{"type": "text", "text": text}]
            case list() as parts if not self._reads_parts:
                message["content"] = joined(parts)
        return message

    @cached_property
    def _reads_text(self) -> bool:
        return PROBE in self._probed(PROBE)

    @cached_property
    def _reads_parts(self) -> bool:
        """True if it renders the texts of a list of parts, and not the list as Python or JSON writes it."""
        text = self._probed([{"type": "text", "text": PROBE}])
        return PROBE in text and "'text'" not in text and '"text"' not in text

    def _probed(self, content: object) -> str:
        try:
            return self._rendered([{"role": "user", "content": content}], {})
        except Exception:  # as in `render`
            return ""


def chat_template(settings: TokenizerSettings, today: datetime = TODAY) -> ChatTemplate | str:
    """The template of a tokenizer with these settings, or the reason why it has none."""
    if DEFAULT in settings.templates:
        return ChatTemplate(settings, today)
    if settings.templates:
        names = ", ".join(shown(name, 40) for name in sorted(settings.templates))
        return f"{settings.template_file} has no chat template of the name 'default', only {names}"
    return "the target's tokenizer has no chat template"


def joined(content: object) -> str:
    """The text of a content: of parts, their texts one below the other."""
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content)
    return content if isinstance(content, str) else ""


def with_arguments(call: Any) -> Any:
    """Return a tool call whose arguments, if they are JSON in a text, are the object in it."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def compiled(place: str, text: str, today: datetime = TODAY) -> Template:
    """The template in `text`. Raises UsageError, which names the place and the line, where it is no Jinja."""
    from jinja2 import TemplateError, TemplateSyntaxError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}…{% endgeneration %}` marks an assistant's words, for training; its text stays."""

        tags = {"generation"}  # noqa: RUF012 - that is how Jinja has it

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

        def _text(self, caller: Callable[[], str]) -> str:
            return caller()

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )

    def raise_exception(message: str) -> str:
        raise TemplateError(message)

    strftime_now: Callable[[str], str] = today.strftime
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    try:
        return environment.from_string(text)
    except (TemplateSyntaxError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise UsageError(f"{place}, line {line}: not a Jinja template: {shown(str(error), 200)}") from None


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As in `transformers`: without the escapes for HTML that Jinja's own has."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
