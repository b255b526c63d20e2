"""One prompt at a time into the cache: cuBLAS for products, a library for attention, and kernels of ours between them.

The residual stream is float32. Operands and results of cuBLAS are bfloat16. Attention is over the whole prompt, and all
else is done chunk by chunk. So only the stream, one layer's q, k and v, what attention makes of them, and the features
are as long as the prompt. A chunk goes through the rest of its layer and into the next layer's q, k and v at once.

Of the last layer only keys, values and the last row are needed, and no other row goes through it.

A prompt may begin with chunks of another of its length, whose keys and values are in the cache. Then only the chunks
behind them are computed. Every product has the rows that it has without the others, and attention is over the whole
prompt with queries of zeros in their place. So each call of a library has the same shape, and its rows the same bits:
a row depends on its own operands alone, and on keys and values, which are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specgate.backends.eagle3.cupy.device import multiprocessors
from specgate.backends.eagle3.cupy.engine.prefill_attention import (
    OWN_KERNELS,
    Library,
    PrefillAttention,
    attend_last,
    split_heads,
)
from specgate.backends.eagle3.cupy.kernels.experts.packing import Order
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.kernels.loader import Kernel, function
from specgate.backends.eagle3.cupy.kernels.matmul.wgmma_config import unable
from specgate.backends.eagle3.cupy.kernels.prefill.launchers import (
    PrefillDecode,
    PrefillDraft,
    PrefillGate,
    PrefillHeads,
    PrefillMixture,
    PrefillRoute,
    PrefillStream,
    PrefillSwiglu,
)
from specgate.backends.eagle3.cupy.kernels.prefill.packed.launchers import PrefillDown, PrefillGateUp, PrefillRowGroups
from specgate.backends.eagle3.cupy.memory.buffers import Pages
from specgate.backends.eagle3.cupy.memory.coded_pages import by_head, held, made_pages
from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.lib.kv.modes import AS_COMPUTED, KvModes
from specgate.backends.eagle3.lib.weights import LayerWeights, TargetWeights
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry

CHUNK = 4096
"""Rows per product. It is a constant, so that the bits of a prompt do not depend on what else is prefilled."""
PACKED_ROWS = 8192
"""Most rows of a prompt whose experts multiply them with weights as they are packed. Of gpt-oss-120b on an H200 that
takes 227 ms for 278 with so many rows, and as long with twice as many. It is a constant and asks for a prompt's own
rows, so that its bits depend on nothing else.
"""


@dataclass(frozen=True, slots=True)
class PrefillMode:
    """Choices of how a prompt is computed. `fused`: what stands between products is one kernel of ours each, else
    torch's, operation by operation. `grouped`: one launch multiplies the rows of many experts, each by its own matrix,
    else cuBLAS those of one. `packed_rows`: with so many rows of a prompt, or fewer, its experts' weights are not
    decoded first; `wgmma`: these are multiplied by warpgroups, else by warps. `chunk`: rows per product.
    """

    fused: bool
    attention: PrefillAttention
    grouped: bool = False
    packed_rows: int = 0
    wgmma: bool = False
    chunk: int = CHUNK

    @classmethod
    def on(
        cls,
        device: torch.device,
        *,
        fused: bool = True,
        attention: Library | None = None,
        packed: bool = True,
    ) -> PrefillMode:
        """As told on a GPU; elsewhere by torch alone. `attention`: None for the best library. `packed`: whether experts
        of short prompts stay packed.
        """
        on_gpu = device.type == "cuda"
        # For other GPUs, torch's grouped product reads the sizes of its groups back, and then multiplies one by one.
        grouped = on_gpu and fused and torch.cuda.get_device_capability(device)[0] in OWN_KERNELS
        packed_rows = PACKED_ROWS if packed and on_gpu and fused else 0
        wgmma = packed_rows > 0 and unable(multiprocessors()) is None
        return cls(on_gpu and fused, PrefillAttention.on(device, attention), grouped, packed_rows, wgmma)

    def prepare(self, target: Target, draft: Draft | None, lengths: Iterable[int], kv: KvModes = AS_COMPUTED) -> None:
        """Make what a process makes once, so that no prefill does: kernels, and plans for prompts of these lengths.
        `kv`: the formats of the caches.

        Raises BackendError where no library computes the attention of one.
        """
        g, device = target.geometry, target.weights.embed.device
        for positions in sorted(set(lengths)):
            heads = Heads.of(g, positions)
            if g.experts is None:
                self.attention.library(positions, heads, device)
                continue
            for window in {g.window(layer) for layer in range(g.layers)}:
                self.attention.library_with_sinks(positions, heads, window, device)
        if self.fused:
            ways = {"packed": self.packed_rows > 0, "wgmma": self.wgmma}
            for kernel in kernels(g, draft.geometry if draft else None, kv, target.shard.ranks, **ways):
                function(kernel.spec, kernel.spec.stem, torch.cuda.current_device(), kernel.shared_bytes)


def prefill_target(
    target: Target,
    pages: Pages,
    tokens: Tensor,
    blocks: Tensor,
    boundaries: tuple[int, ...],
    mode: PrefillMode,
    start: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """Run `tokens` (int64 [P]) from position `start` on, and fill the cache blocks `blocks` (int64, in order of
    position), which hold what is before it. `start`: so many whole chunks.

    Returns the stream float32 [P, H] before the final norm, and the captured streams bfloat16 [P, n·H], from `start`
    on. Where no boundary lies behind the last layer, only the last row of the stream has gone through it.
    """
    g, w = target.geometry, target.weights
    assert isinstance(w, TargetWeights)
    heads, all_rows = Heads.of(g, len(tokens)), [*chunks(len(tokens), mode.chunk, start)]
    x = torch.empty(len(tokens), g.hidden, dtype=torch.float32, device=tokens.device)
    features = x.new_empty(len(tokens), len(boundaries) * g.hidden, dtype=torch.bfloat16) if boundaries else None
    qkv = x.new_empty(len(tokens), heads.qkv_width, dtype=torch.bfloat16)
    qkv[:start] = 0  # queries that nobody reads
    captured = None if features is None else features[start:]

    def cache_layer(index: int) -> None:
        if start:
            read_pages(pages, index, blocks[: start // BLOCK], *split_heads(qkv[:start], heads)[1:])
        norms = w.layers[index].head_norms
        cache_heads(qkv, target.rope, pages, index, blocks, heads, mode, norms, start)

    for rows in all_rows:
        normed = embed(of_rows(x, rows), w.embed, of_rows(tokens, rows), w.layers[0].input_norm, g.rms_eps, mode)
        project(normed, w.layers[0].qkv, of_rows(qkv, rows))
    capture(captured, x[start:], boundaries, 0)
    for i, layer in enumerate(w.layers[:-1]):
        cache_layer(i)
        mixed, following = mode.attention(*split_heads(qkv, heads)), w.layers[i + 1]
        for rows in all_rows:
            into = of_rows(x, rows)
            normed = finish_layer(into, of_rows(mixed, rows), layer, following.input_norm, g.rms_eps, mode)
            project(normed, following.qkv, of_rows(qkv, rows))
        capture(captured, x[start:], boundaries, i + 1)
        del mixed  # before the next layer's is made
    last, final = w.layers[-1], x[-1:].clone()
    cache_layer(g.layers - 1)
    q, k, v = split_heads(qkv, heads)
    if g.layers in boundaries:
        mixed = mode.attention(q, k, v)
        for rows in all_rows:
            finish_layer(x[rows], mixed[rows], last, w.norm, g.rms_eps, mode)
        capture(captured, x[start:], boundaries, g.layers)
    # By itself in either case: its bits must not depend on whether a draft reads the other rows.
    finish_layer(final, attend_last(q[-1:], k, v), last, w.norm, g.rms_eps, mode)
    x[-1:] = final
    return x, features


def prefill_draft(
    draft: Draft, pages: Pages, tokens: Tensor, blocks: Tensor, features: Tensor, mode: PrefillMode, start: int = 0
) -> None:
    """Fill the draft's cache for all positions from `start` on whose next token is known, which are all but the
    prompt's last.

    Keys and values of a draft of one layer depend on features and tokens alone, so nothing else is computed.
    """
    g, w, count = draft.geometry, draft.weights, len(tokens) - 1
    if count <= start:
        return
    heads = Heads(0, g.kv_heads, g.head_dim, count)
    kv = features.new_empty(count, heads.qkv_width)
    for rows in chunks(count, mode.chunk, start):
        hidden = F.linear(feature_norms(features[rows], draft), w.fc)
        mixed = draft_input(draft, hidden, tokens[rows.start + 1 : rows.stop + 1], mode)
        project(mixed, w.layer.qkv[g.heads * g.head_dim :], kv[rows])
    cache_heads(kv, draft.rope, pages, 0, blocks, heads, mode, start=start)


def workspace_bytes(
    target: TargetGeometry, draft: DraftGeometry | None, positions: int, chunk: int = CHUNK, *, fused: bool = True
) -> int:
    """Most bytes that the prefill of a prompt of `positions` tokens takes beside weights and cache."""
    g, rows = target, min(chunk, positions)
    width = (g.heads + 2 * g.kv_heads) * g.head_dim
    # The stream, q, k and v, and what attention makes of them, with the logarithm of a sum per row and head.
    whole = 4 * g.hidden + 2 * width + 2 * g.heads * g.head_dim + 4 * g.heads
    # Gates, ups and their products; a product, and three norms: the one before, the one read, and the one written.
    part = 6 * g.intermediate + 8 * g.hidden if fused else 12 * max(2 * g.intermediate, width) + 12 * g.hidden
    if draft:
        features = draft.features * g.hidden
        whole += 2 * features
        part = max(part, (10 * features if draft.fc_norm or draft.norm_before_fc else 0) + 26 * draft.hidden)
    return positions * whole + rows * part


def kernels(
    target: TargetGeometry,
    draft: DraftGeometry | None,
    kv: KvModes = AS_COMPUTED,
    ranks: int = 1,
    *,
    packed: bool = False,
    wgmma: bool = False,
) -> Iterator[Kernel]:
    """All that a fused prefill launches. With several `ranks`, `target` is the part of one. `packed`: with what
    multiplies experts as they are packed, `wgmma`: by warpgroups.
    """
    yield PrefillStream.of(target.hidden)
    heads = Heads.of(target, BLOCK, kv.target)
    yield PrefillHeads.of(heads.heads, heads.kv_heads, heads.head_dim, kv=heads.kv, norm_eps=heads.norm_eps)
    if (experts := target.experts) is None:
        yield PrefillGate.of(target.intermediate)
    else:
        yield PrefillRoute.of(experts.count, experts.per_token)
        yield PrefillDecode.of(2 * target.intermediate, target.hidden, Order.PAIRED)
        yield PrefillDecode.of(target.hidden, target.intermediate, Order.PLAIN)
        yield PrefillSwiglu.of(target.intermediate, experts.alpha, experts.limit)
        if packed:
            yield PrefillRowGroups.of(experts.count, experts.per_token)
            yield PrefillGateUp.of(target.intermediate, target.hidden, experts, wgmma)
            yield PrefillDown.of(target.hidden, target.intermediate, experts, wgmma)
        yield PrefillMixture.of(target.hidden, experts.per_token, 1 if ranks > 1 else None)
    if draft is not None:
        yield PrefillHeads.of(0, draft.kv_heads, draft.head_dim, kv=kv.draft or "bf16")
        yield PrefillDraft.of(draft.hidden)


def chunks(count: int, chunk: int, start: int = 0) -> Iterator[slice]:
    return (slice(first, min(first + chunk, count)) for first in range(start, count, chunk))


def of_rows(tensor: Tensor, rows: slice) -> Tensor:
    """Return a view of some rows; where these are all, the tensor itself: a view takes the host time."""
    return tensor if rows.stop - rows.start == tensor.shape[0] else tensor[rows]


def project(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """out [R, N] = x [R, K] · weightᵀ."""
    torch.mm(x, weight.t(), out=out)


def embed(x: Tensor, embedding: Tensor, tokens: Tensor, weight: Tensor, eps: float, mode: PrefillMode) -> Tensor:
    """Begin the stream x float32 [R, H] with the embeddings of `tokens`. Returns its norm, bfloat16 [R, H]."""
    if mode.fused:
        normed = torch.empty_like(x, dtype=torch.bfloat16)
        PrefillStream.of(x.shape[-1])(normed=normed, x=x, embedding=embedding, tokens=tokens, weight=weight, eps=eps)
        return normed
    x.copy_(embedding[tokens])
    return rms_norm(x, weight, eps)


def add(
    x: Tensor, added: Tensor, weight: Tensor, eps: float, mode: PrefillMode, normed: Tensor | None = None
) -> Tensor:
    """x float32 [R, H] += added bfloat16. Returns its norm with `weight`, bfloat16 [R, H]: `normed`, if given."""
    normed = torch.empty_like(added) if normed is None else normed
    if mode.fused:
        PrefillStream.of(x.shape[-1])(normed=normed, x=x, added=added, weight=weight, eps=eps)
        return normed
    x += added
    return normed.copy_(rms_norm(x, weight, eps))


def finish_layer(
    x: Tensor, mixed: Tensor, layer: LayerWeights, following: Tensor, eps: float, mode: PrefillMode
) -> Tensor:
    """Rows x float32 [R, H] of the stream through the rest of a layer, from what attention has made of them, `mixed`
    bfloat16 [R, N·D]. Returns their norm with `following`, the weight of the norm after the layer, bfloat16 [R, H].
    """
    normed = add(x, F.linear(mixed, layer.o), layer.post_norm, eps, mode)
    return add(x, mlp(normed, layer, mode), following, eps, mode)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of float32 [R, H] in float32; the result is rounded to bfloat16 once."""
    return F.rms_norm(x, (x.shape[-1],), weight.float(), eps).bfloat16()


