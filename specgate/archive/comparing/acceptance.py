"""Acceptance of runs side by side, also by class of prompts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Final

from specgate.analysis.grouping import collected
from specgate.analysis.speculation.drafting import decoding_of
from specgate.analysis.speculation.summary import Acceptance, Request, SummedRun, counted, layouts_of, undrafted_in
from specgate.analysis.tokens.repetition import repeated_ngram_share
from specgate.archive.comparing.engines import backends_of
from specgate.archive.stored_runs import StoredRun
from specgate.contract import Block, EngineFacts, Point, Run
from specgate.errors import UsageError
from specgate.pairs.fetch import TEXTS
from specgate.run.recompute import of_slots

KINDS: Final[Mapping[str, str]] = {asset.package: asset.kind for asset in TEXTS}
"""Corpus → its kind of text."""
UNNAMED: Final = "no category"
SEVERAL: Final = "several classes"
"""Of requests that a server counts together although their prompts are of different classes."""
MIXED: Final = "mixed"
"""Of a prompt that is cut from text of several kinds."""


def class_of(run: Run, point: Point, prompt_set: int, slots: Sequence[int]) -> str:
    """The class that the prompts in these slots of a prompt set have in common, by what run.json says of them."""
    classes = {class_in(run, point, prompt_set, slot) for slot in slots}
    return classes.pop() if len(classes) == 1 else SEVERAL


def class_in(run: Run, point: Point, prompt_set: int, slot: int) -> str:
    """The class of one prompt."""
    about = run.prompts.get(point.key, {})
    if categories := of_slots(about, "categories", str):
        return str(categories.get((prompt_set, slot), UNNAMED))
    kinds = {kind_of(excerpt) for excerpt in element(element(about.get("sources"), prompt_set), slot)}
    if not kinds or None in kinds:
        source = about.get("source")
        return source if isinstance(source, str) else run.scenarios[point.scenario].workload.source
    return str(kinds.pop()) if len(kinds) == 1 else MIXED


def element(value: object, index: int) -> Sequence[object]:
    """The list at `index` of a stored list; () where there is none."""
    entry = value[index] if isinstance(value, list | tuple) and index < len(value) else ()
    return entry if isinstance(entry, list | tuple) else ()


def kind_of(excerpt: object) -> str | None:
    """The kind of text of a part of a prompt; its corpus where that is of no known kind. None where none is named."""
    corpus = excerpt.get("corpus") if isinstance(excerpt, Mapping) else None
    return KINDS.get(corpus, corpus) if isinstance(corpus, str) else None


Weights = tuple[str, ...]
"""What tells a pair from another: the hashes of target and draft, else the name."""
_DIGITS: Final = 8


def acceptance_of(stored: Sequence[StoredRun]) -> Acceptance:
    """The acceptance of the runs over all their requests.

    Raises UsageError where no run measured a spec block, and InvalidResult where counts contradict each other.
    """
    names = pair_names([one.run for one in stored])
    by_run = [(one.run, list(requests_of(one, names))) for one in stored]
    requests = [request for _, of_run in by_run for request in of_run]
    if not requests:
        ids = ", ".join(run.id for run, _ in by_run)
        raise UsageError(
            f"no spec block that can be summed up was measured in {ids}", hint="give runs that have a role spec-N"
        )
    runs = [about(run, names, sum(r.requests for r in of_run)) for run, of_run in by_run]
    return Acceptance(tuple(runs), layouts_of(requests))


# ── one run ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def requests_of(stored: StoredRun, names: Mapping[Weights, str]) -> Iterator[Request]:
    """The requests of the measured spec blocks of a run, without those of cells that have failed."""
    run, repeated, broken = stored.run, Repeats(), left_out(stored.run)
    named = cache(partial(class_of, run))
    for block in stored.blocks():
        if not block.role.speculative or block.cell.key in broken:
            continue
        records = list(counted(block))
        together = len(records) < len(block.tokens)
        for slot, record in records:
            slots = range(len(block.tokens)) if together else (slot,)
            prompts = prompts_in(block, slots)
            yield Request(
                run=run.id,
                cell=block.cell.key,
                pair=names[weights(run, run.engines.get(block.point.key))],
                acceptance=run.acceptance,
                engine=engine_name(run.engines.get(block.point.key), block.point.backend),
                context=block.point.context,
                prompt_class=named(block.point, block.prompt_set, prompts),
                prompt=(prompts_of(run, block), 0 if together else prompts[0]),
                record=record,
                requests=len(slots),
                undrafted=undrafted_in(block, slot),
                repeated=statistics.fmean(repeated.share(block.tokens[s]) for s in slots),
                decoding=decoding_of(run, block.point),
            )


def prompts_in(block: Block, slots: Sequence[int]) -> tuple[int, ...]:
    """The indices, in the prompt set, of the prompts that these slots answer."""
    answered = block.served.prompts if block.served is not None and block.served.prompts else range(len(block.tokens))
    return tuple(answered[slot] for slot in slots)


def prompts_of(run: Run, block: Block) -> str:
    """The SHA-256 of the block's prompt set; of a run that does not say, a name that no other run has."""
    hashes = run.prompts.get(block.point.key, {}).get("set_sha256")
    if isinstance(hashes, list | tuple) and block.prompt_set < len(hashes):
        return str(hashes[block.prompt_set])
    return f"{run.id} {block.point.key} {block.prompt_set}"


