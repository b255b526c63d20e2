"""The experts of one layer over rows of prompts: who goes where, and the products.

Parts of few rows are multiplied with weights as they are packed, all parts together: kernels of ours, in which a row's
bits depend on nothing else. For parts of more rows each expert is decoded once for all, and each part is multiplied by
itself: libraries take other ways for other numbers of rows, so the bits of a prompt would else depend on its company.
The sizes of the groups are then read back once per layer, while the GPU decodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from specgate.backends.eagle3.cupy.engine.prefill import CHUNK, PrefillMode, chunks, of_rows, rms_norm
from specgate.backends.eagle3.cupy.kernels.experts.packing import PackedExperts
from specgate.backends.eagle3.cupy.kernels.prefill.launchers import (
    PrefillDecode,
    PrefillMixture,
    PrefillRoute,
    PrefillSwiglu,
)
from specgate.backends.eagle3.cupy.kernels.prefill.packed.launchers import (
    PrefillDown,
    PrefillGateUp,
    PrefillRowGroups,
    RowGroups,
    for_wgmma,
)
from specgate.backends.eagle3.cupy.memory.model import ExpertLayerWeights
from specgate.checkpoints.geometry import ExpertGeometry, TargetGeometry

ROWS: Final = 32768
"""Most rows that go through the experts together. Each expert is decoded once for them."""
DECODED: Final = 2 << 30
"""Most bytes of decoded weights at a time, but one expert at least: half of the gate and up matrices of a layer of
gpt-oss-120b, or all of its down matrices. It decides which experts are multiplied together, so it is a constant.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one prompt. `x` float32 [R, H]: their residual stream; `normed` bfloat16 [R, H]: its norm before the
    experts, which `add_mixtures` replaces by the one behind them.
    """

    x: Tensor
    normed: Tensor


@dataclass(frozen=True, slots=True)
class Placing:
    """The experts of R rows, k of each. A pair is a row and one of its experts.

    `chosen` int32 and `weights` float32 [R, k], the likeliest first. Pairs are sorted by their expert, and then by
    their row, and pair j of row r lies at `place[r, j]`, int32 [R, k].
    """

    chosen: Tensor
    weights: Tensor
    place: Tensor

    def of(self, rows: slice) -> Placing:
        """Of some rows."""
        return Placing(*(of_rows(tensor, rows) for tensor in (self.chosen, self.weights, self.place)))


@dataclass(frozen=True, slots=True)
class Routing(Placing):
    """The experts of a part's rows. Sorted pairs have the experts `experts` int32 [R · k] and the rows `rows` int64
    [R · k]. `ends` int32 [E]: where the pairs of each expert end.
    """

    experts: Tensor
    rows: Tensor
    ends: Tensor

    @classmethod
    def made(cls, normed: Tensor, w: ExpertLayerWeights, experts: ExpertGeometry, mode: PrefillMode) -> Routing:
        return cls.by(scores_of(normed, w, mode), w, experts, mode)

    @classmethod
    def by(cls, scores: Tensor, w: ExpertLayerWeights, experts: ExpertGeometry, mode: PrefillMode) -> Routing:
        """From what `scores_of` gives."""
        chosen, weights = chosen_by(scores, w, experts, mode)
        in_order, pairs = chosen.flatten().sort(stable=True)
        place = torch.empty_like(in_order)
        place[pairs] = torch.arange(len(pairs), dtype=torch.int32, device=place.device)
        every = torch.arange(experts.count, dtype=torch.int32, device=place.device)
        ends = torch.searchsorted(in_order, every, right=True, out_int32=True)
        return cls(chosen, weights, place.view_as(chosen), in_order, pairs // experts.per_token, ends)


@dataclass(frozen=True, slots=True)
class PackedRouting(Placing):
    """The experts of all rows of some parts, and their sorted pairs as row groups of few rows."""

    row_groups: RowGroups

    @classmethod
    def by(cls, scores: Tensor, w: ExpertLayerWeights, experts: ExpertGeometry, mode: PrefillMode) -> PackedRouting:
        """From what `scores_of` gives of all rows."""
        chosen, weights = chosen_by(scores, w, experts, mode)
        place, row_groups = torch.empty_like(chosen), RowGroups.room(chosen.numel(), experts.count, chosen.device)
        PrefillRowGroups.of(experts.count, experts.per_token)(
            row_groups, place=place, chosen=chosen, pairs=chosen.numel()
        )
        return cls(chosen, weights, place, row_groups)


class Told:
    """A tensor on its way to the host."""

    def __init__(self, tensor: Tensor) -> None:
        made: Any = torch.cuda.Event  # torch gives no types
        self.copied = made() if tensor.is_cuda else None
        self.copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        self.copy.copy_(tensor, non_blocking=True)
        if self.copied is not None:
            self.copied.record()

    def wait(self) -> Tensor:
        """It, on the host."""
        if self.copied is not None:
            self.copied.synchronize()
        return self.copy


class Groups:
    """Numbers of pairs of each part that go to each expert: on the device, and on the host once it is needed."""

    def __init__(self, routings: Sequence[Routing]) -> None:
        self.routings = routings
        ends = torch.stack([routing.ends for routing in routings])
        self.sizes = ends.diff(prepend=torch.zeros_like(ends[:, :1])).sum(0, dtype=torch.int32)
        """Of all parts together, int32 [E]."""
        self.told = Told(ends)
        self.ends: list[list[int]] | None = None

    def bounds(self, part: int, experts: range) -> list[int]:
        """Return the bounds of these experts' pairs among those of a part: one more than there are experts."""
        if self.ends is None:
            self.ends = self.told.wait().tolist()
        ends = self.ends[part]
        return [ends[experts.start - 1] if experts.start else 0, *ends[experts.start : experts.stop]]


