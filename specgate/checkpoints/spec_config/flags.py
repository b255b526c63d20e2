"""Flags of a command line and keys of a mapping, read by a table of what is known. Errors name key and value."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import takewhile
from typing import Final

from specgate.checkpoints.spec_config.tables import Kind, Known, Table, order, window
from specgate.errors import UsageError
from specgate.files.json_text import parse_json, shown

NEEDED: Final[Mapping[Kind, str]] = {
    "count": "an integer of at least 0",
    "number": "a number",
    "text": "a text",
    "switch": "true or false",
    "flag": "true or false",
    "off": "true or false",
    "object": "an object",
    "setting": "an object",
    "list": "a list",
    "any": "a value",
}
PLACEHOLDER: Final = re.compile(r"\$\{?\w|\$\(|\{\{|\}\}|^<[^<>]+>$|%\w+%")
"""A variable of a shell, of Kubernetes, of a template; or `<MODEL>`."""
VARIABLE_IN_JSON: Final = re.compile(r"[:,\[]\s*(\$\{?\w|\{\{)")
"""A variable in the place of a value of JSON."""
UNTYPED: Final = object()
"""Stands for a value of the wrong type."""
SPECULATIVE: Final = re.compile(
    r"spec(?!ial)|draft|eagle|ngram|mtp|medusa|lookahead|dflash|dspark|nextn", re.IGNORECASE
)
"""A name that is about speculation."""
PROGRAM: Final = re.compile(r"(^|[/.])(serve|api_server|launch_server|llama-\w+|trtllm-(serve|bench))(\.exe)?$")
WORDS: Final = re.compile(r"\$(?:[@*]|\w+|\{\w+(?:\[[@*]\])?\})")
"""A word that is a variable of a shell, and nothing else."""
VARIABLE_OF_ENGINE: Final = re.compile(r"((?:VLLM|SGLANG|SGL|TRTLLM|TLLM|LMDEPLOY|LLAMA|GGML)_\w+)=(.*)", re.DOTALL)
INCIDENTAL: Final = re.compile(
    r"--?(?:host|port|alias|a|ssl-.*|.*name|.*log.*|.*metric.*|api-.*|uvicorn-.*|allow.*|root-path|middleware|"
    r"trust-remote-code|download-dir|hf-token.*|chat-template.*|.*jinja|.*tool.*|.*reasoning.*|response-role|"
    r"tokenizer.*|.*generation-config|gpu-memory-utilization|mem-fraction-static|.*gpu-memory-fraction|"
    r"cache-max-entry-count|(random-)?seed|temp|temperature|top-[kp]|min-p|.*timeout|watchdog.*|.*warmup.*|"
    r"limit-mm-per-prompt|mm-.*|nccl-port|dist-.*|slots|props|no-webui|n|p|prompt|n-predict|e|env|v|x|x-.*)"
    r"|\w+_(?:\w*LOG\w*|\w*KEY|\w*TOKEN|\w*HOST\w*|\w*PORT|\w*ROOT|\w*TIMEOUT\w*|\w*USAGE\w*|\w*MULTIPROC\w*)"
    r"|SGLANG_SIMULATE_ACC_\w+|SGLANG_ENABLE_SPEC_V2"
)
"""Flags and variables that change no step, or are read elsewhere."""
SURE: Final = 0.88
"""Likeness from which an unknown flag is taken for a misspelt one."""


@dataclass(frozen=True, slots=True)
class Given:
    """Parsed flags or keys: key → value, the name under which each was written, and the rows of the table they are in.

    `undecided`: sentences about what was not understood. `blocked`: keys whose values are not known for it, so that the
    engine's default is not theirs. `used`: keys whose values have become terms. `unread`: as `unread_words` has them.
    """

    values: Mapping[str, object] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[Known, ...] = ()
    undecided: tuple[str, ...] = ()
    blocked: frozenset[str] = frozenset()
    used: set[str] = field(default_factory=set)
    unread: Mapping[str, str] = field(default_factory=dict)

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def get(self, key: str) -> object:
        """The value of `key`, which counts as used from now on; None if it is not there."""
        self.used.add(key)
        return self.values.get(key)

    def text(self, key: str) -> str | None:
        """The value of `key` as text; None if it is not there."""
        value = self.get(key)
        return None if value is None else str(value)

    def over(self, other: Given) -> Given:
        """These keys, and those of `other` that are not among them."""
        return Given(
            {**other.values, **self.values},
            {**other.names, **self.names},
            (*self.rows, *other.rows),
            (*self.undecided, *other.undecided),
            self.blocked | (other.blocked - self.values.keys()),
            unread={**other.unread, **self.unread},
        )

    def rest(self) -> dict[str, object]:
        """Keys about speculation that have become no term, with their values."""
        return {
            self.names.get(key, key): value
            for key, value in self.values.items()
            if key not in self.used and value is not None
        }


def releases(rows: Iterable[Known]) -> tuple[str, str]:
    """(the releases that have all of `rows`, "" if every one has; a sentence if none has, else "")."""
    since, until = window(rows)
    if since and until and order(since.since) > order(until.until):
        return "", (
            f"no release has both {until.flags[0]} (until {until.until}) and {since.flags[0]} (since {since.since})"
        )
    if since and until and since.since == until.until:
        return since.since, ""
    if until:
        return (f"{since.since} to " if since else "until ") + until.until, ""
    return (f"since {since.since}" if since else ""), ""


def from_mapping(values: Mapping[str, object], table: Table, where: str, *, dashes: bool = False) -> Given:
    """The keys of `values` that `table` knows, each of its type. A null counts as an absent key.

    `dashes`: keys are flags without their dashes, as in a YAML file of an engine's `--config`. Unknown keys about
    speculation are undecided; without `dashes`, all keys are about it. Raises UsageError with every value of the wrong
    type.
    """
    taken: dict[str, object] = {}
    names: dict[str, str] = {}
    rows: list[Known] = []
    wrong: list[str] = []
    undecided: list[str] = []
    blocked: set[str] = set()
    unread: dict[str, str] = {}
    for name, value in values.items():
        known = table.find(f"--{name.replace('_', '-')}") if dashes else table.rows.get(name)
        if known is None:
            if not dashes or misspelt(f"--{name.replace('_', '-')}", table):
                undecided.append(unknown(name, list(table.rows)))
                blocked.update(get_close_matches(name.replace("-", "_"), table.rows, 1))
            elif not INCIDENTAL.fullmatch(flag := f"--{name.replace('_', '-')}"):
                unread[flag] = "" if value is True else plain(value)
        elif is_placeholder(value):
            undecided.append(f"{name} = {shown(value)}: a placeholder")
            rows.append(known)
            blocked.add(known.key)
        elif value is not None or known.kind == "any":
            value = "none" if value is None else value
            entry = checked(from_text(value, known.kind), known.kind)
            if entry is UNTYPED:
                wrong.append(f"{name} = {shown(value)}: {NEEDED[known.kind]} is needed")
                continue
            key, entry = (known.key.removeprefix("no_"), not entry) if known.kind == "off" else (known.key, entry)
            taken[key], names[key] = entry, name
            rows.append(known)
    if wrong:
        raise UsageError(f"{where}: {'; '.join(wrong)}")
    return Given(taken, names, tuple(rows), tuple(undecided), frozenset(blocked - taken.keys()), unread=unread)


def from_argv(argv: Sequence[str], table: Table, where: str) -> Given:
    """The flags of a command line that `table` knows. The last of several wins, as in the engines.

    Unknown flags about speculation are undecided, as are misspelt and shortened ones, and words that may hold any flag.
    Raises UsageError for a flag without its value, and for one of the wrong type.
    """
    taken: dict[str, object] = {}
    names: dict[str, str] = {}
    rows: list[Known] = []
    undecided: list[str] = []
    blocked: set[str] = set()
    words = iter(enumerate(argv))
    for at, word in words:
        flag, equals, text = word.partition("=")
        flag = f"--{flag[2:].replace('_', '-')}" if flag.startswith("--") else flag
        known = table.find(flag)
        if known is None:
            if misspelt(flag, table):
                undecided.append(unknown(flag, list(table.by_flag)))
                blocked.update(table.by_flag[near].key for near in get_close_matches(flag, table.by_flag, 1))
            continue
        rows.append(known)
        if known.kind in ("flag", "off"):
            key = known.key.removeprefix("no_") if known.kind == "off" else known.key
            taken[key], names[key] = known.kind == "flag", flag
            continue
        if not equals:
            if at + 1 >= len(argv):
                raise UsageError(f"{where}: {flag} has no value", hint=f"{NEEDED[known.kind]} is needed")
            _, text = next(words)
        if is_placeholder(text) or (known.kind == "setting" and is_unfilled_json(text)):
            undecided.append(f"{flag} {shown(text)}: a placeholder")
            taken.pop(known.key, None)
            blocked.add(known.key)
            continue
        value = checked(parsed(text, known.kind), known.kind)
        if value is UNTYPED:
            raise UsageError(f"{where}: {flag} = {shown(text)}: {NEEDED[known.kind]} is needed")
        taken[known.key], names[known.key] = value, flag
    if unfilled_words := words_of_flags(argv, table, bool(taken.keys() & {"model", "model_path"})):
        undecided += [f"{word}: a placeholder, which may hold any flag" for word in unfilled_words]
        blocked.update(table)
    return Given(
        taken, names, tuple(rows), tuple(dict.fromkeys(undecided)), frozenset(blocked - taken.keys()),
        unread=unread_words(argv, table),
    )  # fmt: skip


def plain(value: object) -> str:
    """A value as text, which is the same for JSON in a text and for what it stands for."""
    try:
        return json.dumps(parse_json(value) if isinstance(value, str) else value, sort_keys=True, default=str)
    except ValueError:
        return str(value)


def program(argv: Sequence[str]) -> int:
    """Index of the word that starts the server; -1 where there are flags alone."""
    return max((at for at, word in enumerate(argv) if PROGRAM.search(word)), default=-1)


def words_of_flags(argv: Sequence[str], table: Table, named: bool) -> list[str]:
    """Words that a shell replaces by any number of flags, as `$ARGS`, `${ARGS[@]}` and `$@`.

    One that stands first behind a server that takes a model there is the model, unless a flag has `named` it.
    """
    begin = program(argv)
    free = operands(argv[begin + 1 :], table)
    takes_model = begin >= 0 and re.search(r"(^|/)(serve|api_server|trtllm-serve)$", argv[begin]) and not named
    if takes_model and free and not free[0].endswith(("@", "]}", "*")):
        free = free[1:]
    return [word for word in free if WORDS.fullmatch(word)]


def unread_words(argv: Sequence[str], table: Table) -> dict[str, str]:
    """Flags that are in no table, and variables of the engine, with their values.

    They may decide how fast a step is. Those that do not, such as ports and names, are left out.
    """
    begin = program(argv) + 1
    unread = {match[1]: match[2] for word in argv[:begin] if (match := VARIABLE_OF_ENGINE.fullmatch(word))}
    for at, word in enumerate(argv[begin:], begin + 1):
        flag, _, text = word.partition("=")
        flag = f"--{flag[2:].replace('_', '-')}" if flag.startswith("--") else flag
        if re.match(r"-[^\d.]", flag) and "." not in flag and table.find(flag) is None:
            values = takewhile(
                lambda word: re.match(r"-[^\d.]", word) is None, argv[at:] if not is_switch(flag) else ()
            )
            unread[flag] = plain(text or " ".join(values))
    return {flag: text for flag, text in unread.items() if not INCIDENTAL.fullmatch(flag)}


def is_placeholder(value: object) -> bool:
    """True for a text whose last part a shell, a template or somebody has still to fill in."""
    if not isinstance(value, str) or value.lstrip().startswith('{"'):
        return False
    last = value.rstrip("/").rsplit("/", 1)[-1]
    return PLACEHOLDER.search(last) is not None


def is_unfilled_json(text: str) -> bool:
    """True for an object that is none yet, because a variable stands in it without quotes."""
    return parsed(text, "setting") is UNTYPED and VARIABLE_IN_JSON.search(text) is not None


def unfilled(target: str | None) -> tuple[str, ...]:
    """A sentence about a model whose name is still to be filled in; () for all others."""
    return (f"model {shown(target)}: a placeholder",) if is_placeholder(target) else ()


def misspelt(flag: str, table: Table) -> bool:
    """True for a flag that is in no table though it is about speculation, or nearly the name of one that is."""
    if not flag.startswith("--") or len(flag) < 4:
        return False
    name = flag.split(".")[0]
    if table.find(name) is not None:
        return False
    if SPECULATIVE.search(name):
        return True
    around = [known for known in table.by_flag if not SPECULATIVE.search(known)]
    shortened = len(name) > 6 and any(known.startswith(name) for known in around)
    return shortened or bool(get_close_matches(name, around, 1, SURE))


def checked(value: object, kind: Kind) -> object:
    """`value`, or UNTYPED where it is not of that type."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    fits = {
        "count": number and isinstance(value, int) and value >= 0,
        "number": number,
        "text": isinstance(value, str),
        "switch": isinstance(value, bool),
        "flag": isinstance(value, bool),
        "off": isinstance(value, bool),
        "object": isinstance(value, Mapping),
        "setting": isinstance(value, Mapping),
        "list": isinstance(value, list | tuple),
        "any": value is not UNTYPED,
    }
    return value if fits[kind] else UNTYPED


