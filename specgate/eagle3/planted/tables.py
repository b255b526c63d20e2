"""The integers of a planted pair: which tokens the draft knows, and which token is planted to follow which."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specgate.eagle3.planted.bits import draws, key_of, shuffled
from specgate.eagle3.planted.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Tables:
    """W draft tokens out of V, all tensors int64. A draft token is its own class; any other token has a random one.

    `ids` [W], ascending; `class_of` [V]; `row_of` [V] is the draft row of a token or −1. `successor` [maps, W]: the
    draft row that follows a class; `parents` [W, maps]: the classes that it follows. `sign`, `tau` [W] are ±1: bit
    b of the past (+1: map 0) leads to rows whose sign is b, and is the `tau` of an old token's class. Recipe A has
    one map, and its signs are all +1. `answer` [W]: what the draft says where the target was planted to say that row.
    """

    ids: Tensor
    class_of: Tensor
    row_of: Tensor
    successor: Tensor
    parents: Tensor
    sign: Tensor
    tau: Tensor
    answer: Tensor

    def to(self, device: torch.device | str) -> Tables:
        return Tables(*(getattr(self, name).to(device) for name in self.__slots__))


def tables(recipe: Recipe, vocab: int) -> Tables:
    """Made on the CPU in a moment. Raises ValueError for recipe B with an odd draft vocabulary."""
    seed, draft_vocab = recipe.seed, recipe.draft_vocab
    ids = shuffled(key_of(seed, "draft vocabulary"), vocab)[:draft_vocab].sort().values
    class_of = draws(key_of(seed, "classes"), vocab, draft_vocab)
    class_of[ids] = torch.arange(draft_vocab)
    row_of = torch.full((vocab,), -1)
    row_of[ids] = torch.arange(draft_vocab)
    ones = torch.ones(draft_vocab, dtype=torch.int64)
    sign = halves(seed, "signs", draft_vocab) if recipe.maps == 2 else ones
    tau = halves(seed, "bits", draft_vocab) if recipe.maps == 2 else ones
    successor = two_maps(seed, sign, tau) if recipe.maps == 2 else one_cycle(seed, draft_vocab)
    answer = rotated(seed, draft_vocab, round(recipe.draft_error * draft_vocab))
    return Tables(ids, class_of, row_of, successor, parents_of(successor), sign, tau, answer)


def one_cycle(seed: int, count: int) -> Tensor:
    """One cycle through all classes, [1, count]: no orbit without surprises is shorter than the draft vocabulary."""
    order = shuffled(key_of(seed, "cycle"), count)
    successor = torch.empty(1, count, dtype=torch.int64)
    successor[0, order] = order.roll(-1)
    return successor


def two_maps(seed: int, sign: Tensor, tau: Tensor) -> Tensor:
    """[2, W]: map b takes the classes of either `tau` one to one to the rows of sign b.

    So a row has one parent of either `tau`, and (row, bits of the past) ↦ the next such state is a permutation.
    """
    successor = torch.empty(2, len(sign), dtype=torch.int64)
    for b, wanted in enumerate((1, -1)):
        rows = (sign == wanted).nonzero().squeeze(1)
        for t in (1, -1):
            classes = (tau == t).nonzero().squeeze(1)
            successor[b, classes] = rows[shuffled(key_of(seed, f"map {b} of bit {t}"), len(rows))]
    return successor


def halves(seed: int, name: str, count: int) -> Tensor:
    """±1 [count], half of either."""
    if count % 2:
        raise ValueError(f"recipe B needs an even draft vocabulary, not {count}")
    values = torch.ones(count, dtype=torch.int64)
    values[shuffled(key_of(seed, name), count)[: count // 2]] = -1
    return values


def parents_of(successor: Tensor) -> Tensor:
    """[W, maps]: the classes that lead to a row, whichever the map."""
    maps, count = successor.shape
    classes = torch.arange(count).expand(maps, count).reshape(-1)
    return classes[successor.reshape(-1).sort(stable=True).indices].view(count, maps)


def rotated(seed: int, count: int, wrong: int) -> Tensor:
    """[count]: the identity but for `wrong` numbers, which are moved round among themselves."""
    answer = torch.arange(count)
    if wrong > 1:
        chosen = shuffled(key_of(seed, "draft errors"), count)[:wrong]
        answer[chosen] = chosen.roll(-1)
    return answer
