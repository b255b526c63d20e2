"""Plain words: locals named by what they hold, docstrings that say what a thing is, documents in the field's words."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import ROOT

SHELVES = ("specgate", "backends", "gates", "reports", "bench")
VAGUE = {"found", "said", "told", "asked", "held"}
QUESTIONS = {"what", "whether", "how", "which", "where", "that", "who", "when", "why"}
MOST_QUESTIONS = 0.03
"""Share of docstrings that may begin with one of `QUESTIONS`."""

OF_THE_HOUSE = r"noise passports?|passports?|partings?|grounds?|streaks?|part(?:y|ies) of rows|unasked"
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)

NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)


def sources(shelf: str) -> Iterator[tuple[str, ast.Module]]:
    for file in sorted((ROOT / shelf).rglob("*.py")):
        yield file.relative_to(ROOT).as_posix(), ast.parse(file.read_text(encoding="utf-8"))


def vague_locals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for node in ast.walk(function):
                if isinstance(node, ast.arg) and node.arg in VAGUE:
                    yield node.lineno, node.arg
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE:
                    yield node.lineno, node.id


@pytest.mark.parametrize("shelf", (*SHELVES, "tests"))
def test_locals_are_named_by_what_they_hold(shelf: str) -> None:
    vague = {f"{file}:{line} {name}" for file, tree in sources(shelf) for line, name in vague_locals(tree)}
    assert not vague, "\n".join(sorted(vague))


@pytest.mark.parametrize("shelf", SHELVES)
def test_docstrings_say_what_a_thing_is_and_ask_no_question(shelf: str) -> None:
    first_words = [
        (f"{file}:{getattr(node, 'lineno', 1)}", text.split()[0].strip("`,.:").lower())
        for file, tree in sources(shelf)
        for node in ast.walk(tree)
        if isinstance(node, NAMED) and (text := ast.get_docstring(node))
    ]
    questions = [place for place, word in first_words if word in QUESTIONS]
    assert len(questions) <= MOST_QUESTIONS * len(first_words), "\n".join(questions)


@pytest.mark.parametrize(
    "document", [*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*.md"))], ids=lambda file: file.name
)
def test_documents_have_no_words_of_the_house(document: Path) -> None:
    prose = CODE.sub("", document.read_text(encoding="utf-8"))
    assert not (used := re.findall(rf"\b(?:{OF_THE_HOUSE})\b", prose, re.IGNORECASE)), used
