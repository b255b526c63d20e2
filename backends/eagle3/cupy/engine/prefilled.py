"""All prompts of a batch into the cache, and the state that every decode run over them begins with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.engine.decode_run import StartState, StopRule
from specgate.backends.eagle3.cupy.engine.prefill import PrefillMode, prefill_draft, prefill_target
from specgate.backends.eagle3.cupy.engine.prefill_experts import prefill_expert_prompts, together
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import NORM_GROUP, PreNormRows
from specgate.backends.eagle3.cupy.kernels.state.slots import Fault, KVBlocks
from specgate.backends.eagle3.cupy.memory.buffers import Buffers, tensors_of
from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.cupy.memory.sizes import Cached, CacheLayout
from specgate.backends.eagle3.cupy.step.verify import Verify
from specgate.backends.eagle3.lib.specpv import PartialPlan


@dataclass(frozen=True, slots=True)
class LastRow:
    """The last row of a prompt: its residual stream before the final norm, float32 [H], and its captured features,
    bfloat16 [n·H], or None.
    """

    stream: Tensor
    features: Tensor | None


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Per slot, the token after the prompt, and the two largest of the logits that it was chosen from.

    `logits` float32 [B, V]: all of them, where tokens are drawn; None where they are greedy.
    """

    tokens: tuple[int, ...]
    top2: tuple[tuple[float, float], ...]
    logits: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A cache that holds `prompts`. `features` bfloat16 [B, n·H] are those of their last rows; None where the draft's
    cache was not filled. `last`: these rows themselves, of which more first tokens can be drawn.
    """

    prompts: tuple[tuple[int, ...], ...]
    layout: CacheLayout
    first: FirstTokens
    kv: KVBlocks
    features: Tensor | None
    last: tuple[LastRow, ...] = ()

    def cached(self, *, draft: bool) -> Cached:
        """Return what later prompts may begin with; nothing if they need a `draft` whose cache was not filled."""
        return () if draft and self.features is None else tuple(zip(self.prompts, self.layout.blocks, strict=True))

    def rewind(self, b: Buffers, rule: StopRule, plan: PartialPlan | None = None) -> None:
        """Put `b` back to where the prompts ended. It copies from the host, so it is done before a decode run and never
        within. `plan`: of an engine that verifies in part.
        """
        StartState(tuple(map(len, self.prompts)), self.first.tokens).rewind(b.slots, rule)
        b.kv.copy_(self.kv)
        if b.sampling is not None:
            b.sampling.forget_outputs()
        if b.partial is not None and plan is not None:
            b.partial.begin(plan, [*map(len, self.prompts)])
        if self.features is not None and b.draft is not None:
            b.draft.features[: len(self.features), 0] = self.features


def prefill_prompts(
    target: Target,
    draft: Draft | None,
    b: Buffers,
    prompts: Sequence[Sequence[int]],
    layout: CacheLayout,
    mode: PrefillMode,
) -> list[LastRow]:
    """Prefill every prompt into the blocks of its slot, equal prompts once, and others from where their layout says.
    The cache of `draft` is filled, too.
    """
    device, first = b.slots.length.device, [slot for slot, twin in enumerate(layout.twin) if twin == slot]
    block_ids = [
        (torch.tensor(prompts[slot], device=device), torch.tensor(layout.blocks[slot], device=device)) for slot in first
    ]
    last_rows = list[LastRow]()
    if target.geometry.experts is None:
        for slot, prompt in zip(first, block_ids, strict=True):
            last_rows += prefill_wave(target, draft, b, [prompt], mode, layout.start[slot])
    else:
        for wave in together([len(tokens) for tokens, _ in block_ids]):
            last_rows += prefill_wave(target, draft, b, block_ids[wave.start : wave.stop], mode)
    rows = dict(zip(first, last_rows, strict=True))
    for slot, twin in enumerate(layout.twin):
        if twin != slot:
            copy_tail(b, layout, twin, slot)
    return [rows[twin] for twin in layout.twin]


def prefill_wave(
    target: Target,
    draft: Draft | None,
    b: Buffers,
    prompts: Sequence[tuple[Tensor, Tensor]],
    mode: PrefillMode,
    start: int = 0,
) -> list[LastRow]:
    """Prefill prompts of (tokens, blocks) that go through the layers together; of a dense target it is one, whose
    positions before `start` are in the cache.
    """
    boundaries = draft.boundaries if draft else ()
    if target.geometry.experts is None:
        results = [prefill_target(target, b.target.pages, *of, boundaries, mode, start) for of in prompts]
    else:
        results = prefill_expert_prompts(target, b.target.pages, prompts, boundaries, mode)
    last = list[LastRow]()
    for (tokens, blocks), (stream, features) in zip(prompts, results, strict=True):
        if draft is None or features is None or b.draft is None:
            last.append(LastRow(stream[-1].clone(), None))
            continue
        prefill_draft(draft, b.draft.pages, tokens, blocks, features, mode, start)
        last.append(LastRow(stream[-1].clone(), features[-1].clone()))
    return last


def copy_tail(b: Buffers, layout: CacheLayout, twin: int, slot: int) -> None:
    """Copy those blocks that `slot` does not share with its `twin`, a slot with an equal prompt before it."""
    own = layout.private[slot]
    for pages in b.pages:
        for cache in tensors_of(pages):
            for source, copy in zip(layout.blocks[twin][-own:], layout.blocks[slot][-own:], strict=True):
                cache[:, copy] = cache[:, source]


def leave_pre_norm_rows(out: PreNormRows, stream: Tensor, weight: Tensor) -> None:
    """Leave in `out` what the norm with `weight` needs of the rows `stream`, float32 [B, H], as a step's kernels do."""
    out.normed[: len(stream)] = (stream * weight.float()).bfloat16()
    out.squares[: len(stream)] = stream.square().view(len(stream), -1, NORM_GROUP).sum(-1)


def first_tokens(
    verify: Verify, b: Buffers, rows: Sequence[LastRow], lengths: Sequence[int]
) -> tuple[FirstTokens, Fault]:
    """The token after each prompt, chosen by the same kernels that choose all later tokens.

    `lengths`: of the prompts. A token is drawn with the random numbers of its position.
    """
    count = len(rows)
    put_last_rows(verify, b, rows, lengths)
    verify.head(b, b.slots.rows(count, 1))
    tokens, fault = verify.choices(b, count)
    logits = b.target.layer.logits[:count]
    return FirstTokens(tokens, top2_of(logits), logits.clone() if b.sampling is not None else None), fault


def put_last_rows(verify: Verify, b: Buffers, rows: Sequence[LastRow], lengths: Sequence[int]) -> None:
    """Put the last rows of prompts where the head of `verify` takes its rows from. It copies from the host."""
    count = len(rows)
    leave_pre_norm_rows(b.target.layer.pre_norm, torch.stack([row.stream for row in rows]), verify.target.weights.norm)
    StartState(tuple(n - 1 for n in lengths), (0,) * count).rewind(b.slots, StopRule((), (), 2))
    if b.sampling is not None:
        b.sampling.forget_outputs()


def top2_of(logits: Tensor) -> tuple[tuple[float, float], ...]:
    """Of each row [V], the two largest."""
    return tuple((first, second) for first, second in logits.topk(2).values.tolist())
