"""Stored samples → what they say of the two builds. Pure, so that `specgate runs verify` can do it again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from specgate.ab.folder import AbFolder, Asked, Processes
from specgate.ab.schedule import ProcessPair, plan_of, schedule_of
from specgate.analysis.grouping import grouped
from specgate.analysis.machine.cpu_pace import pace_of, uneven
from specgate.analysis.machine.gpu_clocks import clock_warnings
from specgate.analysis.reduce import Checked
from specgate.analysis.two_builds.outcomes import all_within_pct, share
from specgate.analysis.two_builds.reduce import Found, SideSamples, compare_builds
from specgate.contract import EngineFacts, Plan, Scenario
from specgate.contract.conditions import GpuReading, Sample
from specgate.contract.two_builds import SIDES, Look, Process, SideName, TwoBuilds, Word
from specgate.errors import ExitCode
from specgate.files.journal import Journal
from specgate.planning.gates import near_ties
from specgate.planning.plan import points_of

SOUND_PAIRS: Final = 4
"""Process pairs from which on the simulated error rates of `docs/change.md` are at most those that are stated."""
CODES: Mapping[Word, ExitCode] = {
    Word.SAME: ExitCode.PASS,
    Word.FASTER: ExitCode.PASS,
    Word.SLOWER: ExitCode.FAIL,
    Word.CANNOT_TELL: ExitCode.INCONCLUSIVE,
}


def schedules(settings: Asked) -> list[ProcessPair]:
    """The schedule of everything that was asked, look after look. Scenarios that one process cannot run together get
    pairs of their own.
    """
    pairs: list[ProcessPair] = []
    for begin, end in pairwise((0, *settings.looks)):
        for group in groups(tuple(settings.scenarios.values())):
            points = [(s, p) for s in group for p in points_of(s, settings.sides["old"].backend)]
            for pair in schedule_of(points, end - begin, settings.visits, settings.quads, begin):
                pairs.append(ProcessPair(len(pairs), pair.first, pair.visits))
    return pairs


def running_until(settings: Asked, pairs: int) -> int:
    """Number of process pairs that have run when every group of scenarios has had `pairs` of them."""
    return pairs * len(groups(tuple(settings.scenarios.values())))


def groups(scenarios: Sequence[Scenario]) -> list[list[Scenario]]:
    """The scenarios that one engine can run: those of the same number format and RoPE scaling."""
    return list(grouped(scenarios, lambda scenario: (scenario.dtype, scenario.rope)).values())


def plans(settings: Asked, pairs: Sequence[ProcessPair]) -> dict[SideName, Plan]:
    """Side → the rounds of its blocks."""
    scenarios = tuple(settings.scenarios.values())
    return {name: plan_of(scenarios, pairs, settings.sides[name].backend) for name in SIDES}


def interim_looks(
    settings: Asked, journals: Mapping[SideName, Journal], processes: Processes
) -> Iterator[tuple[Look, Found, int]]:
    """Every look at what was measured, up to the first word that is not CANNOT TELL: the look, what it found, and how
    many process pairs it saw. Where the pairs of a look are not complete, it is the last one.
    """
    whole = processes.whole()
    looks = (0, *settings.looks, settings.looks[-1] + SOUND_PAIRS)
    for before, pairs, later in zip(looks, looks[1:], looks[2:], strict=False):
        count = running_until(settings, pairs)
        error, then = (share(settings.margins.error, *span) for span in ((pairs, before), (later, pairs)))
        result = find(
            settings, {name: first(journals[name], count) for name in SIDES}, processes.upto(count), error, then
        )
        yield Look(pairs, error, result.word, result.reason), result, count
        if result.word is not Word.CANNOT_TELL or not whole.issuperset(range(count)):
            return


def first(journal: Journal, count: int) -> Journal:
    """Part of a journal that belongs to the first `count` process pairs."""
    return replace(
        journal,
        blocks=[b for b in journal.blocks if b.worker_generation < count],
        texts=[t for t in journal.texts if t.worker_generation < count],
    )


def find(
    settings: Asked, journals: Mapping[SideName, Journal], processes: Sequence[Process], error: float, then: float
) -> Found:
    """Reduce the journals of both sides at an error of `error` a side. `then`: what the next look may spend."""
    old, new = samples_of(settings, journals)
    return compare_builds(old, new, processes, replace(settings.margins, error=error), then)


def samples_of(settings: Asked, journals: Mapping[SideName, Journal]) -> tuple[SideSamples, SideSamples]:
    """The samples of the old and the new side, as they are reduced."""
    planned = plans(settings, schedules(settings))
    old, new = (
        SideSamples(
            name=name,
            plan=planned[name],
            blocks=journals[name].blocks,
            margins=journals[name].margins,
            engines=journals[name].engines,
            checked=Checked(
                journals[name].texts,
                tuple(journals[name].logits.values()),
                asked=settings.policy.checks,
                followed=journals[name].followed,
            ),
            near_ties=near_ties(settings.policy),
            bandwidth=settings.bandwidth,
        )
        for name in SIDES
    )
    return old, new


def warnings_of(
    look: Look, journals: Mapping[SideName, Journal], samples: Sequence[Sample], resumed: Sequence[str]
) -> Iterator[str]:
    """Yield warnings about the schedule, the CPUs, and the GPU's clocks during the blocks of either side."""
    yield from resumed
    if look.pairs < SOUND_PAIRS:
        yield f"{look.pairs} processes per side: the error that is stated holds from {SOUND_PAIRS} on"
    readings: dict[str, list[GpuReading]] = {name: [] for name in SIDES}
    for name in SIDES:
        spans = [block.span_ns for block in journals[name].blocks if block.span_ns is not None]
        for sample in samples:
            if sample.gpu is not None and any(begin <= sample.monotonic_ns <= end for begin, end in spans):
                readings[name].append(sample.gpu)
    if pace := uneven(pace_of(samples)):
        yield pace
    if any(readings.values()):
        yield from clock_warnings(readings["old"], readings["new"], SIDES)


