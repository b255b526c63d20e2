"""Faults of what surrounds a run: of the machine while it was measured, of the stored files, and of the ledger."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from specgate.analysis.draws.fit_tests import check_draws
from specgate.analysis.machine.conditions import conditions_of
from specgate.analysis.machine.memory import with_memory
from specgate.analysis.quality.scores import with_quality
from specgate.archive.verification import verify
from specgate.contract import BASELINE, Block, Rule, Run, Sampling, State
from specgate.contract.conditions import GpuProcess, GpuReading, HostReading, Sample
from specgate.contract.draws import DrawnTexts, TokenLaw
from specgate.contract.references import Builds, ComparedBuild, Revision
from specgate.contract.samples.answers import Answered
from specgate.contract.samples.memory import MemoryUse
from specgate.errors import InvalidResult
from specgate.files.run_folder import RunFolder
from specgate.planning.gates import verdicts_of
from specgate.planning.plan import build_plan
from specgate.promotion.ledger import Ledger
from specgate.run.references import earlier_runs

HALF_A_SECOND_NS: Final = 500_000_000
DRAWS: Final = 20_000
TARGET: Final = (0.5, 0.3, 0.15, 0.05)
"""The law of a text's only token."""
DRAFT: Final = (0.4, 0.3, 0.2, 0.1)
"""That of a verify which emits what the draft drew."""
QUIET_MACHINE: Final = {"gpu": True, "max_other_cpu_share": 0.5, "max_clock_shift": 0.05, "max_clock_jump_s": 1.0}
RULES: Final = (
    Rule("machine-quiet", "environment", True, params=QUIET_MACHINE),
    Rule("memory-steady", "memory", True, role="spec-*", params={"max_growth_share": 0.05}),
    Rule("answers", "quality", True, role="spec-*", params={"max_loss": 0.05}),
    Rule("drawn", "distribution", True, role="spec-*", params={"alpha": 1e-6, "min_draws": DRAWS}),
    Rule("no-loss", "since-green", True, params={"time_margin_pct": 3.0}),
    Rule("no-slower-build", "builds", True, params={"base": "main"}),
)
"""One per gate that judges more than a scripted engine does."""
AT_WORK: Final = GpuReading(
    uuid="GPU-5a1e0000-0000-4000-8000-000000000001",
    processes=(GpuProcess(1, "ours"),),
    clock_event_reasons=0,
    thermal_violation_ns=0,
    power_violation_ns=0,
    sm_clock_mhz=1980,
    power_mw=420_000,
    power_limit_mw=700_000,
    default_power_limit_mw=700_000,
    temperature_c=51,
    utilization_pct=99,
    memory_used_bytes=20 << 30,
    memory_total_bytes=150_754_820_096,
    ecc_uncorrected=0,
    rows_in_trouble=False,
)
QUIET: Final = HostReading(0.4, 0.02, 64 << 30, 0)


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A fault of the machine. `change` makes it from a healthy GPU reading; it is put in the middle of a run."""

    name: str
    reason_code: str
    change: Callable[[GpuReading], GpuReading]


DISTURBANCES: Final = (
    Disturbance("throttle flag", "throttled", lambda g: replace(g, clock_event_reasons=0x20)),
    Disturbance(
        "foreign process",
        "foreign_process",
        lambda g: replace(g, processes=(GpuProcess(1, "ours"), GpuProcess(2, "foreign", "train.py"))),
    ),
    Disturbance("NVML that says zero", "nvml_implausible", lambda g: replace(g, sm_clock_mhz=0, power_mw=0)),
)


def verdicts_on(run: Run, gate: str) -> list[tuple[State, str]]:
    """The verdicts of a gate's rule on `run`, as (state, reason code)."""
    (rule,) = (rule for rule in RULES if rule.gate == gate)
    return [(v.state, v.reason_code) for v in verdicts_of(rule, run)]


def disturbed(folder: RunFolder, change: Callable[[GpuReading], GpuReading]) -> Run:
    """The stored run with `change` applied to one of its GPU readings."""
    config, blocks = folder.read_config(), folder.lines(Block)
    plan = build_plan(tuple(config.scenarios.values()), config.backend)
    return replace(folder.read_run(), conditions=conditions_of(plan, blocks, samples(blocks, change)))


