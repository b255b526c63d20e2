"""`specgate micro`, `specgate full` and `specgate load`: measure an engine and judge it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specgate.commands.fleet import FLEET, take_machines
from specgate.commands.numbers import (
    BATCH_SIZES,
    BLOCK_STEPS,
    CONTEXTS,
    DRAFT_LENGTHS,
    NEW_TOKENS,
    PREFIX,
    RUNS,
    WARMUP_RUNS,
    Axis,
    joined,
)
from specgate.errors import UsageError

if TYPE_CHECKING:
    from specgate.contract import RunKind
    from specgate.planning.ad_hoc import Question
    from specgate.planning.request import Request

_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--backend",
        metavar="NAME",
        help="Engine to measure, of `specgate machine backends` (default: the best one usable here).",
    ),
    click.option(
        "--scenario", "scenarios", multiple=True, metavar="FILE|NAME", help="Scenario to run; may be repeated."
    ),
    click.option("--only", metavar="GLOB", help="Only scenarios whose name matches."),
    click.option(
        "--policy",
        metavar="FILE|NAME",
        help="Gates and their numbers (default: by what is measured; `specgate policy`).",
    ),
    click.option(
        "--pair", metavar="NAME|DIR", help="Pair to measure: a name, or a folder that holds target and draft."
    ),
    click.option("--target", type=click.Path(path_type=Path), metavar="DIR", help="Target checkpoint (HF folder)."),
    click.option(
        "--draft", type=click.Path(path_type=Path), metavar="DIR", help="EAGLE-3 draft checkpoint (HF folder)."
    ),
    click.option(
        "--tokenizer",
        type=click.Path(path_type=Path),
        metavar="FILE|DIR",
        help="Tokenizer of a running server (-o url=URL), in the place of a pair.",
    ),
    click.option("--warmup-runs", type=WARMUP_RUNS, metavar="N", help="Warm-up rounds (overrides the scenario)."),
    click.option(
        "--measurement-runs",
        type=RUNS,
        metavar="N",
        help="Rounds per prompt set (overrides the scenario).",
    ),
    click.option(
        "--perf-mode/--no-perf-mode",
        default=None,
        help="Check the PERF_MODE invariants or not (overrides the scenario).",
    ),
    click.option(
        "--no-baseline",
        "baseline",
        flag_value=False,
        default=True,
        help="Measure a server with speculation on by itself: no speed-up is claimed.",
    ),
    click.option(
        "--option",
        "-o",
        "options",
        multiple=True,
        metavar="KEY=VALUE",
        help="Back-end option, as url=URL; may be repeated.",
    ),
    click.option(
        "--out", type=click.Path(path_type=Path), default=Path("runs"), metavar="DIR", help="Parent of run folders."
    ),
    click.option("--resume", type=click.Path(path_type=Path), metavar="RUN", help="Continue an unfinished run folder."),
    click.option(
        "--archive",
        "archives",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        multiple=True,
        metavar="DIR",
        help="Folder that earlier run folders were moved to; may be repeated.",
    ),
    click.option("--plain", is_flag=True, help="Plain lines instead of tables and progress bars."),
    click.option("--debug", is_flag=True, help="Show tracebacks."),
)


def axis(name: str, numbers: Axis, metavar: str, what: str) -> Callable[[Any], Any]:
    """An option with a list of numbers. Given twice it has both: elsewhere such options are repeated."""
    return click.option(name, type=numbers, multiple=True, callback=joined, metavar=metavar, help=what)


_QUESTION: tuple[Callable[[Any], Any], ...] = (
    axis("--context", CONTEXTS, "N,…", "Prompt lengths, e.g. 8K,32K; with a file: classes."),
    axis("--batch", BATCH_SIZES, "N,…", "Prompts decoded together, e.g. 1,4."),
    axis("--spec", DRAFT_LENGTHS, "K,…", "Draft tokens per cycle, e.g. 2,3,5."),
    click.option(
        "--prompts",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Your own prompts: JSON lines, or a data set's local copy.",
    ),
    click.option("--format", "format_", metavar="NAME", help="How FILE is read (default: what its first line tells)."),
    click.option("--prompt-sets", type=RUNS, metavar="N", help="Sets of prompts that are measured."),
    click.option("--shared-prefix", type=PREFIX, metavar="N", help="All prompts of a set share their first N tokens."),
    click.option("--steps", type=BLOCK_STEPS, metavar="N", help="Engine steps per block (micro)."),
    click.option("--new-tokens", type=NEW_TOKENS, metavar="N", help="Tokens per request (full)."),
)
"""What is asked without a YAML file, or in the place of what a scenario says (`planning.ad_hoc.Question`)."""


def question_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the options of a question, which `take_question` takes out of its keyword arguments."""
    for option in reversed(_QUESTION):
        command = option(command)
    return command


