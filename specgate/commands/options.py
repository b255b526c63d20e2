"""Options that several commands take, each declared once. A command that one makes no sense for says what to use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from specgate.commands.numbers import (
    BATCH_SIZES,
    BLOCK_STEPS,
    BUDGET,
    CONTEXT,
    CONTEXTS,
    DRAFT_LENGTHS,
    NEW_TOKENS,
    PREFIX,
    RATES,
    RUNS,
    WARMUP_RUNS,
    Axis,
    Rates,
    joined,
)
from specgate.errors import UsageError

if TYPE_CHECKING:
    from specgate.planning.ad_hoc import Question
    from specgate.planning.request import Request

Option = Callable[[Any], Any]
PATH: Final = click.Path(path_type=Path)


def token_ids(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """`1,2,3` as numbers. Raises UsageError for anything else."""
    if text is None:
        return None
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise UsageError(f"--prompt-ids {text[:80]!r}", hint="token ids with commas between them: 1,2,3") from None


def pairs(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Several `KEY=VALUE` as pairs. Raises UsageError for anything else."""
    return tuple(key_value(text, option.opts[0]) for text in texts)


def plain_here(context: click.Context, option: click.Parameter, plain: bool) -> bool:
    """True if plain lines are asked for, or if the output is not a terminal."""
    return plain or not (sys.stdout and sys.stdout.isatty())


def plain_option(what: str) -> Option:
    """Return the option for plain lines, which are also what anything but a terminal gets."""
    return click.option("--plain", is_flag=True, callback=plain_here, help=what)


def option(name: str, *declared: str, **settings: Any) -> tuple[str, Option]:
    """Return an option beside its name."""
    return name.partition("/")[0], click.option(name, *declared, **settings)


def axis(name: str, numbers: Axis | Rates, metavar: str, what: str) -> tuple[str, Option]:
    """Return one with a list of numbers. Given twice it has both, as other options that are repeated have."""
    return option(name, type=numbers, multiple=True, callback=joined, metavar=metavar, help=what)


