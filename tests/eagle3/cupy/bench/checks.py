"""Each launcher's result beside an oracle's, on the operands of a recorded step.

Outputs are filled with NaN first, then the call is repeated. A check yields (error, tolerance) for each of its results.
The error is ‖found − oracle‖ / ‖oracle‖, and NaN where something was not written. Where results must be equal, it is 0
or infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.bench.accounts import visible_cache
from specgate.backends.eagle3.cupy.bench.stage import Stage
from specgate.backends.eagle3.cupy.kernels.attention.attention import Attention
from specgate.backends.eagle3.cupy.kernels.experts.launchers import ExpertDown, ExpertGateUp, Route
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue, MatmulRows, PreNormRows
from specgate.backends.eagle3.cupy.kernels.rows.launchers import (
    DraftInput,
    DraftToken,
    EmbedRows,
    FeatureCapture,
    FeatureNorm,
    FeatureRows,
)
from specgate.backends.eagle3.cupy.kernels.state.launchers import Accept, Commit, KVReserve
from specgate.backends.eagle3.cupy.kernels.state.slots import FREE
from specgate.backends.eagle3.cupy.kernels.trees.launchers import (
    TreeChoose,
    TreeGrow,
    TreeSettle,
    TreeToken,
    TreeTop,
)
from specgate.backends.eagle3.cupy.memory.coded_pages import held, held_value
from specgate.backends.eagle3.cupy.step.recording import Call
from specgate.backends.eagle3.lib.kv.modes import KvMode
from specgate.backends.eagle3.lib.trees.accepting import accept_tree
from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth, likeliest
from specgate.backends.eagle3.lib.trees.topology import ancestors
from specgate.checkpoints.geometry import DraftGeometry
from tests.eagle3.cupy import oracles
from tests.eagle3.cupy.kernels.trees.random_trees import masks_of
from tests.eagle3.cupy.oracles import relative_error

Finding = tuple[float, float]
"""The error, and its tolerance."""
SUMS: Final = 1e-5
"""Tolerance of float32 sums of bfloat16 products."""
ROUNDED: Final = 4e-3
"""Tolerance of results that are rounded to bfloat16, whose mantissa has eight bits."""
ATTENDED: Final = 6e-3
"""Tolerance of attention, whose queries, probabilities and results are rounded to bfloat16."""
CODED: Final[Mapping[KvMode, float]] = {"bf16": ROUNDED, "fp8": 4e-2, "nvfp4": 0.15}
"""Tolerance of what a cache holds of a key: eight bits of each number, four, or two or fewer."""
WRONG: Final = (math.inf, 0.0)


def check(call: Call, stage: Stage) -> Finding:
    """Repeat `call` on the state that the step began with, of a tree behind one more step, since its levels share their
    buffers; the worst of its findings.
    """
    if stage.sizes.tree is not None:
        stage.reset()
        stage.cycle(stage.b)
    stage.reset()
    return max(CHECKS[type(call.kernel)](call, call.operands, stage), key=excess)


def excess(finding: Finding) -> float:
    """Return an error's distance beyond its tolerance; infinite for NaN."""
    error, tolerance = finding
    if math.isnan(error):
        return math.inf
    return error / tolerance if tolerance else error


def close(result: Tensor, want: Tensor, tolerance: float) -> Finding:
    return relative_error(result, want), tolerance


def equal(result: Tensor, want: Tensor) -> Finding:
    return (0.0, 0.0) if torch.equal(result.to(want.dtype), want) else WRONG


def holds(condition: bool) -> Finding:
    return (0.0, 0.0) if condition else WRONG


def poison(*outputs: Tensor) -> None:
    for out in outputs:
        out.fill_(math.nan)


def divided(pre_norm: PreNormRows, rows: int, eps: float) -> Tensor:
    """The normed rows, float64: `pre_norm.normed` divided by their root mean square."""
    mean = pre_norm.squares[:rows].double().sum(-1, keepdim=True) / pre_norm.normed.shape[1]
    return pre_norm.normed[:rows].double() * torch.rsqrt(mean + eps)


def norm_input(pre_norm: PreNormRows, stream: Tensor, weight: Tensor) -> Iterator[Finding]:
    """Check what a kernel leaves for the norm with `weight` of the float32 rows `stream`."""
    rows, wide = len(stream), stream.double()
    yield close(pre_norm.normed[:rows], wide * weight.double(), ROUNDED)
    yield close(pre_norm.squares[:rows], wide.square().view(rows, pre_norm.squares.shape[1], -1).sum(-1), SUMS)