def feature_norms(features: Tensor, draft: Draft) -> Tensor:
    g, w = draft.geometry, draft.weights
    if w.concat_norm is not None:
        return rms_norm(features.float(), w.concat_norm, g.rms_eps)
    if w.chunk_norms:
        parts = features.float().chunk(g.features, dim=-1)
        return torch.cat([rms_norm(p, n, g.rms_eps) for p, n in zip(parts, w.chunk_norms, strict=True)], dim=-1)
    return features


def draft_input(draft: Draft, hidden: Tensor, tokens: Tensor, mode: PrefillMode) -> Tensor:
    """[norm(embedding of the token after the row), norm(hidden)], bfloat16 [R, 2·Hd], of hidden bfloat16 [R, Hd]."""
    g, w = draft.geometry, draft.weights
    if mode.fused:
        out = hidden.new_empty(len(hidden), 2 * g.hidden)
        PrefillDraft.of(g.hidden)(draft.input, input=out, hidden=hidden, tokens=tokens, eps=g.rms_eps)
        return out
    embedded = rms_norm(w.embed[tokens].float(), w.layer.input_norm, g.rms_eps)
    return torch.cat((embedded, rms_norm(hidden.float(), w.feature_norm, g.rms_eps)), dim=-1)


def mlp(x: Tensor, w: LayerWeights, mode: PrefillMode) -> Tensor:
    return F.linear(gated(F.linear(x, w.gate_up), mode), w.down)


