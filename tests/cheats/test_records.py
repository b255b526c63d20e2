"""Engines that lie, through a whole run: each is INVALID at the cells it lies about, for the reason that it lies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from specgate import plugins
from specgate.contract.cycle_budget import Bandwidth
from specgate.machine import bandwidth
from tests.cheats import scripted
from tests.support.command import Cli

POLICY = """\
schema: specgate.policy/v1
checks: {rescored_by: none}
not_judged: [{kind: tokens, role: baseline, why: the other roles are held to it}]
rules:
  - {id: records, gate: validity, required: true}
  - {id: tokens, gate: tokens, required: true, role: spec-*, near_tie_margin: 0.001}
  - {id: acceptance, gate: acceptance, required: true, min: 1.0}
  - {id: speed, gate: speed, required: true, role: spec-*, min: 1.0}
"""
GPU_RULE = "  - {id: perf-mode, gate: invariants, required: true, accept_unseen: none}\n"


@pytest.fixture(autouse=True)
def liars(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    plugins.registered.cache_clear()
    scripted.let_in(monkeypatch)
    yield
    plugins.registered.cache_clear()


def judged(cli: Cli, engine: str, *options: str, rules: str = POLICY) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """(exit code, role → the verdicts that object to it)."""
    cli.scenario(spec=[3], budget="steps: 40")
    cli.write("policy.yaml", rules)
    done = cli.micro("--backend", engine, *options)
    assert "Traceback" not in done.stderr and done.returncode != 2, done.stderr
    verdicts = json.loads((cli.newest() / "gates.json").read_text())["verdicts"]
    roles = ("baseline", "spec-3")
    objections = {
        role: [v for v in verdicts if v["cell"].endswith(role) and v["state"] not in ("PASS", "IMPROVED", "SKIPPED")]
        for role in roles
    }
    return done.returncode, objections


def test_the_engine_that_they_lie_about_is_honest(cli: Cli) -> None:
    assert judged(cli, "own-trace") == (0, {"baseline": [], "spec-3": []})


SPEC, BASELINE = "spec-3", "baseline"
NS = r"[\d,.]+ ms"


@pytest.mark.parametrize(
    ("engine", "options", "role", "code", "says"),
    [
        ("spec-a-fifth", (), SPEC, "clocks_disagree", rf"engine says that .* took {NS}.* the harness saw {NS}"),
        (
            "baseline-thirtyfold",
            (),
            BASELINE,
            "clocks_disagree",
            rf"engine says that it took 1,[23]{NS}, but the harness had the answer {NS} after",
        ),
        ("steps-halved", (), SPEC, "clocks_disagree", rf"its 40 steps add up to {NS}, but .* took {NS}"),
        (
            "all-truncated",
            ("accept=0",),
            SPEC,
            "counter_identity",
            "slot 0: 120 truncated tokens, but its finish is steps",
        ),
        (
            "misses-hidden",
            ("accept=3,0,0",),
            SPEC,
            "steps_left_out",
            r"acceptance length 4\.000 over the steps .* but 2\.0\d\d tokens per step over all",
        ),
        (
            "two-steps-as-one",
            ("accept=1",),
            SPEC,
            "counter_identity",
            "its finish is steps after 20 steps, but the budget is 40 steps",
        ),
        ("noise-ids", (), SPEC, "counter_identity", "token id 1000000 at index 30, but the vocabulary has 1000"),
    ],
)
def test_a_lie_makes_its_cell_invalid_with_both_figures(
    cli: Cli, engine: str, options: tuple[str, ...], role: str, code: str, says: str
) -> None:
    exit_code, objections = judged(cli, engine, *(part for option in options for part in ("-o", option)))
    assert exit_code == 6
    records = [v for v in objections[role] if v["rule"] == "records"]
    assert [(v["state"], v["reason_code"]) for v in records] == [("INVALID", code)]
    assert re.search(says, records[0]["message"]), records[0]["message"]
    assert [v for v in objections[BASELINE if role == SPEC else SPEC] if v["rule"] == "records"] == []
    again = cli.run("runs", "verify", cli.newest(), pair=False)
    assert "all as stored\nverdict INVALID (exit 6)" in again.stdout, again.stdout


def test_hidden_misses_break_the_invariant_that_an_engine_would_count_itself(cli: Cli) -> None:
    rule = GPU_RULE.replace("none", "I1 I6")
    _, objections = judged(cli, "misses-hidden", "-o", "accept=3,0,0", "--perf-mode", rules=POLICY + rule)
    (result,) = [v for v in objections[SPEC] if v["rule"] == "perf-mode"]
    assert (result["state"], result["reason_code"]) == ("INVALID", "left_multi_token_mode")
    assert re.search(r"disabled_multitoken_other = \d+ over 8 timed blocks", result["message"])


def test_an_engines_own_trace_is_labelled_so_and_proves_nothing(cli: Cli) -> None:
    exit_code, objections = judged(cli, "own-trace", "--perf-mode", rules=POLICY + GPU_RULE)
    traces = (cli.newest() / "samples" / "traces.jsonl").read_text().splitlines()
    assert {json.loads(line)["source"] for line in traces} == {"engine"}
    assert exit_code == 6
    for problem in objections.values():
        assert [(v["rule"], v["state"], v["reason_code"]) for v in problem] == [
            ("perf-mode", "INVALID", "not_observable")
        ]


def test_an_engine_without_a_model_is_faster_than_memory_allows(cli: Cli) -> None:
    """By the harness's own count of the pair's weights. A memory of 1 MB/s stands in for a pair of gigabytes."""
    (cli.folder / "runs").mkdir()
    slow = Bandwidth("2026-11-22T00:00:00+00:00", "scripted clock", None, 1 << 20, 30, 1e6, 0.0, cache_bytes=0)
    bandwidth.store(slow, Path(cli.folder / "runs"))
    exit_code, objections = judged(cli, "own-trace")
    assert exit_code == 6
    for problem in objections.values():
        assert ("records", "INVALID", "faster_than_memory") in [
            (v["rule"], v["state"], v["reason_code"]) for v in problem
        ]
        assert re.search(r"a step takes [\d.]+ ms on average, but it reads .* takes [\d.]+ ms", problem[0]["message"])