def matmul(call: Call, named: Mapping[str, Any], stage: Stage) -> Iterator[Finding]:
    kernel: Any = call.kernel
    out, rows, source, weight = named["out"], named["rows"].most, named["x"], named["weight"]
    x = divided(source, rows, named["eps"]) if isinstance(source, PreNormRows) else source[:rows]
    bias = 0 if (given := named.get("bias")) is None else given.double()
    if kernel.epilogue is Epilogue.RESIDUAL:
        want, norm = out[:rows].double() + oracles.matmul_rows(x, weight) + bias, named.get("norm")
        if norm is not None:
            poison(norm[0].normed[:rows], norm[0].squares[:rows])
        call()
        yield close(out[:rows], want, SUMS)
        if norm is not None:
            yield from norm_input(norm[0], out[:rows], norm[1])
        return
    poison(out[:rows])
    if kernel.maxima:
        named["maxima"].zero_()
    if kernel.chooses:
        named["choices"].zero_()
    call()
    if kernel.epilogue is Epilogue.SWIGLU:
        yield close(out[:rows], oracles.swiglu(x, weight), ROUNDED)
    else:
        yield close(out[:rows], oracles.matmul_rows(x, weight) + bias, SUMS)
    if kernel.maxima:
        eights = torch.nn.functional.pad(out[:rows], (0, -out.shape[1] % 8), value=-torch.inf).view(rows, -1, 8)
        bits = eights.amax(-1).view(torch.int32)
        yield equal(named["maxima"][:rows, : bits.shape[1]], torch.where(bits < 0, ~bits, bits ^ -(1 << 31)))
    if kernel.chooses:
        yield equal(index_of(named["choices"][:rows]), oracles.greedy_choices(out[:rows].double()))


