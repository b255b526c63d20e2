"""Find the pair that is meant: one that a plug-in has under a name, or folders on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from specgate import plugins
from specgate.checkpoints.hf.any_target import read_any_target, read_served_target
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.hf_keys import PLANTED, read_config
from specgate.checkpoints.turbomind import TARGET, is_draft, read_either
from specgate.contract import AcceptanceSource, PairRef
from specgate.errors import CheckpointError, UsageError

DEMO: Final = "demo"
"""The pair that is meant where nothing says which."""
SERVED_KEY: Final = "specgate_served"
"""A key of config.json in a folder that holds what a server tells of its model: it needs no tokenizer."""
SERVED: Final = "served"
"""The name of a pair whose weights are on a server. What the server says that it is, is in `EngineFacts.identity`."""


def resolve_pair(pair: str | None, target: Path | None, draft: Path | None, *, needs_draft: bool = True) -> PairRef:
    """The pair that a scenario or a command line asks for.

    `pair` is the name of a pair that a plug-in has, or a folder that holds a `target` and a `draft`. `target` and
    `draft` are folders and win over `pair`. A draft alone is taken for a draft of the demo target. `needs_draft`:
    whether a target without a draft is refused. Engines with methods that need none refuse the others themselves.

    Raises UsageError for an unknown name or folder, EnvironmentRefused where the demo target has not been fetched.
    """
    if target is not None:
        if draft is None and not needs_draft:
            return PairRef(target.name, checkpoint("--target", target), None)
        if draft is None:
            raise UsageError(f"--target {target}: no draft given", hint="give its EAGLE-3 draft too: --draft DIR")
        return of_folders(target.name, checkpoint("--target", target), checkpoint("--draft", draft, draft=True))
    if draft is not None:
        return of_folders(f"{DEMO}+{draft.name}", named(DEMO).target, checkpoint("--draft", draft, draft=True))
    if pair is None or pair in shipped_names():
        return named(pair or DEMO)
    folder = Path(pair)
    if not (folder / "target").is_dir() or not (folder / "draft").is_dir():
        raise unknown(pair)
    return of_folders(
        folder.resolve().name, checkpoint("pair", folder / "target"), checkpoint("pair", folder / "draft", draft=True)
    )


def served_pair(tokenizer: Path) -> PairRef:
    """The pair of servers that run already, whose weights are not here. `tokenizer`: that of their target, or a folder
    with it.

    Raises UsageError where there is no such file.
    """
    file = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
    if not file.is_file() and not as_told(tokenizer):
        raise UsageError(
            f"--tokenizer {tokenizer}: {file} does not exist",
            hint="the tokenizer.json of the served target, or a folder with it",
        )
    if file.suffix != ".json":
        raise UsageError(f"--tokenizer {tokenizer}: not a .json file", hint="the tokenizer.json of the served target")
    return PairRef(SERVED, tokenizer.resolve(), None, weights="server")


def as_told(folder: Path) -> bool:
    """Return whether a folder holds what a server tells of its model."""
    return (folder / "config.json").is_file() and SERVED_KEY in read_config(folder)


def refuse_two_names(pair: str | None, target: Path | None, draft: Path | None, tokenizer: Path | None = None) -> None:
    """Raise UsageError where a command line names its pair in two ways."""
    if pair is not None and (target is not None or draft is not None):
        raise UsageError("--pair together with --target or --draft", hint="name the pair in one way")
    if tokenizer is not None and (pair or target or draft):
        raise UsageError(
            "--tokenizer together with --pair, --target or --draft",
            hint="it stands for a pair whose weights only a server has",
        )


def shipped_names() -> tuple[str, ...]:
    """Return the names of all pairs that plug-ins have."""
    return tuple(name for source in plugins.pair_sources() for name in source.names())


def named(name: str) -> PairRef:
    """Return the pair that a plug-in has under this name. Raises UsageError where none has it."""
    for source in plugins.pair_sources():
        if name in source.names():
            return source.pair(name)
    raise unknown(name)


def unknown(name: str) -> UsageError:
    return UsageError(
        f"pair {name!r} is not known, and no folder that holds a target and a draft",
        hint=f"known: {', '.join(shipped_names()) or 'none without a plug-in that has pairs'}",
    )


def of_folders(name: str, target: Path, draft: Path) -> PairRef:
    """The pair in two folders. It counts as planted where the draft's config says so."""
    planted = PLANTED in read_either(draft)
    source: AcceptanceSource = "planted" if planted else "real"
    return PairRef(name, target, draft, source)


def checkpoint(option: str, folder: Path, *, draft: bool = False) -> Path:
    """`folder` as an absolute path. Raises UsageError where it holds neither a Hugging Face checkpoint nor one that was
    converted for TurboMind.
    """
    if not folder.is_dir():
        raise UsageError(f"{option} {folder}: no such folder", hint="it must be a Hugging Face folder with config.json")
    if (folder / TARGET).is_dir() and not (folder / "config.json").is_file():
        raise UsageError(
            f"{option} {folder}: holds {TARGET}, but no config.json",
            hint="copy the target's *.json there, as LMDeploy 0.7.3 and later do",
        )
    if not (folder / "config.json").is_file() and not (draft and is_draft(folder)):
        hint = "it must be a Hugging Face folder" + (", or a draft converted for TurboMind" if draft else "")
        raise UsageError(f"{option} {folder}: holds no config.json", hint=hint)
    return folder.resolve()


def target_limits(
    pair: PairRef, rope: Mapping[str, float | str] | None, *, any_architecture: bool = False
) -> tuple[int | None, int]:
    """(positions that the target allows under the RoPE override `rope`, size of its vocabulary).

    With `any_architecture` the engine is somebody else's and reads the target by itself. Positions are None where the
    config states none. Raises CheckpointError for a bad config, and otherwise for one that specgate's own engines do
    not support.
    """
    if pair.weights == "server":
        try:
            served = read_served_target(pair.tokenizer)
        except CheckpointError as error:  # of a file that the command line names
            raise UsageError(error.message, hint=error.hint) from error
        return served.max_positions, served.vocab
    if any_architecture and rope is None:
        config = read_any_target(pair.target)
        return config.max_positions, config.vocab
    geometry = target_geometry(read_config(pair.target), rope)
    return geometry.max_positions, geometry.vocab
