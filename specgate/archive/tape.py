"""Record the acceptance of a run (its tape): accepted draft tokens per step, prompt set and role, from its journal."""

from __future__ import annotations

from pathlib import Path

from specgate.analysis.checks.identities import check_block
from specgate.analysis.rounds import whole_rounds
from specgate.contract import Block, EngineFacts, Plan, Point, Role, Run
from specgate.contract.tape import Slots, Tape
from specgate.errors import InvalidResult, UsageError
from specgate.files.run_folder import RunFolder
from specgate.planning.plan import build_plan


def tape_of(path: Path, point_key: str | None) -> Tape:
    """Recorded acceptance of one point of the run folder `path`. The run need not be complete; only whole rounds are
    used.

    `point_key` may be None if the run has one point. Raises UsageError if it names no point of the run, or if the point
    has no spec block. Raises InvalidResult if a block contradicts itself, or if blocks of the same prompts accepted
    different counts. Raises EnvironmentRefused while the run is still being written.
    """
    folder = RunFolder.open(path)
    # Reading cuts a torn last line off the journal, which must not happen while a run is writing it.
    with folder.lock():
        config, run, engines, journal = folder.read_config(), folder.read_run(), folder.engines(), folder.lines(Block)
    plan = build_plan(tuple(config.scenarios.values()), config.backend)
    point = pick_point(plan, point_key, path)
    blocks = [b for b in whole_rounds(plan, journal) if b.point == point and not b.warmup and b.role.speculative]
    if not blocks:
        raise UsageError(f"{path}: no whole round of {point.key} has a spec block", hint="finish the run: --resume")
    for block in blocks:
        check_block(block, plan.scenarios[point.scenario].budget, engines[point.key])
    sets = sorted({b.prompt_set for b in blocks})
    roles = sorted({b.role for b in blocks})
    specs = {role.k: tuple(accept_counts(blocks, role, prompt_set) for prompt_set in sets) for role in roles}
    hashes = run.prompts[point.key].get("set_sha256")
    if not isinstance(hashes, list):
        raise UsageError(f"{folder.path / 'run.json'}: prompts.{point.key} has no set_sha256", hint="run it anew")
    return Tape(origin(run, point, engines[point.key]), tuple(str(hashes[i]) for i in sets), specs)


def origin(run: Run, point: Point, engine: EngineFacts) -> dict[str, str]:
    """Origin of recorded acceptance. `engine` is the journal's: a run that has not ended has no engines in its
    run.json.
    """
    return {
        "run": run.id,
        "point": point.key,
        "pair": run.pair.name,
        "acceptance": engine.acceptance or run.pair.acceptance,
        "target_sha256": engine.target_sha256 or "",
        "draft_sha256": engine.draft_sha256 or "",
        "device": engine.device,
        "dtype": engine.dtype,
        "source_tree_sha256": run.fingerprint.get("source_tree_sha256") or "",
        "config_sha256": run.fingerprint.get("config_sha256") or "",
    }


def pick_point(plan: Plan, key: str | None, path: Path) -> Point:
    """The point named `key`, or the only point of the plan. Raises UsageError if there is no such point."""
    points = {point.key: point for point in plan.points}
    if key is None and len(points) == 1:
        return next(iter(points.values()))
    if key not in points:
        problem = "has several points" if key is None else f"has no point {key!r}"
        raise UsageError(f"{path}: {problem}", hint=f"--point is one of: {', '.join(points)}")
    return points[key]


def accept_counts(blocks: list[Block], role: Role, prompt_set: int) -> Slots:
    """Accepted draft tokens per slot and cycle, from all blocks of a role and prompt set.

    Greedy decoding repeats itself, so the blocks must agree. Raises InvalidResult if they do not, and UsageError if a
    server made them, which does not tell what each step accepted, or if there are none.
    """
    same = [b for b in blocks if b.role == role and b.prompt_set == prompt_set]
    if any(b.served is not None for b in same):
        raise UsageError(
            f"{same[0].cell.key}: a server does not say what each step accepted",
            hint="record a tape from an engine of specgate's own",
        )
    counts = {by_slot(block) for block in same}
    if len(counts) > 1:
        raise InvalidResult(
            f"{same[0].cell.key}: blocks of prompt set {prompt_set} accepted different counts",
            hint="a tape needs an engine that repeats itself",
        )
    if not counts:
        raise UsageError(f"prompt set {prompt_set} has no block of {role}", hint="finish the run: --resume")
    return counts.pop()


def by_slot(block: Block) -> Slots:
    """Accepted draft tokens per slot and cycle of one block, without the steps after a slot had finished."""
    return tuple(tuple(row[slot] for row in block.accepted if row[slot] >= 0) for slot in range(len(block.tokens)))
