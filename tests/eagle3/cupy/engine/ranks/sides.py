"""Ranks on a CPU as a prefill and a step want them, whole decode runs over them, and what these must show."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.engine.decode_run import StopRule, read
from specgate.backends.eagle3.cupy.engine.decoding import state_of
from specgate.backends.eagle3.cupy.engine.prefill import CHUNK, PrefillMode
from specgate.backends.eagle3.cupy.engine.prefill_attention import Library, PrefillAttention
from specgate.backends.eagle3.cupy.engine.prefilled import (
    FirstTokens,
    Prefilled,
    first_tokens,
    prefill_prompts,
    put_last_rows,
    top2_of,
)
from specgate.backends.eagle3.cupy.engine.ranks.prefill import Prefill
from specgate.backends.eagle3.cupy.engine.ranks.rank import drafts_of
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.kernels.state.slots import KVBlocks
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.cupy.memory.peers import with_mailboxes
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree, Sizes, assign_blocks
from specgate.backends.eagle3.cupy.step.cycle import Cycle
from specgate.backends.eagle3.lib.kv.modes import AS_COMPUTED, KvModes
from specgate.backends.eagle3.lib.pair import TargetCheckpoint
from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.shard import Shard, shards
from specgate.backends.eagle3.pair_tools.plant.calibrate import made_target
from specgate.backends.eagle3.pair_tools.plant.geometries import PairGeometry
from specgate.contract.protocols import Decoded
from tests.eagle3.cupy.engine.tracing import check_common_rows, same_prefixes
from tests.eagle3.cupy.gpu_pairs import random_prompts
from tests.eagle3.cupy.kernels.peers.ranks_on_host import Ranks
from tests.eagle3.lib.planted.drafts import made_draft

CPU = torch.device("cpu")
LENGTHS = [5, BLOCK - 2, BLOCK + 5]
Alone = tuple[list["Side"], Decoded, dict[tuple[int, int], Tensor]]
"""One rank that has the whole target, what it decodes, and its logits."""


class NoStream:
    torch = None

    def current(self) -> Any:
        return nullcontext()


@dataclass
class Side:
    """One rank on the CPU, as a prefill and a step want it."""

    target: Target
    draft: Draft | None
    b: Buffers
    mode: PrefillMode
    sizes: Sizes
    prefilled: Prefilled | None = None
    device: torch.device = CPU
    stream: NoStream = NoStream()  # noqa: RUF009 (it has no state)


def part_of(whole: TargetCheckpoint, shard: Shard) -> TargetCheckpoint:
    return replace(whole, tensors={name: shard.part(name, t) for name, t in whole.tensors.items()}, shard=shard)


def sides(
    pair: PairGeometry,
    recipe: Recipe,
    ranks: int,
    *,
    fused: bool = False,
    packed_rows: int = 0,
    slots: int = 3,
    kv: KvModes = AS_COMPUTED,
    draft_ranks: int = 1,
    tree: DraftTree | None = None,
) -> list[Side]:
    """`fused` and `packed_rows`: as `PrefillMode` has them. `draft_ranks`: the draft is divided among so many."""
    tiling = FmhaConfig(kv_tile=128, warps=4, stages=2)
    sizes = Sizes(slots, 230, tree.rows if tree else 4, fmha=tiling, kv=kv, tree=tree)
    whole = made_target(recipe, pair, torch.bfloat16, "cpu")
    chunk, attention = 48 if ranks > 1 else CHUNK, PrefillAttention((Library.TORCH,))
    mode, made = PrefillMode(fused, attention, packed_rows=packed_rows, chunk=chunk), []
    drafts = drafts_of(made_draft(recipe, pair, torch.bfloat16, "cpu"), [CPU] * ranks, draft_ranks)
    for shard, own in zip(shards(ranks), drafts, strict=True):
        target = Target.of(part_of(whole, shard), sizes.positions)
        assert own is not None
        draft = Draft.of(own, target, sizes.positions)
        b = Buffers.allocate(target.geometry, draft.geometry, sizes, "cpu")
        made.append(Side(target, draft, b, mode, sizes))
    if ranks > 1:
        split_width = pair.draft.hidden if draft_ranks > 1 else None
        reachable = with_mailboxes([s.b for s in made], sizes, pair.target.hidden, split_width)
        for side, b in zip(made, reachable, strict=True):
            side.b = b
    return made


def prefill(made: Sequence[Side], ranks: Ranks) -> None:
    prompts = random_prompts(LENGTHS)
    layout = assign_blocks(prompts, made[0].sizes)
    if len(made) == 1:
        last = [prefill_prompts(made[0].target, made[0].draft, made[0].b, prompts, layout, made[0].mode)]
    else:
        last = Prefill(made).prompts(prompts, layout, draft=True)

    def choose(rank: int) -> FirstTokens:
        side = made[rank]
        verify = Cycle(side.target, side.draft, side.sizes, 3, 0).verify
        side.b.kv.copy_(layout.kv)
        if len(made) == 1:
            return first_tokens(verify, side.b, last[0], LENGTHS)[0]
        put_last_rows(verify, side.b, last[rank], LENGTHS)
        verify.head(side.b, side.b.slots.rows(3, 1))
        tokens, fault = verify.choices(side.b, 3)
        assert not fault
        return FirstTokens(tokens, top2_of(side.b.target.layer.logits[:3]))

    chosen = ranks.each(choose, range(len(made)))
    assert len({c.tokens for c in chosen}) == 1
    for side, rows, first in zip(made, last, chosen, strict=True):
        side.prefilled = Prefilled(
            prompts=tuple(map(tuple, prompts)),
            layout=layout,
            first=first,
            kv=KVBlocks(*(t.clone() for t in side.b.kv.tensors())),
            features=torch.stack([row.features for row in rows if row.features is not None]),
            last=tuple(rows),
        )


def decode(made: Sequence[Side], ranks: Ranks, k: int, steps: int) -> tuple[Decoded, dict[tuple[int, int], Tensor]]:
    """What is decoded, and the whole vocabulary's logits of every (slot, position) whose context is the text."""

    def run(rank: int) -> tuple[Any, dict[tuple[int, int], Tensor], tuple[object, ...]]:
        side, data = made[rank], {}
        cycle, slots = Cycle(side.target, side.draft, side.sizes, 3, k), side.b.slots
        assert side.prefilled is not None
        side.prefilled.rewind(side.b, StopRule((), (), side.sizes.positions))
        for _ in range(steps):
            active, lengths = slots.active[: int(slots.active_count)].tolist(), slots.length.tolist()
            cycle(side.b)
            assert not slots.fault.any(), slots.fault
            for a, slot in enumerate(active):
                for t in range(int(slots.accepted[slot]) + 1):
                    node = int(side.b.tree.path[slot, t]) if side.b.tree and cycle.drafting.branches else t
                    data[slot, lengths[slot] + t] = side.b.target.layer.logits[a * cycle.rows + node].clone()
        return read(slots, 3, k, [1] * steps, [0] * steps)[0], data, state_of(slots, 3, steps)

    sides_read = ranks.each(run, range(len(made)))
    assert all(state == sides_read[0][2] for _, _, state in sides_read)
    logits = {at: torch.cat([data[at] for _, data, _ in sides_read]) for at in sides_read[0][1]}
    return sides_read[0][0], logits


