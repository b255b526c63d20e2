"""Codes that each architecture compiles.

An architecture compiles every code of every kernel but one. Attention has half of the codes and
takes four fifths of the time, since what a launch has of rows and nodes is compiled into it, in every geometry. Of it

- codes that differ in such numbers alone are one kind as long as the source asks the same of them (`kind_of`), and that
  with most rows is compiled. With NVRTC 13.0 no other of its kind took over six registers more, and none that took
  more took over 212 of the 255 that there are; where all 255 are taken, all of the kind take them;
- of trees, which alone come near that limit, every architecture compiles every kind;
- of chains, which take at most 192, every architecture compiles every geometry with every format of the cache and with
  every kind of rows, every format with every kind of rows, and so on (`dealt`), and some architecture every kind.

`./run_suite.sh kernels --every-code` compiles all of it for all architectures: for whoever changes attention, or the
compiler.
"""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Mapping, Sequence, Set
from itertools import combinations

from specgate.backends.eagle3.cupy.kernels.loader import Spec
from tests.eagle3.cupy.kernels.compiled.sweep import ARCHITECTURES, SIZES, without_twins

Kind = tuple[tuple[str, Hashable], ...]
"""Of an attention what its code depends on, by name: see `kind_of`."""
PARTS = {
    "format": ("KV_FP8", "KV_NVFP4", "KEPT_BLOCKS", "SINK_BLOCKS", "RETRIEVED_BLOCKS"),
    "ring": ("STAGES", "CHUNK"),
    "sight": ("WINDOW", "SINKS", "JOINS"),
}
"""Part of a kind → the constants in it: how the cache is kept and which of it is read; stages and chunks; what a row
sees, and where its chunks are joined.
"""
ROWS = ("QUERY_ROWS", "APPENDED_ROWS", "TREE_ROWS", "TREE_STRIDE", "TREE_LEVELS", "FIRST_NODE")
"""Of attention: the numbers of rows and nodes of a launch."""


def is_tree(spec: Spec) -> bool:
    return "TREE_ROWS" in dict(spec.constants)


def kind_of(spec: Spec) -> Kind:
    """Of rows and nodes it has what `attention.cu` and its headers ask of them: whether a tile has both its halves;
    whether there are several tiles, and whether numbers are divided by theirs with more than a shift; whether all rows
    are query rows, of a chain a single one; of a tree, whether nodes came before, and stand at several positions.
    """
    constants = dict(spec.constants)
    shared, rows = int(constants["HEADS"]) // int(constants["KV_HEADS"]), int(constants["QUERY_ROWS"])
    tiles = -(-shared * rows // 16)
    features = (
        shared * rows > 8,
        tiles > 1,
        tiles.bit_count() > 1,
        constants["APPENDED_ROWS"] == constants["QUERY_ROWS"],
    )
    of_tree = (constants["FIRST_NODE"] != "0", constants["TREE_LEVELS"] != "0") if is_tree(spec) else (rows == 1,)
    elsewhere = {*SIZES["attention"], *ROWS, *(name for names in PARTS.values() for name in names)}
    return (
        ("geometry", (shared, *((name, value) for name, value in spec.constants if name not in elsewhere))),
        ("rows", (*features, *of_tree)),
        *((part, tuple(constants.get(name) for name in names)) for part, names in PARTS.items()),
    )


def pairs_of(kind: Kind) -> set[tuple[tuple[str, Hashable], ...]]:
    return {*combinations(kind, 2)}


def most_useful(kinds: Sequence[Kind], missing: Set[Hashable], preferred: Container[Kind]) -> Kind:
    """That with most of the missing pairs."""
    return max(kinds, key=lambda kind: (len(pairs_of(kind) & missing), kind in preferred))


def dealt(kinds: Sequence[Kind]) -> Mapping[str, set[Kind]]:
    """Architecture → the kinds that it compiles: those of each have every pair of parts, those of all are all kinds."""
    every, hands = {pair for kind in kinds for pair in pairs_of(kind)}, {name: set[Kind]() for name in ARCHITECTURES}
    left = dict.fromkeys(kinds)
    for hand in hands.values():
        missing = set(every)
        while missing:
            best = most_useful(kinds, missing, left)
            missing -= pairs_of(best)
            hand.add(best)
            left.pop(best, None)
    for kind in left:
        min(hands.values(), key=len).add(kind)
    return hands


def largest_of_kind(codes: Sequence[Spec]) -> Mapping[Kind, Spec]:
    """Of attentions whose code is of one kind, that with most rows and nodes."""

    def size(spec: Spec) -> int:
        return math.prod(max(1, int(value)) for name, value in spec.constants if name in ROWS)

    return {kind_of(spec): spec for spec in sorted(codes, key=size)}


def covering(specs: Sequence[Spec]) -> Mapping[str, list[Spec]]:
    """Architecture → the codes that it compiles, as the head of this file says."""
    codes = without_twins(specs)
    others = [spec for spec in codes if spec.stem != "attention"]
    trees = largest_of_kind([spec for spec in codes if spec.stem == "attention" and is_tree(spec)])
    chains = largest_of_kind([spec for spec in codes if spec.stem == "attention" and not is_tree(spec)])
    hands = dealt([*chains])
    return {
        name: [*others, *trees.values(), *(spec for kind, spec in chains.items() if kind in hand)]
        for name, hand in hands.items()
    }
