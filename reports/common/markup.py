"""Escape text so that it does not become markup: in Markdown, in XML, and in GitHub's workflow commands."""

from __future__ import annotations

import re
from collections.abc import Sequence

_MARKDOWN = re.compile(r"([\\`*_\[\]|~#])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}
"""Characters of Markdown text that are written as entities. An `@` would notify the user of that name."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that an XML 1.0 document may not hold, not even as entities."""


def markdown(text: str) -> str:
    """One line of GitHub-flavoured Markdown that shows `text` as it is."""
    line = " ".join(visible(text).split())
    return _MARKDOWN.sub(r"\\\1", "".join(_ENTITIES.get(c, c) for c in line))


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> list[str]:
    """The lines of a table. The first `texts` columns are aligned left, the others right. Cells are escaped."""
    rule = ["---" if i < texts else "---:" for i in range(len(head))]
    return ["| " + " | ".join(cells) + " |" for cells in (map(markdown, head), rule, *(map(markdown, r) for r in rows))]


def visible(text: str) -> str:
    """`text` with characters that XML cannot hold (control characters, lone surrogates) as escapes such as `\\x1b`."""
    return _NOT_XML.sub(lambda m: m[0].encode("unicode_escape").decode(), text)


def command_data(text: str) -> str:
    """`text` as the message of a workflow command. It becomes one line."""
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def command_property(text: str) -> str:
    """`text` as a property of a workflow command, in which colons and commas must be escaped too."""
    return command_data(text).replace(":", "%3A").replace(",", "%2C")