def add_mixtures(
    parts: Sequence[Part], w: ExpertLayerWeights, g: TargetGeometry, following: Tensor, mode: PrefillMode
) -> None:
    """Every part's x += the weighted sums of its rows' experts; and its `normed` becomes the norm with `following`."""
    experts, norm = g.experts, (following, g.rms_eps)
    assert experts is not None
    few, many = ([parts[n] for n in some] for some in by_rows(parts, mode))
    if few:
        routing = PackedRouting.by(joined([scores_of(part.normed, w, mode) for part in few]), w, experts, mode)
        out = multiplied_packed([part.normed for part in few], routing, w, g, mode)
        for part, rows in zip(few, rows_of([part.x.shape[0] for part in few]), strict=True):
            finish(part, out, w.down.bias, routing.of(rows), experts, norm, mode)
        del out
    if many:
        groups = Groups([Routing.made(part.normed, w, experts, mode) for part in many])
        outs = multiplied(many, groups, w, g, mode)
        for part, placing, out in zip(many, groups.routings, outs, strict=True):
            finish(part, out, w.down.bias, placing, experts, norm, mode)


def by_rows(parts: Sequence[Part], mode: PrefillMode) -> tuple[list[int], list[int]]:
    """Split parts into those of few rows, whose experts stay packed, and the others."""
    few = [part.x.shape[0] <= mode.packed_rows for part in parts]
    return [n for n, is_few in enumerate(few) if is_few], [n for n, is_few in enumerate(few) if not is_few]


def joined(parts: list[Tensor]) -> Tensor:
    """Return the rows of all parts; of a single one without a copy."""
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def rows_of(lengths: Sequence[int]) -> Iterator[slice]:
    """Return the slices of the rows of parts of these lengths, one behind the other."""
    at = 0
    for length in lengths:
        yield slice(at, at + length)
        at += length


def multiplied_packed(
    normed: Sequence[Tensor], routing: PackedRouting, w: ExpertLayerWeights, g: TargetGeometry, mode: PrefillMode
) -> Tensor:
    """As `multiplied`, of all rows of some parts together, with weights as they are packed."""
    experts = g.experts
    assert experts is not None
    pairs = routing.place.numel()
    x = routing.weights.new_empty(len(routing.place), g.hidden, dtype=torch.float16)
    for rows, own in zip(rows_of([len(own) for own in normed]), normed, strict=True):
        if mode.wgmma:
            ordered = for_wgmma(own)
            x[rows].view(ordered.shape).copy_(ordered)
        else:
            x[rows] = own
    act = x.new_empty(pairs, g.intermediate)
    PrefillGateUp.of(g.intermediate, g.hidden, experts, mode.wgmma)(routing.row_groups, w.gate_up, act=act, x=x)
    out = act.new_empty(pairs, g.hidden, dtype=torch.bfloat16)
    PrefillDown.of(g.hidden, g.intermediate, experts, mode.wgmma)(routing.row_groups, w.down, out=out, x=act)
    return out


