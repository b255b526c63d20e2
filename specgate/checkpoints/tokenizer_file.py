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
    """The tokenizer in `file`. Raises CheckpointError where it is missing, too large, no tokenizer, or one that cannot
    encode a letter.
    """
    from tokenizers import Tokenizer

    def refused(why: str) -> CheckpointError:
        return CheckpointError(f"{file}: not a tokenizer ({why})", hint="it must be a Hugging Face tokenizer.json")

    with refusing(refused):
        if file.stat().st_size > LARGEST:
            raise refused(f"more than {LARGEST} bytes")
        tokenizer = Tokenizer.from_file(str(file))
        plain, full = (tokenizer.encode("a", add_special_tokens=special).ids for special in (False, True))
        if not plain or plain[0] not in full:
            raise refused(f"it encodes the letter a as {plain[:5]}, and with its special tokens as {full[:5]}")
        return tokenizer


def opening_ids(tokenizer: Tokenizer) -> list[int]:
    """The tokens that the tokenizer puts before every text: a BOS token, or none."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    full = tokenizer.encode("a", add_special_tokens=True).ids
    return full[: full.index(plain[0])]
