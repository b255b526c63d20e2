"""A prefill of gpt-oss part by part, beside what each part must compute and move; and whole prefills of planted pairs.

Parts are those of one layer, of random weights and rows, in the engine's way and in others. `times` says how often a
prompt needs a part. Floors are as in the benchmark of dense prefills: the larger of operations and bytes, each operand
once, at the rates that are measured beside them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.gpt_oss.steps import PlantedPair, Point
from specgate.backends.eagle3.cupy.bench.oracles import relative_error
from specgate.backends.eagle3.cupy.bench.prefill.floors import BF16, FLOAT, Work, heads, product
from specgate.backends.eagle3.cupy.bench.prefill.timing import Read, time_part
from specgate.backends.eagle3.cupy.bench.synthetic import Geometry, random_pair
from specgate.backends.eagle3.cupy.engine import prefill_mixture as mixture
from specgate.backends.eagle3.cupy.engine.prefill import (
    CHUNK,
    Way,
    add,
    cache_heads,
    chunks,
    embed,
    packed_down_kernel,
    packed_gate_up_kernel,
)
from specgate.backends.eagle3.cupy.engine.prefill_attention import (
    Library,
    PrefillAttention,
    attend_with_sinks,
    split_heads,
)
from specgate.backends.eagle3.cupy.engine.prefill_experts import together
from specgate.backends.eagle3.cupy.engine.prefill_mixture import ROWS, Groups, PackedRouting, Part, Routing
from specgate.backends.eagle3.cupy.kernels.experts.packing import NUMBERS, SCALES, TILE, PackedExperts, slab_count
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.memory.buffers import Pages
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.backends.eagle3.lib.weights import TargetWeights
from specgate.checkpoints.geometry import TargetGeometry

LENGTHS: Final = (1024, 32768)
WAYS: Final = ("packed", "grouped", "one by one", "torch")
"""Of prefilling experts: of weights as they are packed, whatever the rows; of decoded ones; and by torch alone."""
WHOLES: Final = ((1024, 1), (32768, 1), (1024, 4), (1024, 8), (16384, 4))
"""Context and batch of prefills."""
REPEATS: Final = 3
CARRIED: Final = 0.1
"""Tolerance of what has come through all layers by other operations, which round otherwise."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Ceilings: bytes per second of a plain read, and operations per second of a square product."""

    bytes_per_s: float
    flops_per_s: float

    def floor_us(self, work: Work) -> float:
        """Microseconds that one time of a part takes at least."""
        return 1e6 * max(work.size / self.bytes_per_s, work.flops / self.flops_per_s)


@dataclass(frozen=True, slots=True)
class Piece:
    """One way to do a part over all rows of a prompt. `used`: the engine's, where its kernels are asked for."""

    part: str
    how: str
    used: bool
    run: Callable[[], object]


def touched(g: TargetGeometry, rows: int) -> float:
    """Experts of a layer that `rows` rows choose which choose independently: the mean."""
    assert g.experts is not None
    return g.experts.count * (1 - (1 - g.experts.per_token / g.experts.count) ** rows)


def works(g: TargetGeometry, positions: int, *, packed: bool = False) -> tuple[Work, ...]:
    """The parts of one prompt's prefill but for the last row and the draft, in their order. Of the last layer keys and
    values alone are needed. `packed`: its experts are not decoded.
    """
    return *works_of_rows(g, positions), *(packed_works if packed else decoded_works)(g, positions)