def parsed(text: str, kind: Kind) -> object:
    """The value of a word on a command line; UNTYPED where it cannot be read."""
    if kind in ("text", "any"):
        return text
    try:
        if kind == "switch":
            return {"true": True, "false": False, "1": True, "0": False}.get(text.lower(), UNTYPED)
        return parse_json(text)
    except ValueError:
        return UNTYPED


def from_text(value: object, kind: Kind) -> object:
    """The value of a key of a mapping, where a section may be written as a text of JSON."""
    return parsed(value, kind) if kind == "setting" and isinstance(value, str) else value


def unknown(key: str, known: Sequence[str]) -> str:
    """A sentence about a key or flag that nobody knows."""
    near = get_close_matches(key, known, 1)
    name = key if key.isprintable() else ascii(key)
    return f"unknown key {name[:80]}" + (f" (did you mean {near[0]}?)" if near else "")


def dotted(argv: Sequence[str], flags: tuple[str, ...], where: str) -> Iterator[tuple[str, object]]:
    """(key, value) of flags such as `--speculative-config.method eagle3`, which spell out one key of an object."""
    words = iter(argv)
    for word in words:
        name, equals, inline = word.partition("=")
        flag, dot, key = name.partition(".")
        if dot and flag.replace("_", "-") in flags:
            text = inline if equals else next(words, None)
            if text is None:
                raise UsageError(f"{where}: {name} has no value")
            try:
                yield key.replace("-", "_"), json.loads(text)
            except ValueError:
                yield key.replace("-", "_"), text


def operands(argv: Sequence[str], table: Table, after: str = "") -> list[str]:
    """Words of a command line that are neither flags nor their values, behind the word `after`.

    A word behind an unknown flag is left out: nobody knows whether it is that flag's value.
    """
    begin = next((i + 1 for i, word in enumerate(argv) if word == after), 0) if after else 0
    free: list[str] = []
    value_of: str = ""
    for word in argv[begin:]:
        if word.startswith("-") and len(word) > 1:
            flag, equals, _ = word.partition("=")
            flag = f"--{flag[2:].replace('_', '-')}" if flag.startswith("--") else flag
            known = table.find(flag)
            takes = known is None or known.kind not in ("flag", "off")
            value_of = "" if equals or not takes or (known is None and is_switch(flag)) else flag
        elif value_of:
            value_of = ""
        else:
            free.append(word)
    return free


def is_switch(flag: str) -> bool:
    """True for a flag that, by its name, takes no value."""
    return flag.startswith(("--enable-", "--disable-", "--no-", "--trust-", "--skip-", "--enforce-"))
