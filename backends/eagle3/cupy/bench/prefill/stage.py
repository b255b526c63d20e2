"""A random pair and a prompt's operands, and every part of a prefill on them, in each way to do it.

A part goes over the whole prompt, chunk by chunk where a prefill does. It is checked on a few rows, against float64,
before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from specgate.backends.eagle3.cupy.bench import oracles
from specgate.backends.eagle3.cupy.bench.checks import ATTENDED, ROUNDED, Finding, close, equal, excess, poison
from specgate.backends.eagle3.cupy.bench.synthetic import Geometry
from specgate.backends.eagle3.cupy.engine import prefill
from specgate.backends.eagle3.cupy.engine.prefill import CHUNK, PrefillMode, chunks
from specgate.backends.eagle3.cupy.engine.prefill_attention import (
    Library,
    PrefillAttention,
    attend,
    attend_last,
    split_heads,
)
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.memory.buffers import Pages
from specgate.backends.eagle3.cupy.memory.model import Draft, RopeTable, Target
from specgate.backends.eagle3.lib.weights import TargetWeights
from specgate.backends.eagle3.nouns.kernel_bench import WHOLE
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry

CARRIED: Final = 0.1
"""Tolerance of what comes out of all layers: they carry on the roundings of norms that differ in their last bit."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to do a part. `used`: whether the engine does it so. `run` launches and does not wait; `check` runs it
    once and yields what its results are off by.
    """

    part: str
    how: str
    used: bool
    run: Callable[[], object]
    check: Callable[[], Iterator[Finding]]

    def worst(self) -> Finding:
        return max(self.check(), key=excess)


class PrefillStage:
    """One prompt of `positions` random tokens, and what stands before each part of its prefill, from noise."""

    def __init__(
        self, geometry: Geometry, pair: tuple[Target, Draft | None], positions: int, device: torch.device | str
    ) -> None:
        (self.target, self.draft), self.positions, g = pair, positions, geometry.target
        self.mode = PrefillMode.on(torch.device(device), fused=True, attention=None)
        self.torch_mode = PrefillMode(False, self.mode.attention)
        self.boundaries = geometry.boundaries
        self.heads = Heads(g.heads, g.kv_heads, g.head_dim, positions)
        self.tokens = torch.randint(g.vocab, (positions,), device=device)
        self.blocks = torch.randperm(-(-positions // BLOCK), device=device)
        self.pages = Pages.allocate(g.layers, len(self.blocks), self.heads, device)

        def noise(rows: int, width: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
            return torch.empty(rows, width, dtype=dtype, device=device).normal_()

        chunk = min(CHUNK, positions)
        self.x, self.normed = noise(positions, g.hidden, torch.float32), noise(positions, g.hidden)
        self.added, self.mixed = noise(positions, g.hidden), noise(positions, self.heads.width)
        self.qkv = noise(positions, self.heads.qkv_width)
        self.gate_up, self.act = noise(chunk, 2 * g.intermediate), noise(chunk, g.intermediate)
        self.features = noise(positions, len(self.boundaries) * g.hidden)
        if self.draft is not None:
            d, rows = self.draft.geometry, max(1, positions - 1)
            self.draft_heads = Heads(0, d.kv_heads, d.head_dim, positions)
            self.draft_pages = Pages.allocate(1, len(self.blocks), self.draft_heads, device)
            self.hidden, self.draft_in = noise(rows, d.hidden), noise(rows, 2 * d.hidden)
            self.kv = noise(rows, self.draft_heads.qkv_width)

    @property
    def modes(self) -> tuple[tuple[str, PrefillMode], ...]:
        return (("fused", self.mode), ("torch", self.torch_mode)) if self.mode.fused else (("torch", self.torch_mode),)

    @property
    def rows(self) -> list[int]:
        """Rows that are checked: the first and last of a block, of a chunk and of the prompt."""
        wanted = {0, BLOCK - 1, BLOCK, CHUNK - 1, CHUNK, self.positions // 2, self.positions - 1}
        return sorted(row for row in wanted if row < self.positions)

    def chunks(self, count: int | None = None) -> Iterator[slice]:
        return chunks(self.positions if count is None else count, CHUNK)

    def variants(self) -> Mapping[str, list[Variant]]:
        """Part, as `floors.works` names it → its variants."""
        variants = dict[str, list[Variant]]()
        parts = [*self.target_parts(), *(self.draft_parts(self.draft) if self.draft and self.positions > 1 else ())]
        for variant in parts:
            variants.setdefault(variant.part, []).append(variant)
        return variants

    # ── the target ───────────────────────────────────────────────────────────────────────────────────────────────────

    def target_parts(self) -> Iterator[Variant]:
        g, w = self.target.geometry, self.target.weights
        assert isinstance(w, TargetWeights)
        layer, eps = w.layers[0], g.rms_eps
        for how, mode in self.modes:
            yield self.embedding(how, mode)
        yield self.product("qkv", self.normed, layer.qkv, self.qkv)
        for how, mode in self.modes:
            yield self.caching("heads", how, mode, self.qkv, self.target.rope, self.pages, g, self.blocks)
        yield from self.attending()
        yield self.product("o", self.mixed, layer.o)
        for how, mode in self.modes:
            yield self.adding(how, mode)
        yield self.product("gate_up", self.normed, layer.gate_up)
        for how, mode in self.modes:
            yield self.gating(how, mode)
        yield self.product("down", self.act, layer.down)

        def last_row() -> Tensor:
            q, k, v = split_heads(self.qkv, self.heads)
            final = self.x[-1:].clone()
            prefill.finish_layer(final, attend_last(q[-1:], k, v), layer, w.norm, eps, self.mode)
            return final

        def last_row_check() -> Iterator[Finding]:
            q, k, v = split_heads(self.qkv, self.heads)
            mixed = oracles.attention(q[-1], k.transpose(0, 1), v.transpose(0, 1), self.positions - 1, None)
            after = self.x[-1:].double() + oracles.matmul_rows(mixed.flatten()[None], layer.o)
            gated = oracles.swiglu(oracles.rms_norm(after, layer.post_norm, eps), layer.gate_up)
            yield close(last_row(), after + oracles.matmul_rows(gated, layer.down), ATTENDED)

        yield Variant("last row", self.modes[0][0], True, last_row, last_row_check)
        if self.boundaries:
            boundary = self.boundaries[0]

            def capture() -> None:
                prefill.capture(self.features, self.x, (boundary,), boundary)

            def capture_check() -> Iterator[Finding]:
                poison(self.features)
                capture()
                yield equal(self.features[:, : g.hidden], self.x.bfloat16())
                self.features.normal_()

            yield Variant("capture", "torch", True, capture, capture_check)

    def embedding(self, how: str, mode: PrefillMode) -> Variant:
        g, w = self.target.geometry, self.target.weights

        def run() -> Tensor:
            return [
                prefill.embed(self.x[rows], w.embed, self.tokens[rows], w.layers[0].input_norm, g.rms_eps, mode)
                for rows in self.chunks()
            ][-1]

        def check() -> Iterator[Finding]:
            poison(self.x)
            last = run()
            yield equal(self.x, w.embed[self.tokens].float())
            yield close(last[-1], oracles.rms_norm(self.x[-1], w.layers[0].input_norm, g.rms_eps), ROUNDED)

        return Variant("embed", how, how == self.modes[0][0], run, check)

    def product(self, part: str, x: Tensor, weight: Tensor, out: Tensor | None = None) -> Variant:
        """Chunk by chunk. Where `x` is a chunk, it takes the place of every chunk."""

        def once(rows: slice) -> Tensor:
            given = x[rows] if len(x) >= rows.stop else x[: rows.stop - rows.start]
            if out is None:
                return F.linear(given, weight)
            prefill.project(given, weight, out[rows])
            return out[rows]

        def run() -> None:
            for rows in self.chunks(len(out) if out is not None else None):
                once(rows)

        def check() -> Iterator[Finding]:
            inside = [row for row in self.rows if row < min(CHUNK, len(x))]
            result = once(slice(0, min(CHUNK, len(x))))[inside]
            yield close(result, oracles.matmul_rows(x[inside], weight), ROUNDED)

        return Variant(part, "cuBLAS", True, run, check)

    def caching(
        self,
        part: str,
        how: str,
        mode: PrefillMode,
        packed: Tensor,
        table: RopeTable,
        pages: Pages,
        g: TargetGeometry | DraftGeometry | Heads,
        blocks: Tensor,
    ) -> Variant:
        heads = Heads(g.heads, g.kv_heads, g.head_dim, len(packed))

        def run() -> None:
            prefill.cache_heads(packed, table, pages, 0, blocks, g, mode, CHUNK)

        def check() -> Iterator[Finding]:
            packed.normal_()
            rows = [row for row in self.rows if row < len(packed)]
            before, turning = packed[rows].view(len(rows), -1, heads.head_dim), heads.heads + heads.kv_heads
            want = oracles.rope(before[:, :turning], *(angles[rows] for angles in table))
            values = before[:, turning:].clone()
            poison(pages.k[0], pages.v[0])
            run()
            q, k, v = split_heads(packed, heads)
            yield close(torch.cat((q, k), dim=1)[rows], want, ROUNDED)
            yield equal(v[rows], values)
            own_blocks, place = blocks[torch.tensor(rows, device=blocks.device) // BLOCK], [row % BLOCK for row in rows]
            yield equal(pages.k[0, own_blocks, :, place], k[rows])
            yield equal(pages.v[0, own_blocks, :, :, place], v[rows])

        return Variant(part, how, how == self.modes[0][0], run, check)

    def attending(self) -> Iterator[Variant]:
        packed = split_heads(self.qkv, self.heads)
        chosen = self.mode.attention.library(self.positions, self.heads, self.qkv.device)
        for library in self.mode.attention.order:
            yield self.attention(library.value, packed, partial(attend, library=library), used=library is chosen)
        if self.qkv.is_cuda and find_spec("flashinfer") is not None:
            yield self.attention("FlashInfer", packed, flashinfer)

    def attention(
        self, how: str, operands: tuple[Tensor, ...], attended: Callable[..., Tensor], *, used: bool = False
    ) -> Variant:
        q, k, v = operands

        def check() -> Iterator[Finding]:
            out = attended(q, k, v)
            yield equal(attended(q, k, v), out)
            for row in self.rows:
                want = oracles.attention(q[row], k.transpose(0, 1), v.transpose(0, 1), row, None)
                yield close(out[row], want.flatten(), ATTENDED)

        return Variant("attention", how, used, lambda: attended(q, k, v), check)

    def adding(self, how: str, mode: PrefillMode) -> Variant:
        g, weight = self.target.geometry, self.target.weights.layers[0].post_norm

        def run() -> Tensor:
            return [prefill.add(self.x[r], self.added[r], weight, g.rms_eps, mode) for r in self.chunks()][-1]

        def check() -> Iterator[Finding]:
            self.x.normal_()
            want = self.x + self.added
            last = run()
            yield equal(self.x, want)
            yield close(last[-1], oracles.rms_norm(want[-1], weight, g.rms_eps), ROUNDED)

        return Variant("residual", how, how == self.modes[0][0], run, check)

    def gating(self, how: str, mode: PrefillMode) -> Variant:
        def run() -> None:
            for rows in self.chunks():
                prefill.gated(self.gate_up[: rows.stop - rows.start], mode)

        def check() -> Iterator[Finding]:
            rows = [row for row in self.rows if row < len(self.gate_up)]
            gate, up = self.gate_up[rows].double().chunk(2, dim=-1)
            yield close(prefill.gated(self.gate_up, mode)[rows], F.silu(gate) * up, ROUNDED)

        return Variant("gate", how, how == self.modes[0][0], run, check)

    # ── the draft ────────────────────────────────────────────────────────────────────────────────────────────────────

    def draft_parts(self, draft: Draft) -> Iterator[Variant]:
        g, w = draft.geometry, draft.weights
        count, following = self.positions - 1, self.tokens[1:]

        def project() -> None:
            for rows in self.chunks(count):
                F.linear(prefill.feature_norms(self.features[rows], draft), w.fc)

        def project_check() -> Iterator[Finding]:
            rows = [row for row in self.rows if row < count]
            normed = prefill.feature_norms(self.features[rows], draft)
            result = F.linear(normed, w.fc)
            yield close(result, oracles.matmul_rows(normed, w.fc), ROUNDED)

        yield Variant("draft fc", "cuBLAS", True, project, project_check)

        def joining(how: str, mode: PrefillMode) -> Variant:
            def run() -> Tensor:
                return [
                    prefill.draft_input(draft, self.hidden[rows], following[rows], mode) for rows in self.chunks(count)
                ][-1]

            def check() -> Iterator[Finding]:
                row = slice(count - 1, count)
                norms = (w.layer.input_norm, w.feature_norm, g.rms_eps)
                yield close(run()[-1:], oracles.draft_input(w.embed[following[row]], self.hidden[row], *norms), ROUNDED)

            return Variant("draft input", how, how == self.modes[0][0], run, check)

        for how, mode in self.modes:
            yield joining(how, mode)
        yield self.product("draft kv", self.draft_in, w.layer.qkv[g.heads * g.head_dim :], self.kv)
        for how, mode in self.modes:
            yield self.caching(
                "draft heads", how, mode, self.kv, draft.rope, self.draft_pages, self.draft_heads, self.blocks
            )

    # ── the whole ────────────────────────────────────────────────────────────────────────────────────────────────────

    def wholes(self) -> Iterator[Variant]:
        """Yield the prefill itself: as the engine does it, and by torch with its FlashAttention."""
        yield self.whole(self.modes[0][0], self.mode, used=True)
        if self.mode.fused:
            chosen = self.mode.attention.library(self.positions, self.heads, self.qkv.device)
            flash = PrefillAttention((Library.TORCH,))
            yield self.whole(f"torch, attention by {chosen}", self.torch_mode)
            yield self.whole("torch, attention by torch", PrefillMode(False, flash))

    def whole(self, how: str, mode: PrefillMode, *, used: bool = False) -> Variant:
        def run(mode: PrefillMode = mode) -> Tensor:
            made = prefill.prefill_target(
                self.target, self.pages, self.tokens, self.blocks, self.boundaries, CHUNK, mode
            )
            if self.draft is not None and made[1] is not None:
                prefill.prefill_draft(self.draft, self.draft_pages, self.tokens, self.blocks, made[1], CHUNK, mode)
            return made[0][-1]

        def check() -> Iterator[Finding]:
            """Beside torch's operations with the same attention, and the same again."""
            last = run()
            yield equal(run(), last)
            yield close(last, run(self.torch_mode), CARRIED)

        return Variant(WHOLE, how, used, run, check)


def flashinfer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of one prompt by FlashInfer, whichever of its kernels it takes."""
    library: Any = import_module("flashinfer")
    out: Tensor = library.single_prefill_with_kv_cache(q, k, v, causal=True).flatten(1)
    return out
