"""Everything that a captured graph reads and writes beside the weights. It is allocated once.

On the `meta` device the same allocation takes no memory. It tells how many bytes the real one will take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.arrays import Arrays
from specgate.backends.eagle3.cupy.kernels.attention.attention import KEPT_TILE, Attention, LayerPages, Workspace
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.eagle3.cupy.kernels.experts.packing import TILE
from specgate.backends.eagle3.cupy.kernels.heads import Heads
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import PreNormRows
from specgate.backends.eagle3.cupy.kernels.peers.launchers import Mailboxes
from specgate.backends.eagle3.cupy.kernels.state.slots import KVBlocks, Slots
from specgate.backends.eagle3.cupy.memory.coded_pages import blank
from specgate.backends.eagle3.cupy.memory.partial import PartialBuffers
from specgate.backends.eagle3.cupy.memory.sampling import SamplingBuffers
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.memory.trees import TreeBuffers, widest
from specgate.backends.eagle3.lib.kv.modes import KvMode
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry


@dataclass(frozen=True, slots=True)
class Pages:
    """The paged cache in the format `kv`: `k` and `v` [layers, blocks, …], of each block what `Heads.page_shapes` says,
    and `scales` [layers, blocks, …], in formats that have some, what `Heads.scale_shape` says.
    """

    k: Tensor
    v: Tensor
    scales: Tensor | None = None
    kv: KvMode = "bf16"

    @classmethod
    def allocate(cls, layers: int, blocks: int, heads: Heads, device: torch.device | str) -> Pages:
        # Zeros, because a masked position still enters a product: what it holds must be finite.
        k, v = (torch.zeros(layers, blocks, *of, dtype=heads.cached, device=device) for of in heads.page_shapes)
        if heads.scale_shape is None:
            return cls(k, v)
        shape, dtype = heads.scale_shape
        pages = cls(k, v, torch.empty(layers, blocks, *shape, dtype=dtype, device=device), heads.kv)
        pages.clear()
        return pages

    def of_layer(self, index: int) -> LayerPages:
        return LayerPages(self.k[index], self.v[index], self.scales_of(index))

    def scales_of(self, layer: int) -> Tensor | None:
        return None if self.scales is None else self.scales[layer]

    def clear(self) -> None:
        """Back to what `allocate` makes."""
        self.k.zero_()
        self.v.zero_()
        if self.kv == "fp8" and self.scales is not None:
            self.scales.fill_(1.0)
        if self.kv == "nvfp4" and self.scales is not None:
            blank(self.scales)


@dataclass(frozen=True, slots=True)
class MixtureBuffers(Arrays):
    """Arrays that the kernels of a mixture of experts hand on, for R rows of K experts each.

    `logits`: the router's; `x16`: what experts multiply; `act`: between their two products; `parts`: their results;
    `finished` and `joined`, zero between steps: how many blocks of the second product, and of attention, are through;
    `touched`: how many experts had rows.
    """

    logits: Annotated[Tensor, "float32 [R, E]"]
    x16: Annotated[Tensor, "float16 [R, H]"]
    act: Annotated[Tensor, "float16 [R * K, F]"]
    parts: Annotated[Tensor, "float32 [R * K, H]"]
    finished: Annotated[Tensor, "int32 [H / TILE]"]
    joined: Annotated[Tensor, "int32 [R * N]"]
    touched: Annotated[Tensor, "int32 [STEPS, LAYERS]"]

    @property
    def layers(self) -> int:
        return self.touched.shape[1]

    @classmethod
    def allocate(cls, g: TargetGeometry, rows: int, steps: int, device: torch.device | str) -> MixtureBuffers:
        assert g.experts is not None
        of_mixture = {"E": g.experts.count, "K": g.experts.per_token, "F": g.intermediate, "TILE": TILE}
        return cls.zeros(device, R=rows, H=g.hidden, N=g.heads, STEPS=steps, LAYERS=g.layers, **of_mixture)


@dataclass(frozen=True, slots=True)
class LayerBuffers(Arrays):
    """Arrays that the kernels of a decoder hand on. R rows enter attention, of which Q go on; in the target Q = R.

    `stream`: the residual stream; `pre_norm`: the input of its next norm; `partial`: see `Attention.partial_shapes`.
    With a mixture of experts `mlp` has no columns, and `mixture` is there. `mailboxes`: those of a target or draft that
    is split among GPUs.
    """

    stream: Annotated[Tensor, "float32 [Q, H]"]
    pre_norm: PreNormRows
    qkv: Annotated[Tensor, "float32 [R, QKV]"]
    attended: Annotated[Tensor, "bfloat16 [Q, WIDTH]"]
    partial: Workspace
    mlp: Annotated[Tensor, "bfloat16 [Q, F]"]
    logits: Annotated[Tensor, "float32 [Q, V]"]
    mixture: MixtureBuffers | None = None
    mailboxes: Mailboxes | None = None

    @classmethod
    def allocate(
        cls,
        geometry: TargetGeometry | DraftGeometry,
        attention: Attention,
        vocab: int,
        slots: int,
        rows: int,
        device: torch.device | str,
        mixture: MixtureBuffers | None = None,
        beside: Sequence[Attention] = (),
    ) -> LayerBuffers:
        """`beside`: other attention, of no more rows, that has the same workspace."""
        out, hidden, heads = slots * attention.rows_per_slot, geometry.hidden, attention.heads
        of = {"R": rows, "Q": out, "H": hidden, "QKV": heads.qkv_width, "WIDTH": heads.width, "V": vocab}
        return cls.zeros(
            device,
            pre_norm=PreNormRows.zeros(device, R=out, H=hidden),
            partial=workspace(attention, slots, device, beside),
            mixture=mixture,
            **of,
            F=0 if mixture else geometry.intermediate,
        )


@dataclass(frozen=True, slots=True)
class TargetBuffers(Arrays):
    """`choices`: packed greedy choices, zero between steps."""

    pages: Pages
    layer: LayerBuffers
    choices: Annotated[Tensor, "int64 [R]"]


@dataclass(frozen=True, slots=True)
class DraftBuffers(Arrays):
    """`features`: the target's streams for the T rows of a slot that the draft has yet to extend over.

    `packed`: the same, of active slots alone; `hidden`: their projection; `input`: the draft's input; `choices`: packed
    greedy choices, zero between draft steps.
    """

    pages: Pages
    layer: LayerBuffers
    features: Annotated[Tensor, "bfloat16 [S, T, WIDTH]"]
    packed: Annotated[Tensor, "bfloat16 [R, WIDTH]"]
    hidden: Annotated[Tensor, "float32 [R, H]"]
    input: Annotated[Tensor, "bfloat16 [R, 2 * H]"]
    choices: Annotated[Tensor, "int64 [S]"]


@dataclass(frozen=True, slots=True)
class Buffers:
    """`sampling`: None where decoding is greedy. `tree`: None where drafts are chains. `partial`: None where all
    verifications are full. `forced` int32 [steps, S]: drafts to accept; None where the target decides.
    """

    slots: Slots
    kv: KVBlocks
    target: TargetBuffers
    draft: DraftBuffers | None
    sampling: SamplingBuffers | None
    tree: TreeBuffers | None = None
    partial: PartialBuffers | None = None
    forced: Tensor | None = None

    @classmethod
    def allocate(
        cls, target: TargetGeometry, draft: DraftGeometry | None, sizes: Sizes, device: torch.device | str
    ) -> Buffers:
        return cls(
            slots=Slots.allocate(sizes.slots, sizes.max_rows, sizes.positions, device),
            kv=KVBlocks.allocate(sizes.slots, sizes.max_blocks, sizes.blocks, device),
            target=target_buffers(target, sizes, device),
            draft=draft_buffers(draft, sizes, device) if draft else None,
            sampling=SamplingBuffers.allocate(
                *(sizes.sampling, target.vocab, sizes.slots, sizes.rows, device),
                draft_vocab=draft.draft_vocab if draft else 0,
            )
            if sizes.sampling
            else None,
            tree=TreeBuffers.allocate(sizes.tree, draft, sizes.slots, device).with_scales(
                target.layers, sizes.heads(target), sizes.heads(draft)
            )
            if sizes.tree and draft
            else None,
            partial=PartialBuffers.allocate(
                *(sizes.partial, sizes.heads(target), target.layers, sizes.blocks, sizes.slots, sizes.max_rows, device)
            )
            if sizes.partial and draft
            else None,
            forced=torch.zeros(sizes.positions, sizes.slots, dtype=torch.int32, device=device)
            if sizes.forced and draft
            else None,
        )

    @property
    def pages(self) -> tuple[Pages, ...]:
        return (self.target.pages, *([self.draft.pages] if self.draft else []))

    @property
    def mailboxes(self) -> tuple[Mailboxes, ...]:
        """The target's and the draft's, of those that are split among GPUs."""
        layers = (self.target.layer, *([self.draft.layer] if self.draft else []))
        return tuple(layer.mailboxes for layer in layers if layer.mailboxes is not None)


def target_attention(geometry: TargetGeometry, sizes: Sizes) -> Attention:
    """The attention of the widest step of the target: what its workspace has to hold."""
    return Attention(sizes.heads(geometry), sizes.most_rows, config=sizes.fmha)


def partial_attention(geometry: TargetGeometry, sizes: Sizes, k: int) -> Attention | None:
    """Return the attention of partial verifications of spec-`k`; None where all are full."""
    if sizes.partial is None:
        return None
    tiling, kept = FmhaConfig(kv_tile=KEPT_TILE), sizes.kept_of(k)
    return Attention(sizes.heads(geometry), k + 1, config=tiling, kept=kept, sinks=geometry.sinks)


def draft_attention(geometry: DraftGeometry, sizes: Sizes) -> Attention:
    """Return the attention of the draft's widest step, for as many positions as its longest has."""
    rows = max(widest(sizes.tree), sizes.tree.depth) if sizes.tree else 1
    return Attention(sizes.heads(geometry), rows, geometry.window, config=sizes.fmha)


