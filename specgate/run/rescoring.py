"""Ask a second engine (`run.second_engine`) what it thinks of a sample of the tokens that were emitted, after all
timing.

It computes in the measured engine's number format. Where it cannot score, the journal gets the reason, and the report
says that the tokens are the engine's own word.

Along the texts it runs the pair's own draft, where the engine drafts chains with it and shows its cycles.

Both engines round. So it is asked once more, in float32, about tokens that it would not have chosen, and about places
where texts part and the measured engine does not show how it rounds (`analysis.tokens.near_ties`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from specgate.analysis.checks.contradictions import CheckFacts
from specgate.analysis.reduce import sound_blocks
from specgate.analysis.rounds import whole_rounds
from specgate.analysis.tokens.rescoring import Draw, draws
from specgate.contract import (
    Block,
    Followed,
    Margin,
    Plan,
    Point,
    RescoredText,
    Rescoring,
    Score,
    SecondLook,
    TopTokens,
)
from specgate.contract.cycle_budget import Bandwidth
from specgate.errors import BackendError, OtherCode, SpecgateError, UsageError, WorkerLost
from specgate.files.journal import Journal
from specgate.files.run_folder import RunFolder
from specgate.planning.prompts import Prompts
from specgate.run.second_engine import SecondEngine, SecondEngines, failed
from specgate.run.token_evidence import CANDIDATES, TokenEvidence, Unseen
from specgate.run.worker import EngineWorker


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores of a point's texts. `undrafted`: why the draft was not run along them; None where it was."""

    texts: tuple[RescoredText, ...]
    undrafted: str | None
    places: tuple[Margin, ...] = ()
    """The tokens that it would not have chosen, with its logits of the most likely ones."""


@dataclass(slots=True)
class Pending:
    """A point whose second engine has been asked in the measured engine's number format."""

    point: Point
    rescoring: Rescoring
    draws: Sequence[Draw]
    places: tuple[Margin, ...]
    unseen: Sequence[Unseen]


ReportCheck = Callable[[str, str, str], None]
"""Told the key of a point, the back end that scores its tokens next, and in which dtype."""


