"""A question asked on the command line: `--context 8K,32K --batch 1,4 --spec 2,3,5`, without a YAML file.

With `--scenario` these options take the place of what the scenario says; without one they are put to a small scenario
for this machine. Either way another question results. So it gets a name of its own, which begins with `own-`: no
scenario that ships has such a name, so no rule of a policy and no count of green runs takes it for one of them. What it
measures is written down in its name and, whole, in the run's config.resolved.yaml.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from specgate.analysis.requests.joint_decoding import LEAST_ARRIVALS
from specgate.contract import VARIANT_MARK, Machine, PairRef, Rope, RunKind, Scenario
from specgate.contract.scenarios.workload import FormatName
from specgate.errors import UsageError
from specgate.files.json_text import shown
from specgate.files.yamlfile import Mark, dump_yaml, loads
from specgate.pairs.resolve import DEMO, target_limits
from specgate.planning.contradictions import MIN_PROMPTS
from specgate.planning.plan import points_of, positions_needed
from specgate.planning.scenario import FILE_KEYS, dump, resolve, scenario_of, shipped_file

PREFIX: Final = "own-"
LONGEST_NAME: Final = 80
"""Characters. A longer name ends in a digest: it is part of file names."""
COMMAND_LINE: Final = Path("command line")
MOST_SETS: Final = 8
"""Prompt sets of a question that does not say how many: enough for their differences to be told from noise."""
MOST_PROMPTS: Final = 64
"""Prompts of such a question, if its texts are those that come with specgate."""
LOAD: Final = {"requests": 2, "per_client": 2}
"""Requests of a block under load: as many of each client, so that a block lasts about as long at every level."""
OPEN_REQUESTS: Final = 32
"""Requests of a block at a rate, where nothing says for how long they come."""
SEARCH_REQUESTS: Final = 16
"""Requests of a block whose tail latencies are asked about: 128 in 8 blocks bound a 90th percentile."""
SEARCHED: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Clients of a search that names no levels. Most of them are not measured."""
UP_TO: Final = (1, 2, 4, 8, 16, 32)
"""Clients of a load that names no levels. Those above the first at which speculation costs are not measured."""
ARRIVALS: Final = ("poisson", "constant", "gamma", "trace")
LIMITS: Final = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2e": "e2e_ms", "share": "share"}
"""Name of a limit on the command line → its key in a scenario file."""


@dataclass(frozen=True, slots=True)
class Question:
    """Settings of a command line that replace those of a scenario. None: the scenario's own.

    `context` `own`: prompts from the file `prompts` keep their lengths. Each other field is the key of a scenario with
    that name, but for `all_prompts`: measure as many prompt sets as the file has prompts for.
    """

    context: tuple[int, ...] | Literal["own"] | None = None
    batch: tuple[int, ...] | None = None
    spec: tuple[int, ...] | None = None
    prompts: Path | None = None
    format: FormatName | None = None
    chat: bool | None = None
    prompt_sets: int | None = None
    all_prompts: bool | None = None
    shared_prefix: int | None = None
    steps: int | None = None
    new_tokens: int | None = None
    rate: tuple[float, ...] | None = None
    arrivals: str | None = None
    duration: float | None = None
    ramp: float | None = None
    goodput: str | None = None
    search: bool | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, key) is not None for key in self.__dataclass_fields__)

    def options(self) -> Iterator[str]:
        """The options that were given."""
        return (OPTION.get(key) or "--" + key.replace("_", "-") for key in self._given())

    def words(self) -> Iterator[str]:
        """The options that were given and their values, as words of a command line."""
        for key, option in zip(self._given(), self.options(), strict=True):
            value = getattr(self, key)
            if isinstance(value, bool):
                yield option if value else option.replace("--", "--no-", 1)
            else:
                yield from (option, ",".join(map(str, value)) if isinstance(value, tuple) else str(value))

    def _given(self) -> Iterator[str]:
        return (key for key in self.__dataclass_fields__ if getattr(self, key) is not None)


OPTION: Final = {"all_prompts": "--all", "search": "--find-max-goodput"}
"""Field → its option, where that has another name."""
OF_REQUESTS: Final = ("new_tokens", "goodput")
"""Fields that only whole requests have."""
OF_LOAD: Final = ("rate", "arrivals", "duration", "ramp", "search")
"""Fields that only a load has."""
NOTHING: Final = Question()


def asked(question: Question, chosen: Sequence[Scenario] | None, kind: RunKind, machine: Machine) -> list[Scenario]:
    """The scenarios that a command line means. `chosen`: those that it names, or None where it names none.

    Raises UsageError where the question cannot be put.
    """
    for option, value in (("--format", question.format), ("--chat", question.chat)):
        if value is not None and question.prompts is None:
            raise UsageError(f"{option} without --prompts", hint="it says how the file of prompts is read")
    if question.all_prompts and (question.prompts is None or question.prompt_sets is not None):
        wrong = "without --prompts" if question.prompts is None else "with --prompt-sets"
        raise UsageError(f"--all {wrong}", hint="it measures all prompts of a file")
    of_load = Question(**{key: getattr(question, key) for key in OF_LOAD})
    if kind != "load" and of_load:
        raise UsageError(f"{next(of_load.options())} with {kind}", hint="specgate load puts a server under load")
    if chosen is None:
        return [changed(small_scenario(kind, machine, question), question, None)]
    return [changed_or_same(s, question) for s in chosen] if question else list(chosen)


