"""Scenario YAML → `contract.Scenario`.

A scenario is one file. Its name is the file's stem, and its question is the file's first line, a comment. `extends`
names what the file is merged over (`planning.inheritance`). Mappings are merged, lists are replaced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from os.path import isfile
from pathlib import Path
from typing import Any

from specgate.contract import (
    STATISTICS,
    VARIANT_MARK,
    Budget,
    Draws,
    Grid,
    LatencyLimits,
    PromptFile,
    Sampling,
    Scenario,
    Schedule,
    Variant,
    Workload,
)
from specgate.contract.load import Load
from specgate.contract.metrics import DEFINITIONS
from specgate.errors import EnvironmentRefused, UsageError
from specgate.files.yaml_schema import Problem, nearest, parse, refusal
from specgate.files.yamlfile import Document, dump_yaml, load
from specgate.planning.bounds import REPEATS, check_plan, excesses
from specgate.planning.inheritance import Inheritance
from specgate.planning.prompt_files.formats import recognise
from specgate.planning.scenario_form import (
    SCHEMA,
    DrawsForm,
    GridForm,
    Kind,
    LoadForm,
    Machine,
    SamplingForm,
    ScenarioForm,
    VariantForm,
    WorkloadForm,
    contradictions,
)
from specgate.planning.variants import one_variant, with_variants

SHIPPED = Path(__file__).parents[1] / "scenarios"
SCENARIOS = Inheritance("scenario", "extends", SHIPPED)


# ── files to scenarios ───────────────────────────────────────────────────────────────────────────────────────────────


def load_scenario(path: Path) -> Scenario:
    """Read and check one file together with everything it extends. Raises UsageError that lists every problem."""
    return replace(scenario_of(resolve(path)), source_file=path)


def scenario_of(document: Document) -> Scenario:
    """The scenario in a document that was merged with everything it extends; `document.path` names it.

    Raises UsageError that lists every problem.
    """
    form = parse(ScenarioForm, document, list(_title_problems(document)))
    if problems := list(contradictions(form)):
        raise refusal(document, problems)
    scenario = Scenario(
        name=document.path.stem,
        question=document.head or "",
        kind=form.kind,
        family=form.family,
        needs=form.needs,
        pair=form.pair,
        dtype=form.dtype,
        grid=Grid(contexts_of(form.grid), tuple(form.grid.batch), tuple(form.grid.spec)),
        workload=workload_of(form.workload, document),
        budget=Budget(**form.budget.model_dump()),
        schedule=Schedule(**form.schedule.model_dump()),
        perf_mode=form.perf_mode,
        timeout_s=form.timeout_s,
        rope=form.rope.model_dump(exclude_none=True) if form.rope else None,
        default=form.default,
        statistics=STATISTICS,
        goodput=LatencyLimits(**form.goodput.model_dump()) if form.goodput else None,
        definitions=DEFINITIONS,
        load=load_of(form.load) if form.load else None,
        sampling=sampling_of(form.sampling) if form.sampling else None,
        draws=draws_of(form.draws),
        options=dict(form.options),
        variants={name: variant_of(variant) for name, variant in form.variants.items()},
    )
    if too_much := [Problem(key, why) for key, why in excesses(scenario)]:
        raise refusal(document, too_much)
    return scenario


def contexts_of(form: GridForm) -> tuple[int, ...]:
    """The contexts of a grid; () where prompts from a file have their own."""
    return tuple(form.context or ())


def workload_of(form: WorkloadForm, document: Document) -> Workload:
    """The workload of a scenario file. A file of prompts is relative to the YAML file that names it.

    Raises UsageError where the file of prompts cannot be read, has no known format, or is not the one whose SHA-256 is
    given.
    """
    said = form.model_dump(include={"seed", "prompt_sets", "warmup_sets", "shared_prefix"})
    if form.file is None:
        return Workload(source=form.source, **said)
    where = ("workload", "file")
    path = Path(os.path.abspath(document.where(where).file.parent / Path(form.file).expanduser()))
    try:
        file = prompt_file(path, form.format, chat=form.chat, min_tokens=form.min_tokens, max_tokens=form.max_tokens)
    except UsageError as error:
        mark = document.where(where)
        raise UsageError(f"{mark.file}:{mark.line}: workload.file: {error.message}", hint=error.hint) from None
    if form.sha256 not in (None, file.sha256):
        raise refusal(document, [Problem(("workload", "sha256"), f"that of {path} is {file.sha256}")])
    return Workload(source="file", file=file, **said)


def prompt_file(path: Path, format_: str = "auto", **limits: Any) -> PromptFile:
    """The file as a scenario fixes it, by its hash and format. Raises UsageError where it is no file of prompts."""
    found = recognise(path, format_)
    return PromptFile(path, found.sha256, found.format, **limits)


def load_of(form: LoadForm) -> Load:
    return Load(form.requests, form.per_client, tuple(form.rates or ()))


def sampling_of(form: SamplingForm) -> Sampling:
    return Sampling(**{**form.model_dump(), "logit_bias": tuple(sorted(form.logit_bias))})


def draws_of(form: DrawsForm | None) -> Draws | None:
    return Draws(**form.model_dump()) if form else None


def variant_of(form: VariantForm) -> Variant:
    return Variant(dict(form.options), sampling_of(form.sampling) if form.sampling else None, draws_of(form.draws))


def _title_problems(document: Document) -> Iterator[Problem]:
    if document.head is None:
        yield Problem((), "the first line must be a comment that asks the scenario's question")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", document.path.stem):
        yield Problem((), f"the file's stem {document.path.stem!r} names the scenario: use letters, digits, . _ -")


def resolve(path: Path) -> Document:
    """The document at `path`, merged over everything it extends."""
    return SCENARIOS.whole(load(path))


def shipped_file(name: str) -> Path:
    """The file of the shipped scenario or base called `name`."""
    return SHIPPED / f"{name}.yaml"


def shipped() -> list[Scenario]:
    """Every scenario that comes with specgate, in alphabetical order."""
    return [load_scenario(SHIPPED / f"{name}.yaml") for name in SCENARIOS.names()]


def find(name_or_path: str) -> Scenario:
    """The shipped scenario with this name, or the one in this file; of `SCENARIO+VARIANT`, that variant alone.

    Raises UsageError with the nearest name.
    """
    plain, mark, variant = name_or_path.rpartition(VARIANT_MARK)
    if mark and not isfile(name_or_path):
        return one_variant(find(plain), variant)
    if name_or_path in (names := SCENARIOS.names()):
        return load_scenario(SHIPPED / f"{name_or_path}.yaml")
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") or isfile(path):
        return load_scenario(path)
    hint = f"{nearest(name_or_path, names)}; or give a .yaml file"
    raise UsageError(f"no such scenario: {name_or_path!r}", hint=hint)


def find_all(name_or_path: str) -> list[Scenario]:
    """What `find` finds, and all of its variants after it. Raises UsageError with the nearest name."""
    return with_variants(find(name_or_path))


# ── which ones run ───────────────────────────────────────────────────────────────────────────────────────────────────


def select(names: Sequence[str], only: str | None, kind: Kind | None, machine: Machine) -> list[Scenario]:
    """The scenarios to run: those that `names` lists (names or files, also several separated by commas), or the default
    ones; each with its variants after it.

    The default ones are the shipped scenarios of `kind` whose `needs` is `machine`, unless they say `default: false`.
    `only` is a glob that narrows either choice. Raises UsageError where nothing is left or a name is wrong, and
    EnvironmentRefused where a named scenario needs a GPU and `machine` has none.
    """
    wanted = [n.strip() for given in names for n in given.split(",") if n.strip()]
    if wanted:
        chosen = [s for n in wanted for s in find_all(n)]
    else:
        chosen = [v for s in shipped() if s.default and s.needs == machine for v in with_variants(s)]
    if kind and wanted:
        _check_kind(chosen, kind)
    _check_machine(chosen, machine)
    chosen = [s for s in chosen if kind in (None, s.kind)]
    kept = {s.name: s for s in chosen if fnmatchcase(s.name, only or "*")}
    if len({(s.name, s.source_file) for s in chosen}) > len({s.name for s in chosen}):
        raise UsageError("two scenario files have one name: " + ", ".join(str(s.source_file) for s in chosen))
    if not kept:
        raise UsageError(f"--only {only}: no scenario left", hint=f"it narrows: {', '.join(s.name for s in chosen)}")
    return list(kept.values())


def _check_kind(chosen: Sequence[Scenario], kind: Kind) -> None:
    if other := [s for s in chosen if s.kind != kind]:
        s = other[0]
        wrong = f"{s.source_file}: kind: {s.kind!r}: not for `specgate {kind}`"
        raise UsageError(wrong, hint=f"run `specgate {s.kind}`")


def _check_machine(chosen: Sequence[Scenario], machine: Machine) -> None:
    if machine == "cpu" and (big := [s for s in chosen if s.needs == "gpu"]):
        fitting = ", ".join(s.name for s in shipped() if s.needs == "cpu" and s.kind == big[0].kind)
        raise EnvironmentRefused(
            f"{big[0].source_file}: needs: 'gpu': there is none here", hint=f"meant for a CPU: {fitting}"
        )


def override(
    scenario: Scenario,
    *,
    warmup_runs: int | None = None,
    measurement_runs: int | None = None,
    perf_mode: bool | None = None,
    baseline: bool = True,
) -> Scenario:
    """`scenario` with the settings of a command line. Raises UsageError where the orders of the roles would no longer
    balance, or where the numbers are too large.
    """
    schedule = Schedule(
        rounds=scenario.schedule.rounds if measurement_runs is None else measurement_runs,
        warmup_rounds=scenario.schedule.warmup_rounds if warmup_runs is None else warmup_runs,
    )
    if schedule.rounds < 1 or schedule.warmup_rounds < 0:
        asked = f"{schedule.rounds} measurement runs, {schedule.warmup_rounds} warm-up runs"
        raise UsageError(f"{scenario.name}: {asked}", hint="at least 1 and 0")
    if max(schedule.rounds, schedule.warmup_rounds) > REPEATS:
        asked = f"{schedule.rounds} measurement runs, {schedule.warmup_rounds} warm-up runs"
        raise UsageError(f"{scenario.name}: {asked}", hint=f"at most {REPEATS} of each")
    if schedule.rounds * scenario.workload.prompt_sets % 2:
        raise UsageError(
            f"{scenario.name}: {scenario.workload.prompt_sets} prompt sets × {schedule.rounds} measurement runs is odd",
            hint="the roles run in two orders that must balance: ask for an even number of runs",
        )
    perf_mode = scenario.perf_mode if perf_mode is None else perf_mode
    changed = replace(scenario, schedule=schedule, perf_mode=perf_mode, baseline=scenario.baseline and baseline)
    check_plan([changed])
    return changed


def dump(scenario: Scenario) -> str:
    """The scenario as one complete YAML file that inherits nothing. `load_scenario` reads an equal scenario back."""
    fields = asdict(scenario)
    for key in ("name", "question", "source_file", "definitions", "statistics", "baseline"):
        del fields[key]
    del fields["schedule"]["extended"]
    fields["grid"] = {axis: list(values) or "own" for axis, values in fields["grid"].items()}
    fields["workload"] = _flat(scenario.workload)
    fields["budget"] = _without_none(fields["budget"])
    if scenario.goodput:
        fields["goodput"] = _without_none(fields["goodput"])
    if scenario.load:
        fields["load"] = {key: list(v) if key == "rates" else v for key, v in fields["load"].items() if v != ()}
    if scenario.sampling:
        fields["sampling"] = _sampling(scenario.sampling)
    for key in ("options", "variants"):
        if not fields[key]:
            del fields[key]
    if scenario.variants:
        fields["variants"] = {name: _variant(variant) for name, variant in scenario.variants.items()}
    whole = {"schema": SCHEMA, **_without_none(fields)}
    return f"# {scenario.question}\n{dump_yaml(whole, flow=None, width=100)}"


def _sampling(sampling: Sampling) -> dict[str, object]:
    return {**asdict(sampling), "logit_bias": [list(pair) for pair in sampling.logit_bias]}


def _variant(variant: Variant) -> dict[str, object]:
    fields = {
        "options": dict(variant.options) or None,
        "sampling": _sampling(variant.sampling) if variant.sampling else None,
        "draws": asdict(variant.draws) if variant.draws else None,
    }
    return _without_none(fields)


def _flat(workload: Workload) -> dict[str, object]:
    """The workload with the keys of a scenario file."""
    fields = {**asdict(workload), **(asdict(workload.own) if workload.own else {})}
    if not workload.shared_prefix:
        del fields["shared_prefix"]
    if path := fields.pop("path", None):
        fields["file"] = str(path)
    return _without_none(fields)


def _without_none(fields: Mapping[str, object]) -> dict[str, object]:
    return {k: v for k, v in fields.items() if v is not None}
