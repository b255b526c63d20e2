"""`specgate engine export`: open the pair, write it in another engine's layout, and say what differs there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from specgate.backends.eagle3.pair_tools.export import gguf_model, hf, turbomind
from specgate.backends.eagle3.pair_tools.export.differences import Format, differences, short
from specgate.backends.eagle3.pair_tools.export.gguf_vocab import read_vocabulary
from specgate.backends.eagle3.pair_tools.export.hf import write_manifest
from specgate.backends.eagle3.pair_tools.export.opened import (
    OpenPair,
    draft_tensors,
    dtype_name,
    open_pair,
    target_tensors,
)
from specgate.backends.eagle3.pair_tools.export.room import refuse_occupied, require_disk, writing
from specgate.backends.eagle3.pair_tools.export.starting import commands
from specgate.backends.eagle3.pairs.whole_folder import appearing
from specgate.contract import PairRef


@dataclass(frozen=True, slots=True)
class Wish:
    """The user's request. `out` is absolute. `dtype` None keeps the weights as they are stored."""

    layout: Format
    out: Path
    dtype: torch.dtype | None = None
    replace: bool = False


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export.

    `differences` are sentences. `commands` are pairs of a purpose and a command, wrapped to 80 columns.
    """

    differences: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]


def export(ref: PairRef, wish: Wish) -> Exported:
    """Write the pair. The folder appears whole or not at all.

    Raises UsageError for an occupied folder and for what the format cannot express, CheckpointError for a pair that
    specgate itself could not run, EnvironmentRefused where the files cannot be written.
    """
    refuse_occupied(wish.out, wish.replace)
    pair = open_pair(ref)
    target, draft = target_tensors(pair, wish.dtype), draft_tensors(pair, wish.dtype)
    require_disk(wish.out, sum(tensor.nbytes for tensor in (*target.values(), *draft.values())))
    differing = differences(pair, wish.layout, wish.dtype)
    with writing(wish.out), appearing(wish.out) as folder:
        write(pair, wish, folder)
        write_manifest(folder, pair, wish.layout, short(wish.dtype) if wish.dtype else "as stored", differing)
    limit = pair.target.geometry.max_positions
    with writing(wish.out):  # the command for TensorRT-LLM comes with a config file, which is written here
        starts = tuple(commands(wish.out, ref, wish.layout, dtype_name(target), limit))
    return Exported(differing, starts)


def write(pair: OpenPair, wish: Wish, folder: Path) -> None:
    """Write the pair's files in the layout asked for."""
    match wish.layout:
        case "hf":
            hf.write_target(folder / "target", pair, wish.dtype)
            hf.write_eagle_draft(folder / "draft", pair, wish.dtype)
        case "speculators":
            hf.write_target(folder / "target", pair, wish.dtype)
            hf.write_speculators_draft(folder / "draft", pair, wish.dtype, wish.out / "target")
        case "turbomind":
            hf.write_target(folder / "target", pair, wish.dtype)
            turbomind.write_draft(folder / "draft", pair, wish.dtype)
            hf.copy_files(pair.draft.config.file.parent, folder / "draft", hf.PAPERS)
        case "gguf":
            gguf_model.refuse_inexpressible(pair, wish.dtype)
            vocabulary = read_vocabulary(pair.ref.target, pair.target.geometry.vocab)
            gguf_model.write_target(folder / "target.gguf", pair, vocabulary, wish.dtype)
            gguf_model.write_draft(folder / "draft.gguf", pair, vocabulary, wish.dtype)
            for name, config in (("target", pair.target.config), ("draft", pair.draft.config)):
                hf.copy_files(config.file.parent, folder, hf.PAPERS, f"{name}-")
