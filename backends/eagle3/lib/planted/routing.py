"""Experts that the tokens of a planted mixture choose, and the number of them that neighbouring tokens touch.

A token has k places for experts, the likeliest first. With probability q a place is taken from a list of k experts, and
otherwise drawn at random from the experts that are left. All classes of a stretch of the planted cycle have the same
list. So the tokens of a verification, each the planted successor of the one before it, share their list unless a
stretch ends among them. The lists divide the experts among them: over a whole cycle all are chosen equally often,
whatever q is.

The overlap of n tokens of one stretch is (independent − touched) / (independent − k), where `touched` is the number of
distinct experts that they choose and `independent` what it would be were they independent, E · (1 − (1 − k/E)ⁿ). Two
tokens that take places with probability q share them with q². So q = √`Recipe.expert_overlap` gives two neighbours
about the overlap that was asked for; `expected_touched` has the exact number.

Experts are numbered here before each layer shuffles them. There are `GROUPS` choices per token, and layers take turns.
"""

from __future__ import annotations

from math import comb, sqrt
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.planted.recipe import Recipe
from specgate.backends.eagle3.lib.planted.rows import draws, hash32, key_of, shifted, shuffled
from specgate.backends.eagle3.lib.planted.tables import Tables, cycle
from specgate.checkpoints.geometry import ExpertGeometry

GROUPS: Final = 2
"""Independent choices per token."""


def choices(recipe: Recipe, experts: ExpertGeometry, tables: Tables) -> Tensor:
    """The experts of every token, the likeliest first: int64 [GROUPS, V, k] on the CPU, distinct in each row."""
    stretch = stretch_of(recipe, experts)[tables.class_of]
    return torch.stack([group_choices(recipe, experts, stretch, group) for group in range(GROUPS)])


def list_share(recipe: Recipe) -> float:
    """q: the probability that a place is taken from the list that neighbours share."""
    return sqrt(recipe.expert_overlap or 0.0)


def stretches(experts: ExpertGeometry) -> int:
    """Return the number of stretches in the cycle: one for each list without a common expert."""
    return experts.count // experts.per_token


def stretch_of(recipe: Recipe, experts: ExpertGeometry) -> Tensor:
    """The stretch of each class, int64 [W]."""
    place = cycle(recipe.seed, recipe.draft_vocab).argsort()
    return place * stretches(experts) // recipe.draft_vocab


def group_choices(recipe: Recipe, experts: ExpertGeometry, stretch: Tensor, group: int) -> Tensor:
    """One choice of every token, [V, k]. `stretch` [V] is that of its class."""
    count, k, tokens = experts.count, experts.per_token, len(stretch)

    def key(what: str) -> tuple[int, int]:
        return key_of(recipe.seed, f"{what} of group {group}")

    lists = shuffled(key("shared experts"), count)[: stretches(experts) * k].view(-1, k)
    words = shifted(hash32(torch.arange(tokens * k, dtype=torch.int32), key("places that are shared")), 8)
    shares = words.view(tokens, k) < round(list_share(recipe) * (1 << 24))
    chosen = torch.where(shares, lists[stretch], -1)
    own = draws(key("experts of their own"), tokens * k, 1 << 31).view(tokens, k)
    for place in range(k):
        taken = torch.where(chosen < 0, count + k, chosen).sort(dim=1).values
        picks = own[:, place] % (count - (chosen >= 0).sum(dim=1)).clamp(min=1)
        for other in taken.unbind(dim=1):  # ascending: the n-th expert that is left comes after each that it passes
            picks += picks >= other
        chosen[:, place] = torch.where(chosen[:, place] < 0, picks, chosen[:, place])
    return chosen


def expected_touched(recipe: Recipe, experts: ExpertGeometry, tokens: int) -> float:
    """Return the mean number of distinct experts of a layer that a chain of `tokens` planted successors touches.

    Of n tokens of one stretch, all miss an expert of its list with probability (1 − i)ⁿ and any other expert with
    (1 − o)ⁿ, where i and o are a token's chances to choose it (`chances`). At q = 0 that makes E · (1 − (1 − k/E)ⁿ), at
    q = 1 it makes k. A chain that begins anywhere leaves its stretch after a tokens, for each a from 1 to n − 1, with
    probability one in a stretch's length.
    """
    inside, outside = chances(list_share(recipe), experts)
    count, k, length = experts.count, experts.per_token, recipe.draft_vocab / stretches(experts)

    def touched(first: int, second: int) -> float:
        """By `first` tokens of one stretch and `second` of the next."""
        n = first + second
        lists = [(first, second), (second, first)] if second else [(first, second)]
        listed = sum(k * (1 - (1 - inside) ** a * (1 - outside) ** b) for a, b in lists)
        return listed + (count - k * len(lists)) * (1 - (1 - outside) ** n)

    if stretches(experts) == 1:
        return touched(tokens, 0)
    whole = max(0.0, 1 - (tokens - 1) / length) * touched(tokens, 0)
    return whole + sum(touched(a, tokens - a) for a in range(1, tokens)) / length


def independent_touched(experts: ExpertGeometry, tokens: int) -> float:
    """Return the mean number of distinct experts of a layer that `tokens` tokens touch if they choose independently."""
    return experts.count * (1 - (1 - experts.per_token / experts.count) ** tokens)


def chances(q: float, experts: ExpertGeometry) -> tuple[float, float]:
    """A token's chances to choose an expert of its list, and any other expert.

    With m of its k places taken from the list, each of the other E − m experts has a chance of (k − m) / (E − m).
    """
    count, k = experts.count, experts.per_token

    def drawn(places: int) -> float:
        """The chance to be drawn, where `places` of the others may be shared."""
        shares = (comb(places, m) * q**m * (1 - q) ** (places - m) for m in range(places + 1))
        return sum(share * (k - m) / (count - m) for m, share in enumerate(shares) if m < count)

    return q + (1 - q) * drawn(k - 1), drawn(k)