def result_of(
    folder: AbFolder, settings: Asked, journals: Mapping[SideName, Journal], processes: Processes
) -> TwoBuilds:
    """The whole comparison, as ab.json stores it. Where the measuring was cut short, no word is said."""
    looked = list(interim_looks(settings, journals, processes))
    last, result, _ = looked[-1]
    warnings = warnings_of(last, journals, folder.top.lines(Sample), processes.resumed)
    engines: dict[str, Mapping[str, EngineFacts]] = {name: journals[name].engines for name in SIDES}
    acceptance = next((f.acceptance for side in engines.values() for f in side.values() if f.acceptance), None)
    word, reason, code = result.word, result.reason, CODES[result.word] if result.word else ExitCode.INVALID
    if processes.failure is not None:
        word, reason, code = None, processes.failure, ExitCode(processes.code or ExitCode.INTERNAL)
        last = replace(last, word=None, reason=reason)
    return TwoBuilds(
        id=folder.path.name,
        started=settings.started,
        ended=processes.ended,
        argv=settings.argv,
        tool_version=settings.tool_version,
        sides=settings.sides,
        engines=engines,
        pair=settings.pair.name,
        acceptance=acceptance or settings.pair.acceptance,
        scenarios=settings.scenarios,
        prompts=settings.prompts,
        environment=processes.environment,
        margins=replace(result.margins, error=settings.margins.error),
        processes=processes.found,
        beside=processes.beside,
        quantities=result.quantities,
        texts=result.texts,
        tokens=result.tokens,
        trouble=result.trouble,
        warnings=(*warnings, *result.warnings),
        word=word,
        reason=reason,
        code=code,
        looks=(*(look for look, _, _ in looked[:-1]), last),
        within_pct=None if word is None else all_within_pct(result.quantities),
    )