def works_of_rows(g: TargetGeometry, positions: int) -> tuple[Work, ...]:
    """Of all but the experts' weights."""
    assert g.experts is not None
    p, h, k, e = positions, g.hidden, g.experts.per_token, g.experts.count
    queries, width = g.heads * g.head_dim, (g.heads + 2 * g.kv_heads) * g.head_dim
    layers, pairs = g.layers - 1, positions * k
    sliding = [w for w in (g.window(i) for i in range(layers)) if w is not None and w < p]

    def attention(part: str, times: int, pairs_seen: int) -> Work:
        return Work(part, f"{p}, {g.heads}:{g.kv_heads}", times, 4 * queries * pairs_seen, p * (width + queries) * BF16)

    seen = sum(min(row + 1, sliding[0]) for row in range(p)) if sliding else 0
    return (
        Work("embed", f"{p}×{h}", 1, 0, p * (8 + h * (2 * BF16 + FLOAT))),
        product("qkv", p, width, h, g.layers),
        heads("heads", g.heads, g.kv_heads, g.head_dim, p, g.layers),
        attention("attention", layers - len(sliding), p * (p + 1) // 2),
        *([attention("windows", len(sliding), seen)] if sliding else []),
        product("o", p, h, queries, layers),
        Work("residual", f"{p}×{h}", layers, 0, p * h * (2 * BF16 + 2 * FLOAT)),
        Work("router", f"{p}×{e}×{h}", layers, 2 * p * e * h, p * (h * BF16 + e * FLOAT)),  # a part of the next
        Work("routing", f"{p}×{k} of {e}", layers, 2 * p * e * h, p * (h * BF16 + 4 * k * FLOAT)),
        Work("mixture", f"{p}×{h}", layers, 0, (pairs + p) * h * BF16 + 2 * p * h * FLOAT),
    )


def decoded_works(g: TargetGeometry, positions: int) -> tuple[Work, ...]:
    """Of experts that are decoded first."""
    assert g.experts is not None
    p, h, f, layers, pairs = positions, g.hidden, g.intermediate, g.layers - 1, positions * g.experts.per_token
    experts = round(touched(g, min(positions, ROWS)))
    passes = -(-p // ROWS)  # through the experts, each of which decodes them

    def decode(part: str, rows: int, columns: int) -> Work:
        size = experts * (packed_bytes(rows, columns) + rows * columns * BF16)
        return Work(part, f"{experts}×{rows}×{columns}", layers * passes, 0, size)

    def many(part: str, n: int, columns: int) -> Work:
        size = (passes * experts * n * columns + pairs * (n + columns)) * BF16
        return Work(part, f"{pairs}×{n}×{columns}", layers, 2 * pairs * n * columns, size)

    return (
        decode("decode gate_up", 2 * f, h),
        Work("gather", f"{pairs}×{h}", layers, 0, (p + pairs) * h * BF16),
        many("gate_up", 2 * f, h),
        Work("swiglu", f"{pairs}×{f}", layers, 0, pairs * f * 3 * BF16),
        decode("decode down", h, f),
        many("down", h, f),
    )


def packed_works(g: TargetGeometry, positions: int) -> tuple[Work, ...]:
    """Of experts that are multiplied as they are packed, with so many rows, of one prompt or several together."""
    assert g.experts is not None
    p, h, f, layers, pairs = positions, g.hidden, g.intermediate, g.layers - 1, positions * g.experts.per_token
    experts = round(touched(g, p))

    def product(part: str, n: int, columns: int, read: int, written: int) -> Work:
        size = experts * packed_bytes(n, columns) + (read + written) * BF16
        return Work(part, f"{pairs}×{n}×{columns}", layers, 2 * pairs * n * columns, size)

    return (
        Work("to float16", f"{p}×{h}", layers, 0, 2 * p * h * BF16),
        product("packed gate_up", 2 * f, h, p * h, pairs * f),
        product("packed down", h, f, pairs * f, pairs * h),
    )


def packed_bytes(rows: int, columns: int) -> int:
    """Of one matrix, as a product reads it."""
    return rows // TILE * slab_count(columns) * (NUMBERS + SCALES)


class LayerStage:
    """A sliding and a full layer of `g` with random weights, and a prompt's rows before each part of them."""

    def __init__(self, g: TargetGeometry, positions: int, device: torch.device) -> None:
        self.g = replace(g, layers=2, windows=g.windows[:2])
        self.target, _ = random_pair(Geometry(self.g, None, ()), positions, device)
        assert not isinstance(self.target.weights, TargetWeights)
        self.w, self.positions = self.target.weights.layers[0], positions
        self.heads = Heads(g.heads, g.kv_heads, g.head_dim, positions)
        self.tokens = torch.randint(g.vocab, (positions,), device=device)
        self.blocks = torch.randperm(-(-positions // BLOCK), device=device)
        self.pages = Pages.allocate(1, len(self.blocks), self.heads, device)

        def noise(width: int) -> Tensor:
            return torch.empty(positions, width, dtype=torch.bfloat16, device=device).normal_()

        self.x, self.normed = torch.randn(positions, g.hidden, device=device), noise(g.hidden)
        self.qkv, self.mixed = noise(self.heads.qkv_width), noise(self.heads.width)
        rows = slice(min(positions, ROWS))
        self.part = Part(self.x[rows], self.normed[rows])
        """What goes through the experts at a time."""

    def pieces(self, ways: Mapping[str, Way]) -> Iterator[Piece]:
        """`ways`: by name, the engine's first; one of them is torch's."""
        yield from self.dense(ways)
        yield from self.attending(next(iter(ways.values())))
        yield from self.mixing(ways)

    def dense(self, ways: Mapping[str, Way]) -> Iterator[Piece]:
        w, g, used = self.w, self.g, next(iter(ways))
        for how, way in differing(ways):
            embedded = partial(embed, self.x, self.target.weights.embed, self.tokens, w.input_norm, g.rms_eps, way)
            yield Piece("embed", how, how == used, embedded)
            cached = partial(
                cache_heads, self.qkv, self.target.rope, self.pages, 0, self.blocks, self.heads, way, CHUNK
            )
            yield Piece("heads", how, how == used, cached)
            yield Piece("residual", how, how == used, partial(self.add, way))
        yield Piece("qkv", "cuBLAS", True, partial(self.project, w.qkv, w.qkv_bias, self.normed))
        yield Piece("o", "cuBLAS", True, partial(self.project, w.o, w.o_bias, self.mixed))

    def add(self, way: Way) -> None:
        for rows in chunks(self.positions, CHUNK):
            add(self.x[rows], self.normed[rows], self.w.post_norm, self.g.rms_eps, way)

    def project(self, weight: Tensor, bias: Tensor, x: Tensor) -> None:
        for rows in chunks(self.positions, CHUNK):
            torch.addmm(bias, x[rows], weight.t())

    def attending(self, way: Way) -> Iterator[Piece]:
        q, k, v = split_heads(self.qkv, self.heads)
        for layer, part in ((0, "windows"), (1, "attention")):
            window = self.g.window(layer)
            seen = window if window is not None and window < self.positions else None
            if layer == 0 and seen is None:
                continue
            chosen = way.attention.library_with_sinks(self.positions, self.heads, seen, q.device)
            for library in way.attention.order:
                if library is Library.CUDNN and seen is not None:
                    continue
                run = partial(attend_with_sinks, q, k, v, self.w.sinks, seen, library)
                yield Piece(part, library.value, library is chosen, run)

    def mixing(self, ways: Mapping[str, Way]) -> Iterator[Piece]:
        """What the experts need. The router's products are within the routing, too."""
        g, w, experts, used = self.g, self.w, self.g.experts, next(iter(ways))
        assert experts is not None
        x, way = self.part.normed, ways[used]
        if (packing := ways.get("packed")) is not None:
            yield from self.packed(packing, used == "packed")
        ways = {name: one for name, one in ways.items() if name != "packed"}  # and the experts are decoded
        yield Piece("router", "bfloat16 on a GPU", False, partial(mixture.router_logits, x, w.router))
        yield Piece("router", "float32", False, lambda: F.linear(x.float(), w.router.float()))
        routing = Routing.made(x, w, experts, way)
        groups = Groups([routing])
        for how, one in differing(ways):
            yield Piece("routing", how, how == used, partial(Routing.made, x, w, experts, one))
        room = x.new_empty(mixture.decoded_bytes(g) // 2)
        act = x.new_empty(len(routing.rows), g.intermediate).normal_()
        both = x.new_empty(len(routing.rows), 2 * g.intermediate).normal_()
        out = x.new_empty(len(routing.rows), g.hidden).normal_()
        for how, one in differing(ways):
            for part, weight in (("decode gate_up", w.gate_up), ("decode down", w.down)):
                yield Piece(part, how, how == used, partial(decode_all, weight, room, groups, one))
            activated = partial(mixture.activate, act, both, w.gate_up.bias, routing.experts, g, one)
            yield Piece("swiglu", how, how == used, activated)
            norm = (w.post_norm, g.rms_eps)
            finished = partial(mixture.finish, self.part, out, w.down.bias, routing, experts, norm, one)
            yield Piece("mixture", how, how == used, finished)
        yield Piece("gather", "index_select", used in ways, lambda: x.index_select(0, routing.rows))
        yield Piece("gather", "index", False, lambda: x[routing.rows])
        sorted_rows = x.index_select(0, routing.rows)
        for how, one in ways.items():
            if how == "torch" and used != "torch":
                continue
            for part, weight, rows in (("gate_up", w.gate_up, sorted_rows), ("down", w.down, act)):
                yield Piece(part, how, how == used, self.products(weight, rows, routing, groups, room, one))

    def packed(self, way: Way, used: bool) -> Iterator[Piece]:
        """What experts need that stay packed."""
        g, w, experts, x = self.g, self.w, self.g.experts, self.part.normed
        assert experts is not None

        def routed() -> PackedRouting:
            return PackedRouting.by(mixture.scores_of(x, w, way), w, experts, way)

        routing, pairs = routed(), len(x) * experts.per_token
        x16, act = x.half(), x.new_empty(pairs, g.intermediate, dtype=torch.float16)
        out = x.new_empty(pairs, g.hidden)
        gate_up = packed_gate_up_kernel(g.intermediate, g.hidden, experts)
        down = packed_down_kernel(g.hidden, g.intermediate, experts)
        yield Piece("routing", "packed", used, routed)
        yield Piece("to float16", "packed", used, partial(x16.copy_, x))
        yield Piece("packed gate_up", "packed", used, partial(gate_up, act, x16, w.gate_up, routing.parties))
        yield Piece("packed down", "packed", used, partial(down, out, act, w.down, routing.parties))
        norm = (w.post_norm, g.rms_eps)
        finished = partial(mixture.finish, self.part, out, w.down.bias, routing, experts, norm, way)
        yield Piece("mixture", "packed", used, finished)

    def products(
        self, weight: PackedExperts, x: Tensor, routing: Routing, groups: Groups, room: Tensor, way: Way
    ) -> Callable[[], None]:
        """All products of a matrix, without its decoding: as many experts at a time as are decoded at a time, but of
        the same matrices. What memory holds is what counts, not what the numbers are.
        """
        some, matrices = next(iter(mixture.decoded(weight, room, groups, way)))
        count = len(weight.tiles)
        pieces = [range(at, min(at + len(some), count)) for at in range(0, count, len(some))]

        def run() -> None:
            for piece in pieces:
                bounds = groups.bounds(0, piece)
                if (rows := slice(bounds[0], bounds[-1])).start != rows.stop:
                    mixture.product(x[rows], matrices[: len(piece)], bounds, routing, piece, way)

        return run


def differing(ways: Mapping[str, Way]) -> Iterator[tuple[str, Way]]:
    """The first of the ways, and torch's: the others differ in their products alone."""
    return ((name, way) for n, (name, way) in enumerate(ways.items()) if n == 0 or name == "torch")


def decode_all(weight: PackedExperts, room: Tensor, groups: Groups, way: Way) -> None:
    for _ in mixture.decoded(weight, room, groups, way):
        pass


def ways_on(device: torch.device, positions: int) -> dict[str, Way]:
    """The ways of a prefill, the one first that is usual for a prompt of so many positions."""
    best, torchs = PrefillAttention.on(device), PrefillAttention.on(device, Library.TORCH)
    usual = Way.on(device)
    kernels = {"grouped": Way(usual.fused, best, True), "one by one": Way(usual.fused, best)}
    if usual.fused:
        kernels["packed"] = Way(usual.fused, best, usual.grouped, ROWS)
    decoded = "grouped" if usual.grouped else "one by one"
    first = "packed" if positions <= usual.packed_rows else decoded
    return {first: kernels.pop(first), **kernels, "torch": Way(False, torchs)}


def parts(g: TargetGeometry, positions: int, rates: Rates, stream: Stream, read: Read) -> Iterator[dict[str, Any]]:
    """Milliseconds of a prefill for every part and way, and their floors; and the sum over the ways that are used."""
    device = torch.device("cuda")
    every = (*works(g, positions), *packed_works(g, positions))
    stage, wanted = LayerStage(g, positions, device), {work.part: work for work in every}
    total = floor = 0.0
    for piece in stage.pieces(ways_on(device, positions)):
        work = wanted[piece.part]
        found = time_part(piece.run, stream, read)
        whole = work.times * found.us / 1e3
        floor_ms = work.times * rates.floor_us(work) / 1e3
        if piece.used:
            total, floor = total + whole, floor + floor_ms
        yield {
            "positions": positions,
            "part": piece.part,
            "how": piece.how,
            "used": piece.used,
            "shape": work.shape,
            "times": work.times,
            "us": found.us,
            "spread": found.spread,
            "ms": whole,
            "floor_ms": floor_ms,
            "sm_clock_mhz": found.sm_clock_mhz,
            "power_w": found.power_w,
        }
    yield {"positions": positions, "part": "all", "how": "sum", "used": True, "ms": total, "floor_ms": floor}


def wholes(
    pair: PlantedPair, rates: Rates, prompts_of: Sequence[tuple[int, int]], asked: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Prefills of a planted pair with its draft, in the ways that are `asked` for, and the floor of their parts.
    `prompts_of`: of (context, batch). `error`: of the last layer's keys, beside those of the way that comes last in
    WAYS: torch's, if it is asked for.
    """
    device = torch.device("cuda")
    for point in (Point(context, batch, (0,)) for context, batch in prompts_of):
        engine = pair.engine(point)
        g = engine.target.geometry
        generator = torch.Generator().manual_seed(1)
        prompts = torch.randint(g.vocab, (point.batch, point.context), generator=generator).tolist()
        ways, keys = ways_on(device, point.context), None
        for how in (name for name in reversed(WAYS) if name in asked and name in ways):
            engine.way, packed = ways[how], how == "packed" and point.context <= ROWS
            floor = whole_floor_ms(g, point, rates, packed=packed)
            # The first makes kernels, plans and memory.
            each = [engine.prefill(prompts, draft=True) / 1e6 for _ in range(1 + REPEATS)][1:]
            found = engine.b.target.pages.k[-1].clone()
            keys = found if keys is None else keys
            yield {
                "context": point.context,
                "batch": point.batch,
                "how": how,
                "ms": statistics.median(each),
                "each_ms": each,
                "floor_ms": floor,
                "error": relative_error(found, keys.double()),
                "tolerance": CARRIED,
            }
        del engine, keys, found
        torch.cuda.empty_cache()


def whole_floor_ms(g: TargetGeometry, point: Point, rates: Rates, *, packed: bool = False) -> float:
    """Of all prompts' parts; experts are decoded once for those that go through the layers together, or, where they
    stay `packed`, multiplied once.
    """
    passes = [len(some) for some in together([point.context] * point.batch)]
    timed = [(work, point.batch) for work in works_of_rows(g, point.context) if work.part != "router"]
    if packed:
        timed += [(work, 1) for prompts in passes for work in packed_works(g, prompts * point.context)]
    else:
        for work in decoded_works(g, point.context):
            timed.append((work, len(passes) if work.part.startswith("decode") else point.batch))
    return sum(times * work.times * rates.floor_us(work) for work, times in timed) / 1e3
