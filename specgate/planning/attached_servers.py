"""Servers that a command line names by their URLs: found out, and put into the options that say the same.

`specgate micro URL,URL` is `specgate micro --backend NAME -o url.baseline=URL -o url.spec-K=URL --tokenizer DIR
--prompts FILE`. Whatever the command line says itself, stays.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from specgate import plugins
from specgate.analysis.quality.exact_match import key_of
from specgate.checkpoints.chat_template import Chat
from specgate.contract import BASELINE, Role
from specgate.contract.protocols import FindsServers, FoundServer, SwitchesPrefixCache, TextOrChat, cleaned
from specgate.contract.scenarios.workload import FormatName
from specgate.errors import BackendError, UsageError
from specgate.files.cache import cache_dir, write_cached
from specgate.pairs.resolve import SERVED_KEY
from specgate.planning.prompt_files.formats import EVERY_TURN, FORMATS, LINES, PLACE, Entry, prompts_in, recognise
from specgate.planning.prompt_files.trace import HashedPrompt
from specgate.planning.scenario import SHIPPED
from specgate.terminal import waiting

FIRST_PROMPTS: Final = SHIPPED / "first_prompts.jsonl"
"""Prompts of a command line that names a server and no prompts."""
MOST_TOKENISED: Final = 512
"""Prompts of a file that a server turns into tokens, unless all are asked for."""
ANY_VOCABULARY: Final = 1 << 24
"""Vocabulary of a target that nothing tells the size of."""
TOKENIZER: Final = "tokenizer.json"
SERVERS: Final = "the server's own"
BYTES: Final = "none; prompts are counted in bytes, and answers compared as texts"
"""What made the tokens of prompts."""


@dataclass(frozen=True, slots=True)
class Servers:
    """The part of a command line that servers decide on.

    `urls`: in the order of the command line. `options`: of the back end; `url.ROLE` among them names a role's server.
    `spec`: draft lengths. `pair`: whether it names a pair or a tokenizer. `prompts`, `format`, `chat`: as in
    `ad_hoc.Question`. `text`: a prompt in their place; `ids`: it is given as token ids. `every`: all prompts of the
    file are measured. `named`: it names scenarios, or a length to cut texts to. `smoke`: a server that does not
    speculate is welcome. `sides`: they are one side of a comparison, whose other side has the same roles.
    """

    urls: tuple[str, ...] = ()
    backend: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    spec: tuple[int, ...] | None = None
    batch: tuple[int, ...] | None = None
    baseline: bool = True
    pair: bool = False
    tokenizer: Path | None = None
    prompts: Path | None = None
    format: FormatName | None = None
    chat: bool | None = None
    text: str | None = None
    ids: bool = False
    every: bool = False
    named: bool = False
    smoke: bool = False
    sides: bool = False


def with_servers(servers: Servers) -> tuple[Servers, list[str]]:
    """Return the command line with what its servers tell, and lines about it.

    Raises UsageError where they cannot be measured together, or something is missing that they do not tell; and what
    `FindsServers.find_server` raises.
    """
    finder = finding_backend()
    by_role = {key.partition(".")[2]: url for key, url in servers.options.items() if key.startswith("url.")}
    for name in by_role:
        try:
            Role.parse(name)
        except ValueError as error:
            raise UsageError(f"option url.{name}: {error}") from None
    urls = list(dict.fromkeys([*servers.urls, *by_role.values()]))
    shared = {key: value for key, value in servers.options.items() if key.partition(".")[0] != "url"}
    found_servers = {url: server_at(finder, url, shared) for url in urls}
    every = list(found_servers.values())
    refuse_unlike(every, servers)
    roles = by_role or roles_of([found_servers[url] for url in servers.urls], servers)
    if by_role and servers.urls:
        raise UsageError(
            f"{servers.urls[0]} together with -o url.{next(iter(by_role))}", hint="name servers in one way"
        )
    speculating = tuple(Role.parse(name).k for name in roles if name != BASELINE.name)
    chats = {"endpoint": "chat"} if servers.format == EVERY_TURN else {}
    options = {**cold(every[0].backend), **chats, **shared, **{f"url.{name}": url for name, url in roles.items()}}
    whole = replace(
        servers,
        urls=(),
        backend=every[0].backend,
        options=options,
        spec=servers.spec or speculating,
        baseline=servers.baseline and BASELINE.name in roles,
    )
    lines = [in_words(found_servers[url], name) for name, url in roles.items()]
    lines += ["conversations: asked as chats, earlier turns answered by the server"] if chats else []
    if BASELINE.name not in roles and not servers.smoke and not servers.sides:
        lines.append("acceptance alone is measured; for a speed-up add the URL of a server that does not speculate")
    return with_tokens(whole, finder, every[0], lines)


def server_at(finder: FindsServers, url: str, options: Mapping[str, str]) -> FoundServer:
    """What answers at `url`, as `FindsServers.find_server` says."""
    limit = "" if "stall_s" in options else "; -o stall_s=SECONDS changes how long a silence may be"
    with waiting(f"waiting for {url} to say what it serves and to answer a short text{limit}"):
        return finder.find_server(url, options)


def finding_backend() -> FindsServers:
    """The first back end that finds servers. Raises UsageError where there is none."""
    for name in plugins.registered("specgate.backends"):
        if isinstance(backend := plugins.backend(name), FindsServers):
            return backend
    raise UsageError("no back end finds out what serves at a URL", hint="name one: --backend NAME -o url.ROLE=URL")


def cold(name: str) -> Mapping[str, str]:
    """The options that keep requests out of the prefix cache of a server that somebody else has started."""
    backend = plugins.backend(name)
    switches = isinstance(backend, SwitchesPrefixCache) and backend.switches_prefix_cache
    return {"prefix_cache": "off"} if switches else {}


def in_words(server: FoundServer, role: str) -> str:
    """One line about a server."""
    method = f"{server.method}, " if server.method else ""
    shown = " in a short text; --spec K if it drafts more" if server.shown else ""
    drafts = {None: "does not say what it drafts", 0: "no speculation"}.get(
        server.draft_length,
        f"{method}drafts of up to {server.draft_length} token{'s' * (server.draft_length != 1)}{shown}",
    )
    label = "server" if server.draft_length == 0 and role != BASELINE.name else role
    chats = "; no completions, so it is asked for chats" if server.chats_only else ""
    return f"{label}: {server.engine} at {server.url} serves {server.model}; {drafts}{chats}"


def refuse_unlike(servers: Sequence[FoundServer], line: Servers) -> None:
    """Raise UsageError for servers of several engines or models, for another engine than `--backend` names, and for
    more requests at a time than they take.
    """
    first = servers[0]
    if line.backend not in (None, first.backend):
        raise UsageError(f"--backend {line.backend}: {first.url} is {first.engine}", hint="leave --backend out")
    for other in servers[1:]:
        if other.backend != first.backend:
            raise UsageError(
                f"{first.url} is {first.engine}, and {other.url} is {other.engine}",
                hint="a speed-up is one engine's against itself: two servers of one engine",
            )
        if not same_model(first, other) and not any(key.startswith("url.") for key in line.options):
            raise UsageError(
                f"{first.url} serves {model_of(first)}, and {other.url} serves {model_of(other)}: two models",
                hint="two servers of one model; if these are: -o url.baseline=URL -o url.spec-K=URL",
            )
    most = min((s.max_requests for s in servers if s.max_requests is not None), default=None)
    if line.batch and most is not None and max(line.batch) > most:
        raise UsageError(
            f"--batch {max(line.batch)}: a server takes {most} requests at a time", hint=f"at most --batch {most}"
        )


def same_model(first: FoundServer, other: FoundServer) -> bool:
    """True if both have loaded a model of one name, or tell no source and call it alike."""
    if first.source and other.source:
        return Path(first.source).name.lower() == Path(other.source).name.lower()
    return first.model == other.model


def model_of(server: FoundServer) -> str:
    return cleaned(server.source or server.model)


def roles_of(servers: Sequence[FoundServer], line: Servers) -> dict[str, str]:
    """Role name → URL. A server that does not speculate is the baseline. Raises UsageError where there is none to
    measure, or two have one role.
    """
    roles: dict[str, str] = {}
    for server in servers:
        length = server.draft_length
        if length is None or (server.shown and line.spec is not None):
            length = stated_length(server, servers, line)
        role = Role(length)
        if not role.speculative and len(servers) == 1 and not line.sides:
            if not line.smoke:
                raise UsageError(
                    f"{server.url} ({server.engine}, {server.model}) does not speculate",
                    hint="add the URL of a server that does: URL,URL; `specgate smoke URL` looks for the cause",
                )
            role = Role(line.spec[0] if line.spec else 3)
        elif role.speculative and line.spec is not None and length not in line.spec:
            raise UsageError(f"--spec {line.spec[0]}: {server.url} drafts up to {length}", hint="leave --spec out")
        if role.name in roles:
            both = "neither speculates" if not role.speculative else f"both draft up to {length} tokens"
            both = "named twice" if roles[role.name] == server.url else both
            raise UsageError(
                f"{roles[role.name]} and {server.url}: {both}",
                hint="one of them with speculation and one without; `specgate ab URL URL` compares two like these",
            )
        roles[role.name] = server.url
    return dict(sorted(roles.items(), key=lambda item: Role.parse(item[0]).k))


def stated_length(server: FoundServer, servers: Sequence[FoundServer], line: Servers) -> int:
    """The draft length of a server that does not tell it: that of `--spec`, if no other server needs it; else the
    longest that it has shown.
    """
    unknown = sum(s.draft_length is None or s.shown for s in servers)
    if line.spec is not None and len(line.spec) == unknown == 1 and line.spec[0] >= (server.draft_length or 0):
        return line.spec[0]
    if server.draft_length is not None:
        return server.draft_length
    why, _, remedy = (server.unknown or "").partition("\n")
    usual = "--spec K; or, of each: -o url.baseline=URL if it does not speculate, -o url.spec-K=URL if it does"
    raise UsageError(
        f"{server.url} ({server.engine}) does not say what it drafts{why and f': {why}'}", hint=remedy.strip() or usual
    )


# ── tokens and prompts ───────────────────────────────────────────────────────────────────────────────────────────────


def with_tokens(
    line: Servers, finder: FindsServers, server: FoundServer, lines: list[str]
) -> tuple[Servers, list[str]]:
    """The command line with prompts, and with the tokenizer of the served model: a file on this machine, or else the
    server's own, which turns the prompts into tokens here and now.
    """
    folder = None if line.pair else tokenizer_folder(server)
    cut = line.smoke and (line.pair or folder is not None)  # smoke has a text of its own, which needs a tokenizer
    if line.prompts is None and line.text is None and not (line.ids or line.named or cut):
        line = replace(line, prompts=FIRST_PROMPTS)
        lines.append("prompts: short ones that come along; --prompts FILE measures yours")
    if line.pair:
        return line, lines
    if folder is not None:
        lines.append(f"tokenizer: {folder}")
        return replace(line, pair=True, tokenizer=folder), lines
    if line.prompts is None and line.named:
        raise UsageError(
            f"{server.url}: the tokenizer of {model_of(server)} is not on this machine, and texts are cut by it",
            hint="--tokenizer FILE|DIR, or --prompts FILE: the server turns them into tokens",
        )
    folder, file, tokenizer, later = tokenised(line, finder, server)
    if tokenizer is not None:
        lines.append(f"tokenizer: {tokenizer}")
    if later:
        lines.append(f"{later} prompts have later turns, which are not asked: --format {EVERY_TURN} asks them all")
    line = replace(line, pair=True, tokenizer=folder)
    return (line if file is None else replace(line, prompts=file, text=None, format=None, chat=None)), lines


def tokenizer_folder(server: FoundServer) -> Path | None:
    """The folder with the tokenizer of the served model, if it is on this machine: the folder that a server here has
    loaded, or the repository in the cache of Hugging Face's hub.
    """
    source = server.source
    if source is None:
        return None
    if urlsplit(server.url).hostname in ("localhost", "127.0.0.1", "::1") and (Path(source) / TOKENIZER).is_file():
        return Path(source)
    owner, slash, name = source.partition("/")
    if not slash or "/" in name or ".." in source:
        return None
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = home / "hub" / f"models--{owner}--{name}" / "snapshots"
    snapshots = sorted(hub.glob(f"*/{TOKENIZER}"), key=lambda file: file.stat().st_mtime)
    return snapshots[-1].parent if snapshots else None


def tokenised(line: Servers, finder: FindsServers, server: FoundServer) -> tuple[Path, Path | None, str | None, int]:
    """(a folder that says what the server tells of its model, the file of prompts in token ids), both in the cache;
    what made the tokens, None where all prompts were token ids; and how many prompts have later turns.

    Raises UsageError where the server has no tokenizer end point.
    """
    config = {
        SERVED_KEY: server.model,
        "vocab_size": server.vocab or ANY_VOCABULARY,
        **({"max_position_embeddings": server.max_positions} if server.max_positions else {}),
    }
    files, tokenizer, later = {"config.json": json.dumps(config)}, None, 0
    format_, entries = entries_of(line)
    if entries:
        question = line.chat is not False and (FORMATS[format_].question or bool(line.chat))
        prompts, tokenizer, later = in_ids(line, finder, server, entries, question)
        files[f"prompts/{line.prompts.name if line.prompts else 'prompt'}"] = "\n".join(prompts)
        tokenizer = None if all(isinstance(entry.content, tuple) for entry in entries) else tokenizer
    digest = hashlib.sha256("\n".join(files.values()).encode()).hexdigest()[:16]
    folder = cache_dir() / "served" / digest
    for name, text in files.items():
        write_cached(folder / name, text)
    return folder, next((folder / name for name in files if name.startswith("prompts/")), None), tokenizer, later


def entries_of(line: Servers) -> tuple[FormatName, Sequence[Entry]]:
    """The prompts that a server turns into tokens, and their format: those of a file, or a text of the command line."""
    if line.prompts is None:
        return LINES, () if line.text is None else (Entry("--prompt", 1, line.text),)
    kind = recognise(line.prompts, line.format or "auto")
    entries = prompts_in(line.prompts, *kind).entries
    return kind.format, entries if line.every else entries[:MOST_TOKENISED]


def in_ids(
    line: Servers, finder: FindsServers, server: FoundServer, entries: Sequence[Entry], question: bool
) -> tuple[list[str], str, int]:
    """The prompts as JSON lines of token ids, beside the messages for a chat end point; what made the ids; and how many
    have later turns. A chat end point needs no ids: without a tokenizer their place is taken by the bytes of the
    messages.
    """
    tokenizer, prompts = SERVERS, list[Mapping[str, object]]()
    try:
        prompts = server_tokens(finder, server, line.options, entries, question)
    except UsageError:
        if not server.chats_only and line.options.get("endpoint") != "chat":
            raise
        tokenizer, prompts = BYTES, [{"ids": bytes_of(entry)} for entry in entries]
    lines, folder = list[str](), f"{line.prompts.parent}/" if line.prompts else ""
    for at, (entry, prompt) in enumerate(zip(entries, prompts, strict=True), 1):
        place = entry.where.removeprefix(folder), at if line.format == EVERY_TURN else entry.number
        answer = entry.answer if entry.answer and key_of(entry.answer.value) == entry.answer else None
        beside = {"category": entry.category, "answer": answer and answer.value, **asdict(entry.stamp)}
        known = {key: value for key, value in beside.items() if value is not None}
        lines.append(json.dumps({PLACE: place, **request_of(entry), **prompt, **known}))
    return lines, tokenizer, sum(bool(entry.later) for entry in entries)


def request_of(entry: Entry) -> Mapping[str, object]:
    """The fields of a chat request for an entry; {} for one of token ids."""
    request = text_of(entry, as_chat=True)
    return request if isinstance(request, Mapping) else {}


def bytes_of(entry: Entry) -> tuple[int, ...]:
    """The bytes of an entry's messages in the place of its tokens."""
    return entry.content if isinstance(entry.content, tuple) else tuple(json.dumps(request_of(entry)).encode())


