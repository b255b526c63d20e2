"""The commands that start each engine with an export, the same as specgate's server back ends use."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from specgate.backends.eagle3.pair_tools.export.differences import ENGINES, Format, reader
from specgate.contract import PairRef, Role

ROLE: Final = Role(3)
WIDTH: Final = 80


def commands(out: Path, ref: PairRef, layout: Format, dtype: str, positions: int) -> Iterator[tuple[str, str]]:
    """(purpose, command) for every engine that reads `layout`, and for measuring with one of them.

    `dtype` is spelled as in torch. `positions` is the longest context.
    """
    files = {"target_gguf": str(out / "target.gguf"), "draft_gguf": str(out / "draft.gguf")}
    own = files if layout == "gguf" else {"engine": "turbomind"} if layout == "turbomind" else {}
    for engine in ENGINES[layout]:
        pair = PairRef(ref.name, out / "target", out / "draft")
        command = reader(engine).start_command(pair, ROLE, dtype, positions, own)
        env = [f"{key}={shlex.quote(value)}" for key, value in command.env.items()]
        yield f"start {engine}", wrapped([*env, *flags(command.argv)])
    yield f"measure (--backend {', '.join(ENGINES[layout])})", wrapped([*flags(measuring(out, ref, layout, own))])


def measuring(out: Path, ref: PairRef, layout: Format, own: Mapping[str, str]) -> list[str]:
    """The specgate command. It reads sizes and tokenizer from Hugging Face folders, so a GGUF export points to the
    source.
    """
    command = ["specgate", "micro", "--backend", ENGINES[layout][0]]
    options = [word for key, value in own.items() for word in ("-o", f"{key}={value}")]
    if layout != "gguf":
        return [*command, "--pair", str(out), *options]
    return [*command, "--target", str(ref.target), "--draft", str(ref.draft), *options]


def flags(argv: Sequence[str]) -> Iterator[str]:
    """The words of a command line, each flag joined with its value."""
    words = list(argv)
    while words:
        word = shlex.quote(words.pop(0))
        if word.startswith("-") and words and not words[0].startswith("-"):
            word = f"{word} {shlex.quote(words.pop(0))}"
        yield word


def wrapped(parts: Sequence[str]) -> str:
    """Join `parts` into shell lines of at most `WIDTH` columns, unless a single part is longer."""
    lines = ["  "]
    for part in parts:
        if len(lines[-1]) + len(part) + 3 > WIDTH and lines[-1].strip():
            lines.append("    ")
        lines[-1] += part + " "
    return "\\\n".join(lines).rstrip()