def samples(blocks: Sequence[Block], change: Callable[[GpuReading], GpuReading]) -> list[Sample]:
    """Samples of a quiet machine, every half second over all blocks.

    Only the GPU reading in the middle of the first measured block is changed by `change`.
    """
    spans = [b.span_ns for b in blocks if b.span_ns is not None]
    middle = next(sum(b.span_ns) // 2 for b in blocks if b.span_ns is not None and not b.warmup)
    start, end = min(s for s, _ in spans) - HALF_A_SECOND_NS, max(e for _, e in spans) + HALF_A_SECOND_NS
    times = sorted({*range(start, end + 1, HALF_A_SECOND_NS), end, middle})
    return [Sample(0, at, at, QUIET, change(AT_WORK) if at == middle else AT_WORK, None) for at in times]


def growing(folder: RunFolder, by: int) -> Run:
    """The stored run as if its engine had held 1 GiB, and `by` bytes more after every further block."""
    blocks = [
        replace(block, memory=MemoryUse(1, host_bytes=(1 << 30) + by * number))
        for number, block in enumerate(folder.lines(Block))
    ]
    run = folder.read_run()
    return replace(run, cells=with_memory(run.cells, blocks))


def answering(folder: RunFolder, lost: int) -> Run:
    """The stored run as if its baseline had answered all of 400 questions rightly and its speculation `lost` fewer."""
    run = folder.read_run()
    answered = [
        Answered(f"{cell.cell.key}#0#{n}", cell.cell.key, 0, n, None, n >= lost or not cell.cell.role.speculative)
        for cell in run.cells
        for n in range(400)
    ]
    return replace(run, cells=with_quality(run.cells, answered))


def drawing(folder: RunFolder, law: Sequence[float]) -> Run:
    """The stored run as if its spec cells had drawn their texts by `law`, and its baseline by the target's."""
    run, dice = folder.read_run(), random.Random(1)
    tokens = tuple(range(len(TARGET)))

    def drawn(weights: Sequence[float]) -> tuple[tuple[tuple[int, ...], int], ...]:
        counts = Counter(dice.choices(tokens, weights, k=DRAWS))
        return tuple(((token,), counts[token]) for token in tokens)

    draws = {}
    for cell in (result.cell for result in run.cells):
        texts = {cell.role.name: drawn(law), BASELINE.name: drawn(TARGET)}
        shown = DrawnTexts(cell.point.key, (0,), texts, (TokenLaw((), tokens, TARGET),), "the law", None, None, (0, 0))
        draws[cell.key] = check_draws(shown, cell.role)
    scenarios = {name: replace(s, sampling=Sampling()) for name, s in run.scenarios.items()}
    return replace(run, scenarios=scenarios, draws=draws)


def slower(folder: RunFolder, times: float) -> Run:
    """The stored run, which is green, held against itself, as its ledger has it, as if each of its steps had taken
    `times` as long.
    """
    run = folder.read_run()
    slowed = {c: replace(of, step_ns=tuple(round(ns * times) for ns in of.step_ns)) for c, of in run.times.items()}
    earlier = earlier_runs(folder.read_config(), Ledger(folder.path.parent), datetime.now(UTC))
    return replace(run, times=slowed, earlier=earlier)


def compared(folder: RunFolder, word: str) -> Run:
    """The stored run as if `specgate ab` had found `word` of its build."""
    run, main = folder.read_run(), "a" * 40
    comparison = ComparedBuild(
        comparison="compared",
        time=run.started,
        manifest_sha256="",
        base=main,
        word=word,
        reason="as injected",
        scenarios=tuple(run.scenarios),
        fingerprint=run.fingerprint,
    )
    return replace(run, builds=Builds({"main": Revision(main, None, "main")}, (comparison,)))


def edited_file(run_folder: Path, scratch: Path) -> str | None:
    """Change one digit of a sample in a copy of the run, and return what `verify` objects to; None if it does not."""
    copy = scratch / f"{run_folder.name}-edited"
    shutil.copytree(run_folder, copy)
    file = copy / "samples" / "blocks.jsonl"
    text = file.read_bytes()
    at = text.rindex(b'"elapsed_ns":') + len(b'"elapsed_ns":')
    file.write_bytes(text[:at] + (b"1" if text[at : at + 1] != b"1" else b"2") + text[at + 1 :])
    differences = verify(copy).differences
    return str(differences[0]) if differences else None


def torn_line(runs: Path, scratch: Path) -> str | None:
    """Append half a line to a copy of the ledger of `runs`, and return "torn" if it reports that and keeps its entries;
    None if it does not.
    """
    torn = with_ledger(runs, scratch / "torn", lambda text: text + text[: text.index(b"\n") // 2])
    whole, history = Ledger(runs).read(), Ledger(torn).read()
    return "torn" if history.torn and history.entries == whole.entries else None


def broken_chain(runs: Path, scratch: Path) -> str | None:
    """Edit one line in a copy of the ledger, and return the error that reading it raises; None if it raises none."""
    forged = with_ledger(runs, scratch / "forged", lambda text: text.replace(b'"exit_code":6', b'"exit_code":0', 1))
    try:
        Ledger(forged).read()
    except InvalidResult as error:
        return str(error)
    return None


def with_ledger(runs: Path, folder: Path, change: Callable[[bytes], bytes]) -> Path:
    """Copy the ledger of `runs` to `folder` and apply `change` to its lines. Returns `folder`."""
    folder.mkdir()
    for file in runs.glob("ledger.*"):
        if file.is_file() and file.suffix != ".lock":
            shutil.copy(file, folder)
    ledger = folder / "ledger.jsonl"
    ledger.write_bytes(change(ledger.read_bytes()))
    return folder