def changed_or_same(scenario: Scenario, question: Question) -> Scenario:
    """The scenario with what the question asks in its place; the scenario itself where that changes nothing."""
    result = changed(scenario, question, scenario.name)
    named = replace(result, name=scenario.name, question=scenario.question, source_file=scenario.source_file)
    return scenario if named == scenario else result


def small_scenario(kind: RunKind, machine: Machine, question: Question) -> dict[str, Any]:
    """Return the content of a scenario file for this machine, with short blocks, that is measured until it is decided.

    Requests of a batch are so long that a server decodes all of them together for `LEAST_ARRIVALS` steps, even if every
    draft is accepted. A level of load gets as few prompts as are allowed, and two rounds; levels end where speculation
    costs.
    """
    base: dict[str, Any] = dict(resolve(shipped_file(f"base/{machine}")).data)
    batches = question.batch or (1,)
    sets = -(-MIN_PROMPTS // (min(batches) * (LOAD["per_client"] if kind == "load" else 1)))
    if kind != "load":
        sets = max(sets, 2, min(MOST_SETS, MOST_PROMPTS // max(batches)))
    together = (LEAST_ARRIVALS + 2) * (max(question.spec or (3,)) + 1) if max(batches) > 1 else 0
    budgets: dict[RunKind, dict[str, Any]] = {
        "micro": {"steps": max(24 if machine == "cpu" else 128, together)},
        "full": {"new_tokens": 256, "ignore_eos": False},
        "load": {"new_tokens": 32 if machine == "cpu" else 128},
    }
    small = {
        **base,
        "kind": kind,
        "family": "own",
        "grid": {"context": [512] if machine == "cpu" else [8192], "batch": [1], "spec": [3]},
        "workload": {**base["workload"], "prompt_sets": sets + sets % 2},
        "budget": budgets[kind],
        "schedule": {"rounds": 2, "warmup_rounds": 2, "until": "decided"},
        "default": False,
    }
    if kind == "load":
        context = [256] if machine == "cpu" else [1024]
        levels = list(SEARCHED if question.search and question.rate is None else UP_TO)
        load = {**LOAD, "search": "break-even"}
        small |= {"grid": {"context": context, "batch": levels, "spec": [3]}, "load": load, "perf_mode": False}
        small["schedule"] = base["schedule"]
    return small


def changed(before: Scenario | dict[str, Any], question: Question, name: str | None) -> Scenario:
    """The scenario with what the question asks in its place, under a name of its own.

    Raises UsageError for everything that a scenario file would be refused for.
    """
    data: dict[str, Any] = before if isinstance(before, dict) else dict(loads(dump(before), COMMAND_LINE).data)
    grid, workload, budget = dict(data["grid"]), dict(data["workload"]), dict(data["budget"])
    for axis in ("batch", "spec"):
        if (values := getattr(question, axis)) is not None:
            grid[axis] = list(values)
    if question.context is not None:
        grid["context"] = "own" if question.context == "own" else list(question.context)
    elif question.prompts is not None:
        grid["context"] = "own"
    if question.prompts is not None:
        workload = {key: value for key, value in workload.items() if key not in FILE_KEYS}
        workload |= {"file": os.path.abspath(question.prompts.expanduser()), "format": question.format or "auto"}
    for key in ("chat", "prompt_sets", "shared_prefix"):
        if (value := getattr(question, key)) is not None:
            workload[key] = value
    if question.steps is not None or question.new_tokens is not None:
        limits = {"steps": question.steps, "new_tokens": question.new_tokens}
        budget = {**{k: v for k, v in budget.items() if k == "ignore_eos"}, **{k: v for k, v in limits.items() if v}}
    whole = {**data, "grid": grid, "workload": workload, "budget": budget}
    if question.goodput is not None:
        whole["goodput"] = limits_in(question.goodput)
    if data["kind"] == "load":
        whole["load"] = load_of(question, data["load"])
        if ("rates" in whole["load"] or whole["load"].get("arrivals") == "trace") and question.batch is None:
            grid["batch"] = grid["batch"][-1:]  # the most that a server started for this decodes together
    document = loads(f"# {in_words(question, name)}\n{dump_yaml(whole)}", COMMAND_LINE)
    marks = {key: Mark(COMMAND_LINE, 1) for key in document.marks}
    plain, mark, variant = (name or "").partition(VARIANT_MARK)
    own = scenario_of(replace(document, path=Path(f"{named(question, plain or None)}.yaml"), marks=marks))
    return replace(own, name=f"{own.name}{mark}{variant}")


def load_of(question: Question, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the load of a scenario file with what the question asks in its place. Raises UsageError for arrivals of no
    known kind, and for a search without limits.
    """
    load = dict(before)
    if question.rate is not None:
        load["rates"] = list(question.rate)
    if question.arrivals is not None:
        hint = "poisson, constant, gamma:0.5 (its shape: below 1 in bunches), or trace"
        load["arrivals"], colon, shape = question.arrivals.partition(":")
        if load["arrivals"] not in ARRIVALS or bool(colon) != (load["arrivals"] == "gamma"):
            raise UsageError(f"--arrivals {shown(question.arrivals)}: no such kind", hint=hint)
        if colon:
            load["burstiness"] = number_in(shape, f"--arrivals {question.arrivals}", hint)
    if ("rates" in load or load.get("arrivals") == "trace") and "per_client" in load:
        del load["per_client"]
        load["requests"] = max(load["requests"], OPEN_REQUESTS)
    for key, value in (("duration_s", question.duration), ("ramp_s", question.ramp)):
        if value is not None:
            load[key] = value
    if question.batch is not None or question.rate is not None:
        load.pop("search", None)  # levels that were named are all measured
    if question.search:
        load["search"] = "goodput"
        load["requests"] = max(load["requests"], SEARCH_REQUESTS)
    return load


def limits_in(text: str) -> dict[str, float]:
    """Return the limits in `ttft=500,tpot=30,share=0.95` as a scenario file has them. Raises UsageError for others."""
    limits = {}
    hint = f"{', '.join(LIMITS)}: such as ttft=500,tpot=30 in milliseconds, and share=0.9 of the requests"
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in LIMITS:
            raise UsageError(f"--goodput {text}: there is no limit {shown(name)}", hint=hint)
        limits[LIMITS[name]] = number_in(value, f"--goodput {text}: {name}", hint)
    return limits


def number_in(text: str, where: str, hint: str) -> float:
    """Return the number in `text`. Raises UsageError with this `hint`, which names `where` it stands, for anything
    else.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{where}: {shown(text)}: a number was expected", hint=hint)
    return number


# ── its name ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def named(question: Question, name: str | None) -> str:
    """`own-`, the scenario that was changed, and what was asked: `own-cpu-1k-single.c512_1024.b1.s2_3`."""
    whole = PREFIX + ".".join(part for part in (name, *abbreviated(question)) if part)
    if len(whole) <= LONGEST_NAME:
        return whole
    return f"{whole[: LONGEST_NAME - 9]}.{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def abbreviated(question: Question) -> Iterator[str]:
    """Yield the settings of `question` in the characters that a name may have."""
    if question.prompts is not None:
        stem = question.prompts.name.partition(".")[0]
        yield "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in stem)[:24] or "prompts"
        if question.format is not None:
            yield question.format.replace("-", "_")
        if question.chat is not None:
            yield "chat" if question.chat else "no_chat"
    for letter, values in (("c", question.context), ("b", question.batch), ("s", question.spec)):
        if values is not None:
            yield letter + (values if isinstance(values, str) else "_".join(map(str, values)))
    if question.all_prompts:
        yield "all"
    numbers = {"p": question.prompt_sets, "x": question.shared_prefix, "st": question.steps, "n": question.new_tokens}
    yield from (f"{letter}{number}" for letter, number in numbers.items() if number is not None)
    if question.rate is not None:
        yield "r" + "_".join(f"{rate:g}" for rate in question.rate)
    for letter, text in (("d", question.duration), ("up", question.ramp)):
        if text is not None:
            yield f"{letter}{text:g}"
    for word in filter(None, (question.arrivals, question.goodput, "search" if question.search else None)):
        yield re.sub(r"[^a-z0-9]+", "_", word.lower())


def in_words(question: Question, name: str | None) -> str:
    """The question as the first line of a scenario file."""
    what = ", ".join(
        f"{label} {'/'.join(map(str, values)) if isinstance(values, tuple) else values}"
        for label, values in (
            ("context", question.context),
            ("batch", question.batch),
            ("spec", question.spec),
            ("prompts from", question.prompts and question.prompts.name),
        )
        if values is not None
    )
    like = f"as in {name}, but for what the command line says" if name else "asked on the command line"
    printable = "".join(c if c.isprintable() else "?" for c in what)
    return f"What does speculation gain here{': ' + printable if printable else ''} ({like})?"


# ── longer than the demo pair ────────────────────────────────────────────────────────────────────────────────────────


def stretched(scenario: Scenario, pair: PairRef) -> Scenario:
    """The scenario with as much RoPE scaling as the demo target needs for its longest context, as in the shipped ones.

    Any other pair is taken as it is: whether it may be stretched is for its owner to say.
    """
    if pair.name != DEMO or scenario.rope is not None or not scenario.grid.context:
        return scenario
    limit, _ = target_limits(pair, None)
    if limit is None:
        return scenario
    need = max(positions_needed(scenario, point) for point in points_of(scenario, ""))
    return replace(scenario, rope=Rope("yarn", float(math.ceil(need / limit)))) if need > limit else scenario
