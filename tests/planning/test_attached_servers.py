"""URLs on a command line: which server has which role, and what is asked for when servers do not fit together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from specgate import terminal
from specgate.checkpoints.chat_template import Chat
from specgate.contract.protocols import FoundServer, TextOrChat
from specgate.errors import UsageError
from specgate.pairs.resolve import served_pair
from specgate.planning import attached_servers
from specgate.planning.attached_servers import FIRST_PROMPTS, Servers, tokenizer_folder, with_servers
from specgate.planning.prompt_files.formats import prompts_in, recognise
from specgate.planning.prompt_files.trace import Trace
from specgate.run.smoke.prompt import PromptWish, chats_of, prompt_ids

PLAIN = FoundServer("http://127.0.0.1:1", "vllm", "vLLM 1", "m", "org/m", 0)
DRAFTS = replace(PLAIN, url="http://127.0.0.1:2", draft_length=5, method="ngram", max_requests=4)
FIVE = {"prefix_cache": "off", "url.baseline": PLAIN.url, "url.spec-5": DRAFTS.url}


class Finder:
    """A back end that knows these servers, and a tokenizer of one token per character."""

    def __init__(self, *servers: FoundServer) -> None:
        self.servers = {server.url: server for server in servers}
        self.texts: list[TextOrChat] = []

    def find_server(self, url: str, options: Mapping[str, str]) -> FoundServer:
        return self.servers[url]

    def server_tokens(
        self, server: FoundServer, options: Mapping[str, str], texts: Sequence[TextOrChat]
    ) -> list[tuple[int, ...]] | None:
        self.texts += texts
        return [(len(text),) for text in texts] if server.vocab else None


def line_of(monkeypatch: pytest.MonkeyPatch, *servers: FoundServer, **changes: object) -> Servers:
    """The command line that names these servers and a tokenizer, after it was completed."""
    monkeypatch.setattr(attached_servers, "finding_backend", lambda: Finder(*servers))
    urls = () if "options" in changes else tuple(server.url for server in servers)
    line, lines = with_servers(replace(Servers(urls=urls, pair=True), **changes))  # type: ignore[arg-type]
    assert all(isinstance(text, str) for text in lines)
    return line


@pytest.mark.parametrize("servers", [(PLAIN, DRAFTS), (DRAFTS, PLAIN)], ids=["in order", "the other way round"])
def test_the_server_that_does_not_speculate_is_the_baseline(
    servers: tuple[FoundServer, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = line_of(monkeypatch, *servers)
    assert (line.backend, line.options, line.spec, line.baseline) == ("vllm", FIVE, (5,), True)
    assert line.prompts == FIRST_PROMPTS


def test_one_server_is_measured_by_itself_and_one_that_drafts_nothing_is_for_smoke(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = line_of(monkeypatch, DRAFTS)
    assert (alone.options, alone.baseline) == ({"prefix_cache": "off", "url.spec-5": DRAFTS.url}, False)
    assert line_of(monkeypatch, PLAIN, smoke=True).options["url.spec-3"] == PLAIN.url
    with pytest.raises(UsageError, match="does not speculate"):
        line_of(monkeypatch, PLAIN)
    side = line_of(monkeypatch, PLAIN, sides=True)
    assert (side.options["url.baseline"], side.spec, side.baseline) == (PLAIN.url, (), True)


def test_roles_that_the_command_line_names_stay_and_back_end_and_draft_length_are_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = line_of(monkeypatch, PLAIN, DRAFTS, options={**FIVE, "prefix_cache": "on", "stall_s": "9"})
    assert (line.backend, line.options, line.spec) == ("vllm", {**FIVE, "prefix_cache": "on", "stall_s": "9"}, (5,))


def test_a_draft_may_be_longer_than_a_short_text_has_shown_if_the_command_line_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = replace(DRAFTS, shown=True)
    assert line_of(monkeypatch, PLAIN, seen, spec=(8,)).options["url.spec-8"] == DRAFTS.url
    assert line_of(monkeypatch, PLAIN, seen).spec == (5,)
    monkeypatch.setattr(attached_servers, "finding_backend", lambda: Finder(replace(seen, chats_only=True)))
    _, (line, *_) = with_servers(Servers(urls=(DRAFTS.url,), pair=True))
    assert line.endswith(
        "drafts of up to 5 tokens in a short text; --spec K if it drafts more; no completions, so it is asked for chats"
    )


@pytest.mark.parametrize(
    ("servers", "changes", "sentence"),
    [
        ((PLAIN, PLAIN), {}, "named twice"),
        ((PLAIN, replace(PLAIN, url="u")), {}, "neither speculates"),
        ((DRAFTS, replace(DRAFTS, url="u")), {}, "both draft up to 5 tokens"),
        ((PLAIN, replace(DRAFTS, backend="sglang", engine="SGLang 2")), {}, "is vLLM 1, and .* is SGLang 2"),
        ((PLAIN, replace(DRAFTS, source="org/other")), {}, "serves org/m, and .* serves org/other: two models"),
        ((PLAIN, DRAFTS), {"spec": (3,)}, "--spec 3: .* drafts up to 5"),
        ((PLAIN, replace(DRAFTS, shown=True)), {"spec": (3,)}, "--spec 3: .* drafts up to 5"),
        ((), {"options": {"url.spec3": "u"}}, "option url.spec3: 'spec3' is not a role; a role is 'baseline' or"),
        ((PLAIN, DRAFTS), {"batch": (1, 8)}, "--batch 8: a server takes 4 requests at a time"),
        ((PLAIN, DRAFTS), {"backend": "sglang"}, "--backend sglang: .* is vLLM 1"),
        ((PLAIN, replace(DRAFTS, draft_length=None)), {}, r"(?s)does not say what it drafts.*-o url.spec-K=URL"),
        ((PLAIN, DRAFTS), {"pair": False}, r"(?s)is neither on this machine nor behind an end point.*--tokenizer"),
        ((PLAIN, DRAFTS), {"pair": False, "named": True}, r"(?s)texts are cut by it.*--prompts FILE"),
    ],
)
def test_servers_that_do_not_fit_are_named_with_what_mends_it(
    servers: tuple[FoundServer, ...], changes: dict[str, object], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError) as error:
        line_of(monkeypatch, *servers, **changes)
    assert error.match(sentence)


def test_a_slow_server_is_named_while_it_is_asked_and_while_it_tokenises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers once the line is there, so that a missing line shows as one that never comes."""
    printed, lines = Event(), list[str]()

    def echo(text: str, *, err: bool) -> None:
        lines.append(text if err else "on standard output")
        printed.set()

    class Slow(Finder):
        def find_server(self, url: str, options: Mapping[str, str]) -> FoundServer:
            assert printed.wait(60)
            printed.clear()
            return super().find_server(url, options)

        def server_tokens(
            self, server: FoundServer, options: Mapping[str, str], texts: Sequence[TextOrChat]
        ) -> list[tuple[int, ...]] | None:
            assert printed.wait(60)
            return super().server_tokens(server, options, texts)

    monkeypatch.setenv("SPECGATE_CACHE", str(tmp_path))
    monkeypatch.setattr(terminal, "SLOW_S", 0.0)
    monkeypatch.setattr(terminal, "echo", echo)
    monkeypatch.setattr(attached_servers, "finding_backend", lambda: Slow(replace(DRAFTS, vocab=99)))
    with_servers(Servers(urls=(DRAFTS.url,), prompts=FIRST_PROMPTS, options={"stall_s": "9"}))
    asking, tokenising = lines
    assert asking == f"waiting for {DRAFTS.url} to say what it serves and to answer a short text"
    assert tokenising.startswith(f"waiting for {DRAFTS.url} to turn ")


