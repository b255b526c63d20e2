"""Results of other tools: each form gives its figures, counts that contradict each other are refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from specgate.archive.judging.other_results import judged_results
from specgate.archive.other_tools.cells import merged, with_scenarios
from specgate.archive.other_tools.reading import results_at
from specgate.contract import Run, State
from specgate.errors import InvalidResult, UsageError
from tests.support.factories import POLICY, policy_of

PLAIN: dict[str, Any] = {
    "backend": "openai",
    "label": None,
    "request_rate": "inf",
    "max_concurrency": 8,
    "completed": 80,
    "failed": 0,
    "output_throughput": 60.0,
    "total_token_throughput": 174.8,
    "p99_ttft_ms": 40.0,
    "mean_tpot_ms": 16.6,
    "p99_itl_ms": 41.0,
    "median_e2el_ms": 500.0,
    "itls": [[0.02]],
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
SGLANG = (
    '{"dataset_name": "random", "request_rate": Infinity, "output_throughput": 204.8, "mean_tpot_ms": 4.6, '
    '"p99_e2e_latency_ms": 1250, "accept_length": 2.66, "server_info": {"speculative_num_steps": 3}}'
)
AIPERF: dict[str, Any] = {
    "output_token_throughput": {"unit": "tokens/sec", "avg": 204.8},
    "request_count": {"unit": "requests", "avg": 32},
    "time_to_first_token": {"unit": "ms", "avg": 60.0, "p99": 90.0},
    "inter_token_latency": {"unit": "ms", "avg": 4.6},
    "total_spec_decode_steps": {"unit": "count", "avg": 128},
    "total_draft_tokens": {"unit": "tokens", "avg": 640},
    "total_accepted_draft_tokens": {"unit": "tokens", "avg": 281},
    "spec_decode_token_weighted_acceptance_length": {"unit": "ratio", "avg": 3.195},
    "spec_decode_overall_draft_acceptance_rate": {"unit": "%", "avg": 43.9},
    "input_config": {"loadgen": {"concurrency": 16}},
}
GUIDELLM: dict[str, Any] = {
    "metadata": {"version": 2},
    "benchmarks": [
        {
            "config": {"strategy": {"type_": "concurrent", "streams": streams}},
            "metrics": {
                "output_tokens_per_second": {"successful": {"mean": 25.6 * streams}},
                "request_latency": {"successful": {"mean": 1.25, "percentiles": {"p99": 2.0}}},
                "inter_token_latency_ms": {"successful": {"mean": 4.6}},
                "request_totals": {"errored": 1},
            },
        }
        for streams in (1, 8)
    ],
}
TRTLLM: dict[str, Any] = {  # 10 requests of 101 tokens in 41 iterations each, K = 3
    "engine": {"model": "m"},
    "request_info": {"num_requests": 10, "avg_output_length": 101.0, "avg_input_length": 64.0},
    "performance": {
        "system_output_throughput_tok_s": 300.0,
        "request_throughput_req_s": 3.0,
        "request_latency_percentiles_ms": {"p50": 300.0, "p99": 400.0, "average": 310.0},
    },
    "streaming_metrics": {"ttft_percentiles": {"p99": 30.0, "average": 20.0}},
    "decoding_stats": {
        "mode": "Eagle3",
        "num_draft_tokens_percentiles": {"average": 123.0},
        "num_accepted_draft_tokens_percentiles": {"average": 60.0},
    },
}
LLAMA: dict[str, Any] = {"model_type": "qwen2 7B", "n_depth": 0, "n_prompt": 0, "n_gen": 128, "avg_ts": 40.0}
LLAMA_CSV = "model_type,n_prompt,n_gen,n_depth,avg_ts\n" + '"q","512","0","0","7285.6"\n"q","0","128","0","40.0"\n'
ACCEPTANCE = policy_of(*(rule for rule in POLICY.rules if rule.gate in ("acceptance", "speed")))


def write(folder: Path, text: object, name: str = "result.json") -> Path:
    (folder / name).write_text(text if isinstance(text, str) else json.dumps(text))
    return folder / name


def lengths(run: Run) -> dict[str, float | None]:
    return {c.cell.role.name: c.values["acceptance_length"].value for c in run.cells}


@pytest.mark.parametrize(
    ("text", "tool", "figures", "k", "length"),
    [
        (
            SPECULATIVE,
            "vllm bench serve",
            {"output_tok_s": 94.8, "p99_ttft_ms": 40, "mean_tpot_ms": 16.6, "p50_e2e_ms": 500},
            3,
            2.35,
        ),
        (PLAIN, "vllm bench serve", {"output_tok_s": 60, "p99_icl_ms": 41}, 0, None),
        (SGLANG, "sglang.bench_serving", {"output_tok_s": 204.8, "mean_tpot_ms": 4.6, "p99_e2e_ms": 1250}, 3, 2.66),
        (SGLANG.replace("2.66", "null").replace("3}", "null}"), "sglang.bench_serving", {}, 0, None),
        (
            AIPERF,
            "AIPerf",
            {"output_tok_s": 204.8, "mean_ttft_ms": 60, "p99_ttft_ms": 90, "mean_tpot_ms": 4.6},
            5,
            1 + 281 / 128,
        ),
        (TRTLLM, "trtllm-bench", {"output_tok_s": 300, "p50_e2e_ms": 300, "p99_ttft_ms": 30}, 3, 1 + 60 / 41),
        (LLAMA, "llama-bench", {"decode_tok_s": 40}, None, None),
        ({**LLAMA, "n_prompt": 384, "samples_ts": [38, 42]}, "llama-bench", {"output_tok_s": 10}, None, None),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "",
)
def test_each_form_gives_its_figures(
    tmp_path: Path, text: object, tool: str, figures: dict[str, float], k: int | None, length: float | None
) -> None:
    (result,) = results_at(write(tmp_path, text))
    assert (result.tool.name, result.k) == (tool, k)
    assert {name: sum(result.figures[name]) / len(result.figures[name]) for name in figures} == pytest.approx(figures)
    assert result.length == (length if length is None else pytest.approx(length))


def test_benchmarks_of_one_guidellm_file_are_told_apart_by_their_strategy(tmp_path: Path) -> None:
    one, eight = results_at(write(tmp_path, GUIDELLM))
    assert one.figures["mean_e2e_ms"] == [1250] and eight.figures["p99_e2e_ms"] == [2000]
    assert (one.asked["streams"], eight.asked["streams"], eight.failed, eight.speculates) == ("1", "8", 1, None)


def test_tests_of_llama_bench_keep_their_repetitions_whatever_the_format(tmp_path: Path) -> None:
    prompt, generated = results_at(write(tmp_path, LLAMA_CSV, "result.csv"))
    assert (prompt.figures, generated.figures) == ({"prefill_tok_s": [7285.6]}, {"decode_tok_s": [40]})
    lines = [{**LLAMA, "samples_ts": [39, 41]}, {**LLAMA, "n_gen": 64}]
    first, second = results_at(write(tmp_path, "\n".join(map(json.dumps, lines)), "result.jsonl"))
    assert first.figures == {"decode_tok_s": [39, 41]} and second.asked["n_gen"] == "64"


def test_results_with_other_lengths_or_settings_are_no_repetitions(tmp_path: Path) -> None:
    def cells(*results: dict[str, Any]) -> list[str | None]:
        file = write(tmp_path, "\n".join(map(json.dumps, results)), "result.jsonl")
        (side,) = with_scenarios(results_at(file))
        return [result.scenario for result in merged(side)]

    of = [{**PLAIN, "output_throughput": 60 + i, "total_input_tokens": n} for i, n in enumerate((8000, 8100, 80000))]
    assert cells(*of) == ["input length 100", "input length 1000"], "seeds differ by a percent"
    threads = [{**LLAMA, "avg_ts": 40 + n, "n_threads": n} for n in (1, 2, 4)]
    assert cells(*threads) == ["n_threads 1", "n_threads 2", "n_threads 4"]
    assert cells(*({**LLAMA, "avg_ts": speed} for speed in (40, 41, 41))) == ["llama-bench"]


@pytest.mark.parametrize(
    ("changes", "role", "k"),
    [
        ({}, None, 3),
        ({"spec_decode_per_position_acceptance_rates": []}, "spec-5", 5),
        ({"spec_decode_per_position_acceptance_rates": []}, None, 3),
        ({"spec_decode_draft_tokens": 11000, "spec_decode_acceptance_rate": 49.09}, None, 3),
        (
            {
                "spec_decode_draft_tokens": 9100,
                "spec_decode_acceptance_rate": 59.34,
                "spec_decode_per_position_acceptance_rates": [],
            },
            None,
            3,
        ),
        ({"spec_decode_acceptance_length": None, "spec_decode_acceptance_rate": None}, None, 3),
    ],
)
def test_the_counts_of_vllm_bench_serve_give_the_acceptance_length(
    tmp_path: Path, changes: dict[str, Any], role: str | None, k: int
) -> None:
    file = write(tmp_path, {**SPECULATIVE, **changes})
    run = judged_results(file, ACCEPTANCE, scenario="full-16k-b4", role=role)
    assert lengths(run) == {f"spec-{k}": 1 + 5400 / 4000}


def test_repetitions_are_one_cell_and_decide_its_speed(tmp_path: Path) -> None:
    def side(name: str, result: dict[str, Any], speeds: list[float]) -> Path:
        return write(tmp_path, "\n".join(json.dumps({**result, "output_throughput": s}) for s in speeds), name)

    spec, base = (side("s", SPECULATIVE, [94, 95, 96, 94.5]), side("b", PLAIN, [60, 60.5, 59.5]))
    run = judged_results(spec, ACCEPTANCE, baseline=base, scenario="full-16k-b4")
    (speed, *_) = (v for v in run.verdicts if v.gate == "speed")
    assert len(run.cells) == 1 and speed.state is State.PASS
    low, ratio, high = (float(speed.evidence[k] or 0) for k in ("ci_low", "speedup_vs_ar_ratio", "ci_high"))
    assert low < 94.875 / 60 < high and ratio == pytest.approx(94.872 / 59.999, rel=1e-3)
    copies = side("c", PLAIN, [60, 60, 60])
    run = judged_results(spec, ACCEPTANCE, baseline=copies, scenario="full-16k-b4")
    (speed, *_) = (v for v in run.verdicts if v.gate == "speed")
    assert (speed.state, speed.reason_code) == (State.INCONCLUSIVE, "unpaired_in_time"), "one result, three times"
    assert speed.next_step and "specgate micro URL,URL" in speed.next_step
    failing = side("f", {**PLAIN, "failed": 3}, [60, 60.5, 59.5])
    run = judged_results(spec, ACCEPTANCE, baseline=failing, scenario="full-16k-b4")
    (speed, *_) = (v for v in run.verdicts if v.gate == "speed")
    assert (speed.state, speed.reason_code) == (State.INCONCLUSIVE, "requests_failed")
    assert speed.message == "9 of the baseline's requests failed: the speeds are of other work"
    other = side("o", {**PLAIN, "max_concurrency": 1}, [60, 60.5, 59.5])
    run = judged_results(spec, ACCEPTANCE, baseline=other, scenario="full-16k-b4")
    (speed, *_) = (v for v in run.verdicts if v.gate == "speed")
    assert speed.message == "the baseline was asked otherwise: max_concurrency 1 for max_concurrency 8"


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
        ({"output_throughput": 0}, "output_throughput: 0: nothing was generated"),
    ],
)
def test_its_counts_and_means_are_held_against_each_other(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidResult, match=message):
        judged_results(write(tmp_path, {**SPECULATIVE, **changes}), ACCEPTANCE, scenario="full-16k-b4")


def without(path: str, data: dict[str, Any]) -> dict[str, Any]:
    """`data` with a text in place of the number at the dotted `path`."""
    data = copy.deepcopy(data)
    *above, name = path.split(".")
    inner = data
    for key in above:
        inner = inner[key]
    inner[name] = "much"
    return data


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (without("spec_decode_num_drafts", SPECULATIVE), "spec_decode_num_drafts: 'much': a number"),
        (without("time_to_first_token.avg", AIPERF), "time_to_first_token.avg: 'much': a number"),
        (without("performance.system_output_throughput_tok_s", TRTLLM), "tok_s: 'much': a number"),
        (PLAIN, "no result in it tells of speculation"),
        ({"rows": [1]}, "holds no result that is known"),
        ("a,b\n1,2\n", "not JSON"),
        ('{"a": 1}\n\n{"a": 2,\n', r"\.json:3: not JSON: Expecting property name .*: column 9$"),
        ('{\n"a": 1,\n', r"\.json: not JSON: .*: line 2, column 8\n"),
        ("", "not JSON"),
    ],
)
def test_what_cannot_be_read_is_a_matter_of_the_command_line(tmp_path: Path, text: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        judged_results(write(tmp_path, text), ACCEPTANCE, scenario="full-16k-b4")


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
    assert lengths(judged_results(write(tmp_path, result), POLICY, role="spec-3"))
    with pytest.raises((UsageError, InvalidResult), match=message):
        judged_results(write(tmp_path, {**result, **changes}), POLICY, role=role)
