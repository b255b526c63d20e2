"""`specgate ab` with servers on both sides: processes that speak vLLM's protocol, started here or attached."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest

from tests.backends.servers.helpers import program, running_stub
from tests.support.command import Cli

FIXED = ("--scenario", "tiny.yaml", "--policy", "policy.yaml", "--backend", "vllm", "--processes", "3", "--quads", "1")


def result(cli: Cli) -> dict[str, Any]:
    (folder,) = (cli.folder / "runs").glob("*-ab-*")
    data: dict[str, Any] = json.loads((folder / "ab.json").read_text())
    return data


def ratios(data: dict[str, Any]) -> dict[str, float]:
    return {q["cell"].rpartition("/")[2]: q["ratio"] for q in data["quantities"] if q["name"] == "step_ms"}


def attached(stack: ExitStack, side: str, *arguments: str) -> list[str]:
    """Arguments that say a side whose servers run already, one per role."""
    plain, drafting = (stack.enter_context(running_stub("vllm", k, *arguments)) for k in (0, 3))
    data = {"url.baseline": plain, "url.spec-3": drafting, "model": "specgate"}
    return [part for key, value in data.items() for part in (f"--{side}", f"{key}={value}")]


def test_two_attached_servers_are_told_apart_by_their_time_per_token(cli: Cli) -> None:
    """Steps of 10 ms and 40: in steps of 5 a client that gets no CPU for a moment sees impossible ones."""
    with ExitStack() as stack:
        old = attached(stack, "old", "--rate", "100")
        new = attached(stack, "new", "--rate", "25")
        done = cli.run("ab", *FIXED, *old, *new)
    assert done.returncode in (1, 3), done.stdout + done.stderr
    results = result(cli)
    assert min(ratios(results).values()) > 3
    by = {(q["name"], q["word"]) for q in results["quantities"] if q["decides"]}
    assert ("acceptance_length", "SAME") in by and ("step_ms", "SAME") not in by and ("step_ms", "FASTER") not in by
    assert [t["changed"] for t in results["texts"]] == [[], []]
    assert results["margins"]["device"] == "attached"
    assert "sessions are one process" in done.stdout and {q["name"] for q in results["quantities"]} <= {
        "step_ms",
        "acceptance_length",
        "prefill_ms",
    }  # nobody saw the servers start
    assert cli.run("runs", "verify", next((cli.folder / "runs").glob("*-ab-*")), pair=False).returncode == 0


def test_own_prompts_on_one_running_server_a_side_are_compared_without_a_baseline(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECGATE_CACHE", str(cli.folder / "cache"))
    cli.write("mine.jsonl", "".join(json.dumps({"prompt": f"{i} of twelve"}) + "\n" for i in range(12)))
    with ExitStack() as stack:
        old, new = (stack.enter_context(running_stub("vllm", 3, "--rate", rate)) for rate in ("200", "50"))
        question = ("--prompts", "mine.jsonl", "--batch", "2", "--steps", "6")
        done = cli.run("ab", old, new, *question, "--processes", "3", "--quads", "1", pair=False)
    assert done.returncode in (1, 3), done.stdout + done.stderr
    assert min(ratios(result(cli)).values()) > 2 and ratios(result(cli)).keys() == {"spec-3"}
    assert f"old: {old} · new: {new}" in done.stdout and "prompts from mine.jsonl" in done.stdout
    assert done.stderr.count("tokenizer: ") == 1, "of both sides"


@pytest.mark.slow("starts twelve servers")
def test_servers_are_started_for_either_side_by_a_program_of_its_own(cli: Cli) -> None:
    sides = []
    for side, rate in (("old", "25"), ("new", "100")):
        (cli.folder / side).mkdir()
        server = program(cli.folder / side, "vllm", "--rate", rate)
        if side == "new":  # one that parses, and fails at it
            server.write_text(server.read_text().replace("\n", "\necho openai_harmony.HarmonyError: no channel\n", 1))
        sides += [f"--{side}", f"program={server}"]
    done = cli.run("ab", *FIXED, *sides)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    assert max(ratios(result(cli)).values()) < 0.33
    (known,) = [line for line in done.stdout.splitlines() if "lines of its logs" in line]
    assert known.startswith("new: 6 lines of its logs: a parser of harmony")  # two servers of each of three processes


@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [
        ("die_after=9", 7, "new: "),
        ("other_weights", 6, "begin with another token in the new build: other weights"),
        ("adds_bos", 7, "new: "),
        ("strange_ids", 7, "new: "),
    ],
)
def test_a_side_that_cannot_be_compared_is_named_and_no_word_is_said(
    cli: Cli, fault: str, code: int, message: str
) -> None:
    with ExitStack() as stack:
        old = attached(stack, "old", "--rate", "200")
        new = attached(stack, "new", "--rate", "200", "--fault", fault)
        done = cli.run("ab", *FIXED, *old, *new)
    assert done.returncode == code and message in done.stdout + done.stderr, done.stdout + done.stderr
    assert result(cli)["word"] is None and [look["word"] for look in result(cli)["looks"]] == [None]


def test_a_model_that_a_server_does_not_have_is_named_with_its_side(cli: Cli) -> None:
    with ExitStack() as stack:
        old, new = attached(stack, "old"), attached(stack, "new", "--model-name", "another")
        done = cli.run("ab", *FIXED, *old, *new)
    assert done.returncode in (2, 7) and "new: " in done.stderr and "model" in done.stderr, done.stdout + done.stderr
    assert result(cli)["word"] is None
