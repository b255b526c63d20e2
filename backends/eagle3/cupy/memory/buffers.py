"""Everything that a captured graph reads and writes beside the weights. It is allocated once.

On the `meta` device the same allocation takes no memory. It tells how many bytes the real one will take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.attention import KEPT_TILE, Attention, LayerPages, Workspace
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.eagle3.cupy.kernels.experts.packing import TILE
from specgate.backends.eagle3.cupy.kernels.heads import Heads
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import NORM_GROUP, PreNormRows
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
class MixtureBuffers:
    """Arrays that the kernels of a mixture of experts hand on, for R rows of k experts each.

    `logits` float32 [R, E]: the router's; `x16` float16 [R, H]: what experts multiply; `act` float16 [R·k, F]: between
    their two products; `parts` float32 [R·k, H]: their results; `finished` int32 [H / 16] and `joined` int32 [R·N],
    zero between steps: how many blocks of the second product, and of attention, are through; `touched` int32 [steps,
    layers]: how many experts had rows.
    """

    logits: Tensor
    x16: Tensor
    act: Tensor
    parts: Tensor
    finished: Tensor
    joined: Tensor
    touched: Tensor

    @property
    def layers(self) -> int:
        return self.touched.shape[1]

    @classmethod
    def allocate(cls, g: TargetGeometry, rows: int, steps: int, device: torch.device | str) -> MixtureBuffers:
        assert g.experts is not None
        pairs = rows * g.experts.per_token
        return cls(
            logits=torch.zeros(rows, g.experts.count, device=device),
            x16=torch.zeros(rows, g.hidden, dtype=torch.float16, device=device),
            act=torch.zeros(pairs, g.intermediate, dtype=torch.float16, device=device),
            parts=torch.zeros(pairs, g.hidden, device=device),
            finished=torch.zeros(g.hidden // TILE, dtype=torch.int32, device=device),
            joined=torch.zeros(rows * g.heads, dtype=torch.int32, device=device),
            touched=torch.zeros(steps, g.layers, dtype=torch.int32, device=device),
        )


@dataclass(frozen=True, slots=True)
class LayerBuffers:
    """Arrays that the kernels of a decoder hand on. R rows enter attention, of which R' go on; in the target R' = R.

    `stream` float32 [R', H]: the residual stream; `pre_norm`: the input of its next norm; `qkv` float32
    [R, (N + 2G)·D]; `attended` bfloat16 [R', N·D]; `partial` float32, see `Attention.partial_shapes`; `logits` float32
    [R', V]. In a dense layer `mlp` bfloat16 [R', F]; with a mixture of experts that has no columns, and `mixture` is
    there. `mailboxes`: those of a target or draft that is split among GPUs.
    """

    stream: Tensor
    pre_norm: PreNormRows
    qkv: Tensor
    attended: Tensor
    partial: Workspace
    mlp: Tensor
    logits: Tensor
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
        out, heads = slots * attention.rows_per_slot, attention.heads

        def of(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        f32, bf16 = torch.float32, torch.bfloat16
        return cls(
            stream=of(f32, out, geometry.hidden),
            pre_norm=PreNormRows(of(bf16, out, geometry.hidden), of(f32, out, geometry.hidden // NORM_GROUP)),
            qkv=of(f32, rows, heads.qkv_width),
            attended=of(bf16, out, heads.width),
            partial=workspace(attention, slots, device, beside),
            mlp=of(bf16, out, 0 if mixture else geometry.intermediate),
            logits=of(f32, out, vocab),
            mixture=mixture,
        )


@dataclass(frozen=True, slots=True)
class TargetBuffers:
    """`choices` int64 [R]: packed greedy choices, zero between steps."""

    pages: Pages
    layer: LayerBuffers
    choices: Tensor


@dataclass(frozen=True, slots=True)
class DraftBuffers:
    """`features` bfloat16 [S, T, n·H]: the target's streams for the rows that the draft has yet to extend over.

    `packed` [R, n·H]: the same, of active slots alone; `hidden` float32 [R, Hd]: their projection; `input` bfloat16
    [R, 2·Hd]: the draft's input; `choices` int64 [S]: packed greedy choices, zero between draft steps.
    """

    pages: Pages
    layer: LayerBuffers
    features: Tensor
    packed: Tensor
    hidden: Tensor
    input: Tensor
    choices: Tensor


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
    return TargetBuffers(
        pages=Pages.allocate(geometry.layers, sizes.blocks, attention.heads, device),
        layer=LayerBuffers.allocate(geometry, attention, geometry.vocab, sizes.slots, rows, device, mixture, beside),
        choices=torch.zeros(rows, dtype=torch.int64, device=device),
    )


def draft_buffers(geometry: DraftGeometry, sizes: Sizes, device: torch.device | str) -> DraftBuffers:
    """The draft attends with one row per slot only, the newest, or with those of a tree's level; the others just fill
    its cache.
    """
    attention = draft_attention(geometry, sizes)
    width, rows = geometry.features * geometry.target_hidden, sizes.rows

    def of(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return DraftBuffers(
        pages=Pages.allocate(1, sizes.blocks, attention.heads, device),
        layer=LayerBuffers.allocate(geometry, attention, geometry.draft_vocab, sizes.slots, sizes.rows, device),
        features=of(torch.bfloat16, sizes.slots, sizes.max_rows, width),
        packed=of(torch.bfloat16, rows, width),
        hidden=of(torch.float32, rows, geometry.hidden),
        input=of(torch.bfloat16, rows, 2 * geometry.hidden),
        choices=of(torch.int64, sizes.slots),
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