def take_question(options: dict[str, Any]) -> Question:
    """The question in the options of a command line, which lose it."""
    from specgate.planning.ad_hoc import Question

    keys = ("context", "batch", "spec", "prompts", "prompt_sets", "shared_prefix", "steps", "new_tokens")
    return Question(format=options.pop("format_"), **{key: options.pop(key) for key in keys})


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def fleet_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(FLEET):
        command = option(command)
    return command


@click.command(short_help="Measure a fixed number of engine steps per block.")
@question_options
@run_options
@fleet_options
def micro(**options: Any) -> None:
    """Measure a fixed number of engine steps per block, and judge them.

    These are the gates that must be green before `specgate full` may run. Without --scenario, all micro scenarios meant
    for this machine run. With --context, --batch, --spec, --prompts and the like, a question of your own is measured
    instead, or a scenario with these settings.
    """
    _measure("micro", options)


@click.command(short_help="Measure whole requests, once the micro gates are green.")
@question_options
@run_options
@fleet_options
@click.option(
    "--override-order", metavar="REASON", help="Begin although the micro gates are not green; REASON is recorded."
)
@click.option("--status", is_flag=True, help="Only say whether the run could begin, and which micro runs are missing.")
@click.option("--json", "as_json", is_flag=True, help="With --status: one JSON object.")
def full(status: bool, as_json: bool, **options: Any) -> None:
    """Measure whole requests, prefill included, and judge them.

    The run is refused (exit 5) until the policy's micro gates have been green three times in a row; --status says what
    is missing. With --override-order it begins nevertheless, and the ledger and the first line of every report state
    the REASON.
    """
    if as_json and not status:
        raise UsageError("--json without --status", hint="a run writes run.json into its folder")
    if status:
        from specgate.commands.status import show_status

        take_machines(options)
        show_status(request_of("full", options), as_json=as_json)
    else:
        _measure("full", options)


@click.command(short_help="Put a server under load: up to which concurrency does speculation pay?")
@run_options
def load(**options: Any) -> None:
    """Put a server under load, at one level after the other, with and without speculation, and judge it.

    Throughput, latency percentiles, goodput, and the concurrency up to which speculation pays, with its interval.
    Without --scenario, the load scenarios meant for this machine run; the default policy is `load`. No micro gates come
    before it.
    """
    _measure("load", options)


def _measure(kind: RunKind, options: dict[str, Any]) -> None:
    machines = take_machines(options) if kind != "load" else None
    request = request_of(kind, options)
    if machines is not None:
        from specgate.fleet.session import carry_out as carry_out_on

        sys.exit(carry_out_on(request, *machines))
    from specgate.run.session import carry_out_each

    sys.exit(carry_out_each(request))


def request_of(kind: RunKind, options: dict[str, Any]) -> Request:
    """What a command line with the options of a run asks for. Raises UsageError for an empty reason."""
    from specgate.planning.request import Request

    reason = options.get("override_order")
    if reason is not None and not reason.strip():
        raise UsageError("--override-order without a reason", hint="say why: it stands in the ledger and every report")
    plain = options.pop("plain") or not (sys.stdout and sys.stdout.isatty())
    options.pop("debug")
    if "format_" in options:
        options["question"] = take_question(options)
    options["options"] = dict(key_value(o) for o in options["options"])
    return Request(kind=kind, argv=tuple(sys.argv[1:]), plain=plain, **options)


def key_value(text: str, option: str = "--option") -> tuple[str, str]:
    """`KEY=VALUE` → (KEY, VALUE). Raises UsageError for anything else, which names the `option` that has it."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"{option} {text!r}", hint="write it as KEY=VALUE")
    return key, value