SIBLINGS: Final[Mapping[str, Option]] = dict((
    option("--option", "-o", "options", multiple=True, callback=lambda *given: dict(pairs(*given)), metavar="KEY=VALUE",
           help="Back-end option, as stall_s=90; may be repeated."),
    option("--target", type=PATH, metavar="DIR", help="Target checkpoint (HF folder)."),
    option("--draft", type=PATH, metavar="DIR", help="EAGLE-3 draft checkpoint (HF folder)."),
    option("--pair", metavar="NAME|DIR", help="Pair: a name, or a folder with target and draft."),
    option("--tokenizer", type=PATH, metavar="FILE|DIR",
           help="Tokenizer of a running server, in the place of a pair."),
    option("--prompts", type=PATH, metavar="FILE", help="Your prompts: JSON lines, plain lines, a data set."),
    option("--format", "format_", metavar="NAME", help="How FILE is read (default: what its first line tells)."),
    axis("--context", CONTEXTS, "N,…", "Prompt lengths, as 8K,32K; with a file: classes."),
    axis("--batch", BATCH_SIZES, "N,…", "Prompts decoded together, as 1,4; of load: clients."),
    axis("--spec", DRAFT_LENGTHS, "K,…", "Draft tokens per step, as 2,3,5."),
    option("--policy", metavar="FILE|NAME", help="Gates and floors (default: by what is measured)."),
))  # fmt: skip
"""Options that smoke, micro, full, load, ab and `scenarios plan` share."""
LOOSE: Final[Mapping[str, Option]] = dict((
    option("--backend", metavar="NAME", help="Engine (default: the best one usable here)."),
    option("--scenario", "scenarios", multiple=True, metavar="FILE|NAME", help="Scenario; may be repeated."),
    option("--only", metavar="GLOB", help="Only scenarios whose name matches."),
    option("--chat/--no-chat", default=None,
           help="Texts of FILE become chats, or never do (default: questions do)."),
    option("--prompt-sets", type=RUNS, metavar="N", help="Sets of prompts that are measured."),
    option("--all", "all_prompts", flag_value=True, default=None, help="All prompts of FILE (default: up to 8 sets)."),
    option("--shared-prefix", type=PREFIX, metavar="N", help="All prompts of a set share their first N tokens."),
    axis("--rate", RATES, "R,…", "Requests per second, a level each, in the place of clients."),
    option("--arrivals", metavar="KIND",
           help="At a rate: poisson (default), constant, gamma:SHAPE, trace (of --prompts)."),
    option("--duration", type=BUDGET, metavar="TIME", help="Send requests for so long per block."),
    option("--ramp", type=BUDGET, metavar="TIME", help="Let the load rise for so long at first."),
    option("--goodput", metavar="LIMITS",
           help="What a request must keep to: ttft=500,tpot=30,e2e=9000 (ms),share=0.9."),
    option("--find-max-goodput", "search", flag_value=True, default=None,
           help="Search for the greatest load at which --goodput holds."),
    option("--warmup-runs", type=WARMUP_RUNS, metavar="N", help="Warm-up rounds (in the scenario's place)."),
    option("--measurement-runs", type=RUNS, metavar="N", help="Rounds per prompt set (in the scenario's place)."),
    option("--budget", type=BUDGET, metavar="TIME",
           help="Measure each point (or level) until it is decided, for at most 90s, 5m, 2h of blocks."),
    option("--perf-mode/--no-perf-mode", default=None,
           help="Check the PERF_MODE invariants or not (in the scenario's place)."),
    option("--steps", type=BLOCK_STEPS, metavar="N", help="Engine steps per block (micro)."),
    option("--new-tokens", type=NEW_TOKENS, metavar="N", help="Tokens per request (full, load)."),
    option("--no-baseline", "baseline", flag_value=False, default=True,
           help="Measure a server with speculation on by itself: no speed-up is claimed."),
    option("--isolate", is_flag=True, help="Run engines in a sandbox (bubblewrap)."),
    option("--out", type=PATH, default=Path("runs"), metavar="DIR", help="Parent of run folders."),
    ("--plain", plain_option("Plain lines instead of tables and progress bars.")),
    option("--debug", is_flag=True, expose_value=False, help="Show tracebacks."),
    option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]),
           help="Dtype (default: bfloat16 with a GPU, else float32)."),
    option("--prompt", "text", metavar="TEXT", help="Prompt (default: a text that comes along)."),
    option("--prompt-ids", "ids", metavar="ID,ID…", callback=token_ids, help="Prompt as token ids."),
    ("--length", click.option("--context", type=CONTEXT, metavar="N",
                              help="Exact length of the prompt, of the texts that scenarios use.")),
))  # fmt: skip
"""Options that some commands share."""
QUESTION: Final = ("--chat", "--prompt-sets", "--all", "--shared-prefix", "--steps", "--new-tokens")
"""Options that with those of `SIBLINGS` say what is measured in the place of a scenario."""
RUNNING: Final = ("--warmup-runs", "--measurement-runs", "--budget", "--perf-mode", "--no-baseline")
"""Options of a run, and of its plan, that take the place of what scenarios say of their rounds and roles."""
LOAD: Final = ("--rate", "--arrivals", "--duration", "--ramp", "--goodput", "--find-max-goodput")
"""Those of a server under load alone."""


def take(*names: str, refused: Mapping[str, str] | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of these names, in this order.

    `refused`: options that the command has no use for → what to use in their place. They are not shown in its help.
    """
    options = [{**SIBLINGS, **LOOSE}[name] for name in names]
    options += [refusing(name, instead) for name, instead in (refused or {}).items()]

    def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return with_options


def refusing(name: str, instead: str) -> Option:
    """Return a hidden option that raises UsageError where it is given."""

    def refuse(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> None:
        if value:
            raise UsageError(f"{name} {value[0]}: not an option of {ctx.command_path}", hint=instead)

    return click.option(name, multiple=True, hidden=True, expose_value=False, callback=refuse)


def take_question(options: dict[str, Any]) -> Question:
    """Return the question in the options of a command line, which lose it."""
    from specgate.planning.ad_hoc import Question

    keys = set(Question.__dataclass_fields__) - {"format"}
    return Question(format=options.pop("format_"), **{key: options.pop(key, None) for key in keys})


def key_value(text: str, option: str = "--option") -> tuple[str, str]:
    """`KEY=VALUE` → (KEY, VALUE). Raises UsageError for anything else, which names the `option` that has it."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"{option} {text!r}", hint="write it as KEY=VALUE")
    return key, value


def request_for_engine(options: dict[str, Any], out: Path = Path()) -> Request:
    """Take the options that name an engine and its pair out of `options`, and return the request that they make."""
    from specgate.planning.request import Request

    named = {name: options.pop(name) for name in ("backend", "options", "pair", "target", "draft", "tokenizer")}
    return Request(kind="micro", argv=tuple(sys.argv[1:]), plain=True, out=out, **named)
