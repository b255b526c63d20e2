"""Read the files of a pair on this machine. A file that is missing or bad is said, and costs no more than that."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import numpy as np

from specgate.analysis.speculation.evidence import HeadReading, HeadState, PairConfigs
from specgate.checkpoints.arrays import StoredArray, arrays_of_folder, check_converted
from specgate.checkpoints.auxiliary_layers import resolve_boundaries
from specgate.checkpoints.files import NotReadHere
from specgate.checkpoints.heads.maps import check_map
from specgate.checkpoints.heads.names import head_names
from specgate.checkpoints.heads.reading import read_head, read_map
from specgate.checkpoints.hf.draft import TRAINED_FOR, DraftKeys, OtherTarget, window_of
from specgate.checkpoints.hf_keys import PLANTED, Keys
from specgate.checkpoints.turbomind import IDS, converted_weights, is_draft, read_either
from specgate.contract import PairRef
from specgate.errors import CheckpointError, UnsupportedDraft

T = TypeVar("T")
STATES: Final[Mapping[type[CheckpointError], HeadState]] = {
    UnsupportedDraft: "unsupported",
    OtherTarget: "other target",
}
"""Error of `read_head` → what it says of the head."""


def configs_of(pair: PairRef) -> PairConfigs:
    """Read the configs, the headers of the draft's weights, its vocabulary map, and the tokenizers of `pair`."""
    problems: list[str] = []
    configs = PairConfigs()
    folder = pair.tokenizer.parent if pair.weights == "server" else pair.target
    target = tried(lambda: read_either(folder), problems) if folder == pair.target or has_config(folder) else None
    if target is not None:
        configs = tried(lambda: with_target(configs, target), problems) or configs
        if converted_weights(folder) is not None:
            tried(lambda: check_converted(folder, target), problems)
    drafts = pair.draft
    draft = tried(lambda: read_either(drafts), problems) if drafts is not None else None
    if draft is not None:
        for add in (with_draft, with_files):
            configs = tried(partial(add, configs, draft), problems) or configs
        configs = replace(configs, tokenizers=tokenizers(pair.tokenizer, draft.file.parent))
    named = configs.head.text if configs.head else ""
    return replace(configs, unreadable=tuple(problem for problem in problems if problem != named))


def tried(read: Callable[[], T], problems: list[str]) -> T | None:
    """Call `read` and return its result; None, with the reason in `problems`, if a file cannot be read."""
    try:
        return read()
    except (CheckpointError, OSError) as error:
        problems.append(str(error).splitlines()[0])
        return None


def with_target(configs: PairConfigs, config: Keys) -> PairConfigs:
    """The sizes of the target, whatever its architecture; of a model with several parts, those of its text part."""
    text = config.part("text_config") if "hidden_size" not in config and "text_config" in config else config
    return replace(
        configs,
        target_hidden=text.optional_count("hidden_size"),
        target_vocab=text.optional_count("vocab_size"),
        target_layers=text.optional_count("num_hidden_layers"),
        target_positions=text.optional_count("max_position_embeddings"),
    )


def with_draft(configs: PairConfigs, config: Keys) -> PairConfigs:
    keys = DraftKeys.of(config)
    note = keys.head.part(TRAINED_FOR)
    own_width = "target_hidden_size" in keys.head
    vocab = keys.layer.optional_count("vocab_size")
    return replace(
        configs,
        made_for_hidden=keys.head.count("target_hidden_size")
        if own_width
        else keys.layer.optional_count("hidden_size"),
        made_for_vocab=vocab,
        made_for_layers=note.optional_count("num_hidden_layers"),
        made_for_sha256=note.text("sha256"),
        draft_vocab=keys.head.optional_count("draft_vocab_size") or vocab,
        draft_positions=keys.layer.optional_count("max_position_embeddings"),
        window=window_of(keys.layer),
    )


