"""Commands in documents: fenced blocks, and the command lines of `specgate` in them and in the text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=fence)$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?.*?\n.*?^\1$", re.DOTALL | re.MULTILINE)
PROGRAM = re.compile(r"(?:.*/)?specgate(?::[\w.-]+)?")
"""What is typed: the command, its path, or an image whose entry point it is."""
PREFIX = re.compile(r"\w+=.*|then|do|else|!|time|nice")
ARRAY = re.compile(r"\$\{\w+\[@\]\}")
"""Words that stand in a variable of the shell."""
END = re.compile(r"[;&|()<>]+")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `section`: the heading above it; `line`: where its text begins, from 1."""

    section: str
    language: str
    line: int
    text: str


def blocks(file: Path) -> Iterator[Block]:
    text = file.read_text(encoding="utf-8")
    blank = FENCE.sub(lambda fence: re.sub(r"[^\n]", " ", fence[0]), text)
    headings = [(fence.start(), fence[1]) for fence in HEADING.finditer(blank)]
    for fence in FENCE.finditer(text):
        above = [name for at, name in headings if at < fence.start()]
        line = text.count("\n", 0, fence.start("text")) + 1
        yield Block(above[-1] if above else "", fence["language"], line, fence["text"])


def typed(file: Path) -> Iterator[list[str]]:
    """The command lines of `specgate` in the shell and console blocks of a document, each without its first word."""
    for block in blocks(file):
        match block.language:
            case "sh" | "bash":
                yield from command_lines(block.text)
            case "console":
                yield from command_lines("\n".join(re.findall(r"^\$ (.*)$", block.text, re.MULTILINE)))


def mentioned(file: Path) -> Iterator[list[str]]:
    """Likewise those in the text, as inline code. What may be left out stands in brackets there, as in `[--json]`."""
    text = FENCE.sub("", file.read_text(encoding="utf-8"))
    for code in re.findall(r"`(specgate [^`]+)`", text):
        yield from command_lines(re.sub(r"[][]", "", code.replace("\n", " ")))


def command_lines(script: str) -> Iterator[list[str]]:
    """The same of a shell script."""
    for words in statements(HEREDOC.sub("", script)):
        while words and PREFIX.fullmatch(words[0]):
            words = words[1:]
        if words[:2] == ["docker", "run"]:
            at = next((i for i, word in enumerate(words) if re.fullmatch(r"specgate:[\w.-]+", word)), len(words))
            words = words[at:]
        elif words and words[0] == "./run_suite.sh" and words[1:2] in (["micro"], ["full"]):
            words = ["specgate", *words[1:]]
        if words and PROGRAM.fullmatch(words[0]):
            yield [word for word in words[1:] if not ARRAY.fullmatch(word)]


def statements(script: str) -> Iterator[list[str]]:
    """Words of each statement of a script, without redirections and comments."""
    line = ""
    for part in script.replace("\\\n", " ").splitlines():
        line += part
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # a quote that is still open: its text goes on in the next line
            line += " "
            continue
        line = ""
        yield from between(words)
    assert not line.strip(), f"a quote is never closed: {line}"


def between(words: list[str]) -> Iterator[list[str]]:
    """The statements of one line."""
    statement: list[str] = []
    redirected = False
    for word in words:
        if END.fullmatch(word):
            redirected = "<" in word or ">" in word
            if not redirected:
                yield statement
                statement = []
        elif redirected:
            redirected = False
        else:
            statement.append(word)
    yield statement
