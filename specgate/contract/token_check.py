"""Tokens compared with the baseline's, and with a second engine's choice."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from specgate.contract.types import Counts, Finite

NO_TOKEN: Final = -1
"""Stands in a `Divergence` for a token that is missing because the sequence had ended."""


@dataclass(frozen=True, slots=True)
class NearTies:
    """Limits below which another token than the expected one is no defect.

    `margin`: a gap between the target's two largest logits below it is a near tie; 0 for engines that must be
        bit-exact.
    `max_sigma`: near ties are told by the engine's own rounding error of one logit (`analysis.tokens.near_ties`), whose
        standard deviation may be at most this; None if texts may not part by rounding.
    `cache_sigma`: (format of the KV cache, the same of engines whose cache has it).
    `cells`: speculative cells of the run, which share its chance of a false alarm.
    """

    margin: float = 0.0
    max_sigma: float | None = None
    cache_sigma: tuple[tuple[str, float], ...] = ()
    cells: int = 1

    def __bool__(self) -> bool:
        """True if any gap is a near tie."""
        return bool(self.margin) or self.by_law

    @property
    def by_law(self) -> bool:
        """True if gaps are held against the engine's own rounding."""
        return self.max_sigma is not None

    def in_cache(self, cache: str) -> NearTies:
        """The same of an engine whose KV cache has this format."""
        named = [sigma for name, sigma in self.cache_sigma if cache.startswith(name)]
        return replace(self, max_sigma=max(named)) if named and self.by_law else self

    def covers(self, gap: float | None) -> bool:
        """True if `gap` is below the margin. A negative or infinite gap is no near tie."""
        return gap is not None and 0 <= gap < self.margin


TieRule = Literal["A", "B", "C", "outside"]
"""What a standardised gap rests on: beside float32, beside a second pass of the engine, beside a second engine
(`analysis.tokens.near_ties`). `outside`: one of the two tokens is not among the most likely ones, or they lie further
apart than any rounding that the policy allows: it is wrong.
"""


