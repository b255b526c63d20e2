"""Servers whose counters and pace contradict what they stream, through a whole run; and honest ones that look alike.

The stub emits 3, 1, 2, 0, 3, 2 accepted drafts and a token each per step, 17 tokens in 6 steps: 2.83.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.request import Request, urlopen

import pytest

from tests.backends.servers.helpers import running_stub
from tests.support.command import POLICY, Cli


@contextmanager
def running(rate: int) -> Iterator[dict[str, str]]:
    """Role → the URL of its stub. `rate`: steps of the baseline per second; a cycle takes 1.3 times as long."""
    pace = ("--rate", str(rate), "--draft-cost", "0.1")
    with running_stub("vllm", 0, *pace) as baseline, running_stub("vllm", 3, *pace) as spec:
        yield {"baseline": baseline, "spec-3": spec}


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    with running(500) as urls:
        yield urls


@pytest.fixture(scope="module")
def unhurried() -> Iterator[dict[str, str]]:
    """Servers beside whose steps a busy machine's delays are short: these make an honest server look like others."""
    with running(125) as urls:
        yield urls


def judged(cli: Cli, servers: dict[str, str], **faults: dict[str, str]) -> tuple[int, list[dict[str, str]]]:
    """(exit code, the verdicts of the spec cell that object). `faults`: of the servers of `baseline` and `spec`."""
    for role, url in servers.items():
        body = json.dumps(faults.get(role.partition("-")[0], {})).encode()
        with urlopen(Request(f"{url}/stub/faults", body, method="POST")):
            pass
    cli.scenario(spec=[3], budget="steps: 68", rounds=1)
    cli.write("policy.yaml", POLICY.replace("MIN", "2.5"))
    urls = [part for role, url in servers.items() for part in ("-o", f"url.{role}={url}")]
    done = cli.micro("--backend", "vllm", *urls)
    assert "Traceback" not in done.stderr and done.returncode in (0, 1, 3, 6), done.stderr
    verdicts = json.loads((cli.newest() / "gates.json").read_text())["verdicts"]
    return done.returncode, [
        v for v in verdicts if v["cell"].endswith("spec-3") and v["state"] not in ("PASS", "IMPROVED", "SKIPPED")
    ]


HONEST: Final[dict[str, dict[str, dict[str, str]]]] = {
    "several steps in an event, a clock of its own": {
        "spec": {"interval": "3", "own_clock": "0.98"},
        "baseline": {"interval": "4", "own_clock": "0.95"},
    },
    "an event per token, a prefill of the draft": {
        "spec": {"per_token": "", "prefill_s": "0.058"},
        "baseline": {"prefill_s": "0.05"},
    },
    "the first events come together": {"spec": {"holds": "1", "at_once": ""}},
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_server_is_green(cli: Cli, unhurried: dict[str, str], name: str) -> None:
    assert judged(cli, unhurried, **HONEST[name]) == (0, [])


@pytest.mark.parametrize(
    ("faults", "code", "says"),
    [
        (
            {"spec": {"claims": "3.56"}},
            "counter_identity",
            r"counts 152 steps for 544 tokens, but its \d+ chunks .* need \d+ at least: .* at most, not 3\.579",
        ),
        (
            {"spec": {"holds": "12"}},
            "clocks_disagree",
            r"first tokens came after [\d.]+ ms on average, and the baseline's, .* after [\d.]+ ms: .* which is \d+%",
        ),
        (
            {"spec": {"holds": "8", "at_once": "", "prefill_s": "0.16"}, "baseline": {"prefill_s": "0.2"}},
            "clocks_disagree",
            r"\d+ of 544 emitted tokens came with the first chunks",
        ),
        (
            {"spec": {"own_clock": "1"}, "baseline": {"own_clock": "0.5"}},
            "clocks_disagree",
            r"baseline's chunks took \d\.\d+ times as long as its engine decoded",
        ),
    ],
)
def test_a_server_that_contradicts_its_stream_is_invalid_with_both_figures(
    cli: Cli, servers: dict[str, str], faults: dict[str, dict[str, str]], code: str, says: str
) -> None:
    exit_code, objections = judged(cli, servers, **faults)
    records = [v for v in objections if v["rule"] == "records"]
    assert exit_code == 6 and [(v["state"], v["reason_code"]) for v in records] == [("INVALID", code)]
    assert re.search(says, records[0]["message"]), records[0]["message"]