class Repeats:
    """The share of repeated 8-grams of texts, each text looked through once: rounds repeat the same ones."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, ...], float] = {}

    def share(self, text: tuple[int, ...]) -> float:
        if text not in self.known:
            self.known[text] = repeated_ngram_share(text)
        return self.known[text]


def engine_name(facts: EngineFacts | None, backend: str) -> str:
    """The back end, the version of somebody else's engine, and what it computes with: other numbers, other texts."""
    if facts is None:
        return backend
    version = facts.identity.version if facts.identity and facts.identity.version else facts.engine_version
    return " ".join(filter(None, (backend, version, facts.dtype)))


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def about(run: Run, names: Mapping[Weights, str], requests: int) -> SummedRun:
    """Facts of a run beside the figures."""
    facts, broken = next(iter(run.engines.values()), None), left_out(run)
    return SummedRun(
        id=run.id,
        engine=", ".join(engine_name(facts, backend) for backend in backends_of(run)),
        pair=names[weights(run, facts)],
        acceptance=run.acceptance,
        requests=requests,
        left_out=broken,
        other_text=tuple(c.cell.key for c in run.comparisons if c.tokens.mismatches and c.cell.key not in broken),
        cut_short=next((why.splitlines()[0] for why in run.failures.values()), None),
    )


def left_out(run: Run) -> dict[str, str]:
    """Key → reason, of the spec cells whose records are no evidence."""
    return {
        result.cell.key: (result.reason or "nothing was measured").splitlines()[0]
        for result in run.cells
        if result.cell.role.speculative and result.status == "failed"
    }


def weights(run: Run, facts: EngineFacts | None) -> Weights:
    """Key of the pair that an engine decodes with: the same files may have two names."""
    if facts is None or facts.target is None:
        return (run.pair.name,)
    return (facts.target, facts.draft_sha256 or "", facts.tape_sha256 or "")


def pair_names(runs: Sequence[Run]) -> dict[Weights, str]:
    """Weights → the name of the pair; where several have one name, with what tells them apart."""
    pair_of: dict[Weights, str] = {}
    for run in runs:
        for facts in (None, *run.engines.values()):
            pair_of.setdefault(weights(run, facts), run.pair.name)
    for name, keys in collected((name, key) for key, name in pair_of.items() if len(key) > 1).items():
        if len(keys) > 1:
            pair_of.update({key: f"{name} ({' '.join(shortened(part) for part in key if part)})" for key in keys})
    return pair_of


def shortened(part: str) -> str:
    """The first digits of a hash; what a server says that it serves as it is."""
    return part[:_DIGITS] if len(part) == 64 else part
