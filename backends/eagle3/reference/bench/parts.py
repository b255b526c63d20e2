"""The parts of the reference engine's steps, on operands of a pair's sizes: what each gives, must give, and must move.

The names are those of the built-in engine's kernels, where it has one for the same work. Bytes are counted as there:
every operand once, whatever torch reads and writes in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.reference import ops, state
from specgate.backends.eagle3.reference.bench import oracles
from specgate.backends.eagle3.reference.cache import view, whole_blocks
from specgate.backends.eagle3.reference.target import attend, rope_rows, rope_table
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry

SUMS: Final = 1e-5
"""Tolerance of float32 sums."""
FLOAT: Final = 4
LONG: Final = 8
CAPACITY: Final = 1 << 16
"""Tokens that a slot of the benchmark can emit."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a step. `make` makes one set of operands, and returns the call on it and what that should give.

    `tag`: the operation; `function`: the function of the engine; `per_step`: how often a step calls it on such shapes;
    `size`: bytes that a call must move; `tolerance`: 0 where the result must be equal.
    """

    tag: str
    function: str
    shape: str
    per_step: int
    size: int
    tolerance: float
    make: Callable[[], tuple[Callable[[], Tensor], Callable[[], Tensor]]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """A step of spec-`k` over `batch` slots of `context` cached positions each."""

    batch: int
    context: int
    k: int

    @property
    def rows(self) -> int:
        return self.batch * (self.k + 1)


def parts_of(target: TargetGeometry, draft: DraftGeometry | None, sizes: Sizes) -> Iterator[Part]:
    """Every part of the step; float32, on the CPU. Without a draft: the baseline's."""
    if draft and sizes.k:
        yield from draft_parts(draft, sizes)
    yield from layer_parts("TARGET", target, target.hidden, sizes.rows, sizes, target.layers, sizes.context)
    yield norm("TARGET_NORM", target.hidden, sizes.rows, target.rms_eps, 2 * target.layers + 1)
    yield product("TARGET_LM_HEAD", target.vocab, target.hidden, sizes.rows, 1)
    yield greedy("TARGET_ARGMAX", target.vocab, sizes.rows, 1)
    if sizes.k:
        yield accepting(sizes, target.vocab)
    yield committing(sizes, target.vocab)


def draft_parts(g: DraftGeometry, sizes: Sizes) -> Iterator[Part]:
    """One extension over all rows of the step before, and K − 1 steps of a row per slot."""
    yield product("EAGLE3_FC", g.hidden, g.features * g.target_hidden, sizes.rows, 1)
    # The extension's rows end where the target's next begin; each step of the chain is one further.
    yield from layer_parts("EAGLE3", g, 2 * g.hidden, sizes.rows, sizes, 1, sizes.context - sizes.k - 1)
    yield norm("EAGLE3_NORM", g.hidden, sizes.rows, g.rms_eps, 3)
    if sizes.k > 1:
        steps = Sizes(sizes.batch, sizes.context, 0)
        yield from layer_parts("EAGLE3", g, 2 * g.hidden, sizes.batch, steps, sizes.k - 1, sizes.context)
        yield norm("EAGLE3_NORM", g.hidden, sizes.batch, g.rms_eps, 4 * (sizes.k - 1) + 1)
    else:
        yield norm("EAGLE3_NORM", g.hidden, sizes.batch, g.rms_eps, 1)
    yield product("EAGLE3_LM_HEAD_SMALLVOC", g.draft_vocab, g.hidden, sizes.batch, sizes.k)
    yield greedy("EAGLE3_ARGMAX", g.draft_vocab, sizes.batch, sizes.k)


def layer_parts(
    whose: str, g: TargetGeometry | DraftGeometry, width: int, rows: int, sizes: Sizes, layers: int, start: int
) -> Iterator[Part]:
    """A decoder layer's, `layers` times: `rows` rows of `width` numbers, of which a slot's first stands at `start`."""
    qkv = (g.heads + 2 * g.kv_heads) * g.head_dim
    window = g.window if isinstance(g, DraftGeometry) else None
    yield product(f"{whose}_QKV", qkv, width, rows, layers)
    yield attending(f"{whose}_ATTENTION", g, sizes, layers, start, window)
    yield product(f"{whose}_O", g.hidden, g.heads * g.head_dim, rows, layers)
    yield product(f"{whose}_FFN_GATE_UP", 2 * g.intermediate, g.hidden, rows, layers)
    yield gating(f"{whose}_FFN_SILU", g.intermediate, rows, layers)
    yield product(f"{whose}_FFN_DOWN", g.hidden, g.intermediate, rows, layers)


