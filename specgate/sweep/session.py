"""One sweep, from the request to the exit code."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from specgate.ab.judging import samples_of
from specgate.ab.request import AbRequest, builds
from specgate.ab.session import begin
from specgate.analysis.two_builds.speeds import speeds_of
from specgate.contract.sweeps import SWEEP, Best, Setting, Sweep, SweptPoint
from specgate.contract.two_builds import SIDES, STEP, TwoBuilds
from specgate.errors import ExitCode, InvalidResult, SpecgateError, UsageError
from specgate.files.json_text import to_plain
from specgate.files.run_folder import RunFolder, label_of
from specgate.files.writing import write_json
from specgate.machine import inventory
from specgate.planning.plan import points_of
from specgate.sandbox.isolation import isolated
from specgate.sweep.grid import baked, in_words, settings_of
from specgate.sweep.halving import FINAL_PAIRS, Halving, cost, halvings
from specgate.sweep.measuring import Candidate, interval, measure_beside
from specgate.sweep.resuming import refuse_another, restored, stored_sweep
from specgate.terminal import echo

RESULT: Final = "sweep.json"
NOT_ENDED: Final = "not ended"
LEAST_PAIR_S: Final = 1.0
"""Seconds that a process pair takes at least: two engines start, prefill and decode."""
FINAL_LOOKS: Final = (8, 16, 24)
"""Process pairs after which the final comparison is judged, as far as the budget goes; the first one always."""


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """The command line.

    `comparison`: setting → the request of `ab` that compares the default with it.
    `grid`: option → values. `budget_s`: seconds for everything, of which the final comparison's are kept back.
    `through`: option with which an engine writes a file, and option with which it reads one. Each setting writes one
        first; what is measured is the reading of it.
    `resume`: the folder of a sweep of the same command line that was cut off, which goes on.
    """

    comparison: Callable[[Setting], AbRequest]
    grid: Mapping[str, Sequence[str]]
    budget_s: float
    through: tuple[str, str] | None = None
    resume: Path | None = None


@dataclass(slots=True)
class State:
    """A sweep that is going on. `spent_s`, `pairs`: seconds of measuring so far, and process pairs in them."""

    request: SweepRequest
    candidates: tuple[Candidate, ...]
    base: AbRequest
    folder: RunFolder
    ends: float
    apart: bool
    spent_s: float = 0.0
    pairs: int = 0
    measured: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def pair_s(self) -> float:
        """Mean seconds of a process pair."""
        return self.spent_s / self.pairs if self.pairs else LEAST_PAIR_S

    def affords(self, pairs: int) -> bool:
        """True if so many process pairs and the final comparison fit into what is left of the budget."""
        return time.monotonic() + self.pair_s * (pairs + FINAL_PAIRS) <= self.ends


def carry_out(request: SweepRequest) -> tuple[ExitCode, Path]:
    """Measure all settings, halve them until one is left, and compare that one with the default on fresh blocks.
    Returns the exit code, and the file with the result.

    Raises UsageError for a grid that has one point or more than the budget can visit, and for options that the back end
    refuses; BackendError where the default's engine, or every setting's, fails. What was measured stays in the folder.
    A sweep that goes on measures what it lacks, under the whole budget again.
    """
    began = time.monotonic()
    most = int(request.budget_s / LEAST_PAIR_S) - FINAL_PAIRS
    settings = settings_of(request.grid, most, 1 if request.through else 2)
    base = request.comparison(settings[0])
    for setting in settings:  # every setting's options are checked before anything is measured
        with builds(request.comparison(setting), Path()) as sides:
            names = tuple(sides[SIDES[0]].config.scenarios)
    stored = stored_sweep(request.resume / RESULT, settings) if request.resume else None
    if request.resume and stored:
        folder = RunFolder(request.resume)
        candidates = tuple(restored(s, stored, number, folder.path) for number, s in enumerate(settings))
        refuse_another(candidates, request.comparison)
    else:
        folder = RunFolder.create(base.run.out, "sweep", label_of(names), inventory.source_tree_sha256())
        candidates = tuple(map(Candidate, settings))
    state = State(request, candidates, base, folder, began + request.budget_s, base.apart or base.run.isolate)
    if stored and stored.pair_s and (pairs := sum(c.pairs for c in candidates)):
        state.spent_s, state.pairs, state.measured = stored.pair_s * pairs, pairs, stored.measured
    echo(f"{len(settings)} settings of {', '.join(request.grid)}; sweep folder {folder.path}")
    try:
        with folder.lock(), isolated(base.run.isolate, base.run.out):
            code, verdict, best = search(state)
            store(state, verdict, best)
    except KeyboardInterrupt:
        echo(f"to go on, add --resume {folder.path} to the same command")
        raise
    echo(f"{folder.path / RESULT}")
    echo(verdict)
    if best is not None and best.faster:
        echo(f"bake it: {best.bake}")
    return code, folder.path / RESULT


def search(state: State) -> tuple[ExitCode, str, Best | None]:
    """Halve, and compare the best with the default. Returns the exit code, the verdict in words, and the best."""
    if state.request.through is not None:
        for number, candidate in enumerate(state.candidates, 1):
            if not candidate.made_by:
                write_first(state, candidate, number, *state.request.through)
                store(state, NOT_ENDED, None)
    alive = last = [c for c in state.candidates if c.why_not is None]
    if not alive:
        raise all_failed(state)
    steps = halvings(len(alive))
    for number, step in enumerate(steps):
        if number and not state.affords(cost(steps, number)):
            echo(f"budget: no time for halving {number + 1} of {len(steps)}; the best so far is compared")
            break
        halve(state, alive, steps[: number + 1])
        alive = [c for c in alive if c.speeds is not None and c.why_not is None]
        if not alive:
            raise all_failed(state)
        if number == 0 and len(alive) > 1 and all(c.unchanged for c in alive):
            return ExitCode.INCONCLUSIVE, nothing_changes(state, alive), None
        last = sorted(alive, key=lambda c: -c.mean)
        alive = last[: step.kept]
    best = alive[0]
    if steps and best.mean <= 0:
        return ExitCode.PASS, f"the default stays: no setting was faster; {standing(best)} came closest", None
    return compare(state, best, last)


def write_first(state: State, candidate: Candidate, number: int, writes: str, reads: str) -> None:
    """Let an engine with the candidate's setting write a file, in one process pair, and measure the reading of it from
    now on.
    """
    file = (state.folder.path / f"tuned-{number}").absolute()
    writer, began = Candidate({**candidate.setting, writes: str(file)}), time.monotonic()
    request = replace(state.request.comparison(writer.setting), looks=(1,), apart=state.apart)
    if (interrupted := measure_beside(writer, request, state.folder.path)) is not None:
        raise interrupted
    state.spent_s, state.pairs = state.spent_s + time.monotonic() - began, state.pairs + 1
    candidate.made_by, candidate.setting, candidate.asked = candidate.setting, {reads: str(file)}, writer.asked
    candidate.failure, candidate.why_not = writer.failure, writer.why_not if writer.failure else None
    if candidate.why_not is None and not file.exists():
        candidate.why_not = f"{in_words(candidate.made_by)}: nothing was written with {writes}"
    echo(f"{in_words(candidate.made_by)}: {candidate.why_not or f'wrote {file}'}")


def halve(state: State, alive: Sequence[Candidate], steps: Sequence[Halving]) -> None:
    """Measure all of `alive` until each has had the process pairs of the last of `steps`."""
    step = steps[-1]
    echo(f"halving {len(steps)}: {len(alive)} settings, {step.pairs} process pairs each")
    for number, candidate in enumerate(alive, 1):
        if candidate.pairs >= step.pairs:
            echo(f"  [{number}/{len(alive)}] {standing(candidate)}")
            continue
        began, had = time.monotonic(), candidate.pairs
        looks = tuple(s.pairs for s in steps)
        request = replace(state.request.comparison(candidate.setting), looks=looks, apart=state.apart)
        interrupted = measure_beside(candidate, request, state.folder.path)
        state.spent_s += time.monotonic() - began
        state.pairs += max(1, candidate.pairs - had)
        if candidate.pairs and candidate.folder is not None:
            state.apart = not candidate.folder.processes().beside
        echo(f"  [{number}/{len(alive)}] {standing(candidate)}")
        for warning in candidate.found.warnings if candidate.found and len(steps) == 1 else ():
            echo(f"    note: {warning}")
        store(state, NOT_ENDED, None)
        if interrupted is not None:
            raise interrupted
        if len(steps) == 1 and number == 1 and not state.affords(step.pairs * (len(alive) - 1)):
            raise too_short(state, step)


def too_short(state: State, step: Halving) -> UsageError:
    """The error of a budget that ends before the first halving, by the time that the first setting took."""
    needs = state.pair_s * (step.settings * step.pairs + FINAL_PAIRS)
    visits = int((state.request.budget_s / state.pair_s - FINAL_PAIRS) / step.pairs)
    return UsageError(
        f"--budget {duration(state.request.budget_s)} is shorter than one halving: a process pair takes "
        f"{duration(state.pair_s)} here, so {step.settings} settings and the final comparison take {duration(needs)}",
        hint=f"--budget {math.ceil(needs / 60)}m or more" + (f", or {visits} settings" if visits > 1 else ""),
    )


def all_failed(state: State) -> SpecgateError:
    """The error of a sweep in which no setting can win: of the kind of the first one's."""
    first = state.candidates[0]
    kind = type(first.failure) if first.failure is not None else InvalidResult
    return kind(
        f"none of {len(state.candidates)} settings can win: {in_words(first.setting)}: {first.why_not}",
        hint=f"{state.folder.path / RESULT} has the reason of each; does the default run? specgate smoke tells",
    )