def partial_attentions(geometry: TargetGeometry, sizes: Sizes) -> list[Attention]:
    """Those of partial verifications of all roles that draft."""
    of = (partial_attention(geometry, sizes, k) for k in range(1, sizes.most_drafts + 1))
    return [attention for attention in of if attention is not None]


def workspace(
    attention: Attention, slots: int, device: torch.device | str, beside: Sequence[Attention] = ()
) -> Workspace:
    """See `Attention.partial_shapes`: enough for each of them."""
    shapes = max(each.partial_shapes(slots) for each in (attention, *beside))
    return Workspace(*(torch.zeros(shape, device=device) for shape in shapes))


def target_buffers(geometry: TargetGeometry, sizes: Sizes, device: torch.device | str) -> TargetBuffers:
    attention, rows = target_attention(geometry, sizes), sizes.slots * sizes.most_rows
    beside = partial_attentions(geometry, sizes)
    mixture = MixtureBuffers.allocate(geometry, rows, sizes.positions, device) if geometry.experts else None
    return TargetBuffers.zeros(
        device,
        pages=Pages.allocate(geometry.layers, sizes.blocks, attention.heads, device),
        layer=LayerBuffers.allocate(geometry, attention, geometry.vocab, sizes.slots, rows, device, mixture, beside),
        R=rows,
    )


def draft_buffers(geometry: DraftGeometry, sizes: Sizes, device: torch.device | str) -> DraftBuffers:
    """The draft attends with its newest row per slot, or with a tree's level; other rows just fill its cache."""
    attention, slots, rows = draft_attention(geometry, sizes), sizes.slots, sizes.rows
    width = geometry.features * geometry.target_hidden
    of = {"S": slots, "T": sizes.max_rows, "R": rows, "H": geometry.hidden, "WIDTH": width}
    return DraftBuffers.zeros(
        device,
        pages=Pages.allocate(1, sizes.blocks, attention.heads, device),
        layer=LayerBuffers.allocate(geometry, attention, geometry.draft_vocab, slots, rows, device),
        **of,
    )


def tensors_of(buffers: object) -> Iterator[Tensor]:
    """Every tensor in a dataclass of tensors, tuples and dataclasses."""
    if isinstance(buffers, Tensor):
        yield buffers
    elif isinstance(buffers, tuple):
        for part in buffers:
            yield from tensors_of(part)
    elif is_dataclass(buffers):
        for field in fields(buffers):
            yield from tensors_of(getattr(buffers, field.name))


def bytes_of(buffers: object) -> int:
    return sum(t.nbytes for t in tensors_of(buffers))
