"""Options are understood, or refused before anything is written down or started."""

from __future__ import annotations

import pytest

from specgate.backends.servers.options import Options
from specgate.core import BASELINE, Role
from specgate.errors import UsageError


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"urll": "x"}, r"did you mean url\?"),
        ({"url": "127.0.0.1:8000"}, "not a URL of a server"),
        ({"url": "ftp://127.0.0.1"}, "not a URL of a server"),
        ({"url": "http://127.0.0.1:99999"}, "not a URL"),
        ({"url": "http://example.org:8000"}, "is not this machine"),
        ({"url": "http://127.0.0.1.example.org"}, "is not this machine"),
        ({"url": "http://me:pw@127.0.0.1:8000"}, "would be written into the run folder"),
        ({"url": "http://127.0.0.1:8000/?api_key=x"}, "would be written into the run folder"),
        ({"url.spec": "http://127.0.0.1:8000"}, "is not a role"),
        ({"api_key": "sk-1"}, "a secret would be written"),
        ({"token": "sk-1"}, "a secret would be written"),
        ({"args": "--api-key sk-1"}, "a secret would be written"),
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
def test_what_cannot_be_meant_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        Options.parse(options, ())
    assert "sk-1" not in str(caught.value) and "pw" not in str(caught.value)


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
