"""A pair opened for export: room for what is written, the checkpoint, and how the result is started."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.pair import DraftFiles, TargetFiles, open_draft, open_target
from specgate.backends.eagle3.pair_tools.export.differences import ENGINES, Format, reader
from specgate.backends.eagle3.pair_tools.export.hf import NAME
from specgate.backends.eagle3.pair_tools.shards import LazyTensor, lazy_tensors
from specgate.contract import PairRef, Role
from specgate.errors import EnvironmentRefused, UsageError


def refuse_occupied(out: Path, replace: bool) -> None:
    """Raise UsageError where `out` holds something that must not be lost.

    Only an earlier export may be overwritten, and only with `replace`.
    """
    nearest = existing(out)
    if not nearest.is_dir():
        raise UsageError(f"{nearest}: is no folder", hint="name a folder")
    if nearest != out or not any(out.iterdir()):
        return
    if not (out / NAME).is_file():
        raise UsageError(f"{out}: not empty, and no earlier export", hint="name a new folder")
    if not replace:
        raise UsageError(f"{out}: holds an earlier export", hint="name a new folder, or add --replace")


def require_disk(out: Path, needed: int) -> None:
    """Raise EnvironmentRefused where the disk of `out` has less than `needed` bytes free."""
    free = shutil.disk_usage(existing(out)).free
    if needed > free:
        raise EnvironmentRefused(
            f"{out}: the export takes {needed / 1e9:.2f} GB, its disk has {free / 1e9:.2f} GB free",
            hint="free some space, or name a folder on another disk",
        )


def existing(out: Path) -> Path:
    """`out` itself, or the nearest of its parents that exists."""
    return next(path for path in (out, *out.parents) if path.exists())


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Turn errors of writing below `out` into EnvironmentRefused."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        raise EnvironmentRefused(
            f"{out}: cannot be written: {reason(error)}", hint="nothing was kept of it; name another folder"
        ) from error


def reason(error: Exception) -> str:
    """The cause of a failed write. NumPy's errors about short writes have no error number, only two item counts."""
    if not isinstance(error, OSError):
        return str(error)
    return os.strerror(error.errno) if error.errno else f"{error} (is the disk full?)"


@dataclass(frozen=True, slots=True)
class OpenPair:
    """An opened pair. The hashes are over weights and configs, as in results."""

    ref: PairRef
    target: TargetFiles
    draft: DraftFiles
    target_sha256: str
    draft_sha256: str


def open_pair(ref: PairRef) -> OpenPair:
    """Open the pair. Raises CheckpointError for a pair that specgate itself could not run."""
    assert ref.draft is not None
    target = open_target(ref.target)
    target_sha256 = target.sha256()
    draft = open_draft(ref.draft, target.geometry, target_sha256=target_sha256)
    return OpenPair(ref, target, draft, target_sha256, draft.sha256())


def target_tensors(pair: OpenPair, dtype: torch.dtype | None) -> dict[str, LazyTensor]:
    """The target's tensors by Hugging Face name, floats in `dtype` or as stored; without a tied `lm_head.weight`."""
    return cast(lazy_tensors(pair.target.source, pair.target.wanted), dtype)


def draft_tensors(pair: OpenPair, dtype: torch.dtype | None) -> dict[str, LazyTensor]:
    """The draft's tensors by the EAGLE authors' names, floats in `dtype` or as stored.

    `lm_head.weight` is always there, because engines differ in what they do without one. With a reduced vocabulary,
    `d2t` (int64, offsets) and `t2d` (bool) are there too.
    """
    draft = pair.draft
    stored = lazy_tensors(draft.source, [draft.names[name] for name in draft.weights])
    tensors = {name: stored[draft.names[name]] for name in draft.weights}
    if "lm_head.weight" not in tensors:
        tensors["lm_head.weight"] = target_head(pair.target)
    if draft.d2t is not None:
        t2d = mask_of(draft.d2t, draft.geometry.vocab) if draft.t2d is None else draft.t2d
        tensors |= {"d2t": in_memory(draft.d2t), "t2d": in_memory(t2d)}
    return cast(tensors, dtype)


def target_head(target: TargetFiles) -> LazyTensor:
    """The target's LM head, which is its embedding where they are tied."""
    name = "model.embed_tokens.weight" if target.geometry.tied_embeddings else "lm_head.weight"
    return lazy_tensors(target.source, [name])[name]


def mask_of(d2t: Tensor, vocab: int) -> Tensor:
    """bool [vocab], true for target tokens that the draft knows."""
    ids = d2t + torch.arange(len(d2t))
    return torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)


def in_memory(tensor: Tensor) -> LazyTensor:
    return LazyTensor(tuple(tensor.shape), tensor.dtype, lambda: tensor)


def cast(tensors: Mapping[str, LazyTensor], dtype: torch.dtype | None) -> dict[str, LazyTensor]:
    """Convert floats to `dtype`, where one is given."""
    return {n: t.to(dtype) if dtype and t.dtype.is_floating_point else t for n, t in tensors.items()}


def dtype_name(tensors: Mapping[str, LazyTensor]) -> str:
    """The widest float dtype among `tensors`, spelled as in torch; a config states it as the dtype of its weights."""
    widest = max((t.dtype for t in tensors.values() if t.dtype.is_floating_point), key=lambda d: d.itemsize)
    return str(widest).removeprefix("torch.")


ROLE: Final = Role(3)
WIDTH: Final = 80


def commands(out: Path, ref: PairRef, layout: Format, dtype: str, positions: int) -> Iterator[tuple[str, str]]:
    """(purpose, command) for every engine that reads `layout`, and for measuring with one of them.

    `dtype` is spelled as in torch. `positions` is the longest context.
    """
    own = {"target_gguf": str(out / "target.gguf"), "draft_gguf": str(out / "draft.gguf")} if layout == "gguf" else {}
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
    if layout != "gguf":
        return [*command, "--pair", str(out)]
    files = [word for key, value in own.items() for word in ("-o", f"{key}={value}")]
    return [*command, "--target", str(ref.target), "--draft", str(ref.draft), *files]


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