def nothing_changes(state: State, alive: Sequence[Candidate]) -> str:
    first, names = alive[0].found, ", ".join(state.request.grid)
    assert first is not None
    return (
        f"nothing changes between the points: the speed of all {len(alive)} is within "
        f"{first.margins.percent(STEP):g} % of the default's, with the same texts and acceptance; does the engine read "
        f"{names}?"
    )


def compare(state: State, best: Candidate, last: Sequence[Candidate]) -> tuple[ExitCode, str, Best | None]:
    """Compare `best` with the default on fresh blocks. `last`: the settings of the last halving, fastest first."""
    left = (state.ends - time.monotonic()) / state.pair_s
    looks = tuple(look for look in FINAL_LOOKS if look <= max(left, FINAL_PAIRS))
    echo(f"the best beside the default, on fresh blocks: {in_words(best.setting)}")
    request = state.request.comparison(best.setting)
    folder, result = begin(replace(request, looks=looks, apart=state.apart))
    if result.code is ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    speeds = speeds_of(*samples_of(folder.asked(), folder.journals()), result.processes)
    low, high = interval(speeds, result.error) if speeds else (None, None)
    if result.word is None or speeds is None or low is None or high is None:
        return result.code, f"{in_words(best.setting)} could not be compared: {result.reason}", None
    ties = tuple(c.setting for c in last if c is not best and tied(best, c, result.margins.error / len(last)))
    figures = f"{percent(speeds.mean)} tokens per second ({low - 1:+.1%} … {high - 1:+.1%}, on fresh blocks)"
    stored = Best(
        config=best.setting,
        ratio=math.exp(speeds.mean),
        low=low,
        high=high,
        error=result.error,
        faster=low > 1,
        ties=ties,
        comparison=folder.path.name,
        bake=baked(best.setting),
    )
    return *judged(best, stored, result, figures), stored


