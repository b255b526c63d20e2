"""Flags of a command line and keys of a mapping, read by a table of what is known. Errors name key and value."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import takewhile
from typing import Final

from specgate.checkpoints.spec_config.tables import Kind, Table
from specgate.errors import UsageError
from specgate.files.json_text import parse_json, shown

NEEDED: Final[Mapping[Kind, str]] = {
    "count": "an integer of at least 0", "number": "a number", "text": "a text", "switch": "true or false",
    "flag": "true or false", "off": "true or false", "object": "an object", "setting": "an object", "list": "a list",
    "any": "a value",
}  # fmt: skip
"""Type of a value → what is right, in words."""
UNTYPED: Final = object()
"""Stands for a value of the wrong type."""
SPECULATIVE: Final = re.compile(
    r"spec(?!ial)|draft|eagle|ngram|mtp|medusa|lookahead|dflash|dspark|nextn", re.IGNORECASE
)
"""A name that is about speculation."""
PROGRAM: Final = re.compile(r"(^|[/.])(serve|api_server|launch_server|llama-\w+|trtllm-(serve|bench))(\.exe)?$")
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
    """Parsed flags or keys: key → value, and the name under which each was written.

    `undecided`: sentences about what was not understood. `used`: keys whose values have become terms. `unread`: as
    `unread_words` has them.
    """

    values: Mapping[str, object] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    undecided: tuple[str, ...] = ()
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
            (*self.undecided, *other.undecided),
            unread={**other.unread, **self.unread},
        )

    def rest(self) -> dict[str, object]:
        """Keys about speculation that have become no term, with their values."""
        return {
            self.names.get(key, key): value
            for key, value in self.values.items()
            if key not in self.used and value is not None
        }


def from_mapping(values: Mapping[str, object], table: Table, where: str, *, dashes: bool = False) -> Given:
    """The keys of `values` that `table` knows, each of its type. A null counts as an absent key.

    `dashes`: keys are flags without their dashes, as in a YAML file of an engine's `--config`. Unknown keys about
    speculation are undecided; without `dashes`, all keys are about it. Raises UsageError with every value of the wrong
    type.
    """
    taken: dict[str, object] = {}
    names: dict[str, str] = {}
    wrong: list[str] = []
    undecided: list[str] = []
    unread: dict[str, str] = {}
    for name, value in values.items():
        known = table.by_flag.get(f"--{name.replace('_', '-')}") if dashes else table.get(name)
        if known is None:
            if not dashes or misspelt(f"--{name.replace('_', '-')}", table):
                undecided.append(unknown(name, list(table)))
            elif not INCIDENTAL.fullmatch(flag := f"--{name.replace('_', '-')}"):
                unread[flag] = "" if value is True else plain(value)
        elif value is not None or known.kind == "any":
            value = "none" if value is None else value
            in_text = known.kind == "setting" and isinstance(value, str)  # a section may be a text of JSON
            entry = checked(parsed(str(value), known.kind) if in_text else value, known.kind)
            if entry is UNTYPED:
                wrong.append(f"{name} = {shown(value)}: {NEEDED[known.kind]} is needed")
                continue
            key, entry = (known.key.removeprefix("no_"), not entry) if known.kind == "off" else (known.key, entry)
            taken[key], names[key] = entry, name
    if wrong:
        raise UsageError(f"{where}: {'; '.join(wrong)}")
    return Given(taken, names, tuple(undecided), unread=unread)


def from_argv(argv: Sequence[str], table: Table, where: str) -> Given:
    """The flags of a command line that `table` knows. The last of several wins, as in the engines.

    Unknown flags about speculation are undecided, as are misspelt and shortened ones.
    Raises UsageError for a flag without its value, and for one of the wrong type.
    """
    taken: dict[str, object] = {}
    names: dict[str, str] = {}
    undecided: list[str] = []
    words = iter(enumerate(argv))
    for at, word in words:
        flag, equals, text = word.partition("=")
        flag = f"--{flag[2:].replace('_', '-')}" if flag.startswith("--") else flag
        known = table.by_flag.get(flag)
        if known is None:
            if misspelt(flag, table):
                undecided.append(unknown(flag, list(table.by_flag)))
            continue
        if known.kind in ("flag", "off"):
            key = known.key.removeprefix("no_") if known.kind == "off" else known.key
            taken[key], names[key] = known.kind == "flag", flag
            continue
        if not equals:
            if at + 1 >= len(argv):
                raise UsageError(f"{where}: {flag} has no value", hint=f"{NEEDED[known.kind]} is needed")
            _, text = next(words)
        value = checked(parsed(text, known.kind), known.kind)
        if value is UNTYPED:
            raise UsageError(f"{where}: {flag} = {shown(text)}: {NEEDED[known.kind]} is needed")
        taken[known.key], names[known.key] = value, flag
    return Given(taken, names, tuple(dict.fromkeys(undecided)), unread=unread_words(argv, table))


def plain(value: object) -> str:
    """A value as text, which is the same for JSON in a text and for what it stands for."""
    try:
        return json.dumps(parse_json(value) if isinstance(value, str) else value, sort_keys=True, default=str)
    except ValueError:
        return str(value)


def program(argv: Sequence[str]) -> int:
    """Index of the word that starts the server; -1 where there are flags alone."""
    return max((at for at, word in enumerate(argv) if PROGRAM.search(word)), default=-1)


def unread_words(argv: Sequence[str], table: Table) -> dict[str, str]:
    """Flags that are in no table, and variables of the engine, with their values.

    They may decide how fast a step is. Those that do not, such as ports and names, are left out.
    """
    begin = program(argv) + 1
    unread = {match[1]: match[2] for word in argv[:begin] if (match := VARIABLE_OF_ENGINE.fullmatch(word))}
    for at, word in enumerate(argv[begin:], begin + 1):
        flag, _, text = word.partition("=")
        flag = f"--{flag[2:].replace('_', '-')}" if flag.startswith("--") else flag
        if re.match(r"-[^\d.]", flag) and "." not in flag and flag not in table.by_flag:
            values = takewhile(
                lambda word: re.match(r"-[^\d.]", word) is None, argv[at:] if not is_switch(flag) else ()
            )
            unread[flag] = plain(text or " ".join(values))
    return {flag: text for flag, text in unread.items() if not INCIDENTAL.fullmatch(flag)}


def misspelt(flag: str, table: Table) -> bool:
    """True for a flag that is in no table though it is about speculation, or nearly the name of one that is."""
    if not flag.startswith("--") or len(flag) < 4:
        return False
    name = flag.split(".")[0]
    if name in table.by_flag:
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
            known = table.by_flag.get(flag)
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
