"""Options of the commands that load an engine for one prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from specgate.commands.numbers import CONTEXT

CHECKPOINT: Final = click.Path(path_type=Path)
TARGET: Final = click.option("--target", type=CHECKPOINT, metavar="DIR", help="Target checkpoint (HF folder).")
DRAFT: Final = click.option("--draft", type=CHECKPOINT, metavar="DIR", help="EAGLE-3 draft checkpoint (HF folder).")
DTYPE: Final = click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Dtype (default: bfloat16 with a GPU, else float32).",
)
PROMPT: Final = click.option("--prompt", "text", metavar="TEXT", help="Prompt (default: a text that comes along).")
PROMPT_FILE: Final = click.option(
    "--prompt-file",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Prompt from a file: text, or a JSON list of token ids.",
)
PROMPT_LENGTH: Final = click.option(
    "--context", type=CONTEXT, help="Exact length of the prompt, of the texts that scenarios use."
)
