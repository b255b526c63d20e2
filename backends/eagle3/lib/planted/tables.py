"""The integer tables of a planted pair: which tokens the draft knows, and which token is planted to follow which."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.planted.rows import draws, key_of, shuffled


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of a pair with V tokens, W of which are draft tokens. All are int64.

    Tokens fall into W classes. A draft token is a class of its own; any other token belongs to a random class. What
    follows a token depends on its class alone.

        ids        [W]        token ids of the draft vocabulary, ascending
        class_of   [V]        the class of a token
        row_of     [V]        the draft row of a token, −1 for others
        successor  [maps, W]  the draft row that follows a class
        parents    [W, maps]  the classes that a draft row follows
        sign       [W]        ±1; the bit +1 of an old token chooses map 0, which leads to rows of sign +1; −1 likewise
        tau        [W]        ±1; the bit of the tokens of a class
        answer     [W]        the row that the draft proposes where the target's planted row is this one

    Recipe A has a single map, and its signs are all +1.
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
    """Generate the tables, on the CPU. Raises ValueError for recipe B with an odd draft vocabulary."""
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
    """[1, count]: a single cycle through all classes.

    Text that follows the rule without exception therefore repeats only after `count` tokens.
    """
    order = cycle(seed, count)
    successor = torch.empty(1, count, dtype=torch.int64)
    successor[0, order] = order.roll(-1)
    return successor


def cycle(seed: int, count: int) -> Tensor:
    """[count]: all classes in the order in which the cycle visits them."""
    return shuffled(key_of(seed, "cycle"), count)


def two_maps(seed: int, sign: Tensor, tau: Tensor) -> Tensor:
    """[2, W]: map b leads from the classes of either `tau` one to one to the rows whose sign belongs to b.

    So every row has one parent of either `tau`, and the step from (row, bits of the past) to the next such state is a
    permutation.
    """
    successor = torch.empty(2, len(sign), dtype=torch.int64)
    for b, side in enumerate((1, -1)):
        rows = (sign == side).nonzero().squeeze(1)
        for t in (1, -1):
            classes = (tau == t).nonzero().squeeze(1)
            successor[b, classes] = rows[shuffled(key_of(seed, f"map {b} of bit {t}"), len(rows))]
    return successor


def halves(seed: int, name: str, count: int) -> Tensor:
    """±1 [count], half of each. Raises ValueError for an odd `count`."""
    if count % 2:
        raise ValueError(f"recipe B needs an even draft vocabulary, not {count}")
    values = torch.ones(count, dtype=torch.int64)
    values[shuffled(key_of(seed, name), count)[: count // 2]] = -1
    return values


def parents_of(successor: Tensor) -> Tensor:
    """[W, maps]: the classes that lead to a row, in any map."""
    maps, count = successor.shape
    classes = torch.arange(count).expand(maps, count).reshape(-1)
    return classes[successor.reshape(-1).sort(stable=True).indices].view(count, maps)


def rotated(seed: int, count: int, wrong: int) -> Tensor:
    """[count]: the identity, except that `wrong` random numbers are rotated among themselves."""
    answer = torch.arange(count)
    if wrong > 1:
        chosen = shuffled(key_of(seed, "draft errors"), count)[:wrong]
        answer[chosen] = chosen.roll(-1)
    return answer
