"""Chat end points: messages are sent, deltas of every channel are tokens, and what was read is held to the template."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from specgate.backends.servers.adapters.chat import lacks_completions
from specgate.backends.servers.client import Client
from specgate.backends.servers.engine import ServerEngine
from specgate.backends.servers.options import Options
from specgate.backends.servers.secrets import Secret
from specgate.checkpoints.chat_template import ANSWER
from specgate.contract import BASELINE, Budget, Role
from specgate.contract.protocols import ChatPrompt, ChecksOptions, Decoded, Engine
from specgate.contract.tape import sha256_of_ids
from specgate.errors import BackendError, UsageError
from specgate.plugins import backend
from tests.backends.servers.helpers import ENGINES, request_of, running_stub, with_template
from tests.backends.servers.stub.engine import token, written

CHAT = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]}
RENDERED = tuple(b"<system>Be brief.\n<user>Why?\n<assistant>")
PLAIN = tuple(b"def f(x):")


@pytest.fixture(scope="module")
def chat_pair(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return with_template(pair, tmp_path_factory.mktemp("chat-pair"))


@contextmanager
def talking(chat_pair: tuple[Path, Path], folder: Path, dialect: str, *faults: str, **options: str) -> Iterator[Engine]:
    """An engine on a chat server that drafts and one that does not, both with these faults."""
    given = [word for fault in faults for word in ("--fault", fault)]
    with running_stub(dialect, 3, *given) as url, running_stub(dialect, 0, *given) as plain:
        request = request_of(chat_pair, folder, {"url": url, "url.baseline": plain, **options})
        known = (ChatPrompt(sha256_of_ids([RENDERED]), json.dumps(CHAT)),)
        engine = backend(dialect).open(replace(request, chats=known))
        try:
            yield engine
        finally:
            engine.close()


def both(engine: Engine) -> tuple[Decoded, Decoded]:
    engine.prefill([RENDERED, PLAIN], draft=True)
    spec, baseline = (engine.decode(role, Budget(steps=20), ()) for role in (Role(3), BASELINE))
    return spec, baseline


@pytest.mark.slow("starts two servers per test")
@pytest.mark.parametrize("dialect", ENGINES)
def test_chat_only_servers_are_asked_by_messages_and_tokens_and_acceptance_are_theirs(
    dialect: str, chat_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with talking(chat_pair, tmp_path, dialect, "chat_only") as engine:
        facts = engine.facts()
        spec, baseline = both(engine)
    assert facts.details["end point"] == "/v1/chat/completions"
    assert not any("template" in warning for warning in facts.warnings)
    assert spec.tokens == baseline.tokens and {len(tokens) for tokens in spec.tokens} == {21}
    record = spec.served.acceptance if spec.served else None
    assert record is not None and (record.k, record.steps, record.accepted) == (3, 14, 28)
    assert spec.counters.get("answers_as_texts", 0) == (0 if dialect in ("vllm", "lmdeploy") else 2)


@pytest.mark.slow("starts two servers per test")
@pytest.mark.parametrize(
    ("faults", "options"),
    [
        (("thinks=reasoning_content",), {}),
        (("thinks=reasoning", "no_ids"), {}),
        (("calls", "no_ids"), {}),
        (("no_ids",), {"logprobs": "on"}),
        ((), {"logprobs": "on"}),
        ((), {"system": "You are terse.", "chat_template_kwargs": '{"enable_thinking": false}'}),
        ((), {"response_format": '{"type": "json_object"}', "chat_template": "server"}),
    ],
    ids=lambda value: "-".join(value) or "plain",
)
def test_deltas_of_every_channel_are_tokens(
    faults: tuple[str, ...], options: dict[str, str], chat_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with talking(chat_pair, tmp_path, "vllm", *faults, endpoint="chat", **options) as engine:
        spec, baseline = both(engine)
        if "no_ids" in faults and "logprobs" in options:
            assert isinstance(engine, ServerEngine)
            ranked = engine.ranked(0, spec.tokens[0][:4], 2)
            assert ranked is not None
            assert ranked.tokens[0] == spec.tokens[0][4], "the candidates of a chat that was decoded again"
    assert spec.tokens == baseline.tokens and {len(tokens) for tokens in spec.tokens} == {21}
    assert spec.served is not None
    assert all(len(request.chunk_ns) > 5 for request in spec.served.requests), "times are those of the deltas"


@pytest.mark.slow("starts two servers per test")
@pytest.mark.parametrize(
    ("faults", "options", "message"),
    [
        (("no_template",), {}, r"its prompt has 'B' as token 0, and the chat template makes '<'.* no template is put"),
        (
            ("no_template", "no_ids"),
            {},
            r"it counts 13 prompt tokens, and the chat template makes 40: it looks as if no",
        ),
        (("odd_prompt_ids",), {}, r"its usage record counts 40 prompt tokens, and it repeats 41"),
        (
            ("adds_bos", "no_ids"),
            {},
            r"it counts 41 prompt tokens, and the chat template makes 40; acceptance would be",
        ),
        (("no_usage",), {}, r"with no usage record"),
        (("miscounts",), {}, r"21 tokens received, but the usage record says 22"),
        (("status=429",), {}, r"/v1/chat/completions: HTTP 429"),
        (("die",), {}, r"the connection broke"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_what_contradicts_a_chat_is_named(
    faults: tuple[str, ...], options: dict[str, str], message: str, chat_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with (
        talking(chat_pair, tmp_path, "vllm", *faults, endpoint="chat", **options) as engine,
        pytest.raises(BackendError, match=message),
    ):
        both(engine)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endpoint": "talk"}, r"option endpoint = 'talk'"),
        ({"endpoint": "completions", "system": "x"}, r"option system with endpoint = completions"),
        ({"chat_template": "/nowhere.jinja"}, r"option chat_template = /nowhere.jinja: no such file"),
        ({"chat_template_kwargs": "thinking"}, r"option chat_template_kwargs = thinking: neither a JSON object nor"),
        ({"response_format": '{"type"'}, r"option response_format"),
    ],
)
def test_options_of_chats_are_checked(options: dict[str, str], message: str) -> None:
    engine = backend("vllm")
    assert isinstance(engine, ChecksOptions)
    with pytest.raises(UsageError, match=message):
        engine.check_options(options)


def test_a_template_that_cannot_be_rendered_is_named(chat_pair: tuple[Path, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% for turn in messages %}")
    with (
        talking(chat_pair, tmp_path, "vllm", endpoint="chat", chat_template=str(broken)) as engine,
        pytest.raises(BackendError, match=r"broken.jinja: chat_template, line 1: not a Jinja template"),
    ):
        both(engine)


@pytest.mark.slow("starts two servers per test")
@pytest.mark.parametrize(
    ("beside", "lost"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "text"}, "tool_choice": "auto"}, ""),
    ],
)
def test_a_prompt_whose_answer_has_a_form_is_not_asked_of_completions_without_it(
    beside: dict[str, object], lost: str, chat_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    known = (ChatPrompt(sha256_of_ids([RENDERED]), json.dumps({**CHAT, **beside})),)
    with running_stub("vllm", 3) as url, running_stub("vllm", 0) as plain:
        request = request_of(chat_pair, tmp_path, {"url": url, "url.baseline": plain})
        with closing(backend("vllm").open(replace(request, chats=known))) as engine:
            if not lost:
                engine.prefill([RENDERED], draft=True)
                return
            with pytest.raises(BackendError, match=f"a prompt with {lost}, and it is asked .*\n  -o endpoint=chat"):
                engine.prefill([RENDERED], draft=True)


@pytest.mark.parametrize("option", ["system=You are terse.", 'response_format={"type": "json_object"}', "logprobs=on"])
def test_an_option_that_only_chats_have_chooses_their_end_point(option: str) -> None:
    assert Options.parse(dict([option.split("=", 1)]), ()).endpoint == "chat"


@pytest.mark.slow("starts two servers")
def test_earlier_turns_are_answered_by_the_baseline_and_sent_with_the_next_question(
    chat_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    turns = [{"role": "user", "content": "Why?"}, dict(ANSWER), {"role": "user", "content": "And then?"}]
    prompt = tuple(b"<user>Why?\n<assistant>\n<user>And then?\n<assistant>")
    known = (ChatPrompt(sha256_of_ids([prompt]), json.dumps({"messages": turns})),)
    with running_stub("vllm", 3) as url, running_stub("vllm", 0) as plain:
        request = replace(
            request_of(chat_pair, tmp_path, {"url": url, "url.baseline": plain, "endpoint": "chat"}), chats=known
        )
        engine = backend("vllm").open(request)
        with closing(engine):
            engine.prefill([prompt], draft=True)
            spec, baseline = (engine.decode(role, Budget(steps=20), ()) for role in (Role(3), BASELINE))
            assert isinstance(engine, ServerEngine)
            sent = engine.requests.chats.fields(prompt)["messages"]
            assert isinstance(sent, list)
    first = written([token(tuple(b"<user>Why?\n<assistant>"), index) for index in range(256)])
    assert [turn["content"] for turn in sent] == ["Why?", first, "And then?"]
    read = tuple(f"<user>Why?\n<assistant>{first}\n<user>And then?\n<assistant>".encode())
    assert spec.tokens == baseline.tokens == (tuple(token(read, index) for index in range(21)),)


@pytest.mark.slow("starts a server per test")
@pytest.mark.parametrize("dialect", ["vllm", "openai"])
def test_a_url_of_a_chat_only_server_is_found_out(dialect: str) -> None:
    from specgate.backends.servers.engines import find_server

    with running_stub("vllm" if dialect == "vllm" else dialect, 3, "--fault", "chat_only") as url:
        server = find_server(url, {})
    assert (server.backend, server.chats_only, server.draft_length) == (dialect, True, 3)


def test_a_server_that_breaks_on_an_empty_request_has_that_end_point() -> None:
    class Breaks(Client):
        def post(self, path: str, body: object, silent_s: float) -> tuple[int, str]:
            raise BackendError("the connection broke")

    with closing(Breaks("http://127.0.0.1:9", stall_s=1, secret=Secret())) as client:
        assert not lacks_completions(client, "/v1/completions", "m")


def test_a_server_that_says_404_for_a_request_without_a_model_has_that_end_point() -> None:
    class NamesModels(Client):
        def post(self, path: str, body: Mapping[str, object] | None, silent_s: float) -> tuple[int, str]:
            return (400, "no prompt") if (body or {}).get("model") == "m" else (404, "no such model")

    with closing(NamesModels("http://127.0.0.1:9", stall_s=1, secret=Secret())) as client:
        assert not lacks_completions(client, "/v1/completions", "m")
