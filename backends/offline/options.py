"""The options of offline back ends (`-o KEY=VALUE`), checked before anything is stored or started."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from specgate.backends.servers import options as of_servers
from specgate.backends.servers.secrets import names_a_credential
from specgate.contract import Role
from specgate.contract.protocols import is_telling, masked
from specgate.contract.protocols.option_values import build_of, choice
from specgate.errors import UsageError

PLAIN: Final = (
    "python", "pythonpath", "args", "log", "build", "servers", "drafter", "force_al", "prefix_cache", "show", "start_s",
    "stall_s", "stop_s",
)  # fmt: skip
PREFIXES: Final = ("args", "spec", "env")
"""Options with a name after a dot: `args.ROLE`, and one entry of the speculative configuration or the environment. Each
library has one more, for one argument of its own.
"""
OF_THE_ROLE: Final = ("method", "model", "num_speculative_tokens")
"""Entries of the speculative configuration that role and pair give: the fingerprint says them."""
INHERITED: Final = "put it into the environment, and its name into SPECGATE_PASS_ENV: the engine's process inherits it"


@dataclass(frozen=True, slots=True)
class OfflineOptions:
    """The options, as docs/engines.md explains them.

    `args`: role name → arguments of the library, with "" for all roles. `spec`: entries of its speculative
    configuration. `env`: environment variables. `show`: what a block has; None leaves that to the engine. `own`: the
    library's own options.
    """

    python: str = sys.executable
    pythonpath: tuple[str, ...] = ()
    args: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    spec: Mapping[str, object] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    show: Literal["steps", "requests"] | None = None
    common: of_servers.Options = field(default_factory=of_servers.Options)

    @property
    def own(self) -> Mapping[str, str]:
        return self.common.own

    def args_of(self, role: Role) -> dict[str, object]:
        return {**self.args.get("", {}), **self.args.get(role.name, {})}

    @classmethod
    def parse(
        cls, raw: Mapping[str, str], prefix: str, own: Mapping[str, Sequence[str]], ours: Sequence[str]
    ) -> OfflineOptions:
        """Parse the options. Raises UsageError for bad ones.

        `prefix`: of options for one argument of the library. `own`: the library's own options, and their values with
        the default first. `ours`: arguments that the back end gives itself.
        """
        for key, value in raw.items():
            check_key(key, prefix, (*PLAIN, *own))
            refuse_secrets(key, value)
        args = {key.partition(".")[2]: arguments(key, raw[key]) for key in raw if key.partition(".")[0] == "args"}
        args[""] = {**args.get("", {}), **{k: value_of(v) for k, v in under(prefix, raw)}}
        for arguments_of_role in args.values():
            refuse_ours(arguments_of_role, ours)
        spec = {k: value_of(v) for k, v in under("spec", raw)}
        if taken := [name for name in OF_THE_ROLE if name in spec]:
            raise UsageError(
                f"option spec.{taken[0]} = {raw[f'spec.{taken[0]}']}: role and pair give it",
                hint="--spec K for the draft length, --draft DIR for the draft, -o drafter=NAME for the method",
            )
        show = choice(raw, "show", ("steps", "requests")) if "show" in raw else None
        return cls(
            python=raw.get("python", sys.executable),
            pythonpath=tuple(folders(raw.get("pythonpath", ""))),
            args=args,
            spec=spec,
            env=dict(under("env", raw)),
            show="steps" if show == "steps" else "requests" if show == "requests" else None,
            common=of_servers.Options(
                servers="apart" if choice(raw, "servers", ("together", "apart")) == "apart" else "together",
                drafter="ngram" if choice(raw, "drafter", ("eagle3", "ngram")) == "ngram" else "eagle3",
                force_al=of_servers.number(raw, "force_al", 1.0) if "force_al" in raw else None,
                prefix_cache=of_servers.switch(raw, "prefix_cache"),
                start_s=of_servers.number(raw, "start_s", 600.0),
                stall_s=of_servers.number(raw, "stall_s", 120.0),
                stop_s=of_servers.number(raw, "stop_s", 20.0),
                log=of_servers.logs_of(raw),
                build=build_of(raw["build"]) if "build" in raw else None,
                own={key: choice(raw, key, tuple(values)) for key, values in own.items()},
            ),
        )


def under(prefix: str, raw: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(name, value) of the options `prefix.NAME`."""
    for key, value in raw.items():
        head, _, name = key.partition(".")
        if head == prefix and name:
            yield name, value


def check_key(key: str, prefix: str, known: Sequence[str]) -> None:
    head, dot, name = key.partition(".")
    if dot and head in ("args", "log"):
        of_servers.check_role(key, name)
    elif key not in known and not (dot and name.isidentifier() and head in (prefix, *PREFIXES)):
        more = f", args.ROLE, log.ROLE, {prefix}.NAME, spec.NAME, env.NAME"
        raise of_servers.unknown_option(key, known, more)


def refuse_secrets(key: str, value: str) -> None:
    """Raise UsageError for a credential among the options: they are stored with a run. It must come through the
    environment.
    """
    head, _, name = key.partition(".")
    secret = is_telling(name) if head == "env" else head != "args" and names_a_credential(name or head)
    if secret or masked(value) != value or (head == "args" and holds_a_credential(plain_json(value))):
        raise UsageError(f"option {key}: a secret would be written into the run folder", hint=INHERITED)


def holds_a_credential(data: object) -> bool:
    """True if any key of JSON data names a credential."""
    if isinstance(data, Mapping):
        return any(names_a_credential(str(key)) or holds_a_credential(value) for key, value in data.items())
    return isinstance(data, list) and any(map(holds_a_credential, data))


def plain_json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def arguments(key: str, text: str) -> dict[str, object]:
    """A JSON object of keyword arguments. Raises UsageError."""
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise UsageError(f"option {key}: not JSON: {error}", hint="""-o 'args={"enforce_eager": true}'""") from error
    if not isinstance(parsed, dict):
        raise UsageError(f"option {key} = {text[:80]!r}: a JSON object of keyword arguments is needed")
    return parsed


def value_of(text: str) -> object:
    """Return `text` read as JSON, or else `text` itself: `0.4`, `true`, `[1, 2]`, `FLASH_ATTN`."""
    parsed = plain_json(text)
    return text if parsed is None and text != "null" else parsed


def refuse_ours(args: Mapping[str, object], ours: Sequence[str]) -> None:
    """Raise UsageError for an argument that is not the user's to give."""
    if taken := [name for name in args if name in ours]:
        raise UsageError(
            f"argument {taken[0]} of the library: pair, scenario and role give it",
            hint="spec.NAME=VALUE changes the speculative configuration" if "speculative" in taken[0] else None,
        )


def folders(text: str) -> Iterator[str]:
    """Absolute paths of the folders of a search path. Raises UsageError for one that is not there."""
    for part in filter(None, text.split(os.pathsep)):
        folder = Path(part).expanduser().absolute()
        if not folder.is_dir():
            raise UsageError(f"option pythonpath: {part} is no folder")
        yield str(folder)


def interpreter(text: str) -> str:
    """Return the program that option `python` names. Raises UsageError if there is none."""
    if (program := shutil.which(os.path.expanduser(text))) is None:
        raise UsageError(f"option python = {text}: no such program", hint="-o python=/path/to/venv/bin/python")
    return os.path.abspath(program)
