"""Result files of other benchmarks, told by their keys: which tool made a file that is not read here, and why not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

MOST_LINES: Final = 1000
"""Lines of a file that are looked at."""


@dataclass(frozen=True, slots=True)
class Tool:
    """`keys`: those that every result of this tool has, dotted where they lie deeper; a list counts as its first item.

    `lacks`: the end of a sentence on the counts of speculation in its results.
    """

    name: str
    keys: tuple[str, ...]
    lacks: str = "has no counts of draft steps"


TOOLS: Final = (
    Tool("sglang.bench_serving", ("accept_length", "dataset_name"), "has a mean acceptance length without its counts"),
    Tool("sglang.bench_serving", ("sharegpt_output_len", "dataset_name")),
    Tool("sglang.bench_one_batch", ("run_name", "prefill_latency", "prefill_throughput")),
    Tool("AIPerf", ("output_token_throughput.unit", "request_count.unit"), "has means without the counts behind them"),
    Tool("GenAI-Perf", ("request_throughput.unit", "output_token_throughput.unit")),
    Tool("GuideLLM", ("benchmarks.metrics.output_tokens_per_second",)),
    Tool("GuideLLM", ("benchmarks.metrics", "benchmarks.args")),
    Tool("llama-bench", ("avg_ts", "n_gen", "n_prompt")),
    Tool("llama-batched-bench", ("n_kv_max", "speed_tg")),
    Tool("pytest-benchmark", ("machine_info", "benchmarks.stats")),
    Tool("Google Benchmark", ("context", "benchmarks.real_time")),
    Tool("hyperfine", ("results.command", "results.stddev")),
    Tool("trtllm-bench", ("performance", "request_info", "engine")),
    Tool("vllm bench throughput", ("elapsed_time", "requests_per_second", "tokens_per_second")),
    Tool("vllm bench latency", ("avg_latency", "latencies", "percentiles")),
    Tool("lm-evaluation-harness", ("results", "configs", "n-shot"), "measures tasks, not speed"),
)
"""As read in the tools' releases of 2026; the first that fits counts."""


def made_by(value: object) -> Tool | None:
    """The tool that made a file which holds `value`; None where none is known."""
    return next((tool for tool in TOOLS if all(has(value, key) for key in tool.keys)), None)


def has(value: object, key: str) -> bool:
    """True if `value`, or the first item of a list, has the dotted `key`."""
    value = value[0] if isinstance(value, list) and value else value
    name, _, rest = key.partition(".")
    return isinstance(value, Mapping) and name in value and (not rest or has(value[name], rest))


def leniently(text: str) -> Iterator[object]:
    """The values of JSON or of lines of JSON, with Infinity and NaN as None, as some tools write them. What cannot be
    read ends the values.
    """
    for part in (text, *text.splitlines()[:MOST_LINES]):
        try:
            yield json.loads(part, parse_constant=lambda name: None)
        except (ValueError, RecursionError):
            continue