def decoded_alone(pair: PairGeometry, recipe: Recipe, ranks: Ranks, kv: KvModes = AS_COMPUTED) -> Alone:
    """By one rank that has the whole target."""
    made = sides(pair, recipe, 1, kv=kv)
    prefill(made, ranks)
    return made, *decode(made, ranks, 0, 6)


def check_split(
    pair: PairGeometry,
    recipe: Recipe,
    threads: Ranks,
    alone: Alone,
    ranks: int,
    *,
    draft_ranks: int = 1,
    tree: DraftTree | None = None,
) -> Decoded:
    """Prefilled and decoded by `ranks` ranks: all of them have the same, spec-3 has the baseline's tokens and logits,
    and these are near the whole target's. Returns what spec-3 decodes.
    """
    kv = alone[0][0].sizes.kv
    least, least_of_logits = (0.9995, 0.999) if kv == AS_COMPUTED else (0.98, 0.97)
    made = sides(pair, recipe, ranks, kv=kv, draft_ranks=draft_ranks, tree=tree)
    prefill(made, threads)
    one, other = alone[0][0].prefilled, made[0].prefilled
    assert one is not None and other is not None
    for a, b in zip(one.last, other.last, strict=True):
        assert torch.cosine_similarity(a.stream, b.stream, dim=0) > least
    for side in made[1:]:
        assert side.prefilled is not None
        assert all(torch.equal(a.stream, b.stream) for a, b in zip(other.last, side.prefilled.last, strict=True))
        assert side.b.draft is not None and made[0].b.draft is not None
        if draft_ranks == 1:
            assert torch.equal(side.b.draft.pages.k, made[0].b.draft.pages.k)
    plain, wanted = decode(made, threads, 0, 6)
    spec, logits = decode(made, threads, 3, 4)
    assert same_prefixes(plain.tokens, spec.tokens)
    check_common_rows(logits, wanted, 12)
    assert sum(a for row in spec.accepted for a in row) > 0, spec.accepted
    # Up to where rounding makes another choice, the whole target's logits are as good as these.
    texts = list(zip(alone[1].tokens, plain.tokens, strict=True))
    near = [
        torch.cosine_similarity(logits, wanted[slot, at], dim=0)
        for (slot, at), logits in alone[2].items()
        if texts[slot][0][: at - LENGTHS[slot] + 1] == texts[slot][1][: at - LENGTHS[slot] + 1]
    ]
    assert len(near) >= 6 and min(near) > least_of_logits, near
    return spec
