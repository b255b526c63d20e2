"""gpt-oss' forward pass: attention with sinks and windows, then a mixture of experts; and its packed tensors.

Shapes as there, and E experts, R rows and C columns of one of an expert's two matrices.

Sources: `openai/gpt-oss` and transformers' `GptOssForCausalLM`, whose order of rounding it keeps: the router, each
expert's product and its bias are in the model's dtype, and a token's experts are summed from its likeliest on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from specgate.backends.eagle3.lib.memory import free_bytes
from specgate.backends.eagle3.lib.pair import TargetCheckpoint
from specgate.backends.eagle3.lib.weights import ExpertLayerWeights, ExpertTargetWeights, decoded, pack_expert_target
from specgate.backends.eagle3.reference.cache import KVCache, TreeRows, View, along_paths, view
from specgate.backends.eagle3.reference.kv_planes import Plane, read_rows
from specgate.backends.eagle3.reference.ops import attention, feature_capture, matmul_rows, rms_norm, rope_append
from specgate.backends.eagle3.reference.target import RopeTable, TorchTarget, rope_rows
from specgate.checkpoints.geometry import ExpertGeometry, TargetGeometry
from specgate.contract.routing import ExpertCounts, counts_of


@dataclass(frozen=True, slots=True)
class ExpertMatrices:
    """One matrix [R, C] per expert: `blocks` uint8 [E, R, C/32, 16] with `scales` uint8 [E, R, C/32], or `floats`
    [E, C, R], transposed as it is stored, or what `of` makes of either, `whole` [E, R, C]. `bias` [E, R].
    """

    bias: Tensor
    floats: Tensor | None
    blocks: Tensor | None
    scales: Tensor | None
    whole: Tensor | None = None

    def of(self, expert: int) -> Tensor:
        """The matrix [R, C] of one expert, contiguous, in the dtype of its bias; MXFP4 becomes exactly that."""
        if self.whole is not None:
            return self.whole[expert]
        if self.floats is not None:
            return self.floats[expert].t().contiguous()
        assert self.blocks is not None and self.scales is not None
        return decoded(self.blocks[expert], self.scales[expert], self.bias.dtype)

    @property
    def whole_bytes(self) -> int:
        """Size of `whole` in bytes."""
        columns = self.blocks.shape[2] * 32 if self.blocks is not None else self.of(0).shape[1]
        return self.bias.numel() * columns * self.bias.itemsize

    def decoded_ahead(self) -> ExpertMatrices:
        """The same with the matrices of all experts as `of` makes them."""
        first = self.of(0)
        whole = torch.empty(len(self.bias), *first.shape, dtype=first.dtype, device=first.device)
        for expert in range(len(whole)):
            whole[expert] = self.of(expert)
        return replace(self, floats=None, blocks=None, scales=None, whole=whole)


ExpertLayer = ExpertLayerWeights[ExpertMatrices]
GptOssWeights = ExpertTargetWeights[ExpertMatrices]


def pack_gpt_oss(checkpoint: TargetCheckpoint) -> GptOssWeights:
    """Pack the target. The layers' tensors are removed from the checkpoint, the others stay in it."""
    experts = checkpoint.geometry.experts
    assert experts is not None

    def matrices(take: Callable[[str], Tensor], name: str) -> ExpertMatrices:
        bias = take(f"{name}_bias")
        if experts.mxfp4:
            return ExpertMatrices(bias, None, take(f"{name}_blocks"), take(f"{name}_scales"))
        return ExpertMatrices(bias, take(name), None, None)

    return pack_expert_target(checkpoint, matrices)


STEPS: Final = 64
"""Steps that are counted at a time: 1.2 MB for four requests of gpt-oss-120b."""


class ExpertCounter:
    """Counts the experts of a block's passes. What the passes chose is kept as it is until the block has ended, so that
    counting costs the steps no time.
    """

    def __init__(self, experts: int) -> None:
        self.experts = experts
        self._chosen: list[Tensor] = []
        self._active: list[Tensor] = []

    def see(self, chosen: Tensor, active: Tensor) -> None:
        """A pass sent its rows to the experts `chosen` [L, B, T, k], of the same shape in all passes. Only the `active`
        [B] slots count.
        """
        self._chosen.append(chosen)
        self._active.append(active)

    def counts(self) -> ExpertCounts:
        """The counts of all passes, as many steps as `see` was called."""
        by_step, fresh = list[list[int]](), list[list[int]]()
        for start in range(0, len(self._chosen), STEPS):
            chosen = torch.stack(self._chosen[start : start + STEPS])
            active = torch.stack(self._active[start : start + STEPS])
            touched, new = reached(chosen, active, self.experts)
            by_step += touched.tolist()
            fresh.append(new.tolist())
        return counts_of(by_step, [sum(of) for of in zip(*fresh, strict=True)])


