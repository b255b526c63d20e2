"""Escape text so that it does not become markup: in Markdown, in XML, and in GitHub's workflow commands."""

from __future__ import annotations

import re
from collections.abc import Sequence

from specgate.contract.protocols import visible

_MARKDOWN = re.compile(r"([\\`*_\[\]|~#])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}
"""Characters of Markdown text that are written as entities. An `@` would notify the user of that name."""


def markdown(text: str) -> str:
    """One line of GitHub-flavoured Markdown that shows `text` as it is."""
    line = " ".join(visible(text).split())
    return _MARKDOWN.sub(r"\\\1", "".join(_ENTITIES.get(c, c) for c in line))


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> list[str]:
    """The lines of a table. The first `texts` columns are aligned left, the others right. Cells are escaped."""
    rule = ["---" if i < texts else "---:" for i in range(len(head))]
    return ["| " + " | ".join(cells) + " |" for cells in (map(markdown, head), rule, *(map(markdown, r) for r in rows))]


def command_data(text: str) -> str:
    """`text` as the message of a workflow command. It becomes one line."""
    return visible(text).replace("%", "%25").replace("\n", "%0A")


def command_property(text: str) -> str:
    """`text` as a property of a workflow command, in which colons and commas must be escaped too."""
    return command_data(text).replace(":", "%3A").replace(",", "%2C")
