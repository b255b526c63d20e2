"""The options of all server back ends (`-o KEY=VALUE`), checked before anything is stored or started."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from specgate.analysis.traces.families import read_patterns
from specgate.backends.servers.evidence.log_lines import check_log
from specgate.backends.servers.secrets import credential_flags, names_a_credential
from specgate.contract import Role
from specgate.contract.protocols import masked
from specgate.contract.protocols.option_values import build_of, choice
from specgate.errors import UsageError
from specgate.files.json_text import parse_json, read_bytes
from specgate.files.panics import first_line

PLAIN: Final = (
    "url", "model", "program", "port", "args", "servers", "drafter", "force_al", "prompts",
    "start_s", "stall_s", "stop_s", "api_key_env", "allow_remote", "build", "spec_config", "profile", "profile_dir",
    "kernels", "log", "prefix_cache", "endpoint", "chat_template", "chat_template_kwargs", "response_format",
    "system", "logprobs",
)  # fmt: skip
FROM_ENVIRONMENT: Final = (
    "put it into an environment variable, which a server that is started here inherits (VLLM_API_KEY, LLAMA_API_KEY, "
    "HF_TOKEN, …); for a key that requests need, also -o api_key_env=NAME"
)
LARGEST_JSON: Final = 1 << 20
"""Bytes of a JSON object in a file that an option names."""
SERVERS_OWN: Final = "server"
"""The value of `chat_template` that holds a server to no template."""
METHOD_FLAGS: Final = (
    "--speculative-config", "--speculative-config.method", "-sc", "-sc.method", "--spec-method",
    "--speculative-algorithm", "--spec-type",
)  # fmt: skip
"""Flags of a server that choose its method of speculation."""
BY_ROLE: Final = ("url", "args", "profile_dir", "log")
"""Options that a suffix limits to one role, e.g. url.baseline, args.spec-3."""

OF_CHATS: Final = ("chat_template", "chat_template_kwargs", "response_format", "system", "logprobs")
"""Options that a completions end point has no place for."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options, as docs/engines.md explains them.

    `url`, `args`, `profile_dir` and `log` map role names to values, with "" for all roles. `kernels`: patterns of the
    kernels that may run in a decode loop. `prefix_cache`: of servers that are started here; of one that runs already,
    whether requests may be served from it. None: off, and a server that runs already drops its cache where it can.
    `own` are the engine's own options.

    `endpoint`: which one takes the requests; None for completions where a server has them. The rest is for chats, and
    chooses their end point.
    `chat_template`: a file that the target's template is in, or `SERVERS_OWN`. `chat_template_kwargs`: variables for
    it, such as {"enable_thinking": false}. `response_format`: the form that every answer must have. `system`: the turn
    before all others of chats that have none. `logprobs`: whether each token's log-probability is asked for, which
    names it where a server tells no ids.
    """

    url: Mapping[str, str] = field(default_factory=dict)
    args: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    model: str | None = None
    program: str | None = None
    port: int | None = None
    servers: Literal["together", "apart"] = "together"
    drafter: Literal["given", "eagle3", "ngram"] | None = None
    force_al: float | None = None
    prompts: Literal["ids", "text"] = "ids"
    start_s: float = 280.0
    stall_s: float = 60.0
    stop_s: float = 20.0
    api_key_env: str | None = None
    build: str | None = None
    spec_config: str | None = None
    profile: bool = False
    profile_dir: Mapping[str, Path] = field(default_factory=dict)
    kernels: tuple[str, ...] | None = None
    log: Mapping[str, Path] = field(default_factory=dict)
    prefix_cache: Literal["on", "off"] | None = None
    endpoint: Literal["completions", "chat"] | None = None
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, object] = field(default_factory=dict)
    response_format: Mapping[str, object] | None = None
    system: str | None = None
    logprobs: bool = False
    own: Mapping[str, str] = field(default_factory=dict)

    def url_of(self, role: Role) -> str | None:
        return self.url.get(role.name, self.url.get(""))

    def drafter_of(self, role: Role) -> Literal["given", "eagle3", "ngram"]:
        """Return the method of speculation of a role. Unless it is named: the server's own where one runs already, or
        where flags in `args` choose it; else EAGLE-3.
        """
        by_flag = any(word.partition("=")[0] in METHOD_FLAGS for word in self.args_of(role))
        return self.drafter or ("given" if by_flag or self.url_of(role) else "eagle3")

    def profile_dir_of(self, role: Role) -> Path | None:
        return self.profile_dir.get(role.name, self.profile_dir.get(""))

    def log_of(self, role: Role) -> Path | None:
        return self.log.get(role.name, self.log.get(""))

    def args_of(self, role: Role) -> tuple[str, ...]:
        return (*self.args.get("", ()), *self.args.get(role.name, ()))

    @classmethod
    def parse(cls, raw: Mapping[str, str], own: Iterable[str]) -> Options:
        """Parse the options. `own` names those that only this engine has. Raises UsageError for bad ones."""
        for key, value in raw.items():
            check_key(key, tuple(own))
            refuse_secrets(key, value)
        urls = {key.partition(".")[2]: value for key, value in raw.items() if key.partition(".")[0] == "url"}
        remote = choice(raw, "allow_remote", ("off", "on")) == "on"
        for role, url in urls.items():
            check_url(f"url.{role}" if role else "url", url, remote)
        options = cls(
            url=urls,
            args={k.partition(".")[2]: words(k, v) for k, v in raw.items() if k.partition(".")[0] == "args"},
            model=raw.get("model"),
            program=raw.get("program"),
            port=port_of(raw["port"]) if "port" in raw else None,
            servers="apart" if choice(raw, "servers", ("together", "apart")) == "apart" else "together",
            drafter=drafter_in(raw),
            force_al=number(raw, "force_al", 1.0) if "force_al" in raw else None,
            prompts="text" if choice(raw, "prompts", ("ids", "text")) == "text" else "ids",
            start_s=number(raw, "start_s", 280.0),
            stall_s=number(raw, "stall_s", 60.0),
            stop_s=number(raw, "stop_s", 20.0),
            api_key_env=raw.get("api_key_env"),
            build=build_of(raw["build"]) if "build" in raw else None,
            spec_config=raw.get("spec_config"),
            profile=choice(raw, "profile", ("off", "on")) == "on",
            profile_dir=by_role(raw, "profile_dir", Path.is_dir, "no such folder"),
            kernels=read_patterns(Path(raw["kernels"]).expanduser()) if "kernels" in raw else None,
            log=logs_of(raw),
            prefix_cache=switch(raw, "prefix_cache"),
            endpoint=endpoint_of(raw) or ("chat" if any(key in raw for key in OF_CHATS) else None),
            chat_template=template_of(raw),
            chat_template_kwargs=json_object(raw, "chat_template_kwargs") or {},
            response_format=json_object(raw, "response_format"),
            system=raw.get("system"),
            logprobs=choice(raw, "logprobs", ("off", "on")) == "on",
            own={key: value for key, value in raw.items() if key in own},
        )
        options.check_together()
        return options

    def check_together(self) -> None:
        """Raise UsageError where options contradict each other."""
        given = any(word.partition("=")[0] in METHOD_FLAGS for words in self.args.values() for word in words)
        if (given or self.drafter == "given") and self.force_al is not None and not self.url:
            raise UsageError(
                "option force_al with drafter = given: the flags of the server's own method force its acceptance",
                hint="write it into them, as rejection_sample_method of --speculative-config, or leave force_al out",
            )
        if self.url and self.force_al is not None:
            raise UsageError("option force_al with url: acceptance is forced by flags of a server that is started here")
        if self.endpoint == "completions" and (chosen := [name for name in OF_CHATS if getattr(self, name)]):
            raise UsageError(f"option {chosen[0]} with endpoint = completions: it is for chats", hint="endpoint=chat")
        if self.port is not None and self.servers == "together":
            raise UsageError(
                f"option port = {self.port}: every role has a server of its own, and they run side by side",
                hint="leave it out (free ports are found), or add -o servers=apart",
            )


def drafter_in(raw: Mapping[str, str]) -> Literal["given", "eagle3", "ngram"] | None:
    """Return the drafter that is named; None if none is."""
    name = choice(raw, "drafter", ("eagle3", "given", "ngram")) if "drafter" in raw else None
    return "given" if name == "given" else "ngram" if name == "ngram" else "eagle3" if name else None


def check_key(key: str, own: tuple[str, ...]) -> None:
    known = (*PLAIN, *own)
    name, dot, role = key.partition(".")
    if dot and name in BY_ROLE:
        check_role(key, role)
    elif key not in known and not names_a_credential(key):
        raise unknown_option(key, known)


def check_role(key: str, name: str) -> None:
    """Raise UsageError where `name`, the second part of the option `key`, is no role."""
    try:
        Role.parse(name)
    except ValueError as error:
        raise UsageError(f"option {key}: {error}") from error


def unknown_option(key: str, known: Sequence[str], more: str = "") -> UsageError:
    """Return the error for an option that the back end does not know. `more`: what it knows beside `known`."""
    near = get_close_matches(key, known, 1)
    close = f" (did you mean {near[0]}?)" if near else ""
    return UsageError(f"option {key}: not known{close}", hint=f"this back end knows: {', '.join(known)}{more}")


def refuse_secrets(key: str, value: str) -> None:
    """Raise UsageError for a credential among the options: they are stored with a run, and shown by `ps` on a command
    line. It must come through the environment.
    """
    name = key.partition(".")[0]
    if name == "api_key_env" and not value.isidentifier():
        raise UsageError("option api_key_env: not the name of an environment variable", hint=FROM_ENVIRONMENT)
    if name not in PLAIN and names_a_credential(name):
        raise UsageError(f"option {key}: a secret would be written into the run folder", hint=FROM_ENVIRONMENT)
    if name == "args" and (credential := next(credential_flags(split(value)), None)):
        raise UsageError(
            f"option {key}: {credential}: a secret would be written into the run folder", hint=FROM_ENVIRONMENT
        )
    if name != "url" and masked(value) != value:
        raise UsageError(f"option {key}: a secret would be written into the run folder", hint=FROM_ENVIRONMENT)


def split(text: str) -> list[str]:
    """The words of a command line, also of one whose quotes do not match."""
    try:
        return shlex.split(text)
    except ValueError:
        return re.split(r"[\s\"']+", text)


def local_port(url: str) -> int | None:
    """The port of a server on this machine; None of one elsewhere."""
    parts = urlsplit(url)
    if not parts.hostname or not is_loopback(parts.hostname):
        return None
    return parts.port or (443 if parts.scheme == "https" else 80)


def check_url(key: str, url: str, remote: bool) -> None:
    """Raise UsageError for a URL that holds more than host and port, or names another machine. A URL that may hold a
    password is not repeated.
    """
    if "@" in url or "?" in url or "#" in url or masked(url) != url:
        raise UsageError(
            f"option {key}: a URL with a user, a password or parameters would be written into the run folder",
            hint="http://HOST:PORT; for a key, -o api_key_env=NAME",
        )
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        hint = "http://HOST:PORT; several with commas between them"
        raise UsageError(f"option {key}: not a URL: {error}", hint=hint) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"option {key} = {url}: not a URL of a server", hint="http://127.0.0.1:8000")
    if not remote and not is_loopback(parts.hostname):
        hint = "a network lies in every time that is measured; if it is meant: -o allow_remote=on"
        if parts.hostname in ("0.0.0.0", "::"):  # where servers say that they listen
            hint = "it stands for all addresses of a machine: 127.0.0.1 is one of them"
        raise UsageError(f"option {key}: {parts.hostname} is not this machine", hint=hint)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def words(key: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"option {key}: {error}") from error


def number(raw: Mapping[str, str], key: str, default: float) -> float:
    try:
        value = float(raw.get(key, default))
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise UsageError(f"option {key} = {raw[key]!r}", hint="a positive number is needed")
    return value


def switch(raw: Mapping[str, str], key: str) -> Literal["on", "off"] | None:
    """`on`, `off`, or None where the option is not given."""
    return None if key not in raw else "on" if choice(raw, key, ("off", "on")) == "on" else "off"


def endpoint_of(raw: Mapping[str, str]) -> Literal["completions", "chat"] | None:
    """The end point that is named, None where none is."""
    if "endpoint" not in raw:
        return None
    return "chat" if choice(raw, "endpoint", ("completions", "chat")) == "chat" else "completions"


def template_of(raw: Mapping[str, str]) -> str | None:
    """The file of a chat template, as an absolute path, or `SERVERS_OWN`. Raises UsageError for no file."""
    text = raw.get("chat_template")
    if text is None or text == SERVERS_OWN:
        return text
    path = Path(text).expanduser().absolute()
    if not path.is_file():
        hint = f"a file with a Jinja template, or {SERVERS_OWN}: then nothing holds the server to one"
        raise UsageError(f"option chat_template = {text}: no such file", hint=hint)
    return str(path)


def json_object(raw: Mapping[str, str], key: str) -> Mapping[str, object] | None:
    """The JSON object that an option has, or the file that it names; None without it. Raises UsageError."""
    if (text := raw.get(key)) is None:
        return None
    file = Path(text).expanduser()
    try:
        value = parse_json(text if text.lstrip().startswith("{") else read_bytes(file, LARGEST_JSON))
    except (ValueError, OSError) as error:
        why = f"neither a JSON object nor a file with one: {first_line(error)}"
        raise UsageError(f"option {key} = {text[:80]}: {why}") from error
    if not isinstance(value, dict):
        raise UsageError(f'option {key} = {text[:80]}: a JSON object is needed, as {{"enable_thinking": false}}')
    return value


def port_of(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise UsageError(f"option port = {text!r}", hint="1 to 65535")
    return int(text)


def by_role(raw: Mapping[str, str], name: str, there: Callable[[Path], bool], lacking: str) -> dict[str, Path]:
    """Role name → path, for the options `name` and `name.ROLE`. Raises UsageError for a path that is not `there`."""
    paths = {}
    for key, text in raw.items():
        if key.partition(".")[0] == name:
            path = paths[key.partition(".")[2]] = Path(text).expanduser().absolute()
            if not there(path):
                raise UsageError(f"option {key} = {text}: {lacking}")
    return paths


def logs_of(raw: Mapping[str, str]) -> dict[str, Path]:
    """Role name → log. Raises UsageError for one that is not there, or a list of products that cannot be read."""
    logs = by_role(raw, "log", Path.is_file, "no such file")
    for file in logs.values():
        check_log(file)
    return logs


def file_of(options: Options, key: str) -> Path:
    """The file that one of the engine's own options must name. Raises UsageError."""
    text = options.own.get(key)
    if text is None:
        raise UsageError(f"option {key} is missing", hint=f"-o {key}=FILE")
    path = Path(text).expanduser().absolute()
    if not path.is_file():
        raise UsageError(f"option {key} = {text}: no such file")
    return path


def check_forced(length: float | None, role: Role) -> None:
    """Raise UsageError where a forced acceptance length is out of the role's range."""
    if length is not None and role.speculative and not 1 <= length <= role.k + 1:
        raise UsageError(
            f"option force_al = {length:g}: {role} accepts 1 to {role.k + 1} tokens per step, bonus included"
        )
