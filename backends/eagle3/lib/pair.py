"""Open or load a target and its draft.

*Open*: translate the config and check that the tensors fit it, without reading weights. *Load*: read the weights too.
Tensors go by canonical names, and a hash identifies the content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import Tensor

from specgate.backends.eagle3.lib.checkpoint import TensorFiles, TensorSource, check_finite
from specgate.backends.eagle3.lib.layout import target_tensors
from specgate.backends.eagle3.lib.memory import require_room
from specgate.backends.eagle3.lib.planted.source import planted_draft, planted_target
from specgate.backends.eagle3.lib.shard import WHOLE, Shard, shards
from specgate.checkpoints.auxiliary_layers import AuxiliaryLayers
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry, TargetSizes
from specgate.checkpoints.heads.reading import read_head, read_map
from specgate.checkpoints.heads.tensors import Wanted, check_tensors
from specgate.checkpoints.hf.draft import TRAINED_FOR
from specgate.checkpoints.hf.target import target_geometry, with_generation_eos
from specgate.checkpoints.hf_keys import Keys, read_config, read_json
from specgate.checkpoints.mxfp4 import NO_NUMBER
from specgate.checkpoints.planted import from_seed
from specgate.errors import CheckpointError

RECOMPUTED: Final = r"(.+\.)?rotary_emb\.inv_freq"
"""Names of buffers that old checkpoints store and every engine recomputes."""


@dataclass(frozen=True, slots=True)
class TargetCheckpoint:
    """A loaded target: `tensors` in the dtype and on the device asked for.

    `lm_head.weight` is absent where it is tied to the embedding. `geometry` and `sha256` are of the whole target, of
    which `tensors` are the part `shard`.
    """

    geometry: TargetGeometry
    tensors: dict[str, Tensor]
    sha256: str
    config_file: Path
    shard: Shard = WHOLE


@dataclass(frozen=True, slots=True)
class DraftCheckpoint:
    """A loaded draft.

    `tensors` has no `embed_tokens.weight` or `lm_head.weight` where the draft uses the target's. `d2t` (int64 [W],
    offsets) is None where draft and target have the same vocabulary. `capture` names the target's auxiliary
    hidden-state layers. `geometry`, `d2t` and `sha256` are of the whole draft, of which `tensors` are the part `shard`.
    """

    geometry: DraftGeometry
    tensors: dict[str, Tensor]
    d2t: Tensor | None
    capture: AuxiliaryLayers
    sha256: str
    warnings: tuple[str, ...]
    shard: Shard = WHOLE


@dataclass(frozen=True, slots=True)
class TargetFiles:
    """An opened target: its tensors fit its config, and no weights were read.

    `hashed` are the config files that count as content for the hash.
    """

    geometry: TargetGeometry
    config: Keys
    source: TensorSource
    wanted: Mapping[str, Wanted]
    hashed: tuple[Path, ...]

    def sha256(self) -> str:
        return self.source.sha256(*self.hashed)


@dataclass(frozen=True, slots=True)
class DraftFiles:
    """An opened draft: its tensors fit its config. Only `d2t` and `t2d` were read, and checked.

    `names` maps canonical names to the names in the files.
    """

    geometry: DraftGeometry
    capture: AuxiliaryLayers
    config: Keys
    source: TensorSource
    names: Mapping[str, str]
    wanted: Mapping[str, Wanted]
    d2t: Tensor | None
    t2d: Tensor | None
    warnings: tuple[str, ...]

    @property
    def weights(self) -> dict[str, Wanted]:
        """The wanted tensors by canonical name, without `d2t` and `t2d`."""
        return {name: want for name, want in self.wanted.items() if name not in ("d2t", "t2d")}

    def read(self, name: str, device: torch.device | str = "cpu") -> Tensor:
        return self.source.read(self.names[name], device)

    def sha256(self) -> str:
        return self.source.sha256(self.config.file)


def open_target(folder: Path, rope: Mapping[str, float | str] | None = None) -> TargetFiles:
    """Translate the config and check the tensors against it, without reading weights. Arguments and errors:
    `load_target`.
    """
    config = read_config(folder)
    geometry = target_geometry(config, rope)
    hashed = [config.file]
    if (generation := folder / "generation_config.json").is_file():
        geometry = with_generation_eos(geometry, read_json(generation))
        hashed.append(generation)
    files = target_source(config, geometry)
    expected = target_tensors(geometry)
    other = f"{RECOMPUTED}|lm_head.weight" if geometry.tied_embeddings else RECOMPUTED
    check_tensors(files.entries, expected, folder, other)
    if geometry.tied_embeddings and "lm_head.weight" in files.entries:
        refuse_untied(files, config)
    return TargetFiles(geometry, config, files, expected, tuple(hashed))


def load_target(
    folder: Path, dtype: torch.dtype, device: torch.device | str, rope: Mapping[str, float | str] | None = None
) -> TargetCheckpoint:
    """Load a target of the Llama family or of gpt-oss. `rope` (Hugging Face keys) replaces its RoPE scaling, not its
    base or original length. Experts in MXFP4 stay as they are stored.

    Raises CheckpointError, which names file, key or tensor, value, and what would be right. Raises EnvironmentRefused
    where the weights do not fit into memory.
    """
    return load_target_parts(folder, dtype, (device,), rope)[0]


def load_target_parts(
    folder: Path,
    dtype: torch.dtype,
    devices: Sequence[torch.device | str],
    rope: Mapping[str, float | str] | None = None,
) -> tuple[TargetCheckpoint, ...]:
    """Load a target split evenly among `devices`, one part each. Other arguments and errors: `load_target`. Raises
    ValueError for sizes that cannot be divided.
    """
    files = open_target(folder, rope)
    parts = [
        (shard, device, shard.wanted(files.wanted)) for shard, device in zip(shards(len(devices)), devices, strict=True)
    ]
    for _, device, expected in parts:
        require_room(expected, dtype, device, str(folder))
    loaded = [
        {
            name: stored(read_part(files.source, name, whole.shape, shard, device), dtype)
            for name, whole in files.wanted.items()
        }
        for shard, device, _ in parts
    ]
    for tensors in loaded:
        check_experts(tensors, folder)
    sha256 = files.sha256()
    return tuple(
        TargetCheckpoint(files.geometry, tensors, sha256, files.config.file, shard)
        for tensors, (shard, _, _) in zip(loaded, parts, strict=True)
    )


def read_part(
    source: TensorSource, name: str, shape: tuple[int, ...], shard: Shard, device: torch.device | str
) -> Tensor:
    """Return the part of a tensor that the rank of `shard` holds. `shape`: that of the whole tensor."""
    if (span := shard.span(name, shape)) is not None:
        return source.read_part(name, span.axis, span.start, span.stop, device)
    whole = source.read(name, device)
    return torch.zeros_like(whole) if shard.has_zeros(name) else whole


def stored(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """`tensor` in `dtype`, unless it is quantised."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def check_experts(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Raise CheckpointError for routers and sinks that are not finite, and for scales that are no number.

    A router with NaN would choose experts all the same, and MXFP4 has no sign of damage but this one.
    """
    for name, tensor in tensors.items():
        if ".mlp.router." in name or name.endswith(".sinks"):
            check_finite(tensor, name, folder)
        elif name.endswith("_scales") and bool((tensor == NO_NUMBER).any()):
            raise CheckpointError(
                f"{folder}: tensor {name} has a scale of {NO_NUMBER}, which is not a number in MXFP4",
                hint="damaged, or not MXFP4: fetch it again",
            )


def open_draft(
    folder: Path,
    target: TargetSizes,
    capture_override: Sequence[int] | None = None,
    target_sha256: str | None = None,
) -> DraftFiles:
    """Translate the config and check the tensors against it; reads only `d2t` and `t2d`. Arguments and errors:
    `load_draft`.
    """
    config = read_config(folder)
    files = draft_source(config, target)
    head = read_head(config, target, files.entries, capture_override)
    vocabulary = read_map(head, files.entries, lambda name: as_array(files.read(name)), str(folder))
    d2t, t2d = (None if array is None else torch.from_numpy(array) for array in (vocabulary.d2t, vocabulary.t2d))
    warnings = (*head.warnings, *vocabulary.warnings, *target_warnings(config, target_sha256))
    return DraftFiles(head.geometry, head.capture, config, files, head.names, head.wanted, d2t, t2d, warnings)


def as_array(tensor: Tensor) -> NDArray[Any]:
    """A small tensor on the CPU as numpy has it; bfloat16 is widened to float32."""
    array: NDArray[Any] = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return array


def load_draft(
    folder: Path,
    target: TargetSizes,
    dtype: torch.dtype,
    device: torch.device | str,
    capture_override: Sequence[int] | None = None,
    target_sha256: str | None = None,
) -> DraftCheckpoint:
    """Load the EAGLE-3 draft of `target`.

    `capture_override` gives the auxiliary hidden-state layers as boundaries, in place of the config's. `target_sha256`
    is compared with the one in the draft's config, if there is one; a difference becomes a warning.

    Raises CheckpointError, which names file, key or tensor, value, and what would be right. Raises EnvironmentRefused
    where the weights do not fit into memory.
    """
    files = open_draft(folder, target, capture_override, target_sha256)
    require_room(files.weights, dtype, device, str(folder))
    # A draft that is not finite would look like one that is merely bad: nothing of it would be accepted.
    tensors = {name: check_finite(files.read(name, device).to(dtype), name, folder) for name in files.weights}
    d2t = None if files.d2t is None else files.d2t.to(device)
    return DraftCheckpoint(files.geometry, tensors, d2t, files.capture, files.sha256(), files.warnings)


def target_source(config: Keys, geometry: TargetGeometry) -> TensorSource:
    """Return the source of the target's tensors: the files beside its config, or a seed."""
    return planted_target(config, geometry) if from_seed(config) else TensorFiles(config.file.parent)


