"""`specgate scenarios …` and `specgate scenarios plan`, called as commands."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import save_file

from specgate.analysis.experts import cycle_cost, step_bytes
from specgate.backends.eagle3.lib.layout import target_tensors
from specgate.backends.eagle3.lib.pair import open_draft, open_target
from specgate.backends.eagle3.lib.shard import Shard
from specgate.backends.eagle3.lib.traffic import pair_traffic
from specgate.checkpoints.geometry import DraftGeometry
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.hf_keys import read_config
from specgate.cli import cli
from specgate.commands.scenarios import plan, scenarios, spec_range
from specgate.contract import PairRef
from specgate.errors import CheckpointError, ExitCode, UsageError
from specgate.planning.byte_outlook import byte_outlook
from specgate.planning.scenario import dump, find, shipped
from tests.pairs.tiny import write_draft
from tests.support.command import ROOT
from tests.support.factories import plan_of, scenario


def run(*args: str) -> Result:
    return CliRunner().invoke(scenarios, args)


def test_list_names_every_shipped_scenario_with_its_question() -> None:
    lines = [line.split("\t") for line in run("list", "--plain").output.splitlines()]
    assert [(line[0], line[-1]) for line in lines] == [(s.name, s.question) for s in shipped()]
    assert [line[0] for line in lines if line[4] != "default"] == [
        "active-slots-8b",
        "batch-8b",
        "cpu-1k-single",
        "cpu-512-batch4",
        "cpu-drawn",
        "cpu-engines",
        "cpu-full-sampled",
        "cpu-sampled",
        "cpu-spec-sweep",
        "cpu-specpv",
        "cpu-variants",
        "full-120b-16k-b4",
        "full-120b-1k-sampled",
        "full-120b-1k-single",
        "full-120b-32k-single",
        "full-8b-16k-b4",
        "full-8b-32k-single",
        "load-8b",
        "load-gpt-oss",
        "load-rates",
        "micro-120b-16k-b4",
        "micro-120b-1k-single",
        "micro-120b-32k-single",
        "micro-8b-16k-b4",
        "micro-8b-32k-single",
        "micro-8b-4k-sampled",
        "micro-8b-drawn",
        "variants-8b",
    ]


def test_show_prints_a_whole_scenario_that_can_be_validated(tmp_path: Path) -> None:
    shown = run("show", "stress").output
    assert shown == dump(find("stress"))
    file = tmp_path / "copy.yaml"
    file.write_text(shown)
    assert run("check", str(file)).output == (
        f"{file}: fine: full scenario copy, context 32773/65536, batch 1, spec-2..5, variants kv-0.75, kv-0.9\n"
    )


def test_validate_reports_every_problem_of_every_file(tmp_path: Path) -> None:
    good, bad, worse = (tmp_path / name for name in ("good.yaml", "bad.yaml", "worse.yaml"))
    good.write_text("# Q?\nextends: cpu-1k-single\n")
    bad.write_text("# Q?\nextends: cpu-1k-single\nkindd: micro\nneeds: tpu\n")
    worse.write_text("a: 1\na: 2\n")
    result = run("check", str(bad), str(good), str(worse))
    assert result.output == f"{good}: fine: micro scenario good, context 1024, batch 1, spec-3\n"
    assert isinstance(result.exception, UsageError)
    assert result.exception.exit_code == ExitCode.USAGE
    message = str(result.exception)
    assert [f"{bad}:3: kindd" in message, f"{bad}:4: needs" in message, f"{worse}:2: a" in message] == [True] * 3


def test_plan_prints_points_rounds_pairs_and_minutes_without_running_anything() -> None:
    result = CliRunner().invoke(plan, ["--backend", "fake", "--machine", "cpu", "--plain"], catch_exceptions=False)
    header, *rows, total = result.output.splitlines()
    assert header.split("\t") == ["scenario", "context", "batch", "roles", "rounds", "pairs", "blocks", "min"]
    assert [row.split("\t")[:-1] for row in rows] == [["cpu-first", "512", "1", "baseline spec-3", "16+1", "16", "34"]]
    assert total.startswith("1 point on fake, about ")


def test_plan_takes_scenarios_of_either_kind_by_name() -> None:
    args = ["--backend", "fake", "--machine", "gpu", "--scenario", "stress,micro-16k-b4", "--plain"]
    rows = CliRunner().invoke(plan, args, catch_exceptions=False).output.splitlines()[1:-1]
    assert [row.split("\t")[0] for row in rows] == ["stress", "stress", "micro-16k-b4"]


@pytest.mark.parametrize(
    ("spec", "text"), [((3,), "spec-3"), ((2, 3, 4), "spec-2..4"), ((1, 3), "spec-1,3"), ((1, 2), "spec-1..2")]
)
def test_draft_lengths_are_written_short(spec: tuple[int, ...], text: str) -> None:
    assert spec_range(spec) == text


# ── a pair with experts ──────────────────────────────────────────────────────────────────────────────────────────────


GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_hidden_layers": 4, "num_local_experts": 6,
    "num_experts_per_tok": 2, "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 8, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "tie_word_embeddings": False, "eos_token_id": 257,
    "attention_bias": True, "hidden_act": "silu",
}  # fmt: skip


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The options that name a tiny gpt-oss pair: 4 layers of 6 experts, 2 per token."""
    root = tmp_path_factory.mktemp("gpt-oss")
    (root / "target").mkdir()
    (root / "target" / "config.json").write_text(json.dumps(GPT_OSS))
    g = target_geometry(read_config(root / "target"))
    weights = {name: torch.zeros(want.shape) for name, want in target_tensors(g).items()}
    save_file(weights, root / "target" / "model.safetensors", metadata={"format": "pt"})
    draft = DraftGeometry(g.hidden, g.hidden, 3, 96, 4, 2, 16, g.vocab, 96, g.rms_eps, g.rope, g.max_positions)
    write_draft(root / "draft", draft, (1, 2, 3), torch.Generator().manual_seed(5))
    return ("--target", str(root / "target"), "--draft", str(root / "draft"))


