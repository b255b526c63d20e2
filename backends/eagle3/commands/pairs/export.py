"""`specgate engine export`: write a pair for other engines."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specgate.commands.door import command
from specgate.terminal import echo

if TYPE_CHECKING:
    from specgate.backends.eagle3.pair_tools.export.differences import Format

FOLDER = click.Path(path_type=Path)
FORMATS = ("hf", "speculators", "gguf", "turbomind")
DTYPES = ("bfloat16", "float16", "float32")


@command("export", short_help="Write a pair for vLLM, SGLang, llama.cpp and others.")
@click.option("--format", "layout", type=click.Choice(FORMATS), required=True, help="Layout; see above.")
@click.option("--pair", metavar="NAME|DIR", help="Pair by name, or its folder (default: demo).")
@click.option("--target", type=FOLDER, metavar="DIR", help="Hugging Face folder of the target.")
@click.option("--draft", type=FOLDER, metavar="DIR", help="Hugging Face folder of its EAGLE-3 draft.")
@click.option("--dtype", type=click.Choice(DTYPES), help="Type of the weights (default: as they are stored).")
@click.option("--replace", is_flag=True, help="Replace an earlier export in OUT.")
@click.argument("out", type=FOLDER)
def export(
    layout: Format,
    pair: str | None,
    target: Path | None,
    draft: Path | None,
    dtype: str | None,
    replace: bool,
    out: Path,
) -> None:
    """Write a pair into the folder OUT in the layout that other engines read, and print how to start each of them.

    \b
    Example: specgate engine export --format hf OUT

    \b
    hf           OUT/target and OUT/draft: vLLM, SGLang, TensorRT-LLM, LMDeploy
    speculators  the same with the draft as the speculators library has it: vLLM
    gguf         OUT/target.gguf and OUT/draft.gguf: llama.cpp
    turbomind    OUT/target as in hf, the draft as config.yaml and raw weights

    OUT/EXPORT.json says what the files were made from, which conventions were applied, and what an engine does
    differently with them.
    """
    import torch

    from specgate.backends.eagle3.pair_tools.export.command import Wish
    from specgate.backends.eagle3.pair_tools.export.command import export as run
    from specgate.pairs.resolve import refuse_two_names, resolve_pair

    refuse_two_names(pair, target, draft)
    ref = resolve_pair(pair, target, draft)
    done = run(ref, Wish(layout, out.resolve(), getattr(torch, dtype) if dtype else None, replace))
    files = [file for file in out.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files) / 1e6
    echo(f"pair {ref.name} as {layout}: {out}, {len(files)} files, {size:.1f} MB")
    for sentence in done.differences:
        echo(textwrap.fill(f"differs: {sentence}", 80, subsequent_indent="  "))
    for what, line in done.commands:
        echo(f"\n{what}\n{line}")