def with_files(configs: PairConfigs, config: Keys) -> PairConfigs:
    """Add what the draft's weights say of it or, if they are not here, its config alone. No weights are read.

    A draft with weights made from a seed has none in files.
    """
    folder = config.file.parent
    if PLANTED in config and not list(folder.glob("*.safetensors")):
        return replace(with_boundaries(configs, config), vocabulary_map="")
    try:
        arrays = arrays_of_folder(folder)
    except NotReadHere as error:
        whole = "" if configs.draft_vocab == configs.target_vocab else None
        reading = HeadReading("unread", error.message, error.hint or "")
        return replace(with_boundaries(configs, config), head=reading, vocabulary_map=whole)
    except CheckpointError as error:
        return replace(configs, head=HeadReading("misfit", error.message, error.hint or ""))
    if is_draft(folder):
        return with_converted(configs, config, arrays)
    sizes = sizes_of(configs)
    if sizes is None:
        return with_boundaries(configs, config)
    try:
        head = read_head(config, sizes, arrays)
    except CheckpointError as error:
        state: HeadState = next((state for kind, state in STATES.items() if isinstance(error, kind)), "misfit")
        return replace(configs, head=HeadReading(state, error.message, error.hint or ""))
    g = head.geometry
    configs = replace(
        configs,
        made_for_hidden=g.target_hidden,
        made_for_vocab=g.vocab,
        draft_vocab=g.draft_vocab,
        draft_positions=g.max_positions,
        window=g.window,
        boundaries=head.capture.boundaries,
        head=HeadReading("fits", warnings=head.warnings),
    )
    try:
        warnings = read_map(head, arrays, lambda name: arrays[name].read(), str(folder)).warnings
    except CheckpointError as error:
        return replace(configs, vocabulary_map=error.message, map_todo=error.hint or "")
    return replace(configs, vocabulary_map="; ".join(warnings))


def with_converted(configs: PairConfigs, config: Keys, arrays: Mapping[str, StoredArray]) -> PairConfigs:
    """Add what the files of a draft that was converted for TurboMind say. Its config gives them their shapes."""
    configs = with_boundaries(replace(configs, head=HeadReading("fits"), vocabulary_map=""), config)
    if (stored := arrays.get(IDS)) is None:
        return configs
    offsets = stored.read().astype(np.int64) - np.arange(stored.shape[0])
    try:
        warnings = check_map(offsets, None, stored.dtype, config.count("vocab_size"), f"{stored.file} as offsets")
    except CheckpointError as error:
        return replace(configs, vocabulary_map=error.message, map_todo=f"{IDS} must hold target ids, each once")
    return replace(configs, vocabulary_map="; ".join(warnings))


def with_boundaries(configs: PairConfigs, config: Keys) -> PairConfigs:
    if configs.target_layers is None:
        return configs
    return replace(configs, boundaries=resolve_boundaries(config, configs.target_layers).boundaries)


class Sizes(NamedTuple):
    """The sizes of a target that a draft must fit."""

    layers: int
    hidden: int
    vocab: int
    max_positions: int


def sizes_of(c: PairConfigs) -> Sizes | None:
    """The sizes of the target; None where its config does not state them all."""
    if c.target_layers is None or c.target_hidden is None or c.target_vocab is None:
        return None
    return Sizes(c.target_layers, c.target_hidden, c.target_vocab, c.target_positions or 0)


def arrays_of(folder: Path) -> dict[str, StoredArray] | None:
    """The tensors in the safetensors files of `folder`; None where there are none that can be read."""
    try:
        return arrays_of_folder(folder)
    except CheckpointError:
        return None


def has_config(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def tokenizers(target: Path, draft: Path) -> str | None:
    """Differences between the tokenizer file `target` and that in the folder `draft`; "" if they agree, None if one is
    not there.

    Files of the same content agree, and so do files that map the same tokens to the same ids.
    """
    files = [target, draft / "tokenizer.json"]
    if not all(file.is_file() for file in files):
        return None
    if len({hashlib.sha256(file.read_bytes()).hexdigest() for file in files}) == 1:
        return ""
    from specgate.checkpoints.tokenizer_file import read_tokenizer

    try:
        theirs, own = (read_tokenizer(file).get_vocab() for file in files)
    except CheckpointError as error:
        return str(error).splitlines()[0]
    other = [token for token, number in own.items() if theirs.get(token, number) != number]
    if other:
        token = other[0]
        return f"{len(other)} tokens have other ids: {token!r} is {own[token]} for the draft, {theirs[token]} here"
    if missing := [token for token in own if token not in theirs]:
        return f"{len(missing)} tokens of the draft's are not the target's, {missing[0]!r} among them"
    return ""


def wrong_weights(draft: Path) -> str | None:
    """Defects in the values of the draft's weights: no finite numbers, or nothing but zeros. "" if there is none; None
    if they cannot be read here.

    Reads all of them, which takes seconds for a draft of a gigabyte.
    """
    arrays = arrays_of(draft)
    if arrays is None:
        return None
    bad, zero = [], []
    names = arrays if is_draft(draft) else head_names(arrays, draft).stored.values()
    for name in names:
        if arrays[name].is_float and (tensor := arrays[name].read()).size:
            low, high = tensor.min(), tensor.max()
            if not (np.isfinite(low) and np.isfinite(high)):
                bad.append(name)
            elif low == high == 0:
                zero.append(name)
    kinds = (("not finite", bad), ("all zero", zero))
    return "; ".join(f"{kind}: {', '.join(names[:3])}" for kind, names in kinds if names)