ONE = ("--backend", "fake", "--machine", "cpu", "--scenario", "cpu-1k-single", "--plain")


def lines(*args: str) -> list[str]:
    output = CliRunner().invoke(plan, [*ONE, *args], catch_exceptions=False).output.splitlines()
    return output[next(i for i, line in enumerate(output) if line.startswith("1 point on")) + 1 :]


def test_plan_says_what_a_cycle_of_a_pair_with_experts_costs(experts: tuple[str, ...]) -> None:
    target = open_target(Path(experts[1])).geometry
    traffic = pair_traffic(target, open_draft(Path(experts[3]), target).geometry, torch.float32)
    alike, apart = (cycle_cost(traffic, 1024, 1, 3, overlap) for overlap in (1.0, 0.0))
    step, cycle = lines(*experts)
    assert step == f"cpu-1k-single c1024 b1: a step reads at least {step_bytes(traffic, 1024, 1) / 1e6:.2f} MB"
    assert cycle.startswith(
        f"  a spec-3 cycle reads {alike:.2f} times as much if all tokens of a request choose the same"
    )
    assert f", {apart:.2f} times if each chooses for itself (overlap 0)" in cycle and 1 < alike < apart


def test_where_a_scenario_has_several_gpus_it_is_what_each_of_them_reads(experts: tuple[str, ...]) -> None:
    target = open_target(Path(experts[1])).geometry
    draft = open_draft(Path(experts[3]), target).geometry
    pair = PairRef("experts", Path(experts[1]), Path(experts[3]))
    whole: dict[str, str] = {"draft_tp": "1"}
    for options, ranks, of_draft in (
        ({"tp": "2"}, 2, 2),
        ({"tp": "2"} | whole, 2, 1),
        ({"tp": "4"}, 1, 1),  # four cannot share two key/value heads
        ({"tp": "many"}, 1, 1),
    ):
        micro_plan = plan_of(replace(scenario(), options=options))
        step, cycle, *_ = byte_outlook(micro_plan, pair, None)
        parts = Shard(0, ranks).geometry(target), Shard(0, of_draft).of_draft(draft)
        traffic = pair_traffic(*parts, torch.float32)
        size = f"{step_bytes(traffic, 64, 1) / 1e6:.2f} MB"
        assert step.endswith(f"reads at least {size} on each of 2 GPUs" if ranks > 1 else f"reads at least {size}")
        assert f" {cycle_cost(traffic, 64, 1, 3, 1.0):.2f} times as much" in cycle


