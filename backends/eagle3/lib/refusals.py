"""Pairs of options that do not go together, each declared once, with the reason."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from specgate.contract import Sampling
from specgate.errors import UsageError

USUAL: Final[Mapping[str, str]] = {"tp": "1", "drafter": "eagle3", "tile_stats": "off", "prefix_cache": "off"}
"""Option → its value that is as good as leaving it out."""
SAMPLING: Final = "sampling"
EXPERTS: Final = "experts"
"""What a pair may name beside options: that tokens are drawn (its value is the method), and a target with experts."""
LEAVE: Final = "leave one of them out"
ELSEWHERE: Final = "--backend reference has it"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two options that do not go together, and `why`. `values`: those of the second that do not; none: all of them.
    `engine`: the only back end that refuses them; None: each that has both.
    """

    first: str
    second: str
    why: str
    values: tuple[str, ...] = ()
    hint: str = LEAVE
    engine: str | None = None

    def refused(self, requested: Mapping[str, str], engine: str) -> bool:
        both = self.first in requested and self.second in requested
        return both and (not self.values or requested[self.second] in self.values) and self.engine in (None, engine)

    @property
    def row(self) -> tuple[str, str]:
        """The cells of a table: both names, and why."""
        values = f" = {' or '.join(f'`{value}`' for value in self.values)}" if self.values else ""
        return f"{named(self.first)} and {named(self.second)}{values}", self.why


def each(first: str, seconds: Mapping[str, str]) -> tuple[Pair, ...]:
    """Return a pair of `first` with each of `seconds`, which says why."""
    return tuple(Pair(first, second, why) for second, why in seconds.items())


OF_FIRST_BLOCK: Final = Pair(
    *("prefix_cache", "kv", "its codes are made beside the prompt's first block"), values=("nvfp4",)
)
PAIRS: Final = (
    *each(
        "tree",
        {
            "drafter": "a stand-in proposes a chain",
            "tape": "a tape has the accept counts of a chain",
            "spec_config": "it is held against a chain (specgate diagnose configs compares trees)",
        },
    ),
    Pair(
        *("tree", SAMPLING, "its tokens are not drawn; coupled sampling accepts them as often"),
        values=("rejection",),
        hint="sampling.method: coupled",
    ),
    Pair(
        *("tree", "draft_tp", "a tree takes several likeliest tokens, and a split draft joins one of each GPU"),
        values=("2", "4"),
        hint="draft_tp = 1, which is the default beside a tree",
    ),
    *each(
        "specpv",
        {
            SAMPLING: "it verifies greedily",
            "tree": "the rows of a tree are not verified in part",
            "tape": "a tape has the accept counts of cycles that verify in full",
            "confidence": "chains of one length are verified",
            "k_by_batch": "chains of one length are verified",
            "tp": "blocks are chosen by the scores of all heads, of which each GPU has a part",
        },
    ),
    Pair(
        *("specpv", EXPERTS, "the reference engine verifies dense targets in part"),
        hint="--backend cupy has it, with lossy",
        engine="reference",
    ),
    Pair(
        *("specpv", "kv", "blocks are chosen by keys as they are computed"),
        values=("fp8", "nvfp4"),
        hint=f"{LEAVE}, or take kv = bf16; draft_kv may be any",
    ),
    *each("k_by_batch", {"tree": "a tree has its own shape", "tape": "a tape has the accept counts of whole chains"}),
    *each(
        "confidence",
        {
            SAMPLING: "a chain ends where the draft's greedy tokens are unlikely",
            "tree": "a tree has its own shape",
            "tape": "a tape has the accept counts of whole chains",
            "drafter": "a stand-in has no probabilities",
        },
    ),
    Pair("tape", SAMPLING, "a tape replays what greedy cycles accepted"),
    Pair("tp", SAMPLING, "each GPU has a part of the vocabulary, and a draw needs all of it"),
    Pair("tile_stats", "tp", "tiles are counted on one GPU alone"),
    Pair("tile_stats", "specpv", "tiles of whole caches are counted"),
    Pair("capture", "drafter", "a stand-in looks at no stream"),
    *each(
        "prefix_cache",
        {"tp": "prompts are prefilled in whole", EXPERTS: "prompts go through the layers together, in whole"},
    ),
    OF_FIRST_BLOCK,
    replace(OF_FIRST_BLOCK, second="draft_kv"),
)


def refuse_pairs(
    options: Mapping[str, str],
    engine: str,
    sampling: Sampling | None = None,
    *,
    experts: bool = False,
) -> None:
    """Raise UsageError for the first pair that back end `engine` does not have, naming both options and why.

    `experts`: the target has some. It is not known before the target's config is read.
    """
    requested = {name: value for name, value in options.items() if USUAL.get(name) != value}
    requested |= {SAMPLING: sampling.method} if sampling is not None else {}
    requested |= {EXPERTS: ""} if experts else {}
    for pair in PAIRS:
        if pair.refused(requested, engine):
            first, second = (in_words(name, requested[name]) for name in (pair.first, pair.second))
            raise UsageError(f"option {first} with {second}: {pair.why}", hint=pair.hint)


def in_words(name: str, value: str) -> str:
    values = {SAMPLING: f"sampling ({value})", EXPERTS: "a target that has experts"}
    return values.get(name, f"{name} = {value}")


def named(name: str) -> str:
    return {SAMPLING: "sampling", EXPERTS: "a target with experts"}.get(name, f"`{name}`")


def refused_by(engine: str, options: Collection[str]) -> Iterator[Pair]:
    """Yield the pairs that back end `engine`, which has these options, refuses."""
    known = {*options, SAMPLING, EXPERTS}
    return (pair for pair in PAIRS if {pair.first, pair.second} <= known and pair.engine in (None, engine))
