"""A whole run at a temperature, on the reference engine: what it stores, what its gates say, and that it holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from specgate.contract import Draws, Sampling
from specgate.contract.draws import DrawnTexts
from specgate.files.run_folder import RunFolder
from specgate.run.drawing import Drawer
from tests.backends.servers.helpers import program
from tests.support.command import Cli, scenario_text
from tests.support.factories import plan_of, scenario

SAMPLED = (
    scenario_text(batch=8, spec=[3], sets=1, budget="steps: 4")
    + "sampling: {temperature: 1.5, top_k: 4, method: METHOD}\ndraws: {texts: 240, tokens: 3, prompt_tokens: 8}\n"
)
POLICY = """schema: specgate.policy/v1
not_judged:
  - {kind: speed, why: a shared CPU's clock is no judge}
  - {kind: acceptance, why: the draft is untrained}
rules:
  - {id: records, gate: validity, required: true}
  - {id: tokens, gate: tokens, required: true, near_tie_margin: 0.0}
  - {id: drawn, gate: distribution, required: true, alpha: 1.0e-6, min_draws: 240}
"""


def measured(cli: Cli, method: str = "coupled", *more: str) -> tuple[int, str]:
    cli.write("tiny.yaml", SAMPLED.replace("METHOD", method))
    cli.write("policy.yaml", POLICY)
    done = cli.micro("--backend", "reference", "-o", "device=cpu", "--plain", *more)
    return done.returncode, done.stdout + done.stderr


def journal(cli: Cli) -> dict[str, Any]:
    (line,) = (cli.newest() / "samples" / "draws.jsonl").read_text().splitlines()
    record: dict[str, Any] = json.loads(line)
    return record


def verdicts(cli: Cli, gate: str) -> list[tuple[str, str]]:
    verdicts_stored = json.loads((cli.newest() / "gates.json").read_text())["verdicts"]
    return [(v["state"], v["reason_code"]) for v in verdicts_stored if v["gate"] == gate]


def test_a_coupled_run_is_compared_token_by_token_and_by_its_distribution(cli: Cli) -> None:
    code, output = measured(cli)
    assert code == 0, output
    assert verdicts(cli, "tokens") == [("PASS", "deterministic"), ("PASS", "tokens_equal")]
    assert verdicts(cli, "distribution") == [("PASS", "distribution_kept")] * 2
    assert "scored by reference, float32, cpu, all its choice" in cli.details()
    stored = journal(cli)
    assert {role: sum(n for _, n in texts) for role, texts in stored["texts"].items()} == {
        "baseline": 240,
        "spec-3": 240,
    }
    assert stored["law_engine"] == stored["own_engine"] == "reference, float32, cpu"
    assert stored["laws"][0]["given"] == stored["own_laws"][0]["given"] == []
    assert len(stored["prompt"]) == 8 and all(len(text) == 3 for text, _ in stored["texts"]["spec-3"])
    assert all(len(law["tokens"]) <= 4 for law in stored["laws"])  # top-k of the target's distribution
    run = json.loads((cli.newest() / "run.json").read_text())
    assert run["scenarios"]["tiny"]["sampling"]["temperature"] == 1.5
    assert {check["draws"] for check in run["draws"].values()} == {240}
    cli.run("runs", "verify", cli.newest(), pair=False, code=0)


def test_a_run_by_rejection_is_judged_by_its_distribution_alone(cli: Cli) -> None:
    code, output = measured(cli, "rejection")
    assert code == 0, output
    assert verdicts(cli, "tokens") == [("PASS", "deterministic"), ("SKIPPED", "drawn_by_rejection")]
    assert verdicts(cli, "distribution") == [("PASS", "distribution_kept")] * 2
    assert "drawn by rejection: another engine's draws need not be these" in cli.details()


def test_a_point_whose_texts_are_stored_is_not_drawn_again(tmp_path: Path) -> None:
    plan = plan_of(replace(scenario(), sampling=Sampling(), draws=Draws(10)), scenario("greedy"))
    sampled, greedy = plan.points
    folder = RunFolder.create(tmp_path, "micro", "demo", "0" * 64)
    drawer = Drawer(plan, {}, folder)
    assert (drawer.wanting(sampled), drawer.wanting(greedy)) == (True, False)
    folder.append(DrawnTexts(sampled.key, (1,), {"spec-3": (((5,), 10),)}, (), None, "nobody", None, (0, 1)))
    assert not Drawer(plan, {}, folder).wanting(sampled)


def test_a_policy_that_names_no_second_engine_holds_an_engine_to_what_it_shows_itself(cli: Cli) -> None:
    cli.write("tiny.yaml", SAMPLED.replace("METHOD", "rejection"))
    policy = yaml.safe_load(POLICY) | {"checks": {"rescored_by": "none"}}
    cli.write("policy.yaml", yaml.safe_dump(policy))
    done = cli.micro("--backend", "reference", "-o", "device=cpu", "--plain")
    assert verdicts(cli, "distribution") == [("PASS", "distribution_kept")] * 2
    assert journal(cli)["unshown"] == "the policy names no engine to score them", done.stdout
    assert "its logits are the engine's own word: the policy names no engine" in cli.details()


def served(
    cli: Cli, dialect: str, *faults: str, scenario: str = "top_k: 0, method: rejection", second: str = "none"
) -> tuple[int, str]:
    """A run on stub servers that draw, with the settings of the scenario in words.

    `second`: the engine that is asked, too. The stub draws from a distribution of its own, which is not the pair's.

    Drafts are costly, and pairs are enough for an interval. So a busy machine, where the tokens of a block may come at
    once, shows no speculation that is faster than its verification.
    """
    text = SAMPLED.replace("top_k: 4, method: METHOD", scenario).replace("texts: 240", "texts: 600")
    text = text.replace("rounds: 2", "rounds: 8")
    cli.write("tiny.yaml", text)
    cli.write("policy.yaml", yaml.safe_dump(yaml.safe_load(POLICY) | {"checks": {"rescored_by": second}}))
    server = program(cli.folder, dialect, "--draws", "--rate", "2000", "--draft-cost", "1", *faults)
    done = cli.micro("--backend", dialect, "-o", f"program={server}", "--plain")
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow("starts servers")
def test_a_server_that_samples_rightly_passes_by_its_own_log_probabilities(cli: Cli) -> None:
    code, output = served(cli, "vllm")
    assert code == 0, output
    assert verdicts(cli, "distribution") == [("PASS", "distribution_kept")] * 2
    assert verdicts(cli, "tokens") == [("PASS", "deterministic"), ("SKIPPED", "drawn_by_rejection")]
    stored = journal(cli)
    assert stored["own_engine"] == "vllm, by log-probabilities of its own" and stored["own_unshown"] is None
    run = json.loads((cli.newest() / "run.json").read_text())
    (facts,) = run["engines"].values()
    assert facts["details"]["random numbers"] == "the server's own; a seed for every request"
    cli.run("runs", "verify", cli.newest(), pair=False, code=0)


@pytest.mark.slow("starts servers")
def test_a_server_of_another_model_is_rejected_though_it_draws_from_what_it_shows(cli: Cli) -> None:
    code, output = served(cli, "vllm", second="reference")
    assert code == 6 and "do not fit the target's distribution by reference, float32, cpu" in output
    assert verdicts(cli, "distribution") == [("INVALID", "not_the_targets")] * 2


@pytest.mark.slow("starts servers")
def test_a_server_whose_verify_is_always_greedy_is_rejected(cli: Cli) -> None:
    code, output = served(cli, "vllm", "--fault", "greedy_verify")
    assert code == 6, output
    assert verdicts(cli, "distribution") == [("PASS", "distribution_kept"), ("INVALID", "not_the_targets")]


@pytest.mark.slow("starts servers")
def test_a_server_that_leaves_out_a_filter_is_rejected_in_either_role(cli: Cli) -> None:
    """The stub draws at a temperature and knows no top-k."""
    code, output = served(cli, "vllm", scenario="top_k: 4, method: rejection")
    assert code == 6 and "are of tokens that the target never draws" in output
    assert verdicts(cli, "distribution") == [("INVALID", "not_the_targets")] * 2


@pytest.mark.slow("starts servers")
def test_a_server_without_seeds_need_not_repeat_its_texts_and_one_that_shows_nothing_is_held_to_its_baseline(
    cli: Cli,
) -> None:
    code, output = served(cli, "lmdeploy")
    assert code == 8 and "No required rule judges tokens of 24 tokens · batch 8 · baseline" in output
    assert verdicts(cli, "tokens") == [("SKIPPED", "own_random_numbers"), ("SKIPPED", "drawn_by_rejection")]
    assert verdicts(cli, "distribution") == [("SKIPPED", "nothing_to_compare"), ("PASS", "distribution_kept")]
    assert "gives tokens that end a text no chance, which another engine does" in journal(cli)["unshown"]


@pytest.mark.parametrize(
    ("dialect", "scenario", "message"),
    [
        ("vllm", "method: coupled", "scenario tiny: sampling.method = 'coupled': vllm draws with random numbers"),
        ("llamacpp", "method: rejection, presence_penalty: 0.5", "sampling.presence_penalty = 0.5: llamacpp counts"),
    ],
)
def test_what_a_server_cannot_be_asked_for_is_refused_by_name_before_it_is_started(
    cli: Cli, dialect: str, scenario: str, message: str
) -> None:
    cli.write("tiny.yaml", SAMPLED.replace("top_k: 4, method: METHOD", scenario))
    own = ["-o", f"target_gguf={cli.folder / 'tiny.yaml'}"] if dialect == "llamacpp" else []
    done = cli.micro("--backend", dialect, *own)
    assert done.returncode == 2 and message in done.stderr
    assert not (cli.folder / "runs").exists()


@pytest.mark.parametrize("backend", ["fake", "transformers"])
def test_a_back_end_that_decodes_greedily_is_refused_a_scenario_that_samples(cli: Cli, backend: str) -> None:
    cli.write("tiny.yaml", SAMPLED.replace("METHOD", "coupled"))
    done = cli.micro("--backend", backend)
    assert done.returncode in (2, 4)
    if done.returncode == 2:
        assert f"scenario tiny: sampling: back end '{backend}' decodes greedily" in done.stderr
        assert not (cli.folder / "runs").exists()
