"""Options of verification over a part of the cache (SpecPV), and the plan that follows.

After Tan et al., arXiv 2512.02337. See backends/eagle3/docs/specpv.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from specgate.contract import LOSSY
from specgate.errors import UsageError

BLOCK: Final = 16
"""Positions that are kept or left out together."""
SPECPV: Final = "specpv"
SINK: Final = "specpv_sink"
RETRIEVAL: Final = "specpv_retrieval"
WINDOW: Final = "specpv_window"
REFRESH: Final = "specpv_refresh"
NAMES: Final = (SPECPV, SINK, RETRIEVAL, WINDOW, REFRESH)
Mode = Literal["lossy", "lossless"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
LEAST: Final[Mapping[str, int]] = {SINK: 0, RETRIEVAL: 0, WINDOW: 1, REFRESH: 1}
USUAL: Final[Mapping[str, int]] = {SINK: 2, RETRIEVAL: 256, WINDOW: 8, REFRESH: 20}
"""The values of the authors' repository (TanZhendong/SpecPV, `SpecConfig`)."""
MOST_BLOCKS: Final = 65_536
MOST_BUFFERED: Final = 512


@dataclass(frozen=True, slots=True)
class PartialPlan:
    """Cache positions that a partial verification keeps: the first `sink` blocks of 16 positions, `retrieval` blocks of
    the best scores, and at least the last `window` blocks.

    `refresh`: the largest number of tokens that only partial verifications have seen; then the next one is full. None
    if all is lossless: then every cycle of spec-N ends with a full verification, of N tokens.
    """

    sink: int
    retrieval: int
    window: int
    refresh: int | None

    @property
    def lossless(self) -> bool:
        """True if only tokens that a full verification confirms are emitted."""
        return self.refresh is None

    @property
    def kept(self) -> int:
        """Positions that a partial verification reads at least, where there are more."""
        return (self.sink + self.retrieval + self.window) * BLOCK

    def first_of_window(self, length: int) -> int:
        """The block with which the window begins, of a cache with `length` positions."""
        return max(length // BLOCK - self.window, self.sink)

    def leaves_out(self, length: int) -> bool:
        """True if a partial verification of a cache with `length` positions reads less than all of it."""
        return length // BLOCK > self.sink + self.retrieval + self.window

    def rows_behind(self, k: int) -> int:
        """Rows behind the positions of the longest request that passes of spec-`k` may write, without a meaning."""
        return 2 * k + 1 + (self.refresh or 0)

    @property
    def words(self) -> str:
        """For the facts that an engine states of itself."""
        when = "at the end of every cycle" if self.refresh is None else f"after {self.refresh} tokens"
        way = "lossless" if self.lossless else "lossy"
        return (
            f"{way}: {self.sink} sink, {self.retrieval} retrieved and {self.window} window blocks of {BLOCK} "
            f"positions; full verification {when}"
        )

    def details(self, positions: int) -> dict[str, str]:
        """For the facts of an engine whose requests have at most so many `positions`."""
        if self.lossless or not self.leaves_out(positions):
            return {"SpecPV": self.words}
        return {"SpecPV": self.words, LOSSY: "what a partial verification accepts is emitted (SpecPV)"}

    def warnings(self, positions: int) -> list[str]:
        """Return warnings for requests of at most so many `positions`."""
        if not self.leaves_out(positions):
            return [
                f"option {SPECPV}: {self.kept:,} positions are kept, and no request here has more than {positions:,}: "
                "every verification is full"
            ]
        if self.lossless:
            return ["drafts pass a partial verification first (SpecPV): acceptance is that of what it lets through"]
        return ["SpecPV is lossy: tokens of spec cells may differ from the baseline's"]


def plan_partial(options: Mapping[str, str]) -> PartialPlan | None:
    """Read the options of SpecPV; None if there are none.

    Raises UsageError for values that make no sense.
    """
    beside = [name for name in NAMES[1:] if name in options]
    if SPECPV not in options:
        if beside:
            raise UsageError(
                f"option {', '.join(beside)} without {SPECPV}", hint=f"{SPECPV}=lossy or {SPECPV}=lossless"
            )
        return None
    mode = options[SPECPV]
    if mode not in MODES:
        raise UsageError(
            f"option {SPECPV} = {mode!r}",
            hint="lossy, as in the paper: tokens may differ from the baseline's; or lossless: they may not",
        )
    if mode == "lossless" and REFRESH in options:
        raise UsageError(
            f"option {REFRESH} with {SPECPV} = lossless: every cycle of spec-N ends with a full verification, of N "
            "tokens",
            hint="leave it out; a larger N verifies in full less often",
        )
    sink, retrieval, window = (blocks(options, name) for name in (SINK, RETRIEVAL, WINDOW))
    refresh = None if mode == "lossless" else whole(options, REFRESH, MOST_BUFFERED, "tokens")
    return PartialPlan(sink, retrieval, window, refresh)


def blocks(options: Mapping[str, str], name: str) -> int:
    """A number of blocks. Raises UsageError for anything else."""
    return whole(options, name, MOST_BLOCKS, f"blocks of {BLOCK} positions")


def whole(options: Mapping[str, str], name: str, most: int, what: str) -> int:
    text = options.get(name, str(USUAL[name]))
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and LEAST[name] <= int(text) <= most):
        raise UsageError(
            f"option {name} = {text}: not a number of {what}",
            hint=f"a whole number from {LEAST[name]} to {most:,}; the authors take {USUAL[name]}",
        )
    return int(text)
