"""The noise profile: which differences a machine can detect. It is measured with the same role at both positions of
every pair (A/A), and with the same roles in several processes.

There is one JSON file per device, `noise/<first eight digits of the GPU's UUID, or cpu>.json`, beside the folder of
runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specgate.analysis.intervals.between_runs import ASSUMED, LEAST
from specgate.analysis.intervals.decision import detectable
from specgate.contract import BetweenRuns, Cell, Plan, Scenario, State
from specgate.files.json_record import read_record
from specgate.machine import inventory

SCHEMA = "specgate.noise/v2"


@dataclass(frozen=True, slots=True)
class CellNoise:
    """Noise of a role, by the log-ratios of it to itself.

    `sd`: standard deviation of a pair, without the effects of order and prompts.
    `order_effect`: half of what running second in a pair changes.
    `drift_per_block`: trend of ln(time per step) from block to block; per emitted token where a server shows no steps.
    `mde`: minimum detectable effect (see `effect`) with the schedule of the calibration.
    `mean`, `low`, `high`: the A/A difference with its 95 % interval.
    `process_means`: per process, the mean of ln(speed / baseline's speed) over the same prompts; none for a baseline.
    """

    pairs: int
    sd: float
    order_effect: float
    drift_per_block: float
    mde: float
    mean: float
    low: float
    high: float
    state: State
    process_means: tuple[float, ...] = ()

    @property
    def between_processes(self) -> BetweenRuns | None:
        """The spread of `process_means`; None where fewer than two processes were measured."""
        if (processes := len(self.process_means)) < 2:
            return None
        process_sd = statistics.stdev(self.process_means)
        return BetweenRuns(process_sd, processes - 1, least_process_sd=LEAST, pair_sd=self.sd)


@dataclass(frozen=True, slots=True)
class NoiseProfile:
    """Noise profile of one machine: the differences that it can detect.

    `created`: when.
    `run`: the calibration run.
    `margin_pct`: the difference that the calibration had to exclude, in percent.
    `cells`: cell key → its noise.
    """

    created: str
    run: str
    device: str
    margin_pct: float
    fingerprint: Mapping[str, str | None]
    cells: Mapping[str, CellNoise]

    @property
    def accepted(self) -> bool:
        """True if every A/A difference above `margin_pct` was excluded."""
        return all(cell.state is State.PASS for cell in self.cells.values())


def file_of(out: Path) -> Path:
    """The profile file of this machine, beside the folder of runs `out`."""
    gpu = inventory.visible_gpu() if inventory.has_cuda_gpu() else None
    return file_for(out, str(gpu["uuid"]) if gpu else None)


def file_for(out: Path, gpu_uuid: str | None) -> Path:
    """The profile file of the GPU `gpu_uuid`, or of the CPU for None."""
    name = gpu_uuid.removeprefix("GPU-")[:8] if gpu_uuid else "cpu"
    return out.resolve().parent / "noise" / f"{name}.json"


def profile_of(out: Path) -> NoiseProfile | None:
    """This machine's profile; None where there is none. Raises InvalidResult where the file is not a profile."""
    return read_record(NoiseProfile, file_of(out), SCHEMA)


BANDWIDTH = "-bandwidth.json"
"""Ends the name of the file beside a profile that has the bandwidth of its device."""
MIN_MACHINES = 3
"""Profiles that it takes to say how machines differ: two leave one degree of freedom, whose quantile is 90."""


def between_runs(plan: Plan, profile: NoiseProfile | None, out: Path) -> dict[str, BetweenRuns]:
    """Cell key → spread between runs, for the cells of `plan` whose noise profile measured several processes.

    Between machines, it is the spread over all profiles beside the folder of runs `out` that are of the same weights
    on the same kind of device, where there are MIN_MACHINES of them.
    """
    if profile is None:
        return {}
    known = {c.key: spread for c in plan.cells if (spread := _processes(profile, c.key)) is not None}
    beside = sorted(file_of(out).parent.glob("*.json")) if known else []
    files = [file for file in beside if not file.name.endswith(BANDWIDTH)]
    fleet = [p for f in files if (p := read_record(NoiseProfile, f, SCHEMA)) is not None and _same_kind(p, profile)]
    return {key: _with_machines(spread, key, fleet) for key, spread in known.items()}


def _processes(profile: NoiseProfile, key: str) -> BetweenRuns | None:
    cell = profile.cells.get(key)
    return cell.between_processes if cell else None


def _same_kind(a: NoiseProfile, b: NoiseProfile) -> bool:
    same = ("target_sha256", "draft_sha256", "device", "source_tree_sha256", "config_sha256")
    return all(a.fingerprint.get(key) == b.fingerprint.get(key) for key in same)


def _with_machines(spread: BetweenRuns, key: str, fleet: Sequence[NoiseProfile]) -> BetweenRuns:
    means = [statistics.fmean(p.cells[key].process_means) for p in fleet if _processes(p, key) is not None]
    if len(means) < MIN_MACHINES:
        return spread
    return replace(spread, machine_sd=statistics.stdev(means), machine_freedom=len(means) - 1)


def effect(sd: float, scenario: Scenario, between: BetweenRuns = ASSUMED) -> float | None:
    """Minimum detectable effect of a cell at the last look of `scenario`, as a ratio less 1; None where pairs are too
    few.

    `sd`: standard deviation of a pair, on the log scale. `between`: what differs between runs.
    """
    log_effect = detectable(scenario, sd, between)
    return None if log_effect is None else math.expm1(log_effect)


def effects(plan: Plan, profile: NoiseProfile | None) -> dict[str, float]:
    """Cell key → minimum detectable effect, for the cells of `plan` that were calibrated."""
    known = {c.key: _effect(plan, c, profile) for c in plan.cells} if profile else {}
    return {key: mde for key, mde in known.items() if mde is not None}


def _effect(plan: Plan, cell: Cell, profile: NoiseProfile) -> float | None:
    noise = profile.cells.get(cell.key)
    return effect(noise.sd, plan.scenarios[cell.point.scenario], noise.between_processes or ASSUMED) if noise else None


def warnings(profile: NoiseProfile | None) -> tuple[str, ...]:
    """Warnings for the reader of a run about its machine; empty without a profile and for an accepted machine."""
    if profile is None or profile.accepted:
        return ()
    worst = max(profile.cells.values(), key=lambda cell: cell.sd)
    why = f"pairs of one role with itself differ by {100 * worst.sd:.1f} % (sd)"
    return (f"the noise profile of {profile.created} rejects this machine: {why}",)