def attention(call: Call, named: Mapping[str, Any], stage: Stage) -> Iterator[Finding]:
    """Check what enters the cache, then what is read out of it, as numbers: a cache of codes holds a key's
    nearest one.
    """
    kernel: Any = call.kernel
    h, rows, table = kernel.heads, named["rows"], named["block_table"]
    visible, both = visible_cache(kernel, named, stage.context), h.heads + h.kv_heads
    poison(named["out"][: rows.most], named["partial"], named["partial_stats"])
    call()
    if kernel.tree is not None:
        yield from tree_attention(kernel, named, stage)
        return
    for slot in range(rows.slots):
        blocks = table[slot, : visible.last // BLOCK + 1].long()
        k_pages, v_pages = (named[name][blocks] for name in ("k_pages", "v_pages"))
        scales = None if h.kv == "bf16" else named["scales"][blocks]
        if scales is None:
            keys, values = k_pages.transpose(0, 1), v_pages.permute(1, 0, 3, 2)
        else:
            keys, values = (rows.permute(2, 0, 1, 3) for rows in held(h.kv, k_pages, v_pages, scales))
        keys, values = keys.flatten(1, 2), values.flatten(1, 2)
        for t in range(kernel.appended):
            # Where the draft extends, which the stage lets it do over all rows, the last one asks.
            position = visible.last - kernel.appended + 1 + t
            heads = named["qkv"][slot * kernel.appended + t].view(-1, h.head_dim)
            turned = oracles.rope(heads[:both], *(angles[position] for angles in (named["cosine"], named["sine"])))
            value = heads[both:].bfloat16() if scales is None else held_value(h.kv, scales, position, heads[both:])
            yield close(keys[:, position], turned[h.heads :], CODED[h.kv])
            yield equal(values[:, position], value)
            query_row = t - kernel.appended + visible.rows
            if query_row >= 0:
                seen = turned[: h.heads], keys, values, position, visible.window, named.get("sinks")
                want = oracles.attention(*seen)
                yield close(named["out"][slot * visible.rows + query_row], want.flatten(), ATTENDED)


def tree_attention(kernel: Any, named: Mapping[str, Any], stage: Stage) -> Iterator[Finding]:
    """Check of every node its key and value in the cache, and its attention over the positions before the tree and over
    the nodes of its mask.
    """
    h, rows, begin = kernel.heads, named["rows"], stage.context + int(named["offset"])
    both, every = h.heads + h.kv_heads, begin + kernel.tree.first + kernel.rows_per_slot
    for slot in range(rows.slots):
        blocks = named["block_table"][slot, : -(-every // BLOCK)].long()
        keys = named["k_pages"][blocks].transpose(0, 1).flatten(1, 2)
        values = named["v_pages"][blocks].permute(1, 0, 3, 2).flatten(1, 2)
        for t in range(kernel.rows_per_slot):
            node = kernel.tree.first + t
            mask = int(named["masks"][slot, node]) & (1 << 64) - 1
            angles = [each[begin + mask.bit_count() - 1] for each in (named["cosine"], named["sine"])]
            heads = named["qkv"][slot * kernel.rows_per_slot + t].view(-1, h.head_dim)
            turned = oracles.rope(heads[:both], *angles)
            yield close(keys[:, begin + node], turned[h.heads :], ROUNDED)
            yield equal(values[:, begin + node], heads[both:].bfloat16())
            seen = [*range(begin), *(begin + above for above in range(node + 1) if mask >> above & 1)]
            path = turned[: h.heads], keys[:, seen], values[:, seen], len(seen) - 1, kernel.window, named.get("sinks")
            want = oracles.attention(*path)
            yield close(named["out"][slot * kernel.rows_per_slot + t], want.flatten(), ATTENDED)


def embed_rows(call: Call, named: Mapping[str, Any], stage: Stage) -> Iterator[Finding]:
    rows, slots, pre_norm = named["rows"], named["slots"], named["pre_norm"]
    poison(named["x"][: rows.most], pre_norm.normed[: rows.most], pre_norm.squares[: rows.most])
    call()
    tokens = torch.cat(
        (slots.last_token[: rows.slots, None], slots.drafts[: rows.slots, : rows.rows_per_slot - 1]), dim=1
    )
    want = named["embedding"][tokens.flatten().long()].float()
    yield equal(named["x"][: rows.most], want)
    yield from norm_input(pre_norm, want, named["norm_weight"])


def feature_capture(call: Call, named: Mapping[str, Any], stage: Stage) -> Iterator[Finding]:
    kernel: Any = call.kernel
    rows, chunk = named["rows"], int(named["chunk"])
    out = named["features"][: rows.slots, : rows.rows_per_slot, chunk * kernel.hidden : (chunk + 1) * kernel.hidden]
    poison(out)
    call()
    yield equal(out.flatten(0, 1), named["x"][: rows.most].bfloat16())


def feature_rows(call: Call, named: Mapping[str, Any], stage: Stage) -> Iterator[Finding]:
    kernel: Any = call.kernel
    rows, weight, out = named["rows"], named["weight"], named["out"][: named["rows"].most]
    poison(out)
    call()
    features = named["features"][: rows.slots, : rows.rows_per_slot].flatten(0, 1)
    if kernel.norm is FeatureNorm.NONE:
        yield equal(out, features)
        return
    parts = draft_of(stage).features if kernel.norm is FeatureNorm.EACH_STREAM else 1
    chunks = zip(features.chunk(parts, dim=-1), weight.chunk(parts), strict=True)
    yield close(out, torch.cat([oracles.rms_norm(part, w, named["eps"]) for part, w in chunks], dim=-1), ROUNDED)


def draft_input(call: Call, named: Mapping[str, Any], stage: Stage) -> Iterator[Finding]:
    rows, w, slots = named["rows"], named["weights"], named["slots"]
    out, stream = named["out"][: rows.most], named["stream"][: rows.slots]
    poison(out, stream)
    call()
    embedded = w.embedding[slots.pending[: rows.slots, : rows.rows_per_slot].flatten().long()]
    hidden = named["hidden"][: rows.most]
    yield close(out, oracles.draft_input(embedded, hidden, w.embedding_norm, w.feature_norm, named["eps"]), ROUNDED)
    normed = oracles.rms_norm(hidden, w.feature_norm, named["eps"])
    around = normed if draft_of(stage).norm_before_residual else hidden
    yield close(stream, around[rows.rows_per_slot - 1 :: rows.rows_per_slot], ROUNDED)


def draft_token(call: Call, named: Mapping[str, Any], stage: Stage) -> Iterator[Finding]:
    slots, w, count, out = named["slots"], named["weights"], named["rows"].slots, named["out"]
    chosen = torch.randint_like(named["choices"][:count], len(named["target_ids"]))
    named["choices"][:count] = packed(chosen)
    tokens = named["target_ids"][chosen]
    own = divided(named["pre_norm"], count, named["eps"]) if draft_of(stage).norm_output else named["stream"][:count]
    want = oracles.draft_input(w.embedding[tokens.long()], own.clone(), w.embedding_norm, w.feature_norm, named["eps"])
    slots.drafts[:count, named["index"]] = -1
    if out is not None:
        poison(out[:count])
    call()
    yield equal(slots.drafts[:count, named["index"]], tokens)
    yield holds(not named["choices"].any() and not slots.fault.any())
    if out is not None:
        yield close(out[:count], want, ROUNDED)


def accept(call: Call, named: Mapping[str, Any], stage: Stage) -> Iterator[Finding]:
    """Choices that agree with the first drafts of a slot: none of slot 0's, one of slot 1's, and so on."""
    rows, slots, choices = named["rows"], named["slots"], named["choices"]
    drafts = slots.drafts[: rows.slots, : rows.rows_per_slot - 1]
    targets = torch.randint_like(slots.drafts[: rows.slots, : rows.rows_per_slot], stage.geometry.target.vocab)
    for slot in range(rows.slots):
        agreed = slot % rows.rows_per_slot
        targets[slot, :agreed] = drafts[slot, :agreed]
    choices[: rows.most] = packed(targets.flatten())
    call()
    want = [oracles.accept(*pair) for pair in zip(drafts.tolist(), targets.tolist(), strict=True)]
    accepted = slots.accepted[: rows.slots]
    yield equal(accepted, torch.tensor(want, dtype=accepted.dtype, device=accepted.device))
    yield equal(slots.target_tokens[: rows.slots, : rows.rows_per_slot], targets)
    yield holds(not choices.any())


def commit(call: Call, named: Mapping[str, Any], stage: Stage) -> Iterator[Finding]:
    """No slot ends, and slot i has accepted i drafts, or as many as there are."""
    s, kv, count = named["slots"], named["kv"], stage.slots
    accepted = torch.arange(count, dtype=torch.int32, device=s.length.device) % (stage.k + 1)
    s.accepted[:count] = accepted
    stage.random_tokens(s.target_tokens)
    length, last = s.length[:count] + accepted + 1, s.target_tokens[:count].gather(1, accepted[:, None].long())
    call()
    block_counts = kv.held[:count]
    yield equal(s.length[:count], length)
    yield equal(s.last_token[:count], last[:, 0])
    yield equal(s.counts[:count], accepted + 1)
    yield equal(s.active[:count], torch.arange(count, dtype=torch.int32, device=block_counts.device))
    yield equal(block_counts, -(-length // BLOCK))
    free = int((kv.owner == FREE).sum())
    yield holds(free == int(kv.free_count) == stage.sizes.blocks - int(block_counts.sum()))


def kv_reserve(call: Call, named: Mapping[str, Any], stage: Stage) -> Iterator[Finding]:
    """From the layout of the prompts, which holds nothing beyond them."""
    s, kv, count = named["slots"], named["kv"], stage.slots
    kv.copy_(stage.layout.kv)
    call()
    block_counts = kv.held[:count]
    yield equal(block_counts, torch.full_like(block_counts, -(-(stage.context + stage.k + 1) // BLOCK)))
    owners = [kv.owner[kv.block_table[slot, : int(block_counts[slot])].long()] for slot in range(count)]
    yield holds(all(bool((owner == slot).all()) for slot, owner in enumerate(owners)) and not s.fault.any())


def tree_token(call: Call, named: Mapping[str, Any], stage: Stage) -> Iterator[Finding]:
    kernel: Any = call.kernel
    rows, slots, nodes = named["rows"], named["slots"], named["nodes"].long()
    numbers = range(kernel.last - kernel.nodes, kernel.last)
    out, onward = (named[name][: rows.slots * kernel.rows] for name in ("out", "next_stream"))
    slots.drafts.fill_(-1)
    poison(out, onward)
    call()
    ordered = named["logits"][: rows.most].sort(dim=-1, descending=True, stable=True).indices
    for slot in range(rows.slots):
        source = slot * kernel.sources + nodes[numbers, 0]
        tokens = named["target_ids"][ordered[source, nodes[numbers, 1]]]
        yield equal(slots.drafts[slot, numbers], tokens)
        inner = nodes[numbers, 2] >= 0
        if kernel.rows:
            of_slot = slice(slot * kernel.rows, (slot + 1) * kernel.rows)
            yield from next_input(named, stage, tokens[inner], source[inner], out[of_slot], onward[of_slot])
    yield holds(not slots.fault.any())


def next_input(
    named: Mapping[str, Any], stage: Stage, tokens: Tensor, source: Tensor, out: Tensor, onward: Tensor
) -> Iterator[Finding]:
    """Check the draft's next input of `tokens` behind the rows `source`."""
    w, eps, most = named["weights"], named["eps"], named["rows"].most
    own = divided(named["pre_norm"], most, eps) if draft_of(stage).norm_output else named["stream"][:most]
    want = oracles.draft_input(w.embedding[tokens.long()], own[source], w.embedding_norm, w.feature_norm, eps)
    yield close(out, want, ROUNDED)
    kept = want[:, want.shape[1] // 2 :] if draft_of(stage).norm_before_residual else own[source]
    yield close(onward, kept, ROUNDED)


def tree_top(call: Call, named: Mapping[str, Any], stage: Stage) -> Iterator[Finding]:
    kernel: Any = call.kernel
    rows = named["rows"].most
    listed, sums = named["candidates"][: rows * kernel.parts * kernel.top], named["sums"][: rows * kernel.parts]
    listed.zero_()
    poison(sums)
    call()
    logits, listed = named["logits"][:rows], listed.view(rows, -1)
    values = logits.gather(1, index_of(listed).clamp(max=kernel.columns - 1))
    best = torch.where(listed == 0, -torch.inf, values).topk(kernel.top).values
    yield equal(best, logits.topk(kernel.top).values)
    largest, powers = sums.double().view(rows, -1, 2).unbind(-1)
    yield close((largest + powers.log()).logsumexp(-1), logits.double().logsumexp(-1), SUMS)


def scores_of(pool: Any, slot: int, count: int) -> Tensor:
    """float32 [1, count]: the logarithms of candidates' probabilities, of which the pool keeps ordered bits."""
    bits = pool.candidates[slot, :count, 0].contiguous()
    return torch.where(bits < 0, bits ^ -(1 << 31), ~bits).view(torch.float32)[None]


def tree_grow(call: Call, named: Mapping[str, Any], stage: Stage) -> Iterator[Finding]:
    kernel: Any = call.kernel
    constants, rows, pool = dict(kernel.spec.constants), named["rows"], named["pool"]
    begin, first, width = int(constants["BEGIN"]), int(constants["FIRST"]), kernel.width
    out, onward = (named[name][: rows.slots * width] for name in ("out", "next_stream"))
    poison(out, onward)
    call()
    end = begin + rows.rows_per_slot * width
    for slot in range(rows.slots):
        chosen = likeliest(scores_of(pool, slot, end)[:, begin:], width)[0]
        yield equal(pool.entries[slot, first : first + width], chosen + begin)
        tokens = named["target_ids"][pool.candidates[slot, begin + chosen, 1].long()]
        source, of_slot = slot * rows.rows_per_slot + chosen // width, slice(slot * width, (slot + 1) * width)
        yield from next_input(named, stage, tokens, source, out[of_slot], onward[of_slot])


def tree_choose(call: Call, named: Mapping[str, Any], stage: Stage) -> Iterator[Finding]:
    growth, pool, slots = stage.sizes.tree_of(stage.k), named["pool"], named["slots"]
    assert isinstance(growth, DynamicGrowth)
    slots.drafts.fill_(-1)
    named["masks"].zero_()
    call()
    width, last = growth.width, growth.levels - 1
    for slot in range(named["rows"].slots):
        chosen = likeliest(scores_of(pool, slot, growth.pool), growth.nodes)[0].tolist()
        frontier = pool.entries[slot, : last * width].tolist()
        above = [-1] * width + [entry for entry in frontier for _ in range(width)]
        number = {entry: node for node, entry in enumerate(chosen, 1)}
        parents = [0, *(number.get(above[entry], 0) for entry in chosen)]
        yield equal(slots.drafts[slot, : growth.nodes], named["target_ids"][pool.candidates[slot, chosen, 1].long()])
        yield holds(named["parents"][slot, : growth.rows].tolist() == parents)
        yield holds(named["masks"][slot, : growth.rows].tolist() == masks_of(parents))


def tree_settle(call: Call, named: Mapping[str, Any], stage: Stage) -> Iterator[Finding]:
    """On drafts and choices of three tokens, so that paths of several nodes are accepted."""
    kernel: Any = call.kernel
    slots, count, rows = named["slots"], named["rows"].slots, kernel.rows_per_slot
    drafts = slots.drafts[:count, : rows - 1]
    drafts.copy_(torch.randint_like(drafts, 3))
    targets = torch.randint_like(slots.target_tokens[:count, :rows], 3).long()
    named["choices"][: count * rows] = packed(targets.flatten())
    pages = [named[name] if isinstance(named[name], Tensor) else torch.stack(list(named[name])) for name in PAGES]
    before, features = [each.clone() for each in pages], named["features"].clone()
    slots.target_tokens.fill_(-1)
    call()
    parents = named["parents"][:count, :rows].long()
    mask = ancestors(parents, kernel.levels)
    want = accept_tree(drafts.long(), targets, parents, mask, kernel.levels)
    yield equal(slots.accepted[:count], want.length)
    yield holds(not named["readers"].any() and not named["choices"].any() and not slots.fault.any())
    for slot in range(count):
        path = want.path[slot, : int(want.length[slot]) + 1]
        yield equal(named["path"][slot, : len(path)], path)
        yield equal(slots.target_tokens[slot, : len(path)], want.tokens[slot, : len(path)])
        yield equal(named["features"][slot, : len(path)], features[slot, path])
        to, since = (stage.context + nodes for nodes in (torch.arange(len(path), device=path.device), path))
        block = named["block_table"][slot].long()
        for page, old, axis in zip(pages, before, (-2, -1), strict=True):
            moved, were = (
                tensor[:, block[at // BLOCK]].movedim(axis, 3)[:, range(len(path)), :, at % BLOCK]
                for tensor, at in ((page, to), (old, since))
            )
            yield equal(moved, were)


PAGES: Final = ("k_pages", "v_pages")


def route(call: Call, named: Mapping[str, Any], stage: Stage) -> Iterator[Finding]:
    rows = named["rows"].most
    x = divided(named["x"], rows, named["eps"])
    poison(named["logits"][:rows], named["x16"][:rows])
    call()
    yield close(named["logits"][:rows], oracles.route(x, named["router"], named["bias"]), SUMS)
    yield close(named["x16"][:rows], x, ROUNDED)


def matrices_of(named: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """The matrices of all experts as numbers, and their biases."""
    weight = named["weight"]
    return torch.stack([weight.matrix(expert) for expert in range(len(weight.tiles))]), weight.bias


def expert_gate_up(call: Call, named: Mapping[str, Any], stage: Stage) -> Iterator[Finding]:
    kernel: Any = call.kernel
    rows, g = named["rows"].most, kernel.experts
    experts, _ = oracles.chosen_experts(named["logits"][:rows], g.per_token)
    poison(named["act"][: rows * g.per_token])
    call()
    want = oracles.expert_gate_up(named["x"][:rows], *matrices_of(named), experts, g.alpha, g.limit)
    yield close(named["act"][: rows * g.per_token], want, ROUNDED)


def expert_down(call: Call, named: Mapping[str, Any], stage: Stage) -> Iterator[Finding]:
    kernel: Any = call.kernel
    rows, g, (pre_norm, norm_weight) = named["rows"].most, kernel.experts, named["norm"]
    experts, weights = oracles.chosen_experts(named["logits"][:rows], g.per_token)
    sums = oracles.expert_down(named["act"][: rows * g.per_token], *matrices_of(named), experts, weights)
    want = named["stream"][:rows].double() + sums
    poison(pre_norm.normed[:rows], pre_norm.squares[:rows])
    call()
    yield close(named["stream"][:rows], want, SUMS)
    yield from norm_input(pre_norm, named["stream"][:rows], norm_weight)
    yield holds(not named["finished"].any())


def draft_of(stage: Stage) -> DraftGeometry:
    assert stage.geometry.draft is not None
    return stage.geometry.draft


def packed(tokens: Tensor) -> Tensor:
    """Choices (`argmax.cuh`) of `tokens` by a logit of 2.0."""
    return (torch.full_like(tokens, 0xC0000000 - (1 << 32), dtype=torch.int64) << 32) | (0xFFFFFFFF - tokens.long())


def index_of(choices: Tensor) -> Tensor:
    return 0xFFFFFFFF - (choices & 0xFFFFFFFF)


CHECKS: Final[Mapping[type[Kernel], Callable[[Call, Mapping[str, Any], Stage], Iterator[Finding]]]] = {
    Accept: accept,
    Attention: attention,
    Commit: commit,
    DraftInput: draft_input,
    DraftToken: draft_token,
    EmbedRows: embed_rows,
    ExpertDown: expert_down,
    ExpertGateUp: expert_gate_up,
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