class Rescorer:
    """Scores the points of a run and stores the answers in its folder. Points that have an answer are left out."""

    def __init__(
        self,
        plan: Plan,
        prompts: Mapping[str, Prompts],
        folder: RunFolder,
        second: SecondEngines,
        report: ReportCheck,
        bandwidth: Bandwidth | None = None,
    ) -> None:
        self.report = report
        self.plan, self.prompts, self.folder, self.second = plan, prompts, folder, second
        self.bandwidth = bandwidth
        self.done = folder.keyed(Rescoring)

    def run(self, points: Sequence[Point], journal: Journal, evidence: TokenEvidence) -> None:
        """Score `points`, whose blocks are all in `journal`. An engine that fails costs the scores, never the run.

        `evidence`: it is given logits of the places where texts part, where the engine does not show how it rounds.
        """
        sound = {p: blocks for p in points if (blocks := self._sound(p, journal))}
        pending = {p: blocks for p, blocks in sound.items() if not self._scored(p, blocks)}
        for _, group in groupby(pending, key=self.second.key):
            self._score_points({p: pending[p] for p in group}, evidence)

    def _scored(self, point: Point, blocks: Sequence[Block]) -> bool:
        """True if `point` has an answer. One from before a run was continued with more rounds is none."""
        known = self.done.get(point.key)
        if known is None or known.unscored is not None or known.seed is None:
            return known is not None
        samples = draws(known.seed, blocks, known.count)
        return [(t.cell, t.prompt_set, t.round, t.slot, t.positions) for t in known.texts] == [
            (d.block.cell.key, d.block.prompt_set, d.block.round, d.slot, d.positions) for d in samples
        ]

    def _sound(self, point: Point, journal: Journal) -> list[Block]:
        """The blocks of `point` that tokens are drawn from."""
        alone = replace(self.plan, rounds=tuple(self.plan.rounds_of(point)))
        blocks = whole_rounds(alone, [b for b in journal.blocks if b.point == point])
        check_facts = CheckFacts(self.second.engines, self.bandwidth)
        of_cells, _ = sound_blocks(alone, blocks, journal.margins, check_facts, texts=journal.texts)
        return [b for of_cell in of_cells.values() for b in of_cell]

    def _score_points(self, pending: Mapping[Point, Sequence[Block]], evidence: TokenEvidence) -> None:
        """Score points that one engine can score. Its first failure is the reason for all that are left."""
        why, lost, doubtful = None, False, list[Pending]()
        # Only now, when every token is there and no engine that emitted any is left.
        seeded = {
            p: (seed := secrets.token_hex(16), draws(seed, of, self.second.checks.positions))
            for p, of in pending.items()
        }
        samples = {point: of for point, (_, of) in seeded.items()}
        undrafted = self.second.why_undrafted(next(iter(pending)))
        with closing(SecondEngine(lambda: self._open(samples))) as engine:
            for point, (seed, of) in seeded.items():
                began, scored, unseen = time.monotonic_ns(), Scored((), undrafted), list[Unseen]()
                try:
                    why = why or self.why_not(point)
                    if why is None:
                        self.report(point.key, self.second.name, self.second.number_format(point))
                        scored = engine.ask(partial(self._score, point=point, samples=of, undrafted=undrafted))
                        unseen = self._named(engine, point, evidence.unseen(point))
                except OtherCode:
                    raise
                except SpecgateError as error:
                    why, lost = str(error), failed(error)
                facts = engine.facts
                rescoring = Rescoring(
                    point=point.key,
                    engine=self.second.name or "none",
                    device=facts.device if facts else None,
                    dtype=facts.dtype if facts else None,
                    texts=scored.texts,
                    unscored=why,
                    span_ns=(began, time.monotonic_ns()),
                    seed=seed,
                    count=self.second.checks.positions,
                    lost=lost,
                    undrafted=scored.undrafted,
                )
                if scored.places or unseen:
                    doubtful.append(Pending(point, rescoring, of, scored.places, unseen))
                else:
                    self._store(rescoring)
            in_float32 = [p for p in doubtful if p.rescoring.dtype == "float32"]
            self._look_again(in_float32, engine, evidence)
        others = [p for p in doubtful if p.rescoring.dtype != "float32"]
        with closing(SecondEngine(lambda: self._open({p.point: p.draws for p in others}, "float32"))) as engine:
            self._look_again(others, engine, evidence)

    def _look_again(self, points: Sequence[Pending], engine: SecondEngine, evidence: TokenEvidence) -> None:
        """Have tokens that were not chosen, and places where texts part, looked at in float32, and store what is known.

        The engine's first failure is the reason for all that are left.
        """
        why: str | None = None
        for p in points:
            began, rescoring, places = time.monotonic_ns(), p.rescoring, p.places
            try:
                if why is None and (places or p.unseen):
                    self.report(p.point.key, rescoring.engine, "float32")
                if why is None and places and rescoring.dtype != "float32":
                    logits = engine.ask(partial(self._logits, point=p.point, texts=self._texts_of(places, p.draws)))
                    places = tuple(replace(m, float32=v.values) for m, v in zip(places, logits, strict=True))
                if why is None and p.unseen:
                    texts = [(u.place, u.beginning, u.record.top_tokens) for u in p.unseen]
                    logits = engine.ask(partial(self._logits, point=p.point, texts=texts))
                    for u, v in zip(p.unseen, logits, strict=True):
                        evidence.complete(replace(u.record, float32=v.values))
            except OtherCode:
                raise
            except SpecgateError as error:
                why = str(error)
            if rescoring.dtype != "float32":
                look = SecondLook(places, why, (began, time.monotonic_ns()))
                rescoring = replace(rescoring, again=look)
            self._store(rescoring)

    def _named(self, engine: SecondEngine, point: Point, unseen: Iterable[Unseen]) -> list[Unseen]:
        """`unseen`, with the most likely tokens of the second engine where the measured one names none. Where neither
        does, nothing more can be seen of a place, and it is left out.
        """
        places = list(unseen)
        unnamed = [u for u in places if not u.record.top_tokens]
        texts = [(u.place, u.beginning, ()) for u in unnamed]
        try:
            tops = engine.ask(partial(self._logits, point=point, texts=texts)) if texts else []
        except OtherCode:
            raise
        except SpecgateError:
            tops = []
        in_float32 = engine.facts is not None and engine.facts.dtype == "float32"
        return [
            *(u for u in places if u.record.top_tokens),
            *(
                replace(u, record=named(u.record, top, () if in_float32 else top.values))
                for u, top in zip(unnamed, tops, strict=False)
            ),
        ]

    def _texts_of(self, places: Sequence[Margin], draws: Sequence[Draw]) -> list[TextPlace]:
        """The texts in which `places` lie, each up to its place."""
        of = {(d.block.cell.key, d.block.prompt_set, d.block.round, d.slot): d for d in draws}
        texts = list[TextPlace]()
        for m in places:
            draw = of[m.place[:-1]]
            texts.append((draw.place, draw.block.tokens[draw.slot][: m.position], m.top_tokens))
        return texts

    def why_not(self, point: Point) -> str | None:
        """Reason that nothing of `point` can be scored, as far as that is known without loading an engine."""
        sampling = self.plan.scenarios[point.scenario].sampling
        if sampling is not None and sampling.method == "rejection":
            return "the tokens were drawn by rejection: another engine's draws need not be these"
        return self.second.why_not(point)

    def _open(self, pending: Mapping[Point, Sequence[Draw]], dtype: str | None = None) -> EngineWorker:
        """Start the second engine: with the pair's draft, where cycles are drawn and it can load it."""
        longest = max(p.context + max(len(t) for d in of for t in d.block.tokens) for p, of in pending.items())
        log = f"rescoring-{dtype}.log" if dtype else "rescoring.log"
        k = max((d.block.role.k for of in pending.values() for d in of if d.starts), default=0)
        point = next(iter(pending))
        if dtype is not None or self.second.why_undrafted(point) is not None:
            k = 0
        try:
            worker = self.second.opened(point, longest, log, dtype, k)
        except (WorkerLost, OtherCode):
            raise
        except SpecgateError:
            if not k:
                raise
            worker = self.second.opened(point, longest, log, dtype)
        if dtype is not None and worker.facts().dtype != dtype:
            worker.close()
            raise BackendError(f"back end {self.second.name} computes in {worker.facts().dtype}, not in {dtype}")
        return worker

    def _score(self, worker: EngineWorker, *, point: Point, samples: Sequence[Draw], undrafted: str | None) -> Scored:
        """Score `samples` in as few passes as possible: one over each text that no other one begins with. Texts of the
        same prompt come one after the other. `undrafted`: why the draft is not run along them.
        """
        if undrafted is None and not any(draw.starts for draw in samples):
            undrafted = "the engine does not show its cycles"
        if undrafted is None and not worker.facts().has_draft:
            undrafted = f"back end {worker.facts().backend} cannot load the draft"
        texts, places = dict[int, RescoredText](), list[Margin]()
        for group in in_few_passes([(d.place, d.block.tokens[d.slot]) for d in samples]):
            longest, under = samples[group[0]], [samples[i] for i in group]
            ids, text = self._prompt(point, longest.place), longest.block.tokens[longest.slot]
            positions = sorted({p for draw in under for p in draw.positions})
            scores = worker.score(ids, text, positions)
            if scores is None:
                raise UsageError(f"back end {worker.facts().backend} scores no tokens")
            if len(scores) != len(positions):
                raise BackendError(
                    f"back end {worker.facts().backend}: {len(scores)} scores of {len(positions)} tokens"
                )
            by_position, by_start = dict(zip(positions, scores, strict=True)), dict[int, int]()
            if undrafted is None:
                by_start, undrafted = drafted_along(worker, under)
            texts |= {id(draw): rescored(draw, by_position, by_start) for draw in under}
            places += self._not_chosen(worker, ids, text, by_position, under)
        ordered = tuple(texts[id(draw)] for draw in samples)
        if undrafted is not None:
            ordered = tuple(replace(text, starts=(), drafted=()) for text in ordered)
        return Scored(ordered, undrafted, tuple(places))

    def _not_chosen(
        self,
        worker: EngineWorker,
        ids: Sequence[int],
        text: Sequence[int],
        scores: Mapping[int, Score],
        under: Sequence[Draw],
    ) -> list[Margin]:
        """The tokens of `under` that the engine would not have chosen, with its logits of the most likely ones. None in
        float32, which needs no second look, and none of an engine that does not show them.
        """
        positions = [p for p, score in scores.items() if text[p] != score.best]
        if worker.facts().dtype == "float32" or not positions:
            return []
        shown = worker.token_logits(ids, text, [(p, ()) for p in positions], CANDIDATES)
        if shown is None:
            return []
        tops = dict(zip(positions, shown, strict=True))
        return [
            Margin(
                *(draw.block.cell.key, draw.block.prompt_set, draw.block.round, draw.slot, p),
                *(tops[p].values[0], tops[p].values[1]),
                top_tokens=tops[p].tokens,
                second=tops[p].values,
            )
            for draw in under
            for p in draw.positions
            if p in tops
        ]

    def _logits(self, worker: EngineWorker, *, point: Point, texts: Sequence[TextPlace]) -> list[TopTokens]:
        """Logits of tokens behind `texts`, or of the most likely ones where none are named, in few passes."""
        shown = dict[int, TopTokens]()
        for under in in_few_passes([(place, text) for place, text, _ in texts]):
            (place, text, _), unlike = texts[under[0]], dict[tuple[int, tuple[int, ...]], list[int]]()
            for i in under:
                unlike.setdefault((len(texts[i][1]), tuple(texts[i][2])), []).append(i)
            # The engine takes in the token before each place: one more stands for that behind the last of them.
            tops = worker.token_logits(self._prompt(point, place), (*text, 0), sorted(unlike), CANDIDATES)
            if tops is None:
                raise UsageError(f"back end {worker.facts().backend} shows no logits of single tokens")
            shown |= {i: top for key, top in zip(sorted(unlike), tops, strict=True) for i in unlike[key]}
        return [shown[i] for i in range(len(texts))]

    def _prompt(self, point: Point, place: tuple[int, int]) -> Sequence[int]:
        prompt_set, prompt = place
        return self.prompts[point.key].measured[prompt_set].token_ids[prompt]

    def _store(self, rescoring: Rescoring) -> None:
        self.folder.append(rescoring)
        self.done[rescoring.point] = rescoring


