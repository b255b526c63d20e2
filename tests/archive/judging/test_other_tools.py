"""Results of other tools: those of `vllm bench serve` are judged by their counts, others are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specgate.archive.judging.result_file import judged_file
from specgate.contract import Run, State
from specgate.errors import InvalidResult, UsageError
from tests.support.factories import POLICY, policy_of

PLAIN: dict[str, Any] = {
    "backend": "openai",
    "label": None,
    "request_rate": "inf",
    "completed": 80,
    "output_throughput": 60.0,
    "total_token_throughput": 174.8,
}
SPECULATIVE: dict[str, Any] = {
    **PLAIN,
    "output_throughput": 94.8,
    "spec_decode_acceptance_rate": 45.0,
    "spec_decode_acceptance_length": 2.35,
    "spec_decode_num_drafts": 4000,
    "spec_decode_draft_tokens": 12000,
    "spec_decode_accepted_tokens": 5400,
    "spec_decode_per_position_acceptance_rates": [0.7, 0.42, 0.23],
}
ACCEPTANCE = policy_of(*(rule for rule in POLICY.rules if rule.gate in ("acceptance", "speed")))


def write(folder: Path, text: object, name: str = "result.json") -> Path:
    (folder / name).write_text(text if isinstance(text, str) else json.dumps(text))
    return folder / name


def lengths(run: Run) -> dict[str, float | None]:
    return {c.cell.role.name: c.values["acceptance_length"].value for c in run.cells}


@pytest.mark.parametrize(
    ("changes", "role", "k"),
    [
        ({}, None, 3),
        ({"spec_decode_per_position_acceptance_rates": []}, "spec-5", 5),
        ({"spec_decode_per_position_acceptance_rates": []}, None, 3),
        ({"spec_decode_draft_tokens": 11000, "spec_decode_acceptance_rate": 49.09}, None, 3),
        ({"spec_decode_acceptance_length": None, "spec_decode_acceptance_rate": None}, None, 3),
    ],
)
def test_the_counts_of_vllm_bench_serve_give_the_acceptance_length(
    tmp_path: Path, changes: dict[str, Any], role: str | None, k: int
) -> None:
    file = write(tmp_path, {**SPECULATIVE, **changes})
    run = judged_file(file, ACCEPTANCE, scenario="full-16k-b4", role=role)
    assert lengths(run) == {f"spec-{k}": 1 + 5400 / 4000}


def test_its_lines_are_results_and_its_speed_stands_beside_a_baseline_without_a_verdict(tmp_path: Path) -> None:
    appended = write(tmp_path, f"{json.dumps(SPECULATIVE)}\n{json.dumps(SPECULATIVE)}")
    baseline = write(tmp_path, PLAIN, "baseline.json")
    run = judged_file(appended, ACCEPTANCE, baseline=baseline, scenario="full-16k-b4")
    assert len(run.cells) == 2
    (speed, *_) = (v for v in run.verdicts if v.gate == "speed")
    assert (speed.state, speed.reason_code) == (State.INCONCLUSIVE, "unpaired_in_time")
    assert speed.evidence["speedup_vs_ar_ratio"] == pytest.approx(94.8 / 60)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"spec_decode_acceptance_length": 2.6},
            r"spec_decode_acceptance_length = 2.6, but 1 \+ accepted / drafts = 2.3",
        ),
        ({"spec_decode_acceptance_rate": 0.45}, "spec_decode_acceptance_rate = 0.45, but accepted / drafted = 0.4500"),
        ({"spec_decode_accepted_tokens": 13000}, "spec_decode_accepted_tokens ≤ spec_decode_draft_tokens ≤"),
        ({"spec_decode_per_position_acceptance_rates": [0.7, 0.3, 0.1]}, "add up to 1.1000"),
        ({"spec_decode_per_position_acceptance_rates": [0.42, 0.7, 0.23]}, "may not grow"),
        ({"spec_decode_num_drafts": "4000"}, "spec_decode_num_drafts: '4000': a number"),
        ({"output_throughput": 0}, "output_throughput: 0: nothing was generated"),
    ],
)
def test_its_counts_and_means_are_held_against_each_other(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidResult, match=message):
        judged_file(write(tmp_path, {**SPECULATIVE, **changes}), ACCEPTANCE, scenario="full-16k-b4")


def test_a_result_without_speculation_names_the_counts_that_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="vllm bench serve: spec_decode_num_drafts"):
        judged_file(write(tmp_path, PLAIN), ACCEPTANCE, scenario="full-16k-b4")


SGLANG = '{"dataset_name": "random", "request_rate": Infinity, "output_throughput": 204.8, "accept_length": 2.66}'


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        (SGLANG, "sglang.bench_serving"),
        (f"{SGLANG}\n{SGLANG}\n", "sglang.bench_serving"),
        ({"output_token_throughput": {"unit": "tokens/sec"}, "request_count": {"unit": "requests"}}, "AIPerf"),
        ({"benchmarks": [{"args": {}, "metrics": {"output_tokens_per_second": {}}}]}, "GuideLLM"),
        ([{"n_prompt": 0, "n_gen": 128, "avg_ts": 40.1}], "llama-bench"),
        ('{"n_prompt": 0, "n_gen": 128, "avg_ts": 40.1}\n{"n_prompt": 0, "n_gen": 64, "avg_ts": 41}', "llama-bench"),
        ({"machine_info": {}, "benchmarks": [{"name": "t", "stats": {"mean": 0.1}}]}, "pytest-benchmark"),
        ({"results": [{"command": "x", "mean": 1.0, "stddev": 0.1}]}, "hyperfine"),
    ],
)
def test_a_result_of_another_tool_is_refused_by_its_name_in_one_sentence(
    tmp_path: Path, text: object, tool: str
) -> None:
    with pytest.raises(UsageError, match=rf"result\.json: a result of {tool}, which .* is read") as error:
        judged_file(write(tmp_path, text), ACCEPTANCE)
    assert error.value.hint is None and "`vllm bench serve --save-result`" in error.value.message


@pytest.mark.parametrize(
    ("changes", "role", "message"),
    [
        ({}, "spec-5", "--role spec-5, but .* is of spec-3"),
        ({"num_spec_tokens": 5}, None, "num_spec_tokens = 5, but its name says 3"),
        ({"name": "Speculative_Batch4_Context16K_2tokens", "num_spec_tokens": 3}, None, "but its name says 2"),
    ],
)
def test_draft_lengths_that_contradict_each_other_are_not_chosen_from(
    tmp_path: Path, changes: dict[str, Any], role: str | None, message: str
) -> None:
    counts = {"num_drafts": 4000, "total_draft_tokens": 12000, "total_accepted_tokens": 5400}
    result = {
        "name": "Speculative_Batch4_Context16K_3tokens",
        "throughput_tokens_per_sec": {"mean": 812.0},
        "eagle_speculation": counts,
    }
    assert lengths(judged_file(write(tmp_path, result), POLICY, role="spec-3"))
    with pytest.raises((UsageError, InvalidResult), match=message):
        judged_file(write(tmp_path, {**result, **changes}), POLICY, role=role)
