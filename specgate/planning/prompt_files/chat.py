"""The chat template of a tokenizer: messages → the text that the model was trained on.

Templates are Jinja, as `transformers` renders them (`apply_chat_template`): in the sandbox, with `bos_token` and the
tokenizer's other special tokens, `raise_exception`, `tojson` and `strftime_now` at hand. The one difference: here
`strftime_now` is always `TODAY`, so that a prompt is the same tomorrow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specgate.errors import UsageError
from specgate.files.json_text import read_json, shown

if TYPE_CHECKING:
    from jinja2 import Template

    from specgate.planning.prompt_files.formats import Message

TODAY: Final = datetime(2024, 7, 26)
"""The date of every chat: that which the templates of Llama 3 have by default."""
LARGEST: Final = 16 << 20
"""Bytes of a tokenizer's config or template."""
LONGEST: Final = 64 << 20
"""Characters of a rendered prompt."""
SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class ChatTemplate:
    """The template of one tokenizer. `file`: where it stands."""

    def __init__(self, file: Path, text: str, special: Mapping[str, str]) -> None:
        self.file, self._special = file, special
        self._template = compiled(file, text)

    @classmethod
    def beside(cls, tokenizer_file: Path) -> ChatTemplate | None:
        """The template beside a `tokenizer.json`: in `chat_template.jinja`, else in `tokenizer_config.json`; None where
        there is none.

        Raises UsageError where one of the two cannot be read, or the template is no Jinja.
        """
        config_file, own_file = (tokenizer_file.with_name(n) for n in ("tokenizer_config.json", "chat_template.jinja"))
        config = _config(config_file)
        special = {key: token for key in SPECIAL if (token := _token(config.get(key)))}
        if own_file.is_file():
            return cls(own_file, _text(own_file), special)
        text = _named(config_file, config.get("chat_template"))
        return None if text is None else cls(config_file, text, special)

    def render(self, messages: Sequence[Message], where: str) -> str:
        """The text of the chat, with the beginning of the answer. Raises UsageError where the template refuses it.

        `where`: the place of the messages, for the error.
        """
        pieces, length = list[str](), 0
        try:
            for piece in self._template.generate(
                messages=[dict(m) for m in messages], add_generation_prompt=True, **self._special
            ):
                pieces.append(piece)
                if (length := length + len(piece)) > LONGEST:
                    raise ValueError(f"more than {LONGEST} characters")
        except Exception as error:  # a template is a program of somebody else's, and may raise anything
            why = " ".join(str(error).split()) or type(error).__name__
            raise UsageError(
                f"{where}: messages: {self.file}: the chat template refuses them: {shown(why, 200)}"
            ) from None
        return "".join(pieces)


def compiled(file: Path, text: str) -> Template:
    """The template in `text`. Raises UsageError where it is no Jinja."""
    from jinja2 import TemplateError, TemplateSyntaxError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}…{% endgeneration %}` marks an assistant's words, for training; its text stays."""

        tags = {"generation"}  # noqa: RUF012 - that is how Jinja has it

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )

    def raise_exception(message: str) -> str:
        raise TemplateError(message)

    strftime_now: Callable[[str], str] = TODAY.strftime
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    try:
        return environment.from_string(text)
    except (TemplateSyntaxError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise UsageError(
            f"{file}: chat_template, line {line}: not a Jinja template: {shown(str(error), 200)}"
        ) from None


def _tojson(value: object, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    """As in `transformers`: without the escapes for HTML that Jinja's own has."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


def _config(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        return {}
    try:
        config = read_json(file, LARGEST)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: cannot be read: {error}", hint="it must be a tokenizer_config.json") from None
    if not isinstance(config, dict):
        raise UsageError(f"{file}: {shown(config)}: a JSON object was expected")
    return config


def _text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return stream.read(LARGEST).decode()
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: cannot be read: {error}", hint="it must be a Jinja template in UTF-8") from None


def _token(value: object) -> str | None:
    """A special token, which may be written as text or as an object with `content`."""
    token = value.get("content") if isinstance(value, dict) else value
    return token if isinstance(token, str) else None


def _named(file: Path, value: object) -> str | None:
    """The template in the key `chat_template`: a text, or of a list of named ones the one called `default`."""
    if isinstance(value, list):
        named = {
            t.get("name"): t.get("template") for t in value if isinstance(t, dict) and isinstance(t.get("name"), str)
        }
        value = named.get("default")
    if value is None or isinstance(value, str):
        return value
    raise UsageError(f"{file}: chat_template: {shown(value)}: a Jinja template was expected, as text")