def gated(gate_up: Tensor, mode: PrefillMode) -> Tensor:
    """SiLU(gate) · up of bfloat16 [R, 2F], in float32; the result [R, F] is rounded once."""
    if mode.fused:
        out = gate_up.new_empty(len(gate_up), gate_up.shape[-1] // 2)
        PrefillGate.of(out.shape[-1])(out=out, gate_up=gate_up)
        return out
    gate, up = gate_up.chunk(2, dim=-1)
    return (F.silu(gate.float()) * up.float()).bfloat16()


def cache_heads(
    qkv: Tensor,
    table: tuple[Tensor, Tensor],
    pages: Pages,
    layer: int,
    blocks: Tensor,
    heads: Heads,
    mode: PrefillMode,
    norms: Tensor | None = None,
    start: int = 0,
) -> None:
    """Rotate q and k in `qkv` bfloat16 [P, (N + 2G)·D], of positions `start` … P − 1, after their `norms` [2, D], if
    the heads have them. Write k and v into the cache. Where that is narrower, they become what it holds of them.
    """
    if start:
        qkv, blocks, table = qkv[start:], blocks[start // BLOCK :], (table[0][start:], table[1][start:])
    if mode.fused:
        kernel = PrefillHeads.of(heads.heads, heads.kv_heads, heads.head_dim, kv=pages.kv, norm_eps=heads.norm_eps)
        kernel(qkv, pages.k[layer], pages.v[layer], blocks, table, pages.scales_of(layer), norms)
        return
    for rows in chunks(len(qkv), mode.chunk):
        qkv[rows] = torch.cat(rotated(qkv[rows], table, rows, heads, norms), dim=1).flatten(1)
    _, k, v = split_heads(qkv, heads)
    write_pages(pages, layer, blocks, k, v)


def rotated(
    qkv: Tensor, table: tuple[Tensor, Tensor], rows: slice, heads: Heads, norms: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v [R, heads, D] of a projection bfloat16 [R, (N + 2G)·D]; q and k normed and rotated in float32."""
    q, k, v = split_heads(qkv, heads)
    q, k = q.float(), k.float()
    if norms is not None:
        q, k = (
            F.rms_norm(t, t.shape[-1:], norm.float(), heads.norm_eps) for t, norm in zip((q, k), norms, strict=True)
        )
    cos, sin = (t[rows].unsqueeze(1) for t in table)
    return rope(q, cos, sin).bfloat16(), rope(k, cos, sin).bfloat16(), v


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def write_pages(pages: Pages, layer: int, blocks: Tensor, k: Tensor, v: Tensor) -> None:
    """k, v [P', G, D] of positions 0 … P' − 1 into their blocks; the rest of the last block becomes zeros.

    Into a cache of codes they go as such, and become what these stand for.
    """
    used = blocks[: -(-len(k) // BLOCK)]
    pad = len(used) * BLOCK - len(k)
    keys, values = (F.pad(t, (0, 0, 0, 0, 0, pad)).view(len(used), BLOCK, *t.shape[1:]) for t in (k, v))
    if pages.scales is None:
        pages.k[layer, used] = keys.transpose(1, 2)
        pages.v[layer, used] = values.permute(0, 2, 3, 1)
        return
    made = made_pages(pages.kv, keys, values)
    for of_layers, of_blocks in zip((pages.k, pages.v, pages.scales), made, strict=True):
        of_layers[layer, used] = of_blocks
    for t, numbers in zip((k, v), held(pages.kv, *made), strict=True):
        t.copy_(numbers.flatten(0, 1)[: len(t)])


def read_pages(pages: Pages, layer: int, blocks: Tensor, k: Tensor, v: Tensor) -> None:
    """Read keys and values of whole blocks from the cache into k, v [P', G, D], as `cache_heads` has left them. Not of
    NVFP4. A chunk's blocks at a time, so that no more memory is taken than by a chunk's products.
    """
    for rows in chunks(len(k), CHUNK):
        some = blocks[rows.start // BLOCK : rows.stop // BLOCK]
        keys, values = pages.k[layer, some], pages.v[layer, some]
        if pages.scales is None:
            numbers = by_head(keys), values.permute(0, 3, 1, 2)
        else:
            numbers = held(pages.kv, keys, values, pages.scales[layer, some])
        for t, of_blocks in zip((k, v), numbers, strict=True):
            t[rows] = of_blocks.flatten(0, 1)


def capture(features: Tensor | None, x: Tensor, boundaries: tuple[int, ...], boundary: int) -> None:
    if features is None:
        return
    width = x.shape[-1]
    for chunk, at in enumerate(boundaries):
        if at == boundary:
            features[:, chunk * width : (chunk + 1) * width] = x
