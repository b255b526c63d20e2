"""`runs check RUN`: a stored run judged by another policy, from its samples. The runs are those of real engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specgate import plugins
from specgate.archive.judging import run_folder
from specgate.archive.judging.run_folder import judged_anew
from specgate.archive.recomputation import recompute
from specgate.archive.verification import Verification
from specgate.contract import Policy, Run, State
from specgate.errors import InvalidResult
from specgate.files.run_folder import RunFolder
from specgate.planning.policy import find_policy
from tests.support.command import Cli
from tests.support.kept_runs import unpacked

TOKENS = "- {id: tokens, gate: tokens, required: true, near_tie_margin: 0.0"


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 prompts of vLLM on an H100. Texts part, at most 0.375 logits apart, and nothing tells how it rounds there."""
    return unpacked("2026-11-25-vllm-h100/run-64-prompts-vllm.tar.xz", tmp_path_factory.mktemp("run"))


def policy(folder: Path, *rules: str) -> Policy:
    file = folder / "policy.yaml"
    file.write_text("\n".join(["schema: specgate.policy/v1", "rules:", *(f"  {rule}" for rule in rules), ""]))
    return find_policy(str(file), plugins.gates())


def codes(run: Run) -> dict[str, tuple[State, str]]:
    return {v.rule: (v.state, v.reason_code) for v in run.verdicts if v.cell.endswith("spec-3")}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (", max_sigma: 0.15}", (State.NOT_JUDGED, "sigma_unknown")),
        (", max_sigma: 0.04}", (State.INVALID, "token_mismatch")),  # no such σ makes a gap of 0.375
        ("}", (State.INVALID, "token_mismatch")),
    ],
)
def test_near_ties_and_speeds_follow_the_policy_that_is_asked_for(
    vllm: Path, tmp_path: Path, more: str, expected: tuple[State, str]
) -> None:
    speed = '- {id: speed, gate: speed, required: true, role: "spec-*", min: 1.0}'
    run = judged_anew(vllm, policy(tmp_path, TOKENS + more, speed))
    assert codes(run)["tokens"] == expected
    (comparison,) = run.comparisons
    wrong = expected[0] is State.INVALID
    assert (comparison.speedup.value is None) is wrong
    assert (codes(run)["speed"] == (State.INVALID, "token_mismatch")) is wrong


@pytest.mark.parametrize("tokens", [TOKENS + ", max_sigma: 0.01}", TOKENS + ", max_sigma: 0.6}", None])
def test_other_near_ties_leave_the_second_engines_scores_and_all_other_figures_alone(
    vllm: Path, tmp_path: Path, tokens: str | None
) -> None:
    """Which tokens it was asked about follows from the near ties of the run's own policy."""
    acceptance = '- {id: al, gate: acceptance, required: true, role: "spec-*", min: 2.9}'
    run = judged_anew(vllm, policy(tmp_path, *([tokens] if tokens else []), acceptance))
    (spec,) = (result for result in run.cells if result.cell.role.speculative)
    assert spec.status == "ok" and spec.rescored is not None and spec.rescored.scored == 79
    assert codes(run)["al"][0] is State.PASS


def test_a_run_that_asked_for_no_log_probabilities_is_not_judged_by_near_ties(
    vllm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = replace(RunFolder.open(vllm).read_config(), policy=policy(tmp_path, TOKENS + "}"))
    monkeypatch.setattr(RunFolder, "read_config", lambda self: strict)
    monkeypatch.setattr(run_folder, "verify", lambda path: Verification(None, 0, (), ()))
    with pytest.raises(InvalidResult, match="has no max_sigma: nobody asked for the log-probabilities there"):
        judged_anew(vllm, policy(tmp_path, TOKENS + ", max_sigma: 0.15}"))


def test_by_its_own_policy_the_verdicts_are_the_stored_ones(vllm: Path) -> None:
    stored, _, config = recompute(RunFolder.open(vllm))
    assert judged_anew(vllm, config.policy).verdicts == stored.verdicts


def test_a_run_ends_where_its_own_policy_ended_it(tmp_path: Path) -> None:
    """A look that decided nothing under another policy takes no samples away, nor does one that would have."""
    folder = unpacked("2026-11-30-h200/run-120b-32k.tar.xz", tmp_path)
    stored = RunFolder.open(folder).read_run()
    again = judged_anew(folder, policy(tmp_path, '- {id: s, gate: speed, required: true, role: "spec-*", min: 9.0}'))
    assert again.ended_early == stored.ended_early
    assert [r.blocks for r in again.cells] == [r.blocks for r in stored.cells]
    assert codes(again)["s"][0] is State.FAIL


def test_a_folder_that_does_not_hold_is_refused(vllm: Path, tmp_path: Path) -> None:
    folder = unpacked("2026-11-25-vllm-h100/run-64-prompts-vllm.tar.xz", tmp_path)
    blocks = folder / "samples" / "blocks.jsonl"
    blocks.write_text(blocks.read_text() + "\n")
    with pytest.raises(InvalidResult, match="nothing follows from its samples") as caught:
        judged_anew(folder, RunFolder.open(vllm).read_config().policy)
    assert "samples/blocks.jsonl" in str(caught.value.hint)


def test_the_command_shows_figures_and_verdicts_and_ends_with_their_code(cli: Cli, vllm: Path) -> None:
    done = cli.run("runs", "check", vllm, "--policy", "engine-gpu", pair=False)
    assert "nothing tells how the engine rounds" in done.stdout.replace("\n", " "), done.stdout + done.stderr
    assert done.returncode == 8 and "speed-up 2.47×" in done.stdout
    output = cli.run("runs", "check", vllm, "--policy", "engine-gpu", "--role", "spec-3", pair=False)
    assert output.returncode == 2 and "--role spec-3: " in output.stderr and "is a run folder" in output.stderr
    none = cli.run("runs", "check", cli.folder, "--policy", "engine-gpu", pair=False)
    assert none.returncode == 2 and "is not a run folder" in none.stderr
