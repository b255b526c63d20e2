"""Prompts of a target with a mixture of experts that is split among several GPUs: `engine/prefill_experts.py`, all
ranks side by side, as `prefill.py` does it for a dense target.

Each rank has its heads, with their sinks, and its part of every expert's width. The first rank's router decides for
all: cuBLAS promises no equal bits on two GPUs, and ranks that disagreed would add up parts of different experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.engine import prefill_sinks
from specgate.backends.eagle3.cupy.engine.prefill import capture, chunks
from specgate.backends.eagle3.cupy.engine.prefill_experts import Passage, layer_of, queries_keys_values, together
from specgate.backends.eagle3.cupy.engine.prefill_mixture import (
    ROWS,
    Groups,
    PackedRouting,
    Part,
    Placing,
    Routing,
    by_rows,
    leave_sum,
    multiplied,
    multiplied_packed,
    rows_of,
    scores_of,
)
from specgate.backends.eagle3.cupy.engine.ranks.rank import OneOfRanks
from specgate.backends.eagle3.cupy.engine.ranks.sums import PartialSums, add_parts
from specgate.backends.eagle3.cupy.memory.model import ExpertLayerWeights, Target
from specgate.backends.eagle3.cupy.memory.peers import reachable
from specgate.backends.eagle3.lib.weights import TargetWeights
from specgate.checkpoints.geometry import TargetGeometry

Prompt = tuple[Sequence[int], Sequence[int]]
"""Its tokens, and its cache blocks in order of position."""
Given = tuple[Tensor, Placing]
"""What experts give for sorted pairs, and where those of a part lie among them."""


def scores_bytes(g: TargetGeometry) -> int:
    """Return the bytes of `FirstRouter` on the first GPU."""
    return 0 if g.experts is None else 4 * ROWS * g.experts.count


class FirstRouter:
    """The router's scores on the first rank, float32 [ROWS, E], where all ranks can read them.

    They are overwritten by those of the next rows. The first rank's stream has then waited for the others' sums of the
    rows before, which these have made after they had read the scores.
    """

    def __init__(self, ranks: Sequence[OneOfRanks], g: TargetGeometry) -> None:
        assert g.experts is not None
        self.ranks, self.experts = ranks, g.experts
        self.room = reachable((ROWS, g.experts.count), ranks[0].device, torch.float32)
        new_event: Any = torch.cuda.Event
        self._made: Any = new_event() if ranks[0].device.type == "cuda" else None

    def groups(self, parts: Sequence[Sequence[Part]], layer: int) -> list[Groups]:
        """The experts of all parts' rows on every rank. `parts`: the same of every rank; ROWS rows of each at most."""
        scores, groups = self._scores(parts, layer), list[Groups]()
        for rank in self._reading():
            w = layer_of(rank.target, layer)
            groups.append(Groups([Routing.by(own, w, self.experts, rank.mode) for own in scores]))
        return groups

    def packed(self, parts: Sequence[Sequence[Part]], layer: int) -> list[PackedRouting]:
        """As `groups`, of parts of few rows, which lie one behind the other."""
        rows, routings = sum(len(own) for own in self._scores(parts, layer)), list[PackedRouting]()
        for rank in self._reading():
            w = layer_of(rank.target, layer)
            routings.append(PackedRouting.by(self.room[:rows], w, self.experts, rank.mode))
        return routings

    def _scores(self, parts: Sequence[Sequence[Part]], layer: int) -> list[Tensor]:
        """Of each part, on the first rank."""
        first, scores = self.ranks[0], list[Tensor]()
        with first.stream.current():
            for part, rows in zip(parts[0], rows_of([len(part.x) for part in parts[0]]), strict=True):
                scores.append(self.room[rows])
                scores[-1].copy_(scores_of(part.normed, layer_of(first.target, layer), first.mode))
            if self._made is not None:
                self._made.record(first.stream.torch)
        return scores

    def _reading(self) -> Iterator[OneOfRanks]:
        """All ranks in turn, each on its own stream and behind the scores."""
        for rank in self.ranks:
            with rank.stream.current():
                if rank is not self.ranks[0] and rank.stream.torch is not None:
                    rank.stream.torch.wait_event(self._made)
                yield rank


