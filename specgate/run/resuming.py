"""A run that is continued: whether it may be, and what it rests on.

a finished run          is never continued: a verdict stands. One that ended INCONCLUSIVE has none, and may be
                        continued with more rounds than were planned
a run whose ending      was cut is finished (`ending.finish_cut`): its verdict stands, and nothing is measured
a run that ended        (interrupted, or its engine failed) is held to its manifest and to its entry in the ledger
a run that was killed   has neither. Its configuration, source tree, prompts and the form of its samples are
                        checked. That nobody has edited a sample cannot be, and the run says so
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from specgate.analysis.checks.identities import check_block
from specgate.analysis.rounds import in_round
from specgate.contract import Block, Plan, Round, Run, TimeEnd
from specgate.errors import ExitCode, InvalidResult, UsageError
from specgate.files.config import Config
from specgate.files.json_record import stored_json
from specgate.files.manifest import (
    FOLDERS,
    FORMER,
    MANIFEST,
    Difference,
    grown_differences,
    manifest_differences,
    odd_files,
    vouched,
)
from specgate.files.run_folder import RunFolder
from specgate.files.writing import sha256_of
from specgate.machine.software import Software
from specgate.planning.prompts import Prompts
from specgate.planning.request import Request
from specgate.promotion.fingerprint import FLEET, changes, in_words
from specgate.promotion.ledger import Entry, Ledger
from specgate.run.beginning import fingerprint_of
from specgate.terminal import echo

DECIDED = (ExitCode.PASS, ExitCode.FAIL, ExitCode.NOT_JUDGED)
"""Exit codes that only a finished run ends with."""


def check_resumable(path: Path, ledger: Ledger, *, longer: bool = False) -> None:
    """Refuse to continue the run in the folder `path` if it is finished, or if it is not as its last end left it.

    `longer`: it is to be continued with more rounds than were planned. Raises UsageError for a finished run, and
    InvalidResult, with the places, if the manifest or the ledger's entry contradict the folder, or if they are gone.
    """
    folder = RunFolder.open(path)
    run, entry = folder.read_run(), last_entry(ledger, path.absolute().name)
    if not (longer and stored_code(path) == ExitCode.INCONCLUSIVE) and (why := finished(run, entry, path)):
        hint = (
            f"a verdict stands: specgate runs verify {path} checks it, runs show {path} prints it; or start a new run"
        )
        raise UsageError(f"{path}: {why}: nothing is left to continue", hint=hint)
    if places := list(contradictions(path, entry)):
        more = f" (and {len(places) - 3} more places)" if len(places) > 3 else ""
        hint = f"the run is not as it was left; specgate runs verify {path} names every place. Start a new run"
        raise InvalidResult(f"{path}: cannot be continued: {'; '.join(map(str, places[:3]))}{more}", hint=hint)


def last_entry(ledger: Ledger, run: str) -> Entry | None:
    """The last entry of the end of `run` in the ledger, or None."""
    return next((e for e in reversed(ledger.read().entries) if e.run == run and e.ends_a_run), None)


def finished(run: Run, entry: Entry | None, path: Path) -> str | None:
    """Reason that the run counts as finished; None if something may be left to measure."""
    if run.status == "complete":
        return "run.json says that the run is complete"
    if entry is not None and entry.exit_code in DECIDED:
        return f"the ledger says that it ended with {entry.state} (exit {entry.exit_code})"
    code = stored_code(path)
    return f"gates.json says that it ended with exit {code}" if code in DECIDED else None


def stored_code(path: Path) -> object:
    """The exit code in gates.json, or None."""
    gates = stored_json(path / "gates.json") if (path / "gates.json").is_file() else None
    return gates.get("exit_code") if isinstance(gates, dict) else None


def contradictions(path: Path, entry: Entry | None, folders: frozenset[str] = FOLDERS) -> Iterator[Difference]:
    """Yield where the run folder is not what its manifest and its entry in the ledger say. `folders`: what it may
    hold.
    """
    if (path / MANIFEST).is_file():
        yield from manifest_differences(path, folders)
        manifest = path / MANIFEST
    elif (path / FORMER).is_file():
        yield from odd_files(path, folders)
        yield from grown_differences(path)
        manifest = path / FORMER
    else:
        yield from odd_files(path, folders)
        if entry is not None:
            yield Difference(MANIFEST, "", f"is missing, and the ledger knows that the run ended at {entry.time}")
        return
    if entry is not None and not vouched(manifest, entry.manifest_sha256):
        sha256_now = sha256_of(manifest)
        yield Difference(manifest.name, "", f"its SHA-256 is {sha256_now}; the ledger says {entry.manifest_sha256}")


def never_ended(path: Path, ledger: Ledger, folders: frozenset[str] = FOLDERS) -> bool:
    """True if what the folder `path` holds was ended from outside before it came to a verdict, and can be continued.
    `folders`: what it may hold.
    """
    if (path / MANIFEST).is_file():
        return False
    return not any(contradictions(path, last_entry(ledger, path.absolute().name), folders))


def resume_command(run: Run, path: Path) -> str:
    """The command that continues the run in the folder `path`."""
    return f"specgate {run.kind}{' --on gpus' if FLEET in run.fingerprint else ''} --resume {shlex.quote(str(path))}"


def resume(
    request: Request, config: Config, ledger: Ledger, plan: Plan, prompts: Mapping[str, Prompts], software: Software
) -> tuple[RunFolder, Run]:
    """Open an unfinished run, which `check_resumable` has let pass, in order to continue it.

    Software, host, configuration and prompts must be those that the run was started with, since blocks of two versions
    must not be paired. What is stored must agree with itself. The run that is returned, and written to run.json, has
    no figures; its manifest is put aside. Only the rounds of `config` may be more than those of the stored
    configuration, which is then replaced. Raises UsageError where a version is another one, and InvalidResult where
    the folder contradicts itself.
    """
    assert request.resume is not None
    folder = RunFolder.open(request.resume)
    run, before = folder.read_run(), folder.read_config()
    refuse_other_kind(folder, run, software)
    then = {**run.fingerprint, **{key: str(about["sha256"]) for key, about in run.prompts.items()}}
    now_is = {**fingerprint_of(before, software), **{key: p.sha256 for key, p in prompts.items()}}
    if changed := changes({**dict.fromkeys(now_is), **then}, now_is):
        hint = "start a new run: blocks of two versions must not be paired"
        raise UsageError(f"{folder.path}: {in_words(changed)}", hint=hint)
    with folder.lock():
        check_samples(folder, plan)
        if unvouched := left_open(folder, last_entry(ledger, run.id)):
            echo(f"warning: {unvouched}", err=True)
            run = replace(run, warnings=tuple(dict.fromkeys((*run.warnings, unvouched))))
        folder.put_manifest_aside()
        run = without_figures(run)
        if config != before:  # more rounds than were planned
            folder.write_config(config)
            digest = fingerprint_of(config, software)["config_sha256"]
            run = replace(run, fingerprint={**run.fingerprint, "config_sha256": digest}, scenarios=config.scenarios)
        folder.write_run(run)
    return folder, run


def refuse_other_kind(folder: RunFolder, run: Run, software: Software) -> None:
    """Raise UsageError where a run on many machines is to go on with this one alone, or the reverse: who measured would
    be told wrongly.
    """
    began, goes_on = (FLEET in of for of in (run.fingerprint, software.facts))
    if began != goes_on:
        by = f"the fleet {run.fingerprint[FLEET]}" if began else "one machine"
        raise UsageError(
            f"{folder.path}: it was begun by {by}", hint=f"continue it with {resume_command(run, folder.path)}"
        )


def check_samples(folder: RunFolder, plan: Plan) -> None:
    """Raises InvalidResult for a block that the plan does not have, that is there twice, or that contradicts itself,
    and for an end by time behind the rounds of the plan.
    """
    rounds: dict[tuple[object, ...], Round] = {(r.point, r.prompt_set, r.index, r.warmup): r for r in plan.rounds}
    names, engines = set[tuple[object, ...]](), folder.engines()
    for number, block in enumerate(folder.lines(Block), 1):
        where = f"{folder.path}/samples/blocks.jsonl:{number}"
        if not is_planned(block, rounds):
            raise InvalidResult(f"{where}: {block.cell.key} set {block.prompt_set} round {block.round} is not planned")
        name = (block.cell, block.prompt_set, block.round, block.warmup, block.worker_generation)
        if not block.warmup and name in names:
            raise InvalidResult(f"{where}: {block.cell.key} set {block.prompt_set} round {block.round} is there twice")
        names.add(name)
        check_block(block, plan.scenarios[block.point.scenario].budget, engines.get(block.point.key))
    for number, end in enumerate(folder.lines(TimeEnd), 1):
        if end.rounds > sum(r.point.key == end.point and not r.warmup for r in plan.rounds):
            where = f"{folder.path}/samples/ends.jsonl:{number}"
            raise InvalidResult(f"{where}: {end.point} is not planned to have {end.rounds} rounds")


def is_planned(block: Block, rounds: Mapping[tuple[object, ...], Round]) -> bool:
    """True if the plan has a round with this block's role in the block's place."""
    round_ = rounds.get((block.point, block.prompt_set, block.round, block.warmup))
    if round_ is None or not in_round(block, round_) or block.position_in_round >= len(round_.order):
        return False
    return round_.order[block.position_in_round] == block.role


def left_open(folder: RunFolder, entry: Entry | None) -> str | None:
    """Sentence on samples that nothing vouches for; None if manifest and ledger vouch for all."""
    if not (blocks := len(folder.lines(Block))):
        return None
    if (folder.path / MANIFEST).is_file():
        alone = (
            f"resumed without an entry in the ledger: nothing vouches for the manifest of its {blocks} earlier blocks"
        )
        return None if entry else alone
    later = " that are later than its manifest" if (folder.path / FORMER).is_file() else ""
    return (
        f"resumed after the run had been killed: nothing vouches for those of its {blocks} earlier blocks{later}; "
        "their form and their place in the plan were checked, but not that nobody has edited them"
    )


def without_figures(run: Run) -> Run:
    """`run` as it was when it began, but for what is known of its failures."""
    return replace(
        run,
        status="running",
        ended=None,
        engines={},
        cells=(),
        comparisons=(),
        verdicts=(),
        certificates={},
        conditions={},
        ended_early={},
        budgets={},
        check_seconds={},
        time_ends={},
        times={},
        files={},
        reports=(),
    )
