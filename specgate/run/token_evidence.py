"""Records beside a run's timed blocks that their tokens are checked by. None of it is part of a timed block.

texts      the baseline's text, as far as the longest text of any spec block of the prompt set goes; where it left the
           timed text at a near tie, how plain decoding goes on from the timed one, too
margins    the target's largest logits wherever a spec block leaves the baseline
followed   plain decoding from there on, for engines that are not to be bit-exact
logits     digests of the logits that a sample of tokens was chosen from, of every role
scores     what a second engine says of a sample of tokens (`run.rescoring`)
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from specgate.analysis.load.sweeps import compared
from specgate.analysis.rounds import pairs_of, whole_rounds
from specgate.analysis.tokens.checking import judged
from specgate.analysis.tokens.comparison import (
    baseline_text,
    find_divergences,
    find_repeats,
    find_text_divergences,
    first_difference,
    reaches_end,
)
from specgate.analysis.tokens.continuations import Parted, parted_texts
from specgate.analysis.tokens.rescoring import place_of_slot
from specgate.contract import (
    BASELINE,
    BaselineText,
    Block,
    Budget,
    Cell,
    Divergence,
    EngineFacts,
    Finish,
    Followed,
    LogitSample,
    Margin,
    NearTies,
    Plan,
    Point,
    TokenChecks,
    TopTokens,
)
from specgate.contract.protocols import Text
from specgate.files.run_folder import RunFolder
from specgate.run.worker import EngineWorker

CANDIDATES: Final = 20
"""Tokens that an engine is asked to rank where texts part: as many as vLLM shows by default (`--max-logprobs`)."""
LOGIT_POSITIONS: Final = 32
"""Tokens of every slot whose logits are sampled."""
UNFORESEEN: Final = random.SystemRandom()
"""Draws that no engine can know before."""
LOGIT_DEPTH: Final = 128
"""They are among this many first tokens, because the decode run that shows them stops and waits at every step."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """A place where texts part, of which the engine has not shown how it rounds.

    `record`: what is known of it. `place`: (prompt set, prompt). `beginning`: the text before the place.
    """

    record: Margin | Followed
    place: tuple[int, int]
    beginning: tuple[int, ...]


class TokenEvidence:
    """Gathers the evidence of a run, and stores it in the run folder.

    `blocks`, `engines`: the journal's; they grow while the run goes on.
    `asked`: how far the policy wants tokens to be checked; None where it does not say.
    `ties`: what the policy takes for a near tie.
    `sampled_after`: see `contract.Run`.
    """

    def __init__(
        self,
        plan: Plan,
        folder: RunFolder,
        blocks: Sequence[Block],
        engines: Mapping[str, EngineFacts],
        checks: TokenChecks | None,
        ties: NearTies,
    ) -> None:
        self.plan, self.folder, self.blocks, self.engines, self.asked = plan, folder, blocks, engines, checks
        self.ties = ties
        self.texts, self.margins = folder.lines(BaselineText), folder.lines(Margin)
        self.logits, self.followed = folder.keyed(LogitSample), folder.lines(Followed)
        self.sampled_after: str | None = None
        self._whole_set: dict[str, int] = {}
        self._ranked: dict[tuple[str, int, int, tuple[int, ...]], tuple[TopTokens | None, TopTokens | None]] = {}

    def wanting(self, point: Point, prompt_set: int | None = None) -> bool:
        """True if blocks of `point` are not checked yet. `prompt_set`: only those of this one, if given."""
        sets = {b.prompt_set for b in self._judged(point, prompt_set)}
        return (
            any(self._text_steps(point, s) for s in sets)
            or any(True for _ in self._divergences_without_margin(point, prompt_set))
            or any(True for s in sets for _ in self._not_gone_on(point, s))
            or any(True for _ in self._not_followed(point, prompt_set))
        )

    def gather(self, point: Point, prompt_set: int, engine: EngineWorker, worker_generation: int) -> None:
        """Check the blocks of one prompt set, while its prompts are still in the engine's cache."""
        self._record_text(point, prompt_set, engine, worker_generation)
        self._record_margins(point, prompt_set, engine)
        if self._go_on(point, prompt_set, engine, worker_generation):
            self._record_margins(point, prompt_set, engine)
        self._record_followed(point, prompt_set, engine)

    # ── texts ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def extend_text(self, point: Point, prompt_set: int, engine: EngineWorker, worker_generation: int) -> None:
        """Lengthen the baseline's text, whose block has just ended, where the engine can go on from there."""
        if steps := self._text_steps(point, prompt_set):
            timed = max(len(tokens) - 1 for tokens in self.blocks[-1].tokens)
            began = time.monotonic_ns()
            if (text := engine.extend(steps - timed)) is not None:
                more = max(map(len, text.tokens)) - 1 - timed
                self._store_text(point, prompt_set, worker_generation, text, began, max(more, 0))

    def _record_text(self, point: Point, prompt_set: int, engine: EngineWorker, worker_generation: int) -> None:
        """Decode the baseline's text from the prompt, where it is still not known far enough."""
        if steps := self._text_steps(point, prompt_set):
            budget = Budget(steps=steps, ignore_eos=self.plan.scenarios[point.scenario].budget.ignore_eos)
            began = time.monotonic_ns()
            decoded = engine.decode(BASELINE, budget, ())
            text = Text(decoded.tokens, decoded.finish)
            self._store_text(point, prompt_set, worker_generation, text, began, len(decoded.step_ns))

    def _store_text(
        self, point: Point, prompt_set: int, worker_generation: int, text: Text, began_ns: int, steps: int = 0
    ) -> None:
        finish = tuple(map(Finish, text.finish))
        span = (began_ns, time.monotonic_ns())
        stored = BaselineText(point, prompt_set, worker_generation, text.tokens, finish, span, steps)
        self.folder.append(stored)
        self.texts.append(stored)

    def _text_steps(self, point: Point, prompt_set: int) -> int:
        """Number of steps that the baseline has to decode so that its text is as long as every spec text; 0 if it
        is.
        """
        if self.asked is None or not self._compared_whole(point, prompt_set):
            return 0
        blocks = self._judged(point, prompt_set)
        cells = {b.cell for b in blocks if b.role.speculative}
        if all(reaches_end(a, b, self.texts) for cell in cells for a, b in pairs_of(blocks, cell)):
            return 0
        longest = max(len(tokens) for b in blocks if b.role.speculative for tokens in b.tokens)
        texts = [t.tokens for t in self.texts if (t.point, t.prompt_set) == (point, prompt_set)]
        # The baseline was asked for that much before and gave another text: to ask again would change nothing.
        asked_before = any(len(tokens) >= longest for text in texts for tokens in text)
        return 0 if asked_before else longest - 1

    def _go_on(self, point: Point, prompt_set: int, engine: EngineWorker, worker_generation: int) -> bool:
        """Lengthen the timed text of every baseline block that the untimed text left at a near tie, by plain decoding
        from its own end. Returns whether there is a new text.
        """
        went_on = False
        for baseline, lengths in self._not_gone_on(point, prompt_set):
            began, slots = time.monotonic_ns(), []
            for slot, length in enumerate(lengths):
                tokens, why = baseline_text(baseline, slot, self.texts)
                if length:
                    more = engine.follow(slot, tokens, length - len(tokens))
                    if more is None:
                        return went_on
                    tokens, why = self._until_end(point, (*tokens, *more), len(tokens))
                slots.append((tokens, why))
            text = Text(tuple(tokens for tokens, _ in slots), tuple(why for _, why in slots))
            self._store_text(point, prompt_set, worker_generation, text, began)
            went_on = True
        return went_on

    def _not_gone_on(self, point: Point, prompt_set: int) -> Iterator[tuple[Block, tuple[int, ...]]]:
        """The baseline blocks of a prompt set that an untimed text left at a near tie, so that it says nothing of how
        they go on: each with the length that its text must have in every slot, which is 0 where enough is known. A text
        that is stored between two of them is taken into account.
        """
        if not self.ties or self.asked is None or not self._compared_whole(point, prompt_set):
            return
        if self._never_follows(point):
            return
        blocks, lengths_of = self._judged(point, prompt_set), dict[int, tuple[Block, list[int]]]()
        for cell in dict.fromkeys(b.cell for b in blocks if b.role.speculative):
            for baseline, spec in pairs_of(blocks, cell):
                _, lengths = lengths_of.setdefault(id(baseline), (baseline, [0] * len(baseline.tokens)))
                for slot, tokens in enumerate(spec.tokens):
                    lengths[slot] = max(lengths[slot], len(tokens))
        baseline_cell = Cell(point, BASELINE)
        divergences = [d for _, d, _ in find_text_divergences(blocks, self.texts)]
        facts = self.engines.get(point.key)
        ties = self.ties.in_cache(facts.kv_cache) if facts else self.ties
        parted, _, _ = judged(divergences, baseline_cell, self.margins, ties)
        near = {(d.round, d.slot) for d in parted if d.near_tie or (ties.by_law and d.untold)}
        for baseline, lengths in lengths_of.values():
            left = [
                length if (baseline.round, slot) in near and self._ends_before(baseline, slot, length) else 0
                for slot, length in enumerate(lengths)
            ]
            if any(left):
                yield baseline, tuple(left)

    def _ends_before(self, baseline: Block, slot: int, length: int) -> bool:
        tokens, why = baseline_text(baseline, slot, self.texts)
        return len(tokens) < length and why is Finish.STEPS

    def _until_end(self, point: Point, tokens: tuple[int, ...], begin: int) -> tuple[tuple[int, ...], Finish]:
        """`tokens` up to the first end token from index `begin` on, as the budget has it."""
        facts = self.engines.get(point.key)
        ends = facts.eos_token_ids if facts and not self.plan.scenarios[point.scenario].budget.ignore_eos else ()
        at = next((i for i in range(begin, len(tokens)) if tokens[i] in ends), None)
        return (tokens, Finish.STEPS) if at is None else (tokens[: at + 1], Finish.EOS)

    def _compared_whole(self, point: Point, prompt_set: int) -> bool:
        """True if the texts of this prompt set are compared to their ends; of a sampled point only one's are."""
        if self.sampled_after is None:
            return True
        sets = sorted({r.prompt_set for r in self.plan.rounds_of(point) if not r.warmup})
        return prompt_set == self._whole_set.setdefault(point.key, UNFORESEEN.choice(sets))

    # ── margins ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _record_margins(self, point: Point, prompt_set: int, engine: EngineWorker) -> None:
        for cell, d, expected in list(self._divergences_without_margin(point, prompt_set)):
            beginning = expected[: d.position]
            place = point.key, prompt_set, d.slot, beginning
            if place not in self._ranked:  # rounds part at the same place, and a server prefills for each answer
                self._ranked[place] = self._candidates(engine, d.slot, beginning)
            top, second = self._ranked[place]
            if top is None:
                continue
            candidates, again = shown_by_both(top, second, (d.expected, d.got))
            if not self.ties.by_law:
                candidates = TopTokens(())
            where = cell.key, d.prompt_set, d.round, d.slot, d.position
            top1, top2 = top.values[:2]
            margin = Margin(*where, top1, top2, top=candidates.values, top_tokens=candidates.tokens, again=again)
            self.folder.append(margin)
            self.margins.append(margin)

    def _candidates(
        self, engine: EngineWorker, slot: int, beginning: Sequence[int]
    ) -> tuple[TopTokens | None, TopTokens | None]:
        """The most likely tokens behind `beginning`, by a first and by a second pass of the engine; None of a pass that
        shows nothing.
        """
        if not self.ties.by_law:
            return engine.ranked(slot, beginning, 2), None
        top = engine.ranked(slot, beginning, CANDIDATES)
        return top, engine.ranked_again(slot, beginning, CANDIDATES) if top and top.tokens else None

    def _divergences_without_margin(
        self, point: Point, prompt_set: int | None = None
    ) -> Iterator[tuple[Cell, Divergence, tuple[int, ...]]]:
        """The divergences of `point` whose top-2 margin is not recorded yet, each with the baseline's tokens."""
        known = {m.place for m in self.margins}
        for cell, d, expected in self._divergences(point, prompt_set):
            if (cell.key, d.prompt_set, d.round, d.slot, d.position) not in known:
                yield cell, d, expected

    def _divergences(
        self, point: Point, prompt_set: int | None = None
    ) -> Iterator[tuple[Cell, Divergence, tuple[int, ...]]]:
        """The divergences of `point` that are judged, each with the tokens that another text leaves."""
        blocks = self._judged(point, prompt_set)
        yield from find_divergences(blocks, self.texts)
        if self.ties.by_law:
            yield from find_repeats(blocks)
        if self.ties:
            yield from find_text_divergences(blocks, self.texts)

    # ── behind a divergence ──────────────────────────────────────────────────────────────────────────────────────────

    def _record_followed(self, point: Point, prompt_set: int, engine: EngineWorker) -> None:
        """Decode on, in the baseline's role, from every text that left the baseline's."""
        assert self.asked is not None or not self.ties.by_law
        for text in list(self._not_followed(point, prompt_set)):
            most = min(self.asked.followed_tokens if self.asked else 0, len(text.rest))
            tokens = engine.follow(text.slot, text.given, most)
            if tokens is None:
                return
            at = first_difference(text.rest, tokens)
            candidates, again = TopTokens(()), tuple[float, ...]()
            if at is not None:
                top, second = self._candidates(engine, text.slot, (*text.given, *tokens[:at]))
                candidates, again = shown_by_both(top or candidates, second, (text.rest[at], tokens[at]))
            place = text.cell.key, *text.place
            followed = Followed(*place, tokens, top=candidates.values, top_tokens=candidates.tokens, again=again)
            self.folder.append(followed)
            self.followed.append(followed)

    def _not_followed(self, point: Point, prompt_set: int | None) -> Iterator[Parted]:
        """The texts of `point` that left the baseline's and are to be followed, but have not been yet."""
        if self.asked is None or not self.asked.followed or not self.ties.by_law or self._never_follows(point):
            return
        known = {f.place for f in self.followed}
        for text in self._parted(point):
            if prompt_set in (None, text.prompt_set) and (text.cell.key, *text.place) not in known:
                yield text

    def _parted(self, point: Point) -> Iterator[Parted]:
        """The texts of `point` that left the baseline's and are to be followed."""
        blocks, most = self._judged(point, None), self.asked.followed if self.asked else 0
        for cell in dict.fromkeys(b.cell for b in blocks if b.role.speculative):
            divergences = [d for of_cell, d, _ in find_divergences(blocks, self.texts) if of_cell == cell]
            yield from parted_texts(cell, blocks, divergences, most)

    def _never_follows(self, point: Point) -> bool:
        """True if the engine of `point` cannot decode on from a text, so that a resumed run need not open it to ask."""
        return (facts := self.engines.get(point.key)) is not None and not facts.follows

    def _judged(self, point: Point, prompt_set: int | None) -> list[Block]:
        """The blocks of whole rounds, as far as their tokens are compared; none where acceptance is forced, since the
        tokens are then wrong by design, nor where they are drawn and need not be the baseline's.
        """
        if not self.plan.scenarios[point.scenario].repeats_baseline:
            return []
        if (facts := self.engines.get(point.key)) is not None and facts.acceptance == "forced":
            return []
        mine = [b for b in self.blocks if b.point == point and not b.warmup and prompt_set in (None, b.prompt_set)]
        return compared(whole_rounds(self.plan, mine), self.plan.scenarios[point.scenario])

    # ── how the engine rounds ────────────────────────────────────────────────────────────────────────────────────────

    def unseen(self, point: Point) -> Iterator[Unseen]:
        """Yield the places of `point` where the engine showed no second pass."""
        if not self.ties.by_law:
            return
        blocks = self._judged(point, None)
        prompts = {
            (b.cell.key, b.prompt_set, b.round, slot): place_of_slot(b, slot)
            for b in blocks
            for slot in range(len(b.tokens))
        }
        margins, followed = {m.place: m for m in self.margins}, {f.place: f for f in self.followed}
        for cell, d, expected in self._divergences(point):
            place = cell.key, d.prompt_set, d.round, d.slot, d.position
            record = margins.get(place) or Margin(*place, top1=0.0, top2=0.0)
            if not record.again and not record.float32:
                yield Unseen(record, prompts[place[:-1]], tuple(expected[: d.position]))
        for text in self._parted(point):
            answer = followed.get((text.cell.key, *text.place))
            if answer is None or answer.again or answer.float32:
                continue
            if (at := first_difference(text.rest, answer.tokens)) is not None:
                prompt = prompts[text.cell.key, *text.place[:3]]
                yield Unseen(answer, prompt, (*text.given, *answer.tokens[:at]))

    def complete(self, record: Margin | Followed) -> None:
        """Store a record that says more of its place than the one before."""
        self.folder.append(record)
        if isinstance(record, Margin):
            self.margins[:] = [*(m for m in self.margins if m.place != record.place), record]
        else:
            self.followed[:] = [*(f for f in self.followed if f.place != record.place), record]

    # ── logits ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def lacks_logits(self, point: Point) -> bool:
        """True if blocks of `point` wait to have their logits sampled."""
        if self.asked is None or Cell(point, BASELINE).key in self.logits:
            return False
        return bool(self._judged(point, 0))

    def record_logits(self, point: Point, engine: EngineWorker, worker_generation: int) -> None:
        """Sample the logits of every role on the first prompt set, which must be in the engine's cache."""
        texts = [t for b in self._judged(point, 0) for t in b.tokens]
        deep = min(LOGIT_DEPTH, *map(len, texts)) if texts else 0
        if deep < 2:
            return
        positions = tuple(sorted(UNFORESEEN.sample(range(1, deep), min(LOGIT_POSITIONS, deep - 1))))
        for role in self.plan.scenarios[point.scenario].roles:
            began = time.monotonic_ns()
            sampled = engine.logits(role, positions)
            if sampled is None:
                return
            tokens = tuple(tuple(token for token, _ in slot) for slot in sampled)
            digests = tuple(tuple(digest for _, digest in slot) for slot in sampled)
            span = (began, time.monotonic_ns())
            cell = Cell(point, role).key
            sample = LogitSample(cell, 0, worker_generation, positions, tokens, digests, span)
            self.folder.append(sample)
            self.logits[cell] = sample


def shown_by_both(
    top: TopTokens, again: TopTokens | None, needed: Sequence[int]
) -> tuple[TopTokens, tuple[float, ...]]:
    """Return (`top` as far as a second pass `again` shows the same tokens, what that shows of them).

    The second part is () where the second pass says nothing of how the engine rounds: it shows none of a token that is
    `needed` and in `top`, or the very same bits, as two passes through the same kernels do.
    """
    if again is None or not again.tokens or not top.tokens:
        return top, ()
    of = dict(zip(again.tokens, again.values, strict=True))
    both = [(value, token) for value, token in zip(top.values, top.tokens, strict=True) if token in of]
    if not set(needed) & set(top.tokens) <= of.keys() or all(of[token] == value for value, token in both):
        return top, ()
    values, tokens = zip(*both, strict=True)
    return TopTokens(values, tokens), tuple(of[token] for token in tokens)