def server_tokens(
    finder: FindsServers, server: FoundServer, options: Mapping[str, str], entries: Sequence[Entry], question: bool
) -> list[Mapping[str, object]]:
    """The `ids` of every entry by the server's tokenizer, and of a chat the fields of its request. A question becomes a
    chat, if the server's model has a template, else it stays a text.
    """
    missing = UsageError(
        f"{server.url}: the tokenizer of {model_of(server)} is neither on this machine nor behind an end point of it",
        hint="--tokenizer FILE|DIR: the tokenizer.json of the served model; or -o endpoint=chat, which needs none",
    )
    for as_chat in (True, False) if question else (False,):
        texts = [text_of(entry, as_chat=as_chat) for entry in entries]
        try:
            with waiting(f"waiting for {server.url} to turn {len(texts)} prompts into tokens"):
                tokens = finder.server_tokens(server, options, [text for text in texts if text is not None])
        except BackendError as error:
            if as_chat:  # a model without a template
                continue
            raise UsageError(error.message, hint=missing.hint) from error
        if tokens is not None:
            made = iter(tokens)
            return [
                {"ids": entry.content if text is None else next(made), **(text if isinstance(text, Mapping) else {})}
                for entry, text in zip(entries, texts, strict=True)
            ]
    raise missing


def text_of(entry: Entry, *, as_chat: bool) -> TextOrChat | None:
    """The text or the chat of an entry, as a server is asked for its tokens; None if it has ids. Raises UsageError for
    hashes, whose tokens are drawn from a vocabulary.
    """
    match entry.content:
        case str() as text:
            return Chat(({"role": "user", "content": text},)).request if as_chat else text
        case Chat() as chat:
            return chat.request
        case HashedPrompt():
            raise UsageError(
                f"{entry.where}: hashes of a prompt, whose tokens are drawn from the target's vocabulary",
                hint="--tokenizer FILE|DIR: the tokenizer.json of the served model",
            )
        case _:
            return None
