"""The bytes that each launch must move: every operand once, however often the kernel reads it.

Bytes that a kernel writes for its own way of working do not count, where another way would do without them. So the
partial results that attention leaves for `attention_combine` are counted for the latter alone. The state words of slots
(a few bytes each) do count, so that every kernel moves something. They say little: such kernels take as long as any
launch takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.attention import Attention
from specgate.backends.eagle3.cupy.kernels.experts.launchers import ExpertDown, ExpertGateUp, Route
from specgate.backends.eagle3.cupy.kernels.experts.packing import PackedExperts
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import NORM_GROUP, Epilogue, MatmulRows, maxima_of
from specgate.backends.eagle3.cupy.kernels.rows.launchers import (
    DraftInput,
    DraftToken,
    EmbedRows,
    FeatureCapture,
    FeatureNorm,
    FeatureRows,
)
from specgate.backends.eagle3.cupy.kernels.state.launchers import Accept, Commit, KVReserve
from specgate.backends.eagle3.cupy.kernels.trees.launchers import (
    TreeChoose,
    TreeGrow,
    TreeSettle,
    TreeToken,
    TreeTop,
    parts_of,
)
from specgate.backends.eagle3.cupy.step.recording import Call
from specgate.backends.eagle3.lib.planted.routing import independent_touched
from specgate.checkpoints.geometry import ExpertGeometry

BF16: Final = 2
FLOAT: Final = 4
INT: Final = 4
LONG: Final = 8


@dataclass(frozen=True, slots=True)
class Account:
    """`shape`: sizes of the operands, in words; `size`: bytes that a launch must move."""

    shape: str
    size: int


@dataclass(frozen=True, slots=True)
class VisibleCache:
    """Part of the cache that the newest `rows` query rows of a slot see; the last stands at position `last`."""

    rows: int
    last: int
    window: int | None

    @property
    def first(self) -> int:
        """The oldest position that any row sees."""
        oldest_row = self.last - self.rows + 1
        return 0 if self.window is None else max(0, oldest_row - self.window + 1)

    @property
    def seen(self) -> int:
        """Positions that the rows see together."""
        return self.last + 1 - self.first


def visible_cache(kernel: Attention, named: Mapping[str, Any], context: int) -> VisibleCache:
    """Return the part of the cache that an attention call over slots of `context` positions sees."""
    rows = kernel.rows_per_slot
    behind = kernel.tree.levels if kernel.tree else rows - 1
    return VisibleCache(rows, context + int(named["offset"]) + behind, kernel.window)


def account(call: Call, context: int) -> Mapping[str, Account]:
    """Name of a function on the GPU → what a launch of it moves. Raises KeyError for a launcher without an account."""
    return ACCOUNTS[type(call.kernel)](call.kernel, call.operands, context)


def matmul(kernel: MatmulRows, named: Mapping[str, Any], context: int) -> Mapping[str, Account]:
    rows, (n, k) = named["rows"].most, named["weight"].shape
    out = {Epilogue.PLAIN: FLOAT, Epilogue.RESIDUAL: 2 * FLOAT, Epilogue.SWIGLU: BF16}[kernel.epilogue]
    size = n * k * BF16 + rows * k * BF16 + rows * kernel.n_out * out
    if kernel.scaled:
        size += rows * k // NORM_GROUP * FLOAT
    if kernel.feeds_norm:
        size += pre_norm_bytes(rows, n)
    if kernel.chooses:
        size += rows * LONG
    if kernel.maxima:
        size += rows * maxima_of(n) * INT
    if kernel.biased:
        size += n * BF16
    return {kernel.name: Account(f"{rows}×{n}×{k}", size)}


def pre_norm_bytes(rows: int, hidden: int) -> int:
    """Bytes of leaving the next norm's input: its weight, the rows before the division, and sums of squares."""
    return hidden * BF16 + rows * (hidden * BF16 + hidden // NORM_GROUP * FLOAT)


def attention(kernel: Attention, named: Mapping[str, Any], context: int) -> Mapping[str, Account]:
    """Older positions are read, and of a tree earlier nodes; new ones are taken from their projections and written,
    queries are read.
    """
    h, slots, visible = kernel.heads, named["rows"].slots, visible_cache(kernel, named, context)
    made = 2 * h.kv_heads * h.head_dim * FLOAT
    new = slots * kernel.appended * (made + h.position_bytes)
    queries = slots * visible.rows * h.width * FLOAT + (2 * h.head_dim * BF16 if h.norm_eps else 0)
    older = context + kernel.tree.first if kernel.tree else visible.seen - min(visible.seen, kernel.appended)
    seen = older + visible.rows if kernel.tree else visible.seen
    cached = slots * older * h.position_bytes
    if kernel.tree:
        cached += slots * (kernel.tree.first + visible.rows) * LONG  # masks
    tile = kernel.config.kv_tile
    parts = visible.last // tile - visible.first // tile + 1
    partial = slots * visible.rows * h.heads * parts * (h.head_dim + 2) * FLOAT
    out = slots * visible.rows * h.width * BF16 + (h.heads * BF16 if kernel.sinks else 0)
    shape = f"{slots}×{visible.rows} over {seen}"
    if kernel.joins:
        return {"attention": Account(shape, ceil(cached + new + queries) + out)}
    return {
        "attention": Account(shape, ceil(cached + new + queries)),
        "attention_combine": Account(f"{slots}×{visible.rows}×{h.heads} of {parts}", partial + out),
    }


def embed_rows(kernel: EmbedRows, named: Mapping[str, Any], context: int) -> Mapping[str, Account]:
    rows, h = named["rows"].most, kernel.hidden
    return {"embed_rows": Account(f"{rows}×{h}", rows * (h * (BF16 + FLOAT) + INT) + pre_norm_bytes(rows, h))}


def feature_capture(kernel: FeatureCapture, named: Mapping[str, Any], context: int) -> Mapping[str, Account]:
    rows, h = named["rows"].most, kernel.hidden
    return {"feature_capture": Account(f"{rows}×{h}", rows * h * (FLOAT + BF16))}


def feature_rows(kernel: FeatureRows, named: Mapping[str, Any], context: int) -> Mapping[str, Account]:
    rows, width = named["rows"].most, kernel.features * kernel.hidden
    weight = 0 if kernel.norm is FeatureNorm.NONE else width * BF16
    return {"feature_rows": Account(f"{rows}×{width}", rows * width * 2 * BF16 + weight)}


def draft_input(kernel: DraftInput, named: Mapping[str, Any], context: int) -> Mapping[str, Account]:
    """A row: embedding and hidden state in, both normed out; of each slot, the newest hidden state goes on."""
    rows, h = named["rows"], kernel.hidden
    size = rows.most * (h * (BF16 + FLOAT + 2 * BF16) + INT) + rows.slots * h * FLOAT + 2 * h * BF16
    return {"draft_input": Account(f"{rows.most}×{2 * h}", size)}


def next_input_bytes(rows: int, hidden: int) -> int:
    """Bytes of the draft's next input of `rows` rows: embedding and stream in, both normed and the stream out."""
    return rows * hidden * (BF16 + FLOAT + 2 * BF16 + FLOAT) + 2 * hidden * BF16


def draft_token(kernel: DraftToken, named: Mapping[str, Any], context: int) -> Mapping[str, Account]:
    """A choice in and cleared, a token out; but for the last draft also the next step's input, as in `draft_input`."""
    slots, h = named["rows"].slots, kernel.hidden
    size = slots * (2 * LONG + 2 * INT)
    if named["input"] is not None:
        size += next_input_bytes(slots, h)
    return {"draft_token": Account(f"{slots}×{2 * h}", size)}


def accept(kernel: Accept, named: Mapping[str, Any], context: int) -> Mapping[str, Account]:
    """A choice is read, cleared, and written as a token; drafts are read; a length per slot."""
    rows = named["rows"]
    drafts = rows.most - rows.slots
    return {"accept": Account(f"{rows.most}", rows.most * (2 * LONG + INT) + drafts * INT + rows.slots * INT)}


def commit(kernel: Commit, named: Mapping[str, Any], context: int) -> Mapping[str, Account]:
    """Per slot, no draft accepted: a token read, and written twice; seven words read and written; four more."""
    return {"commit": Account(f"{kernel.slots} slots", kernel.slots * (3 + 2 * 7 + 4) * INT)}


def kv_reserve(kernel: KVReserve, named: Mapping[str, Any], context: int) -> Mapping[str, Account]:
    """Per slot: its length and blocks held, and the table and the owner of at most two blocks that it may write."""
    return {"kv_reserve": Account(f"{kernel.slots} slots", kernel.slots * (3 + 4) * INT)}


def tree_token(kernel: TreeToken, named: Mapping[str, Any], context: int) -> Mapping[str, Account]:
    """The maxima of the rows that the draft ran on, of every node its place and its token; inputs of the next rows."""
    rows = named["rows"]
    size = rows.most * maxima_of(kernel.draft_vocab) * INT + (rows.slots + 2) * kernel.nodes * INT
    if kernel.rows:
        size += next_input_bytes(rows.slots * kernel.rows, kernel.hidden)
    return {"tree_token": Account(f"{rows.slots}×{kernel.nodes} of {rows.most}×{kernel.draft_vocab}", size)}


def listed_bytes(rows: int, columns: int, top: int) -> int:
    """Bytes of the likeliest tokens of each part of `rows` rows of logits, with what a softmax needs of the part."""
    return rows * parts_of(columns) * (top * LONG + 2 * FLOAT)


def tree_top(kernel: TreeTop, named: Mapping[str, Any], context: int) -> Mapping[str, Account]:
    rows = named["rows"].most
    size = rows * kernel.columns * FLOAT + listed_bytes(rows, kernel.columns, kernel.top)
    return {"tree_top": Account(f"{kernel.top} of {rows}×{kernel.columns}", size)}


def tree_grow(kernel: TreeGrow, named: Mapping[str, Any], context: int) -> Mapping[str, Account]:
    """Lists in; candidates, and of the next rows candidate, score, mask and input out."""
    rows, width = named["rows"], kernel.width
    size = listed_bytes(rows.most, kernel.draft_vocab, width) + rows.most * width * 2 * INT
    size += rows.slots * width * (INT + FLOAT + LONG) + next_input_bytes(rows.slots * width, kernel.hidden)
    return {"tree_grow": Account(f"{rows.slots}×{width} of {rows.most * width}", size)}


def tree_choose(kernel: TreeChoose, named: Mapping[str, Any], context: int) -> Mapping[str, Account]:
    """Lists and candidates of earlier levels in; of every node token, parent and mask out."""
    rows = named["rows"]
    size = listed_bytes(rows.most, kernel.draft_vocab, kernel.width) + rows.slots * kernel.pool * 2 * INT
    size += rows.slots * kernel.nodes * (2 * INT + LONG)
    return {"tree_choose": Account(f"{rows.slots}×{kernel.nodes} of {kernel.pool}", size)}


def tree_settle(kernel: TreeSettle, named: Mapping[str, Any], context: int) -> Mapping[str, Account]:
    """Of every node a choice read and cleared, mask, parent and draft; the path and its tokens out. No draft of random
    weights is accepted: no key, value or feature has to move.
    """
    rows = named["rows"]
    size = rows.most * (3 * LONG + 2 * INT) + rows.slots * (2 * (kernel.levels + 1) + 1) * INT
    return {"tree_settle": Account(f"{rows.slots}×{rows.rows_per_slot}", size)}


def touched_experts(logits: Tensor, rows: int, experts: ExpertGeometry) -> float:
    """Experts that the `rows` first rows of router `logits` choose; where these hold nothing, as many as independent
    rows choose on average.
    """
    if logits.is_meta:
        return independent_touched(experts, rows)
    return float(len({*logits[:rows].topk(experts.per_token).indices.flatten().tolist()}))


def route(kernel: Route, named: Mapping[str, Any], context: int) -> Mapping[str, Account]:
    rows, h, count = named["rows"].most, kernel.hidden, kernel.experts.count
    of_row = h * (2 * BF16) + h // NORM_GROUP * FLOAT + count * FLOAT
    return {"route": Account(f"{rows}×{count}×{h}", count * (h + 1) * BF16 + rows * of_row)}


def expert_product(kernel: ExpertGateUp | ExpertDown, named: Mapping[str, Any], context: int) -> Mapping[str, Account]:
    """The matrices of the experts that the rows choose, each once; the router's logits; activations."""
    rows, g, first = named["rows"].most, kernel.experts, isinstance(kernel, ExpertGateUp)
    h, f = (kernel.k_in, kernel.n_out) if first else (kernel.n_out, kernel.k_in)
    touched = touched_experts(named["logits"], rows, g)
    weight = next(group for group in named["groups"] if isinstance(group, PackedExperts))
    size = touched * weight.read_bytes + rows * (g.count * FLOAT + g.per_token * f * BF16)
    if first:
        name, size = "expert_gate_up", size + rows * h * BF16
    else:
        name, size = "expert_down", size + 2 * rows * h * FLOAT + pre_norm_bytes(rows, h)
    return {name: Account(f"{rows} to {touched:.3g} of {g.count}", ceil(size))}


ACCOUNTS: Final[Mapping[type[Kernel], Callable[[Any, Mapping[str, Any], int], Mapping[str, Account]]]] = {
    Accept: accept,
    Attention: attention,
    Commit: commit,
    DraftInput: draft_input,
    DraftToken: draft_token,
    EmbedRows: embed_rows,
    ExpertDown: expert_product,
    ExpertGateUp: expert_product,
    FeatureCapture: feature_capture,
    FeatureRows: feature_rows,
    KVReserve: kv_reserve,
    MatmulRows: matmul,
    Route: route,
    TreeChoose: tree_choose,
    TreeGrow: tree_grow,
    TreeSettle: tree_settle,
    TreeToken: tree_token,
    TreeTop: tree_top,
}