def multiplied(
    parts: Sequence[Part], groups: Groups, w: ExpertLayerWeights, g: TargetGeometry, mode: PrefillMode
) -> list[Tensor]:
    """Return the experts' results for the pairs of each part, sorted, without the bias: bfloat16 [R · k, H]."""
    experts = g.experts
    assert experts is not None
    room = parts[0].normed.new_empty(decoded_bytes(g) // 2)
    acts = [part.normed.new_empty(len(part.x) * experts.per_token, g.intermediate) for part in parts]
    for some, weights in decoded(w.gate_up, room, groups, mode):
        for n, (part, routing) in enumerate(zip(parts, groups.routings, strict=True)):
            bounds = groups.bounds(n, some)
            if (pairs := slice(bounds[0], bounds[-1])).start == pairs.stop:
                continue
            both = product(part.normed.index_select(0, routing.rows[pairs]), weights, bounds, routing, some, mode)
            activate(acts[n][pairs], both, w.gate_up.bias, routing.experts[pairs], g, mode)
            del both  # before the next part's is made
    outs = [part.normed.new_empty(len(act), g.hidden) for part, act in zip(parts, acts, strict=True)]
    for some, weights in decoded(w.down, room, groups, mode):
        for n, routing in enumerate(groups.routings):
            bounds = groups.bounds(n, some)
            pairs = slice(bounds[0], bounds[-1])
            if pairs == slice(0, len(outs[n])):
                outs[n] = product(acts[n], weights, bounds, routing, some, mode)
            elif pairs.start != pairs.stop:
                outs[n][pairs] = product(acts[n][pairs], weights, bounds, routing, some, mode)
    return outs


def decoded_bytes(g: TargetGeometry) -> int:
    """Of the weights that are decoded at a time, in bfloat16."""
    assert g.experts is not None
    matrices = (4 * g.intermediate * g.hidden, 2 * g.intermediate * g.hidden)
    return max(experts_at_once(g.experts.count, size) * size for size in matrices)


def experts_at_once(count: int, size: int) -> int:
    return min(count, max(1, DECODED // size))


def routed(x: Tensor, w: ExpertLayerWeights, experts: ExpertGeometry, mode: PrefillMode) -> tuple[Tensor, Tensor]:
    """The experts of rows `x` bfloat16 [R, H], int32 [R, k], and their weights, float32 [R, k]."""
    return chosen_by(scores_of(x, w, mode), w, experts, mode)


def scores_of(x: Tensor, w: ExpertLayerWeights, mode: PrefillMode) -> Tensor:
    """Return scores by which rows `x` bfloat16 [R, H] choose their experts, float32 [R, E]: the router's logits. A
    kernel that reads them adds the bias by itself.
    """
    if mode.fused:
        return router_logits(x, w.router)
    return F.linear(x.float(), w.router.float(), w.router_bias.float())


def chosen_by(
    scores: Tensor, w: ExpertLayerWeights, experts: ExpertGeometry, mode: PrefillMode
) -> tuple[Tensor, Tensor]:
    """As `routed`, from `scores_of` the rows. A kernel may read them in the memory of another GPU."""
    if mode.fused:
        weights = torch.empty(scores.shape[0], experts.per_token, dtype=torch.float32, device=w.router.device)
        chosen = torch.empty_like(weights, dtype=torch.int32)
        kernel = PrefillRoute.of(experts.count, experts.per_token)
        kernel(chosen=chosen, weights=weights, logits=scores, bias=w.router_bias)
        return chosen, weights
    ordered, places = scores.to(w.router.device).sort(dim=-1, descending=True, stable=True)
    return places[:, : experts.per_token].int(), ordered[:, : experts.per_token].softmax(dim=-1)


def router_logits(x: Tensor, router: Tensor) -> Tensor:
    """x · routerᵀ, float32 [R, E]: of bfloat16 operands products are exact, and sums are float32."""
    if x.is_cuda:
        return torch.mm(x, router.t(), out_dtype=torch.float32)
    return F.linear(x.float(), router.float())


def decoded(weight: PackedExperts, room: Tensor, groups: Groups, mode: PrefillMode) -> Iterator[tuple[range, Tensor]]:
    """Some experts at a time, and their matrices, bfloat16 [n, N, K], in `room`. Matrices without rows are left out."""
    count, rows, columns = len(weight.weight), weight.bias.shape[1], weight.columns
    most = experts_at_once(count, 2 * rows * columns)
    for start in range(0, count, most):
        some = range(start, min(start + most, count))
        out = room[: len(some) * rows * columns].view(len(some), rows, columns)
        if mode.fused:
            PrefillDecode.of(rows, columns, weight.order)(out, weight, start, groups.sizes)
        else:
            for expert, size in zip(some, groups.sizes[some.start : some.stop].tolist(), strict=True):
                if size:
                    out[expert - start] = weight.matrix(expert)
        yield some, out


def product(
    x: Tensor, weights: Tensor, bounds: Sequence[int], routing: Routing, some: range, mode: PrefillMode
) -> Tensor:
    """The pairs of the experts `some`, x bfloat16 [R, K], by their `weights` bfloat16 [n, N, K]: [R, N]."""
    if mode.grouped:
        ends = routing.ends[some.start : some.stop] - bounds[0]
        return F.grouped_mm(x, weights.transpose(1, 2), offs=ends)
    out = x.new_empty(len(x), weights.shape[1])
    for expert, weight in enumerate(weights):
        rows = slice(bounds[expert] - bounds[0], bounds[expert + 1] - bounds[0])
        if rows.start != rows.stop:
            torch.mm(x[rows], weight.t(), out=out[rows])
    return out


def activate(act: Tensor, both: Tensor, bias: Tensor, experts: Tensor, g: TargetGeometry, mode: PrefillMode) -> None:
    """act bfloat16 [R, F] = the clamped SwiGLU of `both` bfloat16 [R, 2F], with the bias of each row's expert added."""
    assert g.experts is not None
    if mode.fused:
        kernel = PrefillSwiglu.of(g.intermediate, g.experts.alpha, g.experts.limit)
        kernel(act=act, both=both, bias=bias, experts=experts)
        return
    limit = g.experts.limit
    for rows in chunks(len(both), CHUNK):
        biased = both[rows].float() + bias[experts[rows]].float()
        gate, up = biased[:, ::2].clamp(max=limit), biased[:, 1::2].clamp(-limit, limit)
        act[rows] = gate * torch.sigmoid(gate * g.experts.alpha) * (up + 1)


def finish(
    part: Part,
    out: Tensor,
    bias: Tensor,
    routing: Placing,
    experts: ExpertGeometry,
    norm: tuple[Tensor, float],
    mode: PrefillMode,
) -> None:
    """Add to a part's stream what its experts have given, `out` bfloat16 [R · k, H] of sorted pairs, and norm it."""
    if mode.fused:
        kernel = PrefillMixture.of(part.x.shape[1], experts.per_token)
        kernel(part, routing, out=out, bias=bias, weight=norm[0], eps=norm[1])
        return
    for rows in chunks(len(part.x), CHUNK):
        part.x[rows] += mixed(out, bias, routing.of(rows))
        part.normed[rows] = rms_norm(part.x[rows], *norm)


def leave_sum(
    total: Tensor, out: Tensor, bias: Tensor, placing: Placing, experts: ExpertGeometry, mode: PrefillMode
) -> None:
    """`total` bfloat16 [R, H] = what the experts of some rows, at `placing`, have given, of all pairs' `out`."""
    if mode.fused:
        PrefillMixture.of(total.shape[1], experts.per_token, 1)(placing, normed=total, out=out, bias=bias, eps=0.0)
    else:
        total.copy_(mixed(out, bias, placing))


def mixed(out: Tensor, bias: Tensor, placing: Placing) -> Tensor:
    """The weighted sums of some rows' experts, float32 [R, H], by torch."""
    total = torch.zeros(len(placing.place), out.shape[1], device=out.device)
    of = placing.place, placing.chosen, placing.weights
    for place, chosen, weight in zip(*(t.unbind(dim=1) for t in of), strict=True):
        total += (out[place].float() + bias[chosen].float()) * weight[:, None]
    return total