def reached(chosen: Tensor, active: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Count the experts that are reached, from `chosen` [S, L, B, T, k] and the slots that are `active` [S, B].

    Returns the experts that all rows of a step reach together [S, L], and the experts that each row is the first of its
    slot to reach, summed over steps, layers and slots [T].
    """
    used = torch.zeros(*chosen.shape[:3], experts, dtype=torch.bool, device=chosen.device)
    fresh = []
    for row in chosen.unbind(dim=3):
        new = torch.zeros_like(used).scatter_(-1, row, True) & active[:, None, :, None] & ~used
        fresh.append(new.sum())
        used |= new
    return used.any(dim=2).sum(dim=-1), torch.stack(fresh)


SPARE: Final = 16 << 30
"""Bytes that decoding all experts ahead has to leave for caches and logits."""
PREFILL_ROWS: Final = 40_960
"""Rows of a prefill pass, which decodes each expert that it reaches once: a prompt of 32K and its answer."""
MASK_ROWS: Final = 1024
"""Most rows that share a mask."""


def views(positions: Tensor, window: int | None) -> list[tuple[slice, View]]:
    """Return the positions that the T rows at `positions` [B, T] see, in runs of rows that share a mask.

    A GPU looks at a whole prompt without one.
    """
    whole = positions.is_cuda and window is None
    runs = [slice(first, first + MASK_ROWS) for first in range(0, positions.shape[1], MASK_ROWS)]
    return [
        (run, view(positions[:, run], window, causal=positions.is_cuda)) for run in ([slice(None)] if whole else runs)
    ]


COLUMNS: Final = 8
"""Columns that a sink adds to queries and keys. Kernels of a GPU want their number to be a multiple of eight."""


def attend_with_sinks(q: Tensor, k: Tensor, v: Tensor, span: View, sinks: Tensor) -> Tensor:
    """Attention of q [B, N, T, D] over `span` and the sink of each head [N]; returns [B, T, N·D].

    The sink is a position before all others, whose value is zero. A column that all other keys have as zero gives its
    score: sink · √D / √D.
    """
    size = q.shape[-1]
    q, k, v = F.pad(q, (0, COLUMNS)), F.pad(k, (0, COLUMNS, 1, 0)), F.pad(v, (0, COLUMNS, 1, 0))
    q[..., size], k[:, :, 0, size] = sinks[:, None], math.sqrt(size)
    mask = None if span.mask is None else F.pad(span.mask, (1, 0), value=True)
    out = attention(q, k, v, mask, span.causal, scale=1 / math.sqrt(size))
    return out.view(*out.shape[:2], q.shape[1], -1)[..., :size].flatten(2)


def attend(
    layer: ExpertLayer, x: Tensor, rows: RopeTable, cache: tuple[Plane, Plane], positions: Tensor,
    spans: Sequence[tuple[slice, View]], geometry: TargetGeometry, tree: TreeRows | None = None,
) -> Tensor:  # fmt: skip
    """Append the keys and values of the normed `x` [B, T, H]; attend; return [B, T, H].

    `spans`: for each run of rows what it sees; of a tree there is one.
    """
    qkv = matmul_rows(x, layer.qkv) + layer.qkv_bias
    heads = geometry.heads, geometry.kv_heads
    q = rope_append(qkv, *rows, *cache, positions, *heads, None if tree is None else tree.rows)

    def look(asking: Tensor, span: View) -> Tensor:
        k, v = (read_rows(plane, span.start, span.stop, asking.dtype) for plane in cache)
        return attend_with_sinks(asking, k, v, span, layer.sinks)

    if tree is None:
        mixed = torch.cat([look(q[:, :, run], span) for run, span in spans], dim=1)
    else:
        mixed = along_paths(tree, q, *cache, lambda asking: look(asking, spans[0][1]))
    return matmul_rows(mixed, layer.o) + layer.o_bias


def route(layer: ExpertLayer, x: Tensor, experts: ExpertGeometry) -> tuple[Tensor, Tensor]:
    """(the experts of each row of `x` [R, H], the likeliest first, int64 [R, k]; their weights [R, k]).

    The lowest expert wins an exact tie.
    """
    logits = matmul_rows(x, layer.router) + layer.router_bias
    ordered, chosen = logits.sort(dim=-1, descending=True, stable=True)
    return chosen[:, : experts.per_token], ordered[:, : experts.per_token].softmax(dim=-1)


def gated(gate_up: Tensor, experts: ExpertGeometry) -> Tensor:
    """The clamped SwiGLU of alternating gate and up [..., 2F]: gate · σ(alpha · gate) · (up + 1), [..., F]."""
    gate = gate_up[..., ::2].clamp(max=experts.limit)
    up = gate_up[..., 1::2].clamp(-experts.limit, experts.limit)
    return (up + 1) * (gate * torch.sigmoid(gate * experts.alpha))


def mixture(layer: ExpertLayer, x: Tensor, experts: ExpertGeometry) -> tuple[Tensor, Tensor]:
    """(the weighted sum of each row's experts [R, H], which these are [R, k]) for rows `x` [R, H].

    An expert's rows are multiplied together, and each row's own sum is in the order of its experts: what a row gives
    does not depend on the rows beside it.
    """
    chosen, weights = route(layer, x, experts)
    parts = torch.zeros(*chosen.shape, x.shape[-1], dtype=x.dtype, device=x.device)
    for expert in sorted({*chosen.flatten().tolist()}):
        row, place = (chosen == expert).nonzero(as_tuple=True)
        gate_up = matmul_rows(x[row], layer.gate_up.of(expert)) + layer.gate_up.bias[expert]
        out = matmul_rows(gated(gate_up, experts), layer.down.of(expert)) + layer.down.bias[expert]
        parts[row, place] = out * weights[row, place, None]
    total = parts[:, 0]
    for place in range(1, experts.per_token):
        total = total + parts[:, place]
    return total, chosen


@dataclass(slots=True)
class GptOssTarget(TorchTarget[GptOssWeights]):
    """A gpt-oss target. `chosen` [L, B, T, k] are the experts that its last pass sent each row to."""

    prefill_rows: int = PREFILL_ROWS
    chosen: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))

    @property
    def experts(self) -> int:
        """Experts of each layer."""
        assert self.geometry.experts is not None
        return self.geometry.experts.count

    def decode_ahead(self, spare: int = SPARE) -> bool:
        """Decode the matrices of all experts, once for all passes to come, if that leaves `spare` bytes of memory free.
        Results are the same. Returns whether it has.
        """
        needed = sum(layer.gate_up.whole_bytes + layer.down.whole_bytes for layer in self.weights.layers)
        if needed + spare > free_bytes(self.weights.embed.device):
            return False
        layers = [
            replace(layer, gate_up=layer.gate_up.decoded_ahead(), down=layer.down.decoded_ahead())
            for layer in self.weights.layers
        ]
        self.weights = replace(self.weights, layers=tuple(layers))
        return True

    def through_layers(
        self,
        cache: KVCache,
        tokens: Tensor,
        positions: Tensor,
        boundaries: Sequence[int],
        tree: TreeRows | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        geometry = self.geometry
        assert geometry.experts is not None
        x, angles, eps = self.weights.embed[tokens], rope_rows(self.table, positions), geometry.rms_eps
        windows = dict.fromkeys(map(geometry.window, range(geometry.layers)))
        spans = {
            w: views(positions, w) if tree is None else [(slice(None), view(tree.at, w, causal=False))] for w in windows
        }
        streams, chosen = {0: x}, list[Tensor]()
        for i, layer in enumerate(self.weights.layers):
            planes, normed = (cache.k[i], cache.v[i]), rms_norm(x, layer.input_norm, eps)
            x = x + attend(layer, normed, angles, planes, positions, spans[geometry.window(i)], geometry, tree)
            normed = rms_norm(x, layer.post_norm, eps)
            mixed, sent = mixture(layer, normed.flatten(0, 1), geometry.experts)
            x = x + mixed.view_as(x)
            chosen.append(sent)
            if i + 1 in boundaries:
                streams[i + 1] = x
        self.chosen = torch.stack(chosen).view(len(chosen), *tokens.shape, -1)
        return x, feature_capture([streams[b] for b in boundaries]) if boundaries else None