def draft_source(config: Keys, target: TargetSizes) -> TensorSource:
    """Return the source of the draft's tensors: the files beside its config, or a seed.

    Raises CheckpointError for a seed if no more than the target's sizes is known.
    """
    if not from_seed(config):
        return TensorFiles(config.file.parent)
    if not isinstance(target, TargetGeometry):
        raise CheckpointError(
            f"{config.file}: the draft is made from a seed, which takes a Llama target",
            hint="`specgate engine export` writes its weights into files",
        )
    return planted_draft(config, target)


def refuse_untied(files: TensorSource, config: Keys) -> None:
    """Raise CheckpointError where a tied checkpoint has an `lm_head.weight` that differs from its embedding.

    A copy of the embedding under that name is allowed.
    """
    if not torch.equal(files.read("lm_head.weight"), files.read("model.embed_tokens.weight")):
        raise config.wrong("tie_word_embeddings", "lm_head.weight differs from the embedding: false would be right")


def target_warnings(config: Keys, target_sha256: str | None) -> tuple[str, ...]:
    """Warn where the draft's config names a target with another hash."""
    named = config.part(TRAINED_FOR).text("sha256")
    if target_sha256 is None or named in (None, target_sha256):
        return ()
    return (f"the draft names another target: {TRAINED_FOR}.sha256 = {named}, this target's is {target_sha256}",)