def test_a_draft_length_that_is_not_told_is_that_of_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    line = line_of(monkeypatch, PLAIN, replace(DRAFTS, draft_length=None), spec=(4,))
    assert line.options["url.spec-4"] == DRAFTS.url


def test_prompts_without_a_tokenizer_become_ids_by_the_servers_own_and_keep_their_categories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECGATE_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "mine.txt"
    file.write_text('{"instruction": "abc", "category": "c"}\n{"instruction": "abcde"}\n')
    finder = Finder(*(replace(server, vocab=99) for server in (PLAIN, DRAFTS)))
    monkeypatch.setattr(attached_servers, "finding_backend", lambda: finder)
    line, _ = with_servers(Servers(urls=(PLAIN.url, DRAFTS.url), prompts=file))
    assert finder.texts == [{"messages": [{"role": "user", "content": text}]} for text in ("abc", "abcde")]
    assert line.prompts is not None and line.prompts.name == "mine.txt" and line.tokenizer == line.prompts.parent.parent
    entries = prompts_in(line.prompts, *recognise(line.prompts, "auto")).entries
    chats = [(entry.content.ids, entry.category) for entry in entries if isinstance(entry.content, Chat)]
    assert chats == [((1,), "c"), ((1,), None)]


def test_a_copy_in_the_servers_tokens_names_the_lines_of_the_users_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECGATE_CACHE", str(tmp_path / "cache"))
    (file := tmp_path / "mine.jsonl").write_text('\n{"text": "a", "timestamp": 9}\n\n{"text": "ab", "timestamp": 3}\n')
    monkeypatch.setattr(attached_servers, "finding_backend", lambda: Finder(replace(DRAFTS, vocab=99)))
    line, _ = with_servers(Servers(urls=(DRAFTS.url,), prompts=file))
    assert line.prompts is not None and line.prompts != file
    entries = prompts_in(line.prompts, *recognise(line.prompts, "auto")).entries
    assert [(entry.where, entry.number) for entry in entries] == [("mine.jsonl:2", 2), ("mine.jsonl:4", 4)]
    with pytest.raises(UsageError, match=r"^mine\.jsonl:4: timestamp: 3 ms: it lies before the request above it"):
        Trace.of([(entry.where, entry.number, entry.stamp) for entry in entries])


