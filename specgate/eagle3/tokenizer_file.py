"""Reading a Hugging Face `tokenizer.json`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from specgate.errors import CheckpointError
from specgate.files.panics import refusing

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LARGEST: Final = 256 << 20
"""Bytes. The largest vocabularies in use make files of about 40 MB."""


def read_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer in `file`. Raises CheckpointError where it is missing, too large, or no tokenizer."""
    from tokenizers import Tokenizer

    def refused(why: str) -> CheckpointError:
        return CheckpointError(f"{file}: not a tokenizer ({why})", hint="it must be a Hugging Face tokenizer.json")

    with refusing(refused):
        if file.stat().st_size > LARGEST:
            raise refused(f"more than {LARGEST} bytes")
        return Tokenizer.from_file(str(file))
