"""Weights and tables of a pair, of dense targets and of mixtures of experts, in the form that the kernels want."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.packing import Order, PackedExperts
from specgate.backends.eagle3.cupy.kernels.rows.launchers import FeatureNorm, InputWeights
from specgate.backends.eagle3.lib import weights
from specgate.backends.eagle3.lib.pair import DraftCheckpoint, TargetCheckpoint
from specgate.backends.eagle3.lib.rope import RopeTable as RopeTable
from specgate.backends.eagle3.lib.rope import cos_sin_table
from specgate.backends.eagle3.lib.shard import WHOLE, Shard
from specgate.backends.eagle3.lib.weights import DraftWeights, TargetWeights, pack_draft, pack_target
from specgate.checkpoints.geometry import DraftGeometry, RopeSpec, TargetGeometry
from specgate.errors import CheckpointError

LayerWeights = weights.LayerWeights
ExpertLayerWeights = weights.ExpertLayerWeights[PackedExperts]
ExpertTargetWeights = weights.ExpertTargetWeights[PackedExperts]


def pack_expert_target(checkpoint: TargetCheckpoint) -> ExpertTargetWeights:
    """Pack a target with experts in MXFP4. The layers' tensors are removed from the checkpoint, the others stay in it.

    Raises CheckpointError for scales that no kernel holds.
    """

    def packed(take: Callable[[str], Tensor], name: str) -> PackedExperts:
        order = Order.PAIRED if name.endswith("gate_up_proj") else Order.PLAIN
        blocks, scales, bias = (take(f"{name}_{part}") for part in ("blocks", "scales", "bias"))
        try:
            made = PackedExperts.of(blocks, scales, bias, order)
        except ValueError as error:
            raise CheckpointError(
                f"{checkpoint.config_file.parent}: {name}: {error}", hint="damaged, or not MXFP4: fetch it again"
            ) from error
        # Packed matrices fit into no block that a checkpoint's leaves, or into a part of one, and keep the rest of it.
        # Unless each goes back to the driver at once, torch ends up holding the 65 GB of the 120b nearly twice.
        del blocks, scales
        if made.weight.is_cuda:
            torch.cuda.empty_cache()
        return made

    return weights.pack_expert_target(checkpoint, packed)


@dataclass(frozen=True, slots=True)
class Target:
    """`rope`: cos and sin, float32 [P, D/2]. Of a target that is split among GPUs, `geometry` is that of the part
    `shard`, which the weights are.
    """

    geometry: TargetGeometry
    weights: TargetWeights | ExpertTargetWeights
    rope: RopeTable
    shard: Shard = WHOLE

    @classmethod
    def of(cls, checkpoint: TargetCheckpoint, positions: int) -> Target:
        weights = pack_target(checkpoint) if checkpoint.geometry.experts is None else pack_expert_target(checkpoint)
        geometry, shard = checkpoint.shard.geometry(checkpoint.geometry), checkpoint.shard
        return cls(geometry, weights, table(geometry.rope, positions, weights.embed.device), shard)


@dataclass(frozen=True, slots=True)
class Draft:
    """`boundaries`: where the draft reads the target's residual stream; boundary i lies before layer i. `target_ids`
    int32 [W]: the target's id of each draft id; `columns` int32 [V]: the other way, −1 where the draft has none.
    `feature_norm`: bfloat16 [n·H] or None. Of a draft that is split among GPUs, `geometry` is that of the part `shard`,
    which the weights are; its vocabulary maps are whole.
    """

    geometry: DraftGeometry
    weights: DraftWeights
    rope: RopeTable
    boundaries: tuple[int, ...]
    target_ids: Tensor
    columns: Tensor
    input: InputWeights
    feature_norm: Tensor | None
    shard: Shard = WHOLE

    @classmethod
    def of(cls, checkpoint: DraftCheckpoint, target: Target, positions: int) -> Draft:
        w = pack_draft(checkpoint, target.weights)
        return cls(
            geometry=checkpoint.shard.of_draft(checkpoint.geometry),
            weights=w,
            rope=table(checkpoint.geometry.rope, positions, w.embed.device),
            boundaries=tuple(checkpoint.capture.boundaries),
            target_ids=w.target_ids.int(),
            columns=columns_of(w.target_ids, checkpoint.geometry.vocab),
            input=InputWeights(w.embed, w.layer.input_norm, w.feature_norm),
            feature_norm=torch.cat(w.chunk_norms) if w.chunk_norms else w.concat_norm,
            shard=checkpoint.shard,
        )


def columns_of(target_ids: Tensor, vocab: int) -> Tensor:
    """int32 [vocab]: where each token stands in `target_ids` int64 [W], −1 for nowhere."""
    columns = torch.full((vocab,), -1, dtype=torch.int32, device=target_ids.device)
    columns[target_ids] = torch.arange(len(target_ids), dtype=torch.int32, device=target_ids.device)
    return columns


def norm_of(geometry: DraftGeometry) -> FeatureNorm:
    if geometry.norm_before_fc:
        return FeatureNorm.ALL_STREAMS
    return FeatureNorm.EACH_STREAM if geometry.fc_norm else FeatureNorm.NONE


def table(spec: RopeSpec, positions: int, device: torch.device) -> RopeTable:
    return cos_sin_table(spec, positions, device)
