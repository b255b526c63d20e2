"""`specgate diagnose cache` on servers of the stub, which keep a prefix cache of whole blocks as vLLM's does."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from specgate.analysis.prefix_cache import CacheDivergence, Check, Limits
from specgate.commands.diagnose.cache import as_data
from specgate.contract import Role, State
from specgate.run.diagnose.prefix_cache import Pair
from tests.backends.offline.helpers import STAND_INS
from tests.backends.servers.helpers import program, running_stub
from tests.support.command import Cli
from tests.support.factories import blocks_of, plan_of, run_of

REUSES = ("--reuses", "--rate", "300")


@pytest.fixture
def prompts(cli: Cli) -> Path:
    """Prompts of 60 tokens."""
    draw = random.Random(1)
    lines = (json.dumps({"ids": [draw.randrange(2, 250) for _ in range(60)]}) for _ in range(12))
    return cli.write("prompts.jsonl", "\n".join(lines))


def asked(cli: Cli, prompts: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """(exit code, the JSON): two groups of four prompts that share 48 tokens."""
    command: tuple[str | Path, ...] = (
        *("diagnose", "cache", "--prompts", prompts, "--shared-prefix", "48"),
        *("--groups", "2", "--prompts-per-group", "4"),
        *("--new-tokens", "24", "--json", *arguments),
    )
    done = cli.run(*command)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def of(data: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["state"] for check in data["checks"]}


@pytest.mark.slow("starts servers")
def test_servers_that_are_started_with_their_cache_on_and_off_are_a_pair(cli: Cli, prompts: Path) -> None:
    server = program(cli.folder, "vllm", *REUSES)
    code, result = asked(cli, prompts, "--backend", "vllm", "-o", f"program={server}")
    assert code == 0 and result["schema"] == "specgate.cache/v1" and set(of(result).values()) == {"PASS"}
    turns = [sample["turn"] for sample in result["samples"]]
    assert turns == 2 * ["first", *3 * ["shared prefix", "next turn"]]
    cached = [(s["on"]["baseline"]["cached"], s["on"]["spec-3"]["cached"]) for s in result["samples"][:7]]
    # A prefix of 48 tokens is three blocks of 16; a prompt of 60 with an answer of 24 has keys of 83, which is five.
    assert cached == [(0, 0), *3 * [(48, 32), (80, 64)]]
    assert all(reply["cached"] == 0 for s in result["samples"] for reply in s["off"].values())
    assert not result["partings"] and [s["reusable"] for s in result["samples"][:7]] == [0, *3 * [48, 83]]


@pytest.mark.slow("starts an engine's processes")
def test_a_library_is_asked_with_its_cache_on_and_off_too(cli: Cli, prompts: Path) -> None:
    code, result = asked(cli, prompts, "--backend", "lmdeploy-pipeline", "-o", f"pythonpath={STAND_INS}")
    assert code == 0 and set(of(result).values()) == {"PASS"}
    cached = [(s["on"]["baseline"]["cached"], s["on"]["spec-3"]["cached"]) for s in result["samples"][:7]]
    assert cached == [(0, 0), *3 * [(48, 48), (80, 80)]]
    assert all(reply["cached"] == 0 for s in result["samples"] for reply in s["off"].values())


@pytest.mark.slow("starts servers")
def test_two_urls_are_enough_for_servers_that_run_already(cli: Cli) -> None:
    """Prompts that share three quarters of their tokens come from those that ship, by the server's tokenizer."""
    sizes = ("--context", "60", "--groups", "3", "--new-tokens", "24", "--json")
    with running_stub("vllm", 0, *REUSES) as baseline, running_stub("vllm", 3, *REUSES) as spec:
        done = cli.run("diagnose", "cache", f"{baseline},{spec}", *sizes, pair=False)
        alone = cli.run("diagnose", "cache", spec, pair=False)
    result = json.loads(done.stdout)
    assert done.returncode == 0 and set(of(result).values()) == {"PASS"}, done.stderr
    assert (result["role"], result["shared_prefix"]) == ("spec-3", 45)
    assert [s["on"]["baseline"]["cached"] for s in result["samples"][:5]] == [0, 32, 80, 32, 80]
    assert alone.returncode == 2 and "URL,URL: a server that speculates, and one" in alone.stderr


def test_without_a_url_or_an_engine_the_command_says_what_it_takes(cli: Cli) -> None:
    done = cli.run("diagnose", "cache", pair=False)
    assert done.returncode == 2 and "specgate diagnose cache URL,URL" in done.stderr


def test_a_gap_beyond_what_is_shown_is_null_in_the_json() -> None:
    limits, role = Limits(64, 0.001), Role(3)
    plan = plan_of()
    divergences = tuple(CacheDivergence(role.name, 0, 1, gap, None) for gap in (float("inf"), 0.5, None))
    check, facts = Check("texts", State.FAIL, "", {}), run_of(plan, blocks_of(plan)).engines[plan.points[0].key]
    pair = Pair("vllm", role, facts, limits, 8, (), divergences, (check,))
    data = json.loads(json.dumps(as_data(pair), allow_nan=False))
    assert [divergence["gap"] for divergence in data["partings"]] == [None, 0.5, None]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "reference"], "back end 'reference' has no prefix cache that is switched here"),
        (["--backend", "trtllm"], "back end 'trtllm' has no prefix cache"),
        (["--backend", "vllm", "-o", "prefix_cache=on"], "option prefix_cache: both are asked"),
        (["--backend", "vllm", "--new-tokens", "99999"], "positions"),
        (["--backend", "vllm", "--context", "64"], "--context and --prompts together"),
        (
            ["--backend", "vllm", "--groups", "2", "--prompts-per-group", "3"],
            "2 × batch 3 = 6 different prompts; 8 are",
        ),
        (["--backend", "vllm", "--groups", "8", "--prompts-per-group", "3"], "prompts"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(cli: Cli, prompts: Path, arguments: list[str], message: str) -> None:
    done = cli.run("diagnose", "cache", "--prompts", prompts, *arguments)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
