"""Stored samples → what they say of the two builds. Pure, so that `specgate verify` can do it again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from specgate.ab.folder import AbFolder, Asked, Processes
from specgate.ab.schedule import ProcessPair, plan_of, schedule_of
from specgate.analysis.machine.gpu_clocks import clock_warnings
from specgate.analysis.reduce import Checked
from specgate.analysis.two_builds.reduce import Found, SideSamples, compare_builds
from specgate.core import EngineFacts, Plan, Scenario
from specgate.core.conditions import GpuReading, Sample
from specgate.core.two_builds import SIDES, SideName, TwoBuilds, Word
from specgate.errors import ExitCode
from specgate.files.journal import Journal
from specgate.planning.plan import points_of
from specgate.planning.policy import near_tie_margin

SOUND_PAIRS: Final = 8
"""Process pairs from which on the simulated error rates of `docs/ab.md` are at most those that are stated."""
CODES: Mapping[Word, ExitCode] = {
    Word.SAME: ExitCode.PASS,
    Word.FASTER: ExitCode.PASS,
    Word.SLOWER: ExitCode.FAIL,
    Word.CANNOT_TELL: ExitCode.INCONCLUSIVE,
}


def schedules(asked: Asked) -> list[ProcessPair]:
    """The schedule of everything that was asked. Scenarios that one process cannot run together get pairs of their
    own.
    """
    found: list[ProcessPair] = []
    for group in groups(tuple(asked.scenarios.values())):
        points = [(s, p) for s in group for p in points_of(s, asked.sides["old"].backend)]
        for pair in schedule_of(points, asked.pairs, asked.visits, asked.quads):
            found.append(ProcessPair(len(found), pair.first, pair.visits))
    return found


def groups(scenarios: Sequence[Scenario]) -> list[list[Scenario]]:
    """The scenarios that one engine can run: those of the same number format and RoPE scaling."""
    found: dict[object, list[Scenario]] = {}
    for scenario in scenarios:
        key = scenario.dtype, tuple(sorted((scenario.rope or {}).items()))
        found.setdefault(key, []).append(scenario)
    return list(found.values())


def plans(asked: Asked, pairs: Sequence[ProcessPair]) -> dict[SideName, Plan]:
    """Side → the rounds of its blocks."""
    scenarios = tuple(asked.scenarios.values())
    return {name: plan_of(scenarios, pairs, asked.sides[name].backend) for name in SIDES}


def find(asked: Asked, journals: Mapping[SideName, Journal], processes: Processes) -> Found:
    """What the journals of both sides say."""
    planned = plans(asked, schedules(asked))
    sides = [
        SideSamples(
            name=name,
            plan=planned[name],
            blocks=journals[name].blocks,
            margins=journals[name].margins,
            engines=journals[name].engines,
            checked=Checked(journals[name].texts, journals[name].logits, {}, asked.policy.checks, name),
            near_tie_margin=near_tie_margin(asked.policy),
            bandwidth=asked.bandwidth,
        )
        for name in SIDES
    ]
    return compare_builds(sides[0], sides[1], processes.found, asked.margins)


def warnings_of(asked: Asked, journals: Mapping[SideName, Journal], samples: Sequence[Sample]) -> Iterator[str]:
    """What a reader must know of the schedule and of the GPU's clocks during the blocks of either side."""
    if asked.pairs < SOUND_PAIRS:
        yield f"{asked.pairs} processes per side: the error that is stated holds from {SOUND_PAIRS} on"
    readings: dict[str, list[GpuReading]] = {name: [] for name in SIDES}
    for name in SIDES:
        spans = [block.span_ns for block in journals[name].blocks if block.span_ns is not None]
        for sample in samples:
            if sample.gpu is not None and any(begin <= sample.monotonic_ns <= end for begin, end in spans):
                readings[name].append(sample.gpu)
    if any(readings.values()):
        yield from clock_warnings(readings["old"], readings["new"], SIDES)


def result_of(folder: AbFolder, asked: Asked, journals: Mapping[SideName, Journal], processes: Processes) -> TwoBuilds:
    """The whole comparison, as ab.json stores it. Where the measuring was cut short, no word is said."""
    warnings = warnings_of(asked, journals, folder.top.samples())
    found = find(asked, journals, processes)
    engines: dict[str, Mapping[str, EngineFacts]] = {name: journals[name].engines for name in SIDES}
    acceptance = next((f.acceptance for side in engines.values() for f in side.values() if f.acceptance), None)
    word, reason, code = found.word, found.reason, CODES[found.word] if found.word else ExitCode.INVALID
    if processes.failure is not None:
        word, reason, code = None, processes.failure, ExitCode(processes.code or ExitCode.INTERNAL)
    return TwoBuilds(
        id=folder.path.name,
        started=asked.started,
        ended=processes.ended,
        argv=asked.argv,
        tool_version=asked.tool_version,
        sides=asked.sides,
        engines=engines,
        pair=asked.pair.name,
        acceptance=acceptance or asked.pair.acceptance,
        scenarios=asked.scenarios,
        prompts=asked.prompts,
        environment=processes.environment,
        margins=asked.margins,
        processes=processes.found,
        beside=processes.beside,
        quantities=found.quantities,
        texts=found.texts,
        tokens=found.tokens,
        trouble=found.trouble,
        warnings=(*warnings, *found.warnings),
        word=word,
        reason=reason,
        code=code,
    )
