"""`specgate machine calibrate`: measure this machine's noise with an A/A run, and store it as a noise profile.

In an A/A run, every round runs each of its roles twice in a row, so that a pair compares a role with itself and any
difference is noise. One block of a pair stands for the baseline, the other for the candidate. The candidate is the
second block if the round runs its roles forward, and the first if it runs them backward. In a real run, baseline and
candidate alternate in the same way.

What differs between processes cannot be seen within one. Further processes therefore measure every role over the same
prompts, once in both orders, and the spread of their speed-ups goes into the profile.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from specgate.analysis.checks.contradictions import check_clocks
from specgate.analysis.checks.identities import check_block
from specgate.analysis.intervals.between_runs import ASSUMED
from specgate.analysis.paired_blocks import judged_speed
from specgate.analysis.rounds import in_round
from specgate.analysis.stats import Pairs
from specgate.contract import BASELINE, PASS_ROUNDS, Block, Cell, EngineFacts, Plan, Round, State
from specgate.errors import BackendError, ExitCode, InvalidResult
from specgate.files.config import Config
from specgate.files.json_record import write_record
from specgate.files.run_folder import RunFolder, label_of
from specgate.machine import inventory
from specgate.machine.noise_profile import SCHEMA, CellNoise, NoiseProfile, effect, file_of
from specgate.planning.plan import build_plan
from specgate.planning.request import Request
from specgate.planning.resolution import resolve
from specgate.planning.scenario import override
from specgate.run.beginning import fitting_prompts, now
from specgate.run.progress import progress
from specgate.run.runner import Runner
from specgate.terminal import echo


def calibrate(request: Request, margin_pct: float, processes: int) -> ExitCode:
    """Run the A/A measurement and the further processes, write the noise profile and print it.

    Returns ENV_REJECTED if the A/A run cannot exclude a difference of `margin_pct` percent, else PASS. Raises
    BackendError if the engine failed, and InvalidResult if its blocks contradict themselves. Neither says anything
    about the machine, so an existing profile is kept.
    """
    config = resolve(request)
    whole = whole_plan(config)
    plan = twice(whole)
    folder, runner = measure(plan, config, request)
    blocks = [folder.lines(Block)]
    for _ in range(1, processes):
        again, _ = measure(once(whole), config, request)
        again.write_manifest()
        blocks.append(again.lines(Block))
    made_of = fingerprint(config, inventory.source_tree_sha256(), next(iter(runner.engines.values())))
    profile = reduce(plan, blocks, margin_pct, folder.id, made_of)
    write_record(NoiseProfile, profile, folder.path / "noise.json", SCHEMA)
    folder.write_manifest()
    write_record(NoiseProfile, profile, file_of(request.out), SCHEMA)
    for key, cell in profile.cells.items():
        echo(line_of(key, cell))
    echo(f"noise profile {file_of(request.out)}")
    echo(f"this machine is {'accepted' if profile.accepted else 'rejected'} at {margin_pct:g} %")
    return ExitCode.PASS if profile.accepted else ExitCode.ENV_REJECTED


def recomputed(folder: RunFolder, stored: NoiseProfile) -> NoiseProfile:
    """The profile in the folder of a calibration with the noise of every cell computed again, but for the means of
    processes. Raises InvalidResult as `noise_of`.
    """
    plan, blocks = twice(whole_plan(folder.read_config())), folder.lines(Block)
    means = {key: cell.process_means for key, cell in stored.cells.items()}
    cells = {c.key: noise_of(plan, c, blocks, stored.margin_pct, means.get(c.key, ())) for c in plan.cells}
    return replace(stored, cells=cells)


def whole_plan(config: Config) -> Plan:
    """The plan of a calibration. Noise is measured in a fixed number of rounds, whatever ends a run of a scenario."""
    scenarios = [override(s, measurement_runs=s.schedule.rounds) for s in config.scenarios.values()]
    return build_plan(scenarios, config.backend)


def measure(plan: Plan, config: Config, request: Request) -> tuple[RunFolder, Runner]:
    """Run `plan` in an engine process of its own and a run folder of its own. Raises BackendError if it failed."""
    prompts = fitting_prompts(plan, config)
    tree = inventory.source_tree_sha256()
    folder = RunFolder.create(request.out, "calibrate", label_of(tuple(config.scenarios)), tree)
    folder.write_config(config)
    folder.write_json("env.json", inventory.environment())
    echo(f"run folder {folder.path}")
    with folder.lock(), progress(request.plain, plan.scenarios) as report:
        runner = Runner(plan, prompts, config, folder, report)
        runner.run()
    if runner.failures:
        raise BackendError(next(iter(runner.failures.values())))
    return folder, runner


def once(plan: Plan) -> Plan:
    """The part of the plan that gives every prompt set one round in each order."""
    return replace(plan, rounds=tuple(r for r in plan.rounds if r.warmup or r.index < PASS_ROUNDS))


def twice(plan: Plan) -> Plan:
    """The plan in which every round runs each of its roles twice in a row."""
    rounds = (replace(r, order=tuple(role for role in r.order for _ in range(2))) for r in plan.rounds)
    return replace(plan, rounds=tuple(rounds))


def fingerprint(config: Config, tree: str, facts: EngineFacts) -> dict[str, str | None]:
    """Facts that the profile holds for: source tree, configuration, weights, GPU, driver, CPU and device."""
    gpu = inventory.visible_gpu() or {}
    return {
        "source_tree_sha256": tree,
        "config_sha256": config.digest,
        "target_sha256": facts.target_sha256,
        "draft_sha256": facts.draft_sha256,
        "gpu_uuid": str(gpu["uuid"]) if gpu else None,
        "driver": str(gpu["driver"]) if gpu else None,
        "cpu": inventory.cpu_model(),
        "device": facts.device,
    }


def reduce(
    plan: Plan, processes: Sequence[Sequence[Block]], margin_pct: float, run: str, made_of: dict[str, str | None]
) -> NoiseProfile:
    """Reduce the blocks of an A/A run, and those of further processes, to a profile that bears the current time.

    `processes`: the blocks of each process, those of the A/A run first. Raises InvalidResult if a cell has too few
    pairs for an interval.
    """
    cells = {}
    for cell in plan.cells:
        means = tuple(process_mean(plan, cell, blocks) for blocks in processes) if cell.role.speculative else ()
        cells[cell.key] = noise_of(plan, cell, processes[0], margin_pct, means)
    return NoiseProfile(now(), run, made_of["device"] or "", margin_pct, made_of, cells)


def process_mean(plan: Plan, cell: Cell, blocks: Sequence[Block]) -> float:
    """The mean of ln(speed / baseline's speed) of `cell` in one process, over the rounds that every process runs.

    Raises InvalidResult if a block contradicts itself, or if one of these rounds is missing or emitted nothing.
    """
    scenario = plan.scenarios[cell.point.scenario]
    ratios = []
    for round_ in once(plan).rounds_of(cell.point):
        if round_.warmup:
            continue
        mine = [b for b in blocks if in_round(b, round_) and b.role in (BASELINE, cell.role)]
        for block in mine:
            check_block(block, scenario.budget)
        logs = [(b.role == cell.role, math.log(judged_speed(scenario, b))) for b in mine if b.emitted]
        own, base = ([log for is_own, log in logs if is_own is which] for which in (True, False))
        if not own or not base:
            raise InvalidResult(f"{cell.key}: round {round_.key} is not whole: processes cannot be compared")
        ratios.append(statistics.fmean(own) - statistics.fmean(base))
    return statistics.fmean(ratios)


def noise_of(
    plan: Plan, cell: Cell, blocks: Sequence[Block], margin_pct: float, process_means: tuple[float, ...] = ()
) -> CellNoise:
    """The noise of one cell, from its A/A pairs.

    `process_means`: see `CellNoise`. The interval is that of independent pairs in one process, in a single look after
    the last pair. Raises InvalidResult if a block contradicts itself or there are too few pairs for an interval.
    """
    scenario = plan.scenarios[cell.point.scenario]
    mine = [b for b in blocks if b.cell == cell and not b.warmup]
    for block in mine:
        check_block(block, scenario.budget)
    check_clocks(mine, scenario.whole_requests)
    rounds = [r for r in plan.rounds_of(cell.point) if not r.warmup]
    couples = [(turn, r, couple) for turn, r in enumerate(rounds) if (couple := couple_of(mine, r))]
    pairs = Pairs(
        log_ratios=[
            direction(r) * math.log(judged_speed(scenario, b) / judged_speed(scenario, a)) for _, r, (a, b) in couples
        ],
        orders=[direction(r) for _, r, _ in couples],
        prompt_sets=[r.prompt_set for _, r, _ in couples],
        turns=[turn for turn, _, _ in couples],
    )
    interval = pairs.interval()
    if interval is None:
        raise InvalidResult(f"{cell.key}: {len(couples)} pairs of blocks: too few for an interval")
    margin = math.log1p(margin_pct / 100)
    if -margin < interval.low and interval.high < margin:
        state = State.PASS
    else:
        state = State.FAIL if interval.low > margin or interval.high < -margin else State.INCONCLUSIVE
    drift = trend([b for _, _, couple in couples for b in couple])
    made = CellNoise(
        len(couples),
        interval.sd,
        interval.order_effect,
        drift,
        0.0,
        interval.mean,
        interval.low,
        interval.high,
        state,
        process_means,
    )
    mde = effect(interval.sd, scenario, made.between_processes or ASSUMED)
    assert mde is not None  # there are enough pairs for an interval
    return replace(made, mde=mde)


def couple_of(blocks: Sequence[Block], round_: Round) -> tuple[Block, Block] | None:
    """The two blocks of a round, in running order. None if one of them is missing or emitted no token."""
    round_blocks = sorted((b for b in blocks if in_round(b, round_) and b.emitted), key=lambda b: b.position_in_round)
    return (round_blocks[0], round_blocks[1]) if len(round_blocks) == 2 else None


def direction(round_: Round) -> int:
    """+1 if the round runs its roles forward (baseline first), −1 if it runs them backward."""
    return 1 if round_.order[0] == BASELINE else -1


def trend(blocks: Sequence[Block]) -> float:
    """The drift per block: the least-squares slope of ln(time per step) over the running number of the block.

    Time is taken per step, not per token. How many tokens a step emits depends on the prompts, so their order would
    look like a drift. A server does not show its steps, so its time is taken per token.
    """
    logs = np.log([b.elapsed_ns / (len(b.step_ns) or b.emitted) for b in blocks])
    return float(np.polyfit(np.arange(len(blocks)), logs, 1)[0])


def line_of(key: str, cell: CellNoise) -> str:
    return (
        f"cell {key}: {cell.state}, {cell.pairs} pairs, sd {cell.sd:.2%}, order effect {cell.order_effect:+.2%}, "
        f"drift {cell.drift_per_block:+.3%} per block, {told(cell)}{said_of_processes(cell)}"
    )


def told(cell: CellNoise) -> str:
    return f"can tell {cell.mde:.2%}" if cell.mde <= 1 else f"{cell.pairs} pairs are too few to tell a factor of 2"


def said_of_processes(cell: CellNoise) -> str:
    between = cell.between_processes
    return f", {len(cell.process_means)} processes sd {between.process_sd:.2%}" if between else ""
