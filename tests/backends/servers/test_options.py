"""Options are understood, or refused before anything is written down or started."""

from __future__ import annotations

import pytest

from specgate.backends.servers.backend import ServerBackend
from specgate.backends.servers.options import Options
from specgate.contract import BASELINE, Role
from specgate.errors import UsageError
from specgate.plugins import backend


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"urll": "x"}, r"did you mean url\?"),
        ({"url": "127.0.0.1:8000"}, "not a URL of a server"),
        ({"url": "ftp://127.0.0.1"}, "not a URL of a server"),
        ({"url": "http://127.0.0.1:99999"}, r"(?s)not a URL.*HOST:PORT; several with commas"),
        ({"url": "http://example.org:8000"}, "is not this machine"),
        ({"url": "http://127.0.0.1.example.org"}, "is not this machine"),
        ({"url": "http://0.0.0.0:8000"}, r"(?s)0\.0\.0\.0 is not .* 127\.0\.0\.1 is one of them"),
        ({"url": "http://me:pw@127.0.0.1:8000"}, "would be written into the run folder"),
        ({"url": "http://127.0.0.1:8000/?api_key=x"}, "would be written into the run folder"),
        ({"url.spec": "http://127.0.0.1:8000"}, "is not a role"),
        ({"api_key_env": "sk-1-2"}, "not the name of an environment variable"),
        ({"args": "--a 'b"}, "No closing quotation"),
        ({"port": "0"}, "1 to 65535"),
        ({"port": "8000"}, "side by side"),
        ({"servers": "both"}, "together, apart"),
        ({"stall_s": "-1"}, "a positive number"),
        ({"start_s": "nan"}, "a positive number"),
        ({"force_al": "2", "url": "http://localhost:1"}, "started here"),
        ({"allow_remote": "yes"}, "off, on"),
        ({"engine": "pytorch"}, "not known"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Options.parse(options, ())
    assert "sk-1" not in str(caught.value) and "pw" not in str(caught.value)


def test_a_back_end_that_starts_no_server_needs_the_url_of_one() -> None:
    compatible = backend("openai")
    assert isinstance(compatible, ServerBackend)
    with pytest.raises(UsageError, match="no URL names one"):
        compatible.check_options({})
    compatible.check_options({"url": "http://127.0.0.1:8000"})


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "http://localhost:1/", "https://[::1]:8443", "http://127.9.9.9:1"]
)
def test_a_loopback_url_needs_no_leave(url: str) -> None:
    assert Options.parse({"url": url}, ()).url_of(BASELINE) == url


def test_a_remote_url_is_taken_where_it_is_allowed() -> None:
    given = {"url": "https://gpu.example.org", "allow_remote": "on"}
    assert Options.parse(given, ()).url_of(Role(3)) == "https://gpu.example.org"


def test_an_option_of_a_role_wins_over_that_of_all() -> None:
    given = {
        "url": "http://127.0.0.1:1",
        "url.spec-3": "http://127.0.0.1:3",
        "args": "-t 1",
        "args.spec-3": "--x 'a b'",
    }
    options = Options.parse(given, ())
    assert [options.url_of(role) for role in (BASELINE, Role(2), Role(3))] == [
        "http://127.0.0.1:1",
        "http://127.0.0.1:1",
        "http://127.0.0.1:3",
    ]
    assert options.args_of(BASELINE) == ("-t", "1") and options.args_of(Role(3)) == ("-t", "1", "--x", "a b")


FLAGS_WITH_CREDENTIALS = (
    "--hf-token", "--hf_token", "--HF-TOKEN", "-hft", "--api-key", "--api_key", "--API-KEY", "--apikey", "--api-keys",
    "--admin-api-key", "--token", "--auth-token", "--access_token", "--password", "--ssl-keyfile-password", "--secret",
    "--secret-key", "--authorization", "--api-k", "--hf-tok", "--passw",
)  # fmt: skip
FLAGS_WITHOUT = (
    "--max-num-batched-tokens", "--skip-tokenizer-init", "--tokenizer", "--tokenizer-mode", "--num-speculative-tokens",
    "--max-tokens", "--max-num-seqs", "--speculative-num-draft-tokens", "--pad-token", "--stop-token-ids",
    "--api-key-file", "--ssl-keyfile", "--enable-prompt-tokens-details", "--return-tokens-as-token-ids", "--keep-alive",
    "--author", "--access-log", "--passthrough", "--api-server-count", "--hf-overrides", "--host", "-hf", "-t",
    "-h", "-H", "--speculative-token-map", "--no-tokenize", "--disable-log-stats", "--tok", "--max-total-tokens",
    "--cpu-key-cache",
)  # fmt: skip