@dataclass(frozen=True, slots=True)
class TieLaw:
    """Standardised gaps of a cell's near ties, one by one and all together, beside what rounding can explain.

    `places`: different places whose gap and σ are known. `unknown`: places whose σ nothing tells.
    `furthest`: the largest standardised gap, and what is allowed of one among all places.
    `mean_square`: mean of their squares, at most about 1 where an engine only rounds, and what is allowed.
    `sigma`: root mean square, over these places, of the engine's rounding error of one logit (by rule C of the
        second engine's); None where not known.
    """

    places: int
    unknown: int
    furthest: Finite
    furthest_allowed: Finite
    mean_square: Finite
    mean_square_allowed: Finite
    sigma: Finite | None

    @property
    def too_wide(self) -> bool:
        """True if no rounding explains all the gaps together."""
        return self.mean_square > self.mean_square_allowed


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token at which a speculative block differs from its baseline block in one slot.

    `position`: index into the slot's tokens.
    `margin`: the target's top-1 − top-2 logit (float32) at that position, teacher-forced along the baseline; None
        as long as it is not recorded. Of engines that are not to be bit-exact, the gap between the two tokens, if the
        engine names them; at least so much, if it does not show one.
    `near_tie`: whether the margin is so small that the two batch shapes cannot be expected to agree.
    `x`: the gap in standard deviations of what rounding makes of it; None where `sigma` is, or a token is not shown.
    `sigma`: the engine's rounding error of one logit there, its standard deviation; None where nothing tells it.
    `rule`: what x and σ rest on; None where nothing tells them.
    """

    prompt_set: int
    round: int
    slot: int
    position: int
    expected: int
    got: int
    margin: float | None = None
    near_tie: bool = False
    x: float | None = None
    sigma: float | None = None
    rule: TieRule | None = None

    @property
    def key(self) -> tuple[int, int, int, frozenset[int]]:
        """Key of the place: rounds over the same prompts that part there, either way round, have the same one."""
        return self.prompt_set, self.slot, self.position, frozenset((self.expected, self.got))

    @property
    def untold(self) -> bool:
        """True if the two tokens are close, and nothing tells whether the engine rounds by that much."""
        return self.margin is not None and self.rule is None and not self.near_tie

    def judged(self, margin: float | None, ties: NearTies) -> Divergence:
        """The same with `margin`. It is a near tie if `ties` covers it; the end of a sequence never is."""
        near = ties.covers(margin) and NO_TOKEN not in (self.expected, self.got)
        return replace(self, margin=margin, near_tie=near)


@dataclass(frozen=True, slots=True)
class ShownPlace:
    """A token of a block, with what is shown of the most likely tokens at a place.

    `position`: the index of the token in the text of `slot`.
    `top`: the largest logits, or log-probabilities, from the first on. `top_tokens`: whose they are; () where the
        engine does not name them.
    `again`: log-probabilities of `top_tokens`, in their order, from a second pass of the same engine that computes
        otherwise (it prefills the text that the first pass decoded, or the other way round); () where it shows none.
    `float32`: their logits from the second engine in float32, with the options that change the target; () where it was
        not asked.
    `second`: the same from the second engine in the number format of the scenario. If the measured engine names no
        tokens, `top_tokens` are the most likely ones of this engine, and `top` is ().
    """

    cell: str
    prompt_set: int
    round: int
    slot: int
    position: int
    top: tuple[float, ...] = field(default=(), kw_only=True)
    top_tokens: tuple[int, ...] = field(default=(), kw_only=True)
    again: tuple[float, ...] = field(default=(), kw_only=True)
    float32: tuple[float, ...] = field(default=(), kw_only=True)
    second: tuple[float, ...] = field(default=(), kw_only=True)

    @property
    def place(self) -> tuple[str, int, int, int, int]:
        """Cell, prompt set, round, slot and position."""
        return self.cell, self.prompt_set, self.round, self.slot, self.position


@dataclass(frozen=True, slots=True)
class Margin(ShownPlace):
    """Top-2 logits of the target where a spec block differs from the baseline: evidence for or against a near tie.

    `top` is () where the engine shows two alone.
    """

    top1: float
    top2: float


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The most likely tokens at one place.

    `values`: their logits, or log-probabilities, from the largest on. `tokens`: their ids; () where an engine does not
    name them.
    """

    values: tuple[Finite, ...]
    tokens: Counts = ()