def product(tag: str, n: int, k: int, rows: int, per_step: int) -> Part:
    def make() -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
        x, weight = torch.randn(rows, k), torch.randn(n, k) * k**-0.5
        return lambda: ops.matmul_rows(x, weight), lambda: oracles.product(x, weight)

    return Part(tag, "matmul_rows", f"{rows}×{n}×{k}", per_step, FLOAT * (n * k + rows * (n + k)), SUMS, make)


def norm(tag: str, width: int, rows: int, eps: float, per_step: int) -> Part:
    def make() -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
        x, weight = torch.randn(rows, width), 1 + 0.1 * torch.randn(width)
        return lambda: ops.rms_norm(x, weight, eps), lambda: oracles.rms_norm(x, weight, eps)

    return Part(tag, "rms_norm", f"{rows}×{width}", per_step, FLOAT * (2 * rows + 1) * width, SUMS, make)


def gating(tag: str, width: int, rows: int, per_step: int) -> Part:
    def make() -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
        gate_up = torch.randn(rows, 2 * width)
        return lambda: ops.silu_mul(gate_up), lambda: oracles.silu_mul(gate_up)

    return Part(tag, "silu_mul", f"{rows}×{width}", per_step, FLOAT * 3 * rows * width, SUMS, make)


def attending(
    tag: str, g: TargetGeometry | DraftGeometry, sizes: Sizes, per_step: int, start: int, window: int | None
) -> Part:
    """Keys and values of the new rows into the cache, and attention over what they see."""
    rows = sizes.k + 1
    seen = start + rows if window is None else min(start + rows, window + rows - 1)
    cached = sizes.batch * g.kv_heads * seen * g.head_dim
    own = sizes.batch * rows * (2 * g.heads + 2 * g.kv_heads) * g.head_dim

    def make() -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
        shape = (sizes.batch, g.kv_heads, whole_blocks(start + rows), g.head_dim)
        k, v = torch.randn(shape), torch.randn(shape)
        qkv = torch.randn(sizes.batch, rows, (g.heads + 2 * g.kv_heads) * g.head_dim)
        table = rope_table(g.rope, start + rows, torch.float32, "cpu")
        positions = torch.arange(start, start + rows).expand(sizes.batch, rows)

        def call() -> Tensor:
            turned, span = rope_rows(table, positions), view(positions, window)
            return attend(qkv, turned, k, v, positions, span, g.heads, g.kv_heads)

        return call, lambda: oracles.attention(qkv, table, k, v, start, g.heads, window)

    words = f"{sizes.batch}×{rows} rows, {seen} seen, {g.heads}:{g.kv_heads} of {g.head_dim}"
    return Part(tag, "attend", words, per_step, FLOAT * (2 * cached + own), SUMS, make)


def greedy(tag: str, vocab: int, rows: int, per_step: int) -> Part:
    def make() -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
        logits = torch.randn(rows, vocab)
        return lambda: ops.target_argmax(logits), lambda: oracles.largest(logits)

    return Part(tag, "target_argmax", f"{rows}×{vocab}", per_step, FLOAT * rows * vocab + LONG * rows, 0.0, make)


def accepting(sizes: Sizes, vocab: int) -> Part:
    """The longest accepted path of a chain, of every length there is."""

    def make() -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
        targets = torch.randint(vocab, (sizes.batch, sizes.k + 1))
        drafts = targets[:, :-1].clone()
        for slot in range(sizes.batch):
            drafts[slot, slot % (sizes.k + 1) :] += 1
        return lambda: ops.accept(drafts, targets), lambda: oracles.longest_common(drafts.tolist(), targets.tolist())

    size = LONG * (sizes.batch * (2 * sizes.k + 1) + sizes.batch)
    return Part("ACCEPT", "accept", f"{sizes.batch}×{sizes.k}", 1, size, 0.0, make)


def committing(sizes: Sizes, vocab: int) -> Part:
    """Tokens emitted, and the cache rewound to what was accepted: rejected rows stay, and the length excludes them."""

    def make() -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
        length, first = torch.full((sizes.batch,), sizes.context), torch.randint(vocab, (sizes.batch,))
        rule = state.StopRule.make((), (), CAPACITY, True, "cpu")
        slots = state.Slots.begin(length, first, CAPACITY, rule)
        tokens = torch.randint(vocab, (sizes.batch, sizes.k + 1))
        accepted = torch.arange(sizes.batch) % (sizes.k + 1)

        def call() -> Tensor:
            slots.emitted.fill_(1)
            state.commit(slots, tokens, accepted, rule)
            return slots.out[:, : sizes.k + 2]

        def expected() -> Tensor:
            rows = zip(first.tolist(), accepted.tolist(), tokens.tolist(), strict=True)
            return torch.tensor([[one, *said[: n + 1], *[0] * (sizes.k - n)] for one, n, said in rows])

        return call, expected

    return Part(
        "COMMIT_REWIND", "commit", f"{sizes.batch} slots", 1, LONG * (sizes.rows * 2 + sizes.batch * 8), 0.0, make
    )