TextPlace = tuple[tuple[int, int], Sequence[int], Sequence[int]]
"""((prompt set, prompt), the text up to a place, tokens whose logits are wanted there, () for the most likely ones)."""


def in_few_passes(texts: Sequence[tuple[tuple[int, int], Sequence[int]]]) -> list[list[int]]:
    """Return groups of indices of `texts`, ((prompt set, prompt), tokens): all of a group begin the first one of it.

    Texts of the same prompt come one after the other.
    """
    passes: list[list[int]] = []
    for i in sorted(range(len(texts)), key=lambda i: (texts[i][0], -len(texts[i][1]))):
        place, tokens = texts[i]
        covering = (g for g in passes if texts[g[0]][0] == place and texts[g[0]][1][: len(tokens)] == tokens)
        if (group := next(covering, None)) is None:
            passes.append([i])
        else:
            group.append(i)
    return passes


def named(record: Margin | Followed, top: TopTokens, second: tuple[float, ...]) -> Margin | Followed:
    """`record` with the most likely tokens of the second engine. `second`: their logits in the scenario's dtype."""
    changed = replace(record, top_tokens=top.tokens, second=second)
    return replace(changed, top1=top.values[0], top2=top.values[1]) if isinstance(changed, Margin) else changed


def drafted_along(worker: EngineWorker, samples: Sequence[Draw]) -> tuple[dict[int, int], str | None]:
    """(start of a cycle → tokens that the draft has right there, why there are none), of the text scored last."""
    starts = sorted({start for draw in samples for start in draw.starts})
    if not starts:
        return {}, None
    try:
        counts = worker.drafted(starts, max(draw.block.role.k for draw in samples))
    except WorkerLost:
        raise
    except BackendError as error:
        return {}, error.message
    if counts is None:
        return {}, f"back end {worker.facts().backend} runs no draft along a text"
    return dict(zip(starts, counts, strict=True)), None


def rescored(draw: Draw, scores: Mapping[int, Score], drafted: Mapping[int, int]) -> RescoredText:
    """The answers to what was drawn of a text. A chain is no longer than the role's."""
    block, k = draw.block, draw.block.role.k
    starts = draw.starts if drafted else ()
    return RescoredText(
        *(block.cell.key, block.prompt_set, block.round, draw.slot, draw.positions, draw.tokens),
        scores=tuple(scores[p] for p in draw.positions),
        starts=starts,
        drafted=tuple(min(drafted[start], k) for start in starts),
    )