def judged(best: Candidate, stored: Best, result: TwoBuilds, figures: str) -> tuple[ExitCode, str]:
    """The exit code and the verdict in words."""
    words, margin = in_words(best.setting), result.margins.percent(STEP)
    tied_with = f"; not told from it: {'; '.join(map(in_words, stored.ties))}" if stored.ties else ""
    if stored.faster:
        return ExitCode.PASS, f"faster than the default: {words}: {figures}{tied_with}"
    if stored.high - 1 <= margin / 100:
        return ExitCode.PASS, f"the default stays: {words} gains no {margin:g} %: {figures}"
    return ExitCode.INCONCLUSIVE, f"cannot tell whether {words} is faster than the default: {figures}"


def tied(best: Candidate, other: Candidate, error: float) -> bool:
    """True if `other` is not proven slower than `best`, each measured beside the default."""
    pair = [c.speeds.difference if c.speeds else None for c in (best, other)]
    if pair[0] is None or pair[1] is None:
        return True
    half = math.hypot(pair[0].half_width(error), pair[1].half_width(error))
    return pair[0].mean - pair[1].mean <= half


def store(state: State, verdict: str, best: Best | None) -> None:
    """Write what is known so far, replacing the file."""
    settings = next((c.asked for c in state.candidates if c.asked is not None), None)
    if settings is None:
        return
    facts = next((facts for c in state.candidates if (facts := c.facts) is not None), None)
    error = settings.margins.error / len(state.candidates)
    sweep = Sweep(
        measured=state.measured,
        backend=settings.sides[SIDES[0]].backend,
        device=facts.device if facts else None,
        pair=settings.pair.name,
        engine=facts.details if facts else {},
        points=tuple(
            SweptPoint(s.name, p.context, p.batch)
            for s in settings.scenarios.values()
            for p in points_of(s, settings.sides[SIDES[0]].backend)
        ),
        options=settings.sides[SIDES[0]].options,
        trials=tuple(c.trial(error) for c in state.candidates),
        best=best,
        verdict=verdict,
        pair_s=state.pair_s if state.pairs else None,
    )
    write_json(state.folder.path / RESULT, {"schema": SWEEP, **to_plain(Sweep, sweep)})


def standing(candidate: Candidate) -> str:
    """A setting and its speed so far, or why it cannot win."""
    words = in_words(candidate.setting)
    if candidate.why_not is not None:
        return f"{words}: cannot win: {candidate.why_not}"
    if candidate.speeds is None:
        return f"{words}: not measured"
    pairs = "1 pair" if candidate.pairs == 1 else f"{candidate.pairs} pairs"
    return f"{words}: {percent(candidate.speeds.mean)} tokens per second ({pairs})"


def percent(mean: float) -> str:
    """A mean of logarithms as a difference in percent."""
    return f"{math.expm1(mean):+.1%}"


def duration(seconds: float) -> str:
    """Seconds as a command line takes them: 90s, 5m, 2.5h."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f}".removesuffix(".0") + unit
    return f"{seconds:.3g}s"