@pytest.mark.parametrize("chats_only", [False, True])
def test_a_text_of_the_command_line_is_the_prompt_of_smoke_in_the_servers_tokens(
    chats_only: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a tokenizer of its own, a chat end point gets its message."""
    monkeypatch.setenv("SPECGATE_CACHE", str(tmp_path))
    server = replace(DRAFTS, vocab=None if chats_only else 99, chats_only=chats_only)
    monkeypatch.setattr(attached_servers, "finding_backend", lambda: Finder(server))
    line, lines = with_servers(Servers(urls=(DRAFTS.url,), text="five!", smoke=True))
    assert line.text is None and not any("that come along" in text for text in lines)
    assert line.tokenizer is not None
    wish, pair = PromptWish(prompts=line.prompts), served_pair(line.tokenizer)
    message = '{"messages": [{"role": "user", "content": "five!"}]}'
    assert prompt_ids(wish, pair) == (tuple(message.encode()) if chats_only else (5,))
    (chat,) = chats_of(wish, pair)
    assert json.loads(chat.request) == json.loads(message)


def test_every_turn_of_a_conversation_is_a_chat_of_its_own_for_the_servers_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECGATE_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "speed.jsonl"
    record = {"question_id": "a", "category": "coding", "sub_category": "s", "turns": ["one", "two"]}
    file.write_text(json.dumps(record))
    finder = Finder(replace(DRAFTS, vocab=99))
    monkeypatch.setattr(attached_servers, "finding_backend", lambda: finder)
    line, lines = with_servers(Servers(urls=(DRAFTS.url,), prompts=file))
    assert "1 prompts have later turns, which are not asked: --format conversations asks them all" in lines
    assert "endpoint" not in line.options
    line, _ = with_servers(Servers(urls=(DRAFTS.url,), prompts=file, format="conversations"))
    assert line.options["endpoint"] == "chat" and line.prompts is not None
    entries = prompts_in(line.prompts, *recognise(line.prompts, "auto")).entries
    contents = [entry.content for entry in entries]
    assert [len(chat.turns) for chat in contents if isinstance(chat, Chat)] == [1, 3]
    assert [entry.category for entry in entries] == ["coding", "coding"], "as in SPEED-Bench's report"


def test_the_tokenizer_is_that_of_the_folder_that_a_server_here_has_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    here = replace(PLAIN, source=str(tmp_path))
    assert tokenizer_folder(here) == tmp_path
    assert tokenizer_folder(replace(here, url="http://10.0.0.7:8000")) is None, "another machine's folder"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    snapshot = tmp_path / "hf/hub/models--org--m/snapshots/1"
    snapshot.mkdir(parents=True)
    (snapshot / "tokenizer.json").write_text("{}")
    assert tokenizer_folder(PLAIN) == snapshot