class ExpertPrefill:
    """Prefills prompts of a target with experts on `ranks`. It awaits how many rows experts have, once per layer."""

    def __init__(self, ranks: Sequence[OneOfRanks], sums: PartialSums) -> None:
        self.ranks, self.sums, self.chunk = ranks, sums, ranks[0].mode.chunk
        self.g = ranks[0].target.geometry
        self.router = FirstRouter(ranks, self.g)

    def wave(self, prompts: Sequence[Prompt], boundaries: tuple[int, ...]) -> list[list[Passage]]:
        """As `prefill_expert_prompts`, in the same order. Returns the passages of every rank."""
        passages, layers = list[list[Passage]](), self.g.layers
        for rank in self.ranks:
            with rank.stream.current():
                passages.append([begun(rank, *prompt, boundaries) for prompt in prompts])
        for i in range(layers - 1):
            for n in range(len(prompts)):
                self._attend([own[n] for own in passages], i)
            self._through_experts([[part for p in own for part in p.parts] for own in passages], i)
            self._capture(passages, boundaries, i + 1)
        last = [self._last_rows([own[n] for own in passages], boundaries) for n in range(len(prompts))]
        if layers in boundaries:
            self._through_experts([[part for p in own for part in p.parts] for own in passages], layers - 1)
            self._capture(passages, boundaries, layers)
        self._through_experts([[rows[n] for rows in last] for n in range(len(self.ranks))], layers - 1)
        for n, rank in enumerate(self.ranks):
            with rank.stream.current():
                for passage, rows in zip(passages[n], last, strict=True):
                    passage.x[-1:] = rows[n].x
        return passages

    def _attend(self, prompt: Sequence[Passage], i: int) -> None:
        """A prompt, as each rank has it, through the attention of layer `i`, and its keys and values into the cache."""
        mixed = list[Tensor]()
        for n, rank in enumerate(self.ranks):
            with rank.stream.current():
                q, k, v = queries_keys_values(prompt[n], rank.target, rank.b.target.pages, i, rank.mode)
                sinks = layer_of(rank.target, i).sinks
                mixed.append(rank.mode.attention.with_sinks(q, k, v, sinks, self.g.window(i)))
        self._add_attention([Part(p.x, p.normed) for p in prompt], mixed, i)

    def _last_rows(self, prompt: Sequence[Passage], boundaries: tuple[int, ...]) -> list[Part]:
        """As `prefill_experts.last_row`, of every rank."""
        i = self.g.layers - 1
        parts, rows, mixed = list[Part](), list[Tensor](), list[Tensor]()
        for n, rank in enumerate(self.ranks):
            with rank.stream.current():
                p, sinks = prompt[n], layer_of(rank.target, i).sinks
                parts.append(Part(p.x[-1:].clone(), torch.empty_like(p.normed[-1:])))
                q, k, v = queries_keys_values(p, rank.target, rank.b.target.pages, i, rank.mode)
                rows.append(prefill_sinks.last_row(q[-1:], k, v, sinks, self.g.window(i)))
                if self.g.layers in boundaries:
                    mixed.append(rank.mode.attention.with_sinks(q, k, v, sinks, self.g.window(i)))
        self._add_attention(parts, rows, i)
        if mixed:
            self._add_attention([Part(p.x, p.normed) for p in prompt], mixed, i)
        return parts

    def _add_attention(self, parts: Sequence[Part], mixed: Sequence[Tensor], i: int) -> None:
        """x += Σ over ranks of `mixed` bfloat16 [R, N·D] · their part of the output projection, whose bias the first
        has; `normed` becomes the norm of x before the experts.
        """
        for rows in chunks(len(mixed[0]), self.chunk):
            room = self.sums.begin(rows.stop - rows.start)
            for n, rank in enumerate(self.ranks):
                with rank.stream.current():
                    w = layer_of(rank.target, i)
                    torch.addmm(w.o_bias, mixed[n][rows], w.o.t(), out=room[n])
            self._add(parts, rows, room, [layer_of(rank.target, i).post_norm for rank in self.ranks])

    def _through_experts(self, parts: Sequence[Sequence[Part]], i: int) -> None:
        """All parts, as each rank has them, through the experts of layer `i`, as many at a time as have ROWS rows."""
        for some in together([len(part.x) for part in parts[0]]):
            self._add_mixtures([own[some.start : some.stop] for own in parts], i)

    def _add_mixtures(self, parts: Sequence[Sequence[Part]], i: int) -> None:
        """x += Σ over ranks of their part of the rows' experts; `normed` becomes the norm behind the layer."""
        few, many = by_rows(parts[0], self.ranks[0].mode)
        for some, multiply in ((few, self._multiply_packed), (many, self._multiply)):
            if some:
                chosen = [[own[n] for n in some] for own in parts]
                self._add_experts(chosen, multiply(chosen, i), i)

    def _multiply(self, parts: Sequence[Sequence[Part]], i: int) -> list[list[Given]]:
        """Return the results of every rank's experts for each part, decoded first."""
        groups, results = self.router.groups(parts, i), list[list[Given]]()
        for n, rank in enumerate(self.ranks):
            with rank.stream.current():
                outs = multiplied(parts[n], groups[n], layer_of(rank.target, i), self.g, rank.mode)
                results.append(list(zip(outs, groups[n].routings, strict=True)))
        return results

    def _multiply_packed(self, parts: Sequence[Sequence[Part]], i: int) -> list[list[Given]]:
        """The same of parts of few rows, with weights as they are packed."""
        routings, results = self.router.packed(parts, i), list[list[Given]]()
        lengths = [len(part.x) for part in parts[0]]
        for n, rank in enumerate(self.ranks):
            with rank.stream.current():
                normed = [part.normed for part in parts[n]]
                out = multiplied_packed(normed, routings[n], layer_of(rank.target, i), self.g, rank.mode)
                results.append([(out, routings[n].of(rows)) for rows in rows_of(lengths)])
        return results

    def _add_experts(self, parts: Sequence[Sequence[Part]], results: Sequence[Sequence[Given]], i: int) -> None:
        """x += Σ over ranks of what their experts give; and the norm behind the layer."""
        for at, part in enumerate(parts[0]):
            for rows in chunks(len(part.x), self.chunk):
                room = self.sums.begin(rows.stop - rows.start)
                for n, rank in enumerate(self.ranks):
                    with rank.stream.current():
                        out, placing = results[n][at]
                        bias = layer_of(rank.target, i).down.bias
                        leave_sum(room[n], out, bias, placing.of(rows), self.router.experts, rank.mode)
                self._add([own[at] for own in parts], rows, room, [following(rank.target, i) for rank in self.ranks])

    def _add(self, parts: Sequence[Part], rows: slice, room: Sequence[Tensor], norms: Sequence[Tensor]) -> None:
        """Rows of the stream += what all ranks have left in `room`, on every rank, and their norm."""
        self.sums.end()
        for n, rank in enumerate(self.ranks):
            with rank.stream.current():
                x, normed = parts[n].x[rows], parts[n].normed[rows]
                add_parts(x, room, norms[n], self.g.rms_eps, rank.mode, normed)

    def _capture(self, passages: Sequence[Sequence[Passage]], boundaries: tuple[int, ...], boundary: int) -> None:
        for n, rank in enumerate(self.ranks):
            with rank.stream.current():
                for passage in passages[n]:
                    capture(passage.features, passage.x, boundaries, boundary)


def begun(rank: OneOfRanks, tokens: Sequence[int], blocks: Sequence[int], boundaries: tuple[int, ...]) -> Passage:
    token_ids, where = (torch.tensor(ids, device=rank.device) for ids in (tokens, blocks))
    return Passage.begin(rank.target, token_ids, where, boundaries, rank.mode)


def following(target: Target, i: int) -> Tensor:
    """The weight of the norm after layer `i`."""
    assert not isinstance(target.weights, TargetWeights)
    layers: tuple[ExpertLayerWeights, ...] = target.weights.layers
    return layers[i + 1].input_norm if i + 1 < len(layers) else target.weights.norm