def test_plan_says_what_the_gates_of_a_policy_take(experts: tuple[str, ...], tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    rules = "schema: specgate.policy/v1\nrules:\n  - {id: fast, gate: speed, required: true, role: spec-3, min: %s}\n"
    policy.write_text(rules % 1.0 + "  - {id: long, gate: acceptance, required: true, role: spec-3, min: 1.1}\n")
    (line,) = lines(*experts, "--policy", str(policy))[2:]
    assert line.startswith("  fast (min 1×): it takes an AL of ") and line.endswith(" at overlap 0")
    policy.write_text(rules % 3.9)
    (line,) = lines(*experts, "--policy", str(policy))[2:]
    assert line.startswith("  fast (min 3.9×): out of reach with step and cycle at their floors: ")


def test_plan_says_that_it_leaves_whole_requests_out(experts: tuple[str, ...], pair: tuple[Path, Path]) -> None:
    def said(*named: str) -> list[str]:
        args = ["--backend", "fake", "--machine", "cpu", "--scenario", "cpu-full-512", "--plain", "--policy", "cpu"]
        output = CliRunner().invoke(plan, [*args, *named], catch_exceptions=False).output.splitlines()
        return output[next(i for i, line in enumerate(output) if "1 point on fake" in line) + 1 :]

    (line,) = said(*experts)
    assert line.startswith("cpu-full-512: whole requests, whose prefill takes time")
    assert said("--target", str(pair[0]), "--draft", str(pair[1])) == []


DOCUMENTED = re.compile(r"^specgate (scenarios plan .*--policy \S+)", re.MULTILINE)


@pytest.mark.parametrize("page", ["backends/eagle3/docs/gpt-oss.md", "docs/results.md"])
def test_the_command_that_the_documents_show_for_this_needs_no_gpu(
    page: str, experts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specgate.machine.inventory.has_cuda_gpu", lambda: False)
    (command,) = DOCUMENTED.findall((ROOT / page).read_text())
    words = command.split()
    for option, folder in (("--target", experts[1]), ("--draft", experts[3])):
        words[words.index(option) + 1] = folder
    output = CliRunner().invoke(cli, words, catch_exceptions=False).output
    assert "a spec-3 cycle reads" in output and "micro-120b-32k-single-speed (min 2×): " in output


def test_a_policy_is_looked_up_and_its_need_of_a_pair_said_where_none_is_named() -> None:
    assert lines("--policy", "seed") == [
        "what the speed gates of seed take is said of a pair: name it with --pair, or --target and --draft"
    ]
    wrong = CliRunner().invoke(plan, [*ONE, "--policy", "nonsense"]).exception
    assert isinstance(wrong, UsageError) and "no such policy: 'nonsense'" in str(wrong)


def test_plan_says_what_would_be_right_of_a_pair_that_it_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Unknown"]}')
    with pytest.raises(CheckpointError) as error:
        target_geometry(read_config(tmp_path), None)
    assert error.value.hint
    assert lines("--target", str(tmp_path), "--draft", str(tmp_path))[0].endswith(f"; {error.value.hint}")


def test_plan_says_nothing_of_bytes_for_a_dense_pair_and_why_where_it_cannot_read_one(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    assert lines("--target", str(pair[0]), "--draft", str(pair[1])) == []
    (tmp_path / "config.json").write_text('{"architectures": ["Unknown"]}')
    (line,) = lines("--target", str(tmp_path), "--draft", str(pair[1]))
    assert line.startswith("its bytes are not known: ") and "Unknown" in line
