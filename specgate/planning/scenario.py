"""Scenario YAML → `contract.Scenario`.

A variant is measured as a scenario of its own, called `SCENARIO+VARIANT`, on the same prompts and in an engine process
of its own, with its own baseline beside it. So its speed-up is over the baseline with the same settings, decoded in the
same process, and its tokens are compared with that baseline's: with cached keys and values in another format, the
baseline of that format; at a temperature, the sampled baseline; with a tree, plain decoding, which a tree leaves as it
is. Reports put the roles of all variants beside each other: `spec-3`, `spec-3+kv-fp8`, `spec-3+t1`.

A scenario is one file. Its name is the file's stem, and its question is the file's first line, a comment. `extends`
names what the file is merged over (`planning.inheritance`). Mappings are merged, lists are replaced.

A file may hold the same question to several commands: `kinds: {micro: …, full: …}` has what each kind says beside the
rest of the file. Its scenarios are called `KIND-STEM`. A file that extends it takes one of them with `kind`.

A command line names scenarios, files, or a family: of that, all scenarios which run by default here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from os.path import exists, isfile
from pathlib import Path
from typing import Final, get_args

from specgate.contract import VARIANT_MARK, Machine, RunKind, Scenario, Variant, Workload
from specgate.contract.reading import Problem, nearest
from specgate.contract.types import REPEATS
from specgate.errors import EnvironmentRefused, UsageError
from specgate.files.yaml_schema import parse, refusal, to_document
from specgate.files.yamlfile import Document, dump_yaml, load
from specgate.planning.contradictions import check_plan, contradictions, excesses
from specgate.planning.inheritance import Inheritance
from specgate.planning.prompt_files.formats import recognise


def with_variants(scenario: Scenario) -> list[Scenario]:
    """The scenario itself, and then one scenario of each of its variants, in the order of the file."""
    return [replace(scenario, variants={}), *(varied(scenario, name) for name in scenario.variants)]


def varied(scenario: Scenario, name: str) -> Scenario:
    """The scenario of the variant `name`. Raises KeyError where there is none."""
    variant = scenario.variants[name]
    return replace(
        scenario,
        name=f"{scenario.name}{VARIANT_MARK}{name}",
        options={**scenario.options, **variant.options},
        sampling=variant.sampling or scenario.sampling,
        draws=variant.draws or scenario.draws,
        backend=variant.backend or scenario.backend,
        variants={},
    )


def meant_for(backend: str, scenarios: Sequence[Scenario]) -> list[Scenario]:
    """The scenarios that the back end of this name can be asked. Raises UsageError if there is none."""
    if fitting := [scenario for scenario in scenarios if fnmatchcase(backend, scenario.backend or "*")]:
        return fitting
    s = scenarios[0]
    raise UsageError(f"scenario {s.name}: backend: {s.backend!r}: not {backend!r}", hint=f"--backend {s.backend}")


def refuse_double_options(scenarios: Iterable[Scenario], options: Mapping[str, str]) -> None:
    """Raise UsageError where the command line and a scenario set one option: a variant would not vary it, or would not
    be what the command line asks for.
    """
    for scenario in scenarios:
        if double := [name for name in scenario.options if name in options]:
            name = double[0]
            raise UsageError(
                f"-o {name}={options[name]}: scenario {scenario.name} sets options.{name}: {scenario.options[name]!r}",
                hint="leave one of them out; --only narrows which scenarios and variants run",
            )


def one_variant(scenario: Scenario, name: str) -> Scenario:
    """The scenario of the variant `name`. Raises UsageError with the names that there are."""
    if name not in scenario.variants:
        known = ", ".join(f"{scenario.name}{VARIANT_MARK}{known}" for known in scenario.variants) or "none"
        raise UsageError(f"scenario {scenario.name} has no variant {name!r}", hint=f"its variants: {known}")
    return varied(scenario, name)


def variants_in_words(variants: Mapping[str, Variant]) -> str:
    """`, variants kv-fp8, t1`; empty where there are none."""
    return f", variants {', '.join(variants)}" if variants else ""


SCHEMA: Final = "specgate.scenario/v1"
SHIPPED = Path(__file__).parents[1] / "scenarios"
SCENARIOS = Inheritance("scenario", "extends", SHIPPED)


# ── files to scenarios ───────────────────────────────────────────────────────────────────────────────────────────────


def load_scenario(path: Path) -> Scenario:
    """Read the scenario of a file that holds one. Raises UsageError as `load_scenarios`, and where it holds several."""
    return _only(load_scenarios(path), str(path))


def load_scenarios(path: Path) -> list[Scenario]:
    """Read and check the scenarios of one file together with everything it extends: one, or one of each of its kinds.

    Raises UsageError that lists every problem.
    """
    return [replace(scenario_of(document), source_file=path) for document in by_kind(resolve(path))]


def by_kind(document: Document) -> list[Document]:
    """Split a document with `kinds` into one of each kind, named `KIND-STEM`. If it has a `kind`, it is that one alone.

    Raises UsageError where `kinds` is no mapping of kinds to mappings, or lacks the `kind`.
    """
    kinds = document.data.get("kinds")
    if kinds is None:
        return [document]
    known, chosen = get_args(RunKind), document.data.get("kind")
    if not isinstance(kinds, Mapping) or not kinds or not all(isinstance(own, Mapping) for own in kinds.values()):
        raise refusal(
            document, [Problem(("kinds",), f"a mapping was expected: {{{known[0]}: {{…}}, {known[1]}: {{…}}}}")]
        )
    if wrong := [Problem(("kinds", kind), f"not one of {', '.join(known)}") for kind in kinds if kind not in known]:
        raise refusal(document, wrong)
    if chosen is not None and chosen not in kinds:
        raise refusal(document, [Problem(("kind",), f"kinds has only {', '.join(kinds)}")])
    stem = document.path.stem
    if chosen is not None:
        return [_of_kind(document, str(chosen), stem)]
    return [_of_kind(document, kind, f"{kind}-{stem}") for kind in kinds]


def _of_kind(document: Document, kind: str, name: str) -> Document:
    """The document of one of its kinds, under this name. What the kind says counts over the rest of the file."""
    rest = {key: value for key, value in document.data.items() if key != "kinds"}
    own = document.data["kinds"]
    assert isinstance(own, Mapping)
    marks = {key[2:]: mark for key, mark in document.marks.items() if key[:2] == ("kinds", kind) and len(key) > 2}
    plain = replace(document, data=rest, marks={k: m for k, m in document.marks.items() if k[:1] != ("kinds",)})
    whole = replace(document, data={**own[kind], "kind": kind}, marks=marks).over(plain)
    return replace(whole, path=document.path.with_stem(name))


def scenario_of(document: Document) -> Scenario:
    """The scenario in a document that was merged with everything it extends; `document.path` names it.

    Raises UsageError that lists every problem.
    """
    named = {"name": document.path.stem, "question": document.head or ""}
    document = _with_lengths(document)
    scenario = parse(Scenario, document, SCHEMA, list(_title_problems(document)), named, other_keys=("extends",))
    if problems := [*contradictions(scenario), *_of_no_file(document)]:
        raise refusal(document, problems)
    scenario = replace(scenario, workload=_with_file(scenario.workload, document))
    if too_much := [Problem(key, why) for key, why in excesses(scenario)]:
        raise refusal(document, too_much)
    return scenario


def _with_lengths(document: Document) -> Document:
    """The document with `context: own` where its grid has no contexts."""
    grid = document.data.get("grid")
    if not isinstance(grid, Mapping) or "context" in grid:
        return document
    return replace(document, data={**document.data, "grid": {"context": "own", **grid}})


FILE_KEYS: Final = ("format", "chat", "min_tokens", "max_tokens", "sha256")
"""Keys of a workload that say something about its file."""


def _of_no_file(document: Document) -> Iterator[Problem]:
    """Yield a problem for each key that speaks of a file of prompts where there is none."""
    workload = document.data["workload"]
    if isinstance(workload, Mapping) and workload.get("file") is None:
        for key in FILE_KEYS:
            if key in workload:
                yield Problem(("workload", key), "it speaks of workload.file, and there is none")


def _with_file(workload: Workload, document: Document) -> Workload:
    """The workload with its file of prompts, which is relative to the YAML file that names it.

    Raises UsageError where the file of prompts cannot be read, has no known format, or is not the one whose SHA-256 is
    given.
    """
    if workload.file is None:
        return workload
    mark = document.where(("workload", "file"))
    path = Path(os.path.abspath(mark.file.parent / workload.file.expanduser()))
    try:
        changed = of_file(workload, path)
    except UsageError as error:
        raise UsageError(f"{mark.file}:{mark.line}: workload.file: {error.message}", hint=error.hint) from None
    if workload.sha256 not in (None, changed.sha256):
        raise refusal(document, [Problem(("workload", "sha256"), f"that of {path} is {changed.sha256}")])
    return changed


def of_file(workload: Workload, path: Path) -> Workload:
    """The workload with the prompts in the file `path`, which its hash and format fix.

    Raises UsageError where it is no file of prompts.
    """
    recognised = recognise(path, workload.format)
    return replace(workload, source="file", file=path, sha256=recognised.sha256, format=recognised.format)


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
    return sorted((s for stem in SCENARIOS.names() for s in _shipped(stem)), key=lambda s: s.name)


@cache
def _shipped(stem: str) -> tuple[Scenario, ...]:
    """Return the scenarios of a shipped file, read once per process: the default ones are chosen from all of them."""
    return tuple(load_scenarios(shipped_file(stem)))


def find(name_or_path: str) -> Scenario:
    """The shipped scenario with this name, or the one in this file; of `SCENARIO+VARIANT`, that variant alone.

    Raises UsageError with the nearest name, and where a file holds several.
    """
    plain, mark, variant = name_or_path.rpartition(VARIANT_MARK)
    if mark and not isfile(name_or_path):
        return one_variant(find(plain), variant)
    return _only(_named(name_or_path), name_or_path)


def _named(name_or_path: str) -> Sequence[Scenario]:
    """The scenarios of the shipped file or of the path with this name; of `KIND-STEM`, the one of that kind."""
    stems = SCENARIOS.names()
    if name_or_path in stems:
        return _shipped(name_or_path)
    stem = name_or_path.partition("-")[2]
    if result := [scenario for scenario in _shipped(stem) if scenario.name == name_or_path] if stem in stems else []:
        return result
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") or exists(path):
        return load_scenarios(path)
    names = dict.fromkeys(name for s in shipped() for name in (s.name, s.family))
    raise UsageError(
        f"no such scenario: {name_or_path!r}", hint=f"{nearest(name_or_path, names)}; or give a .yaml file"
    )


def _only(scenarios: Sequence[Scenario], name: str) -> Scenario:
    """The one scenario in `scenarios`. Raises UsageError for several, which `name` names together."""
    if len(scenarios) > 1:
        raise UsageError(
            f"{name} holds {len(scenarios)} scenarios", hint=f"name one: {', '.join(s.name for s in scenarios)}"
        )
    return scenarios[0]


def find_all(name_or_path: str, kind: RunKind | None = None) -> list[Scenario]:
    """Return what the name or file means, with all of its variants. Of a file with several kinds, only the one of
    `kind`, if that is not None. Raises UsageError with the nearest name.
    """
    plain, mark, variant = name_or_path.rpartition(VARIANT_MARK)
    if mark and not isfile(name_or_path):
        return [one_variant(scenario, variant) for scenario in _of_kind_or_all(_named(plain), kind)]
    return [v for scenario in _of_kind_or_all(_named(name_or_path), kind) for v in with_variants(scenario)]


def _of_kind_or_all(scenarios: Sequence[Scenario], kind: RunKind | None) -> Sequence[Scenario]:
    """The scenarios of `kind`; all of them if none is."""
    return [scenario for scenario in scenarios if scenario.kind == kind] or scenarios


# ── which ones run ───────────────────────────────────────────────────────────────────────────────────────────────────


def select(names: Sequence[str], only: str | None, kind: RunKind | None, machine: Machine) -> list[Scenario]:
    """The scenarios to run: those that `names` lists (names, files or families, also several separated by commas), or
    the default ones; each with its variants after it.

    The default ones are the shipped scenarios of `kind` whose `needs` is `machine`, unless they say `default: false`. A
    family means those of them that belong to it. `only` is a glob that narrows either choice. Raises UsageError where
    nothing is left or a name is wrong, and EnvironmentRefused where a named scenario needs a GPU and there is none.
    """
    listed = [n.strip() for text in names for n in text.split(",") if n.strip()]
    if names and not listed:
        raise UsageError(f"--scenario {names[0]!r}: names none", hint="leave it out to measure what runs by default")
    if listed:
        chosen = [s for n in listed for s in _family(n, kind, machine) or find_all(n, kind)]
    else:
        chosen = [v for s in shipped() if s.default and s.needs == machine for v in with_variants(s)]
    if kind and listed:
        _check_kind(chosen, kind)
    _check_machine(chosen, machine)
    chosen = [s for s in chosen if kind in (None, s.kind)]
    selected = {s.name: s for s in chosen if fnmatchcase(s.name, only or "*")}
    if len({(s.name, s.source_file) for s in chosen}) > len({s.name for s in chosen}):
        raise UsageError("two scenario files have one name: " + ", ".join(str(s.source_file) for s in chosen))
    if not selected:
        raise UsageError(f"--only {only}: no scenario left", hint=f"it narrows: {', '.join(s.name for s in chosen)}")
    return list(selected.values())


def _family(name: str, kind: RunKind | None, machine: Machine) -> list[Scenario]:
    """The default scenarios of the family `name`, with their variants: those for this machine, if there are any; [] if
    a scenario or file has the name.
    """
    if name in SCENARIOS.names() or isfile(name):
        return []
    family = [s for s in shipped() if s.family == name and s.default]
    here = [s for s in family if s.needs == machine] or family
    return [v for s in _of_kind_or_all(here, kind) for v in with_variants(s)]


def _check_kind(chosen: Sequence[Scenario], kind: RunKind) -> None:
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
    budget_s: float | None = None,
    perf_mode: bool | None = None,
    baseline: bool = True,
) -> Scenario:
    """`scenario` with the settings of a command line. Raises UsageError where the orders of the roles would no longer
    balance, or where the numbers are too large.

    With `measurement_runs` a point gets so many rounds, and with `budget_s` it is measured until it is decided.
    """
    schedule = scenario.schedule
    if measurement_runs is not None and budget_s is not None:
        raise UsageError("--budget with --measurement-runs", hint="a point ends by its time or after so many rounds")
    if warmup_runs is not None:
        schedule = replace(schedule, warmup_rounds=warmup_runs)
    if measurement_runs is not None:
        schedule = replace(schedule, rounds=measurement_runs, until=None, budget_s=None)
    if budget_s is not None:
        schedule = replace(schedule, until="decided", budget_s=budget_s)
    if schedule.rounds < 1 or schedule.warmup_rounds < 0:
        runs = f"{schedule.rounds} measurement runs, {schedule.warmup_rounds} warm-up runs"
        raise UsageError(f"{scenario.name}: {runs}", hint="at least 1 and 0")
    if max(schedule.rounds, schedule.warmup_rounds) > REPEATS:
        runs = f"{schedule.rounds} measurement runs, {schedule.warmup_rounds} warm-up runs"
        raise UsageError(f"{scenario.name}: {runs}", hint=f"at most {REPEATS} of each")
    if perf_mode is not None:
        scenario = replace(scenario, perf_mode=perf_mode, perf_mode_off=not perf_mode)
    changed = replace(scenario, schedule=schedule, baseline=scenario.baseline and baseline)
    if changed.rounds * scenario.workload.prompt_sets % 2:
        raise UsageError(
            f"{scenario.name}: {scenario.workload.prompt_sets} prompt sets × {schedule.rounds} measurement runs is odd",
            hint="the roles run in two orders that must balance: ask for an even number of runs",
        )
    check_plan([changed])
    return changed


def dump(scenario: Scenario) -> str:
    """The scenario as one complete YAML file that inherits nothing. `load_scenario` reads an equal scenario back."""
    plain = to_document(Scenario, scenario)
    if scenario.workload.file is None:
        plain["workload"] = {key: value for key, value in plain["workload"].items() if key not in FILE_KEYS}
    if not scenario.grid.context:
        plain["grid"] = {"context": "own", **plain["grid"]}
    return f"# {scenario.question}\n{dump_yaml({'schema': SCHEMA, **plain}, flow=None, width=100)}"