@pytest.mark.parametrize("flag", FLAGS_WITH_CREDENTIALS)
@pytest.mark.parametrize("form", ["{} {}", "{}={}", "--port 1 {} {} -x", "--a 'b {} {}"])
def test_a_flag_with_a_credential_is_refused_by_its_whole_name(flag: str, form: str) -> None:
    with pytest.raises(UsageError, match="a secret would be written") as caught:
        Options.parse({"args.spec-3": form.format(flag, "horse9")}, ())
    assert flag in str(caught.value) and "horse9" not in str(caught.value)
    assert "api_key_env" in str(caught.value) and "VLLM_API_KEY" in str(caught.value)


@pytest.mark.parametrize("flag", FLAGS_WITHOUT)
@pytest.mark.parametrize("form", ["{} {}", "{}={}", "{}"])
def test_a_flag_with_a_similar_name_is_taken(flag: str, form: str) -> None:
    text = form.format(flag, "8192")
    assert Options.parse({"args": text}, ()).args_of(BASELINE) == tuple(text.split())


@pytest.mark.parametrize(
    "args",
    [
        "-H 'Authorization: Bearer horse9'",
        "-H'authorization: horse9'",
        "-HX-Api-Key:horse9",
        "--header 'x-api-key: horse9'",
        "--header='Authorization: Basic horse9'",
        "--headers Authorization=horse9",
        "-H 'Cookie: horse9'",
        "--env HF_TOKEN=horse9",
        "--env=OPENAI_API_KEY=horse9",
        "-e PORT=1,HF_TOKEN=horse9",
        """--config '{"api_key": "horse9"}'""",
        "--model https://me:horse9@host/m",
        "--download hf_abcdefghijklmnopqrstuvwxyz012345",
        "sk-abcdefghijklmnopqrstuvwxyz012345",
    ],
)
def test_credentials_in_values_of_flags_are_refused(args: str) -> None:
    with pytest.raises(UsageError, match="a secret would be written") as caught:
        Options.parse({"args": args}, ())
    assert "horse9" not in str(caught.value) and "abcdef" not in str(caught.value)


@pytest.mark.parametrize("args", ["-H 'Content-Type: text/plain'", "--env OMP_NUM_THREADS=1", "--env=MAX_TOKENS=5"])
def test_headers_and_variables_without_credentials_are_taken(args: str) -> None:
    assert Options.parse({"args": args}, ()).args


@pytest.mark.parametrize(
    "url",
    ["https://me:horse9@127.0.0.1", "me:horse9@127.0.0.1:8000", "http://me:ho/rse9@127.0.0.1", "http://h?token=horse9"],
)
def test_a_url_with_a_password_is_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="would be written into the run folder") as caught:
        Options.parse({"url.baseline": url}, ())
    assert "rse9" not in str(caught.value)


@pytest.mark.parametrize("key", ["hf_token", "HF-TOKEN", "api_key", "API_KEY", "auth_token", "token", "password"])
def test_an_option_that_names_a_credential_is_refused_with_what_to_do_instead(key: str) -> None:
    with pytest.raises(UsageError, match="a secret would be written") as caught:
        Options.parse({key: "horse9"}, ())
    assert "horse9" not in str(caught.value) and "api_key_env" in str(caught.value)


@pytest.mark.parametrize("key", ["model", "program"])
def test_a_credential_in_any_option_is_refused(key: str) -> None:
    with pytest.raises(UsageError, match="a secret would be written"):
        Options.parse({key: "hf_abcdefghijklmnopqrstuvwxyz012345"}, ())


def test_ports_of_this_machine_are_those_of_loopback_urls() -> None:
    from specgate.contract.protocols import DrivesAnotherEngine

    vllm = backend("vllm")
    assert isinstance(vllm, DrivesAnotherEngine)
    urls = {"url.baseline": "http://127.0.0.1:8101", "url.spec-3": "http://localhost", "url": "http://10.0.0.7:8000"}
    assert vllm.local_ports({**urls, "model": "m"}) == (80, 8101)
    assert vllm.local_ports({}) == ()
