"""`specgate pairs export`: open, write, describe."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch

from specgate.core import PairRef
from specgate.errors import EnvironmentRefused, UsageError
from specgate.pairs.export import gguf_model, hf
from specgate.pairs.export.gguf_vocab import read_vocabulary
from specgate.pairs.export.opened import OpenPair, open_pair
from specgate.pairs.whole_folder import appearing

Format = Literal["hf", "speculators", "gguf"]


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asks for; `dtype` None: weights as they are stored."""

    format: Format
    out: Path
    dtype: torch.dtype | None = None
    replace: bool = False


def export(ref: PairRef, wish: Wish) -> None:
    pair = open_pair(ref)
    with appearing(wish.out) as partial:
        write(pair, wish, partial)


def write(pair: OpenPair, wish: Wish, folder: Path) -> None:
    if wish.format == "gguf":
        vocabulary = read_vocabulary(pair.ref.target, pair.target.geometry.vocab)
        gguf_model.write_target(folder / "target.gguf", pair, vocabulary, wish.dtype)
        gguf_model.write_draft(folder / "draft.gguf", pair, vocabulary, wish.dtype)
        return
    hf.write_target(folder / "target", pair, wish.dtype)
    if wish.format == "hf":
        hf.write_eagle_draft(folder / "draft", pair, wish.dtype)
    else:
        hf.write_speculators_draft(folder / "draft", pair, wish.dtype, wish.out / "target")
