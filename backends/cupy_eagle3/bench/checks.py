"""Each launcher's result beside an oracle's, on operands of a recorded step: outputs poisoned first, the call repeated.

Every check returns ‖found − oracle‖ / ‖oracle‖ (NaN where something was not written), the worst of several outputs;
where results must be equal, 0 or infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.bench import oracles
from specgate.backends.cupy_eagle3.bench.accounts import span_of
from specgate.backends.cupy_eagle3.bench.oracles import relative_error
from specgate.backends.cupy_eagle3.bench.recording import Call
from specgate.backends.cupy_eagle3.bench.stage import Stage
from specgate.backends.cupy_eagle3.kernels.accept import Accept
from specgate.backends.cupy_eagle3.kernels.attention import Attention
from specgate.backends.cupy_eagle3.kernels.commit import Commit
from specgate.backends.cupy_eagle3.kernels.draft_argmax import DraftArgmax
from specgate.backends.cupy_eagle3.kernels.draft_input import DraftInput
from specgate.backends.cupy_eagle3.kernels.embed_rows import EmbedRows
from specgate.backends.cupy_eagle3.kernels.feature_capture import FeatureCapture
from specgate.backends.cupy_eagle3.kernels.feature_rows import FeatureNorm, FeatureRows
from specgate.backends.cupy_eagle3.kernels.heads import BLOCK
from specgate.backends.cupy_eagle3.kernels.kv_blocks import FREE
from specgate.backends.cupy_eagle3.kernels.kv_reserve import KVReserve
from specgate.backends.cupy_eagle3.kernels.loader import Kernel
from specgate.backends.cupy_eagle3.kernels.matmul_rows import Epilogue, MatmulRows
from specgate.backends.cupy_eagle3.kernels.rms_norm import RmsNorm
from specgate.backends.cupy_eagle3.kernels.rope_append import RopeAppend
from specgate.backends.cupy_eagle3.kernels.target_argmax import TargetArgmax
from specgate.backends.eagle3.geometry import DraftGeometry

SUMS: Final = 1e-5
"""Of float32 sums of bfloat16 products."""
ROUNDED: Final = 4e-3
"""Of results that are rounded to bfloat16, which has eight bits."""
EXACT: Final = 0.0


def exact(found: Tensor, want: Tensor) -> float:
    return 0.0 if torch.equal(found.to(want.dtype), want) else math.inf


def check(call: Call, stage: Stage) -> tuple[float, float]:
    """(error, tolerance) of repeating `call` on the state that the step began with."""
    stage.reset()
    compare, tolerance = CHECKS[type(call.kernel)]
    if isinstance(call.kernel, MatmulRows) and call.kernel.epilogue is Epilogue.SWIGLU:
        tolerance = ROUNDED
    return compare(call, call.named, stage), tolerance


def poison(*outputs: Tensor) -> None:
    for out in outputs:
        out.fill_(math.nan)


def matmul(call: Call, named: Mapping[str, Any], stage: Stage) -> float:
    kernel: Any = call.kernel
    out, rows = named["out"], named["rows"].most
    x, weight = named["x"][:rows], named["weight"]
    if kernel.epilogue is Epilogue.RESIDUAL:
        before = out[:rows].double()
        call()
        return relative_error(out[:rows], before + oracles.matmul_rows(x, weight))
    poison(out[:rows])
    call()
    want = oracles.swiglu(x, weight) if kernel.epilogue is Epilogue.SWIGLU else oracles.matmul_rows(x, weight)
    return relative_error(out[:rows], want)


def attention(call: Call, named: Mapping[str, Any], stage: Stage) -> float:
    kernel: Any = call.kernel
    h, rows = kernel.heads, named["rows"]
    span = span_of(kernel, named, stage.context)
    poison(named["out"][: rows.most], *named["partial"])
    call()
    table, worst = named["block_table"], 0.0
    for slot in range(rows.slots):
        blocks = table[slot, : span.last // BLOCK + 1].long()
        keys = named["k_pages"][blocks].transpose(0, 1).flatten(1, 2)
        values = named["v_pages"][blocks].permute(1, 0, 3, 2).flatten(1, 2)
        for t in range(span.rows):
            row, position = slot * span.rows + t, span.last - span.rows + 1 + t
            q = named["q"][row].view(h.heads, h.head_dim)
            want = oracles.attention(q, keys, values, position, span.window).flatten()
            worst = larger(worst, relative_error(named["out"][row], want))
    return worst


def rms_norm(call: Call, named: Mapping[str, Any], stage: Stage) -> float:
    rows = named["rows"].most
    poison(named["out"][:rows])
    call()
    return relative_error(named["out"][:rows], oracles.rms_norm(named["x"][:rows], named["weight"], named["eps"]))


def rope_append(call: Call, named: Mapping[str, Any], stage: Stage) -> float:
    """Queries, and what the cache holds at every row's position."""
    kernel: Any = call.kernel
    h, rows, counts = kernel.heads, named["rows"], named.get("counts")
    poison(named["q"][: rows.most if counts is None else rows.slots])
    call()
    worst = 0.0
    for row in range(rows.most):
        slot, t = divmod(row, rows.per_slot)
        # With `counts`, which the stage sets to all rows, the last row stands at length + offset.
        position = stage.context + int(named["offset"]) + t - (rows.per_slot - 1 if counts is not None else 0)
        parts = named["qkv"][row].view(-1, h.head_dim)
        turned = oracles.rope(parts[: h.heads + h.kv_heads], *(table[position] for table in named["table"]))
        block, place = named["block_table"][slot, position // BLOCK], position % BLOCK
        worst = larger(worst, relative_error(named["k_pages"][block, :, place], turned[h.heads :]))
        worst = larger(worst, relative_error(named["v_pages"][block, :, :, place], parts[h.heads + h.kv_heads :]))
        if counts is None or t == rows.per_slot - 1:
            q = named["q"][slot if counts is not None else row].view(h.heads, h.head_dim)
            worst = larger(worst, relative_error(q, turned[: h.heads]))
    return worst


def embed_rows(call: Call, named: Mapping[str, Any], stage: Stage) -> float:
    rows, slots = named["rows"], named["slots"]
    poison(named["x"][: rows.most])
    call()
    tokens = torch.cat((slots.root[: rows.slots, None], slots.drafts[: rows.slots, : rows.per_slot - 1]), dim=1)
    return exact(named["x"][: rows.most], named["embedding"][tokens.flatten().long()].float())


def feature_capture(call: Call, named: Mapping[str, Any], stage: Stage) -> float:
    kernel: Any = call.kernel
    rows, chunk = named["rows"], int(named["chunk"])
    out = named["features"][: rows.slots, : rows.per_slot, chunk * kernel.hidden : (chunk + 1) * kernel.hidden]
    poison(out)
    call()
    return exact(out.flatten(0, 1), named["x"][: rows.most].bfloat16())


def feature_rows(call: Call, named: Mapping[str, Any], stage: Stage) -> float:
    kernel: Any = call.kernel
    rows, weight = named["rows"], named["weight"]
    poison(named["out"][: rows.most])
    call()
    given = named["features"][: rows.slots, : rows.per_slot].flatten(0, 1)
    if kernel.norm is FeatureNorm.NONE:
        return exact(named["out"][: rows.most], given)
    parts = draft_of(stage).features if kernel.norm is FeatureNorm.EACH_STREAM else 1
    chunks = zip(given.chunk(parts, dim=-1), weight.chunk(parts), strict=True)
    want = torch.cat([oracles.rms_norm(part, w, named["eps"]) for part, w in chunks], dim=-1)
    return relative_error(named["out"][: rows.most], want)


def draft_input(call: Call, named: Mapping[str, Any], stage: Stage) -> float:
    rows, w, slots = named["rows"], named["weights"], named["slots"]
    poison(named["out"][: rows.most], named["stream"][: rows.slots])
    call()
    embedded = w.embedding[slots.pending[: rows.slots, : rows.per_slot].flatten().long()]
    hidden = named["hidden"][: rows.most]
    want = oracles.draft_input(embedded, hidden, w.embedding_norm, w.feature_norm, named["eps"])
    normed = oracles.rms_norm(hidden, w.feature_norm, named["eps"])
    around = (normed if draft_of(stage).norm_before_residual else hidden)[rows.per_slot - 1 :: rows.per_slot]
    return larger(
        relative_error(named["out"][: rows.most], want), relative_error(named["stream"][: rows.slots], around)
    )


def draft_argmax(call: Call, named: Mapping[str, Any], stage: Stage) -> float:
    slots, w, count = named["slots"], named["weights"], named["rows"].slots
    tokens = named["target_ids"][oracles.target_argmax(named["logits"][:count])]
    hidden = named["normed" if draft_of(stage).norm_output else "stream"][:count].clone()
    slots.drafts[:count, named["index"]] = -1
    if named["out"] is not None:
        poison(named["out"][:count])
    call()
    chosen = exact(slots.drafts[:count, named["index"]], tokens)
    if named["out"] is None:
        return chosen
    want = oracles.draft_input(w.embedding[tokens.long()], hidden, w.embedding_norm, w.feature_norm, named["eps"])
    return larger(chosen, relative_error(named["out"][:count], want))


def target_argmax(call: Call, named: Mapping[str, Any], stage: Stage) -> float:
    rows, choices = named["rows"].most, named["choices"]
    choices.zero_()
    call()
    return exact(index_of(choices[:rows]), oracles.target_argmax(named["logits"][:rows]))


def accept(call: Call, named: Mapping[str, Any], stage: Stage) -> float:
    """Choices that agree with the first drafts of a slot: none of slot 0's, one of slot 1's, and so on."""
    rows, slots, choices = named["rows"], named["slots"], named["choices"]
    drafts = slots.drafts[: rows.slots, : rows.per_slot - 1]
    targets = torch.randint_like(slots.drafts[: rows.slots, : rows.per_slot], stage.geometry.target.vocab)
    for slot in range(rows.slots):
        agreed = slot % rows.per_slot
        targets[slot, :agreed] = drafts[slot, :agreed]
    choices[: rows.most] = packed(targets.flatten())
    call()
    want = [oracles.accept(*pair) for pair in zip(drafts.tolist(), targets.tolist(), strict=True)]
    found = slots.accepted[: rows.slots]
    return larger(exact(found, torch.tensor(want, dtype=found.dtype, device=found.device)), float(choices.any()))


def commit(call: Call, named: Mapping[str, Any], stage: Stage) -> float:
    """No slot ends, and slot i has accepted i drafts, as far as there are so many."""
    s, kv, count = named["slots"], named["kv"], stage.slots
    accepted = torch.arange(count, dtype=torch.int32, device=s.length.device) % (stage.k + 1)
    s.accepted[:count] = accepted
    stage.random_tokens(s.target_tokens)
    length, last = s.length[:count] + accepted + 1, s.target_tokens[:count].gather(1, accepted[:, None].long())
    call()
    held = kv.held[:count]
    free = int((kv.owner == FREE).sum())
    return max(
        exact(s.length[:count], length),
        exact(s.root[:count], last[:, 0]),
        exact(s.counts[:count], accepted + 1),
        exact(s.active[:count], torch.arange(count, dtype=torch.int32, device=held.device)),
        exact(held, -(-length // BLOCK)),
        0.0 if free == int(kv.free_count) == stage.sizes.blocks - int(held.sum()) else math.inf,
    )


def kv_reserve(call: Call, named: Mapping[str, Any], stage: Stage) -> float:
    """From the layout of the prompts, which holds nothing beyond them."""
    s, kv, count = named["slots"], named["kv"], stage.slots
    kv.copy_(stage.layout.kv)
    call()
    held = kv.held[:count]
    owned = all(bool((kv.owner[kv.block_table[slot, : int(held[slot])].long()] == slot).all()) for slot in range(count))
    want = torch.full_like(held, -(-(stage.context + stage.k + 1) // BLOCK))
    return max(exact(held, want), 0.0 if owned and not s.fault.any() else math.inf)


def draft_of(stage: Stage) -> DraftGeometry:
    assert stage.geometry.draft is not None
    return stage.geometry.draft


def packed(tokens: Tensor) -> Tensor:
    """Choices (`argmax.cuh`) of `tokens` by a logit of 2.0."""
    return (torch.full_like(tokens, 0xC0000000 - (1 << 32), dtype=torch.int64) << 32) | (0xFFFFFFFF - tokens.long())


def index_of(choices: Tensor) -> Tensor:
    return 0xFFFFFFFF - (choices & 0xFFFFFFFF)


def larger(a: float, b: float) -> float:
    """Of two errors; NaN where either is."""
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


Compare = Callable[[Call, Mapping[str, Any], Stage], float]
CHECKS: Final[Mapping[type[Kernel], tuple[Compare, float]]] = {
    Accept: (accept, EXACT),
    Attention: (attention, ROUNDED),
    Commit: (commit, EXACT),
    DraftArgmax: (draft_argmax, ROUNDED),
    DraftInput: (draft_input, ROUNDED),
    EmbedRows: (embed_rows, EXACT),
    FeatureCapture: (feature_capture, EXACT),
    FeatureRows: (feature_rows, ROUNDED),
    KVReserve: (kv_reserve, EXACT),
    MatmulRows: (matmul, SUMS),
    RmsNorm: (rms_norm, ROUNDED),
    RopeAppend: (rope_append, ROUNDED),
    TargetArgmax: (target_argmax, EXACT),
}