@dataclass(frozen=True, slots=True)
class Followed(ShownPlace):
    """Continuation by plain decoding of a speculative text, behind the token with which that left the baseline's.

    `tokens`: what the baseline's role decodes greedily after the prompt and the text up to and including that token.
    What is shown is of the place where `tokens` first differs from the text; () where it does not differ.
    """

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FollowCheck:
    """Check that texts which left the baseline's stay greedy behind that place, by plain decoding from there.

    `sequences`: how many texts were followed. `tokens`: how many of their tokens plain decoding repeats.
    `near_ties`: texts that leave it once more, at a near tie. `unknown`: those that leave it where nothing tells how
        the engine rounds. `wrong`: those that leave it elsewhere, or that nobody
        could follow.
    `first`: (prompt set, round, slot, index) of the first wrong token; of a text that was not followed, of the one with
        which it left the baseline's.
    """

    sequences: int
    tokens: int
    near_ties: int
    wrong: int
    first: tuple[int, int, int, int] | None = None
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class LogitCheck:
    """Logits of single tokens of a spec cell compared with the baseline's, bit for bit.

    `compared`, `different`: numbers of tokens.
    `first`: (prompt set, slot, index into the slot's tokens) of the first one whose logits differ.
    """

    compared: int
    different: int
    first: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """Spec tokens compared with the baseline's.

    `compared_tokens`: how many were compared, prefill tokens included.
    `emitted_tokens`: how many there are.
    `whole_sets`: prompt sets whose texts were compared to their ends.
    `logits`: None where the engine does not show its logits.
    `sequences`: how many texts were compared.
    `followed`: None where the policy does not ask for it, or no text left the baseline's.
    `lossy`: the engine says that its tokens may differ (`measured.LOSSY`), so that another one is no defect.
    `law`: the near ties all together; None where no text parts, or the policy knows no law of near ties.
    """

    compared_tokens: int
    divergences: tuple[Divergence, ...]
    emitted_tokens: int = 0
    whole_sets: tuple[int, ...] = ()
    logits: LogitCheck | None = None
    sequences: int = 0
    followed: FollowCheck | None = None
    lossy: bool = False
    law: TieLaw | None = None

    @property
    def identical(self) -> bool:
        """True if no sequence differs."""
        return not self.divergences

    @property
    def mismatches(self) -> tuple[Divergence, ...]:
        """The divergences that no near tie explains."""
        return tuple(d for d in self.divergences if not d.near_tie)

    @property
    def defects(self) -> tuple[Divergence, ...]:
        """The divergences because of which no speed may be quoted: not those that nothing tells to be any, which leave
        the tokens unjudged. If no rounding explains all near ties together, or a text is not greedy behind its own, all
        are.
        """
        if self.lossy:
            return ()
        if (self.law is not None and self.law.too_wide) or (self.followed is not None and self.followed.wrong):
            return self.divergences
        return tuple(d for d in self.mismatches if self.law is None or not d.untold)

    @property
    def equal_share(self) -> float | None:
        """Share of the emitted tokens that stand before the first one which is not the baseline's; None where none was
        emitted.
        """
        if not self.emitted_tokens:
            return None
        return (self.compared_tokens - len(self.divergences)) / self.emitted_tokens


@dataclass(frozen=True, slots=True)
class DraftCheck:
    """Accepted drafts of a sample of a cell's cycles, beside what the pair's own draft has right there.

    `cycles`: how many were looked at. `claimed`: draft tokens that the engine says were accepted in them.
    `drafted`: draft tokens that the second engine's run of the draft has right. Rounding alone moves it to either side.
    `allowed`: so many may be claimed.
    `unchecked`: why the draft was not run along the texts; None where it was.
    """

    cycles: int = 0
    claimed: int = 0
    drafted: int = 0
    allowed: float = 0.0
    unchecked: str | None = None


@dataclass(frozen=True, slots=True)
class ScoreCheck:
    """Result of a second engine's scores of a sample of a cell's tokens.

    `engine`: the engine, and what it computed with, in words.
    `scored`: how many tokens it scored. Each is its own greedy choice, a near tie, wrong, or not judged.
    `near_ties`: how many it would not have chosen, even in float32, as far as rounding explains that.
    `wrong`: how many are not among its most likely ones, or lie too far below its choice.
    `settled`: how many it chooses in float32 alone.
    `gap_max`, `worst`: the largest gap in logits between its choice and an emitted token, and (prompt set, round, slot,
        index) of that token; of the wrong ones, if there are any. None where all are its choice. The gap is None for a
        token that is not among the most likely ones.
    `law`: the near ties beside what rounding explains; None where there are none.
    `unscored`: why it scored nothing; None where it did. `lost`: because its process was ended or hung, twice.
    `unsettled`: why nothing is known of its rounding, where tokens could not be judged for that; else None.
    `drafts`: of a spec cell, in a run that asked for it.
    """

    engine: str
    scored: int = 0
    near_ties: int = 0
    wrong: int = 0
    settled: int = 0
    gap_max: Finite | None = None
    worst: tuple[int, int, int, int] | None = None
    law: TieLaw | None = None
    unscored: str | None = None
    unsettled: str | None = None
    lost: bool = False
    drafts: DraftCheck | None = None
