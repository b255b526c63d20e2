"""What results of other tools hold: a declaration per tool, of dotted paths in its JSON.

As read in November 2026: vLLM's `benchmarks/serve.py`, SGLang's `bench_serving.py`, AIPerf's JSON export,
GuideLLM's `benchmarks.json`, TensorRT-LLM's `bench/dataclasses/reporting.py`, llama.cpp's `llama-bench`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from specgate.contract.metrics import per_request

NumberAt = Callable[[str], float]
"""The number at a dotted path of a result."""
Source = str | Callable[[NumberAt], float]
"""A dotted path, or what is computed from the numbers at some."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of ours: `scale` × the number at the path `at`. `each`: the path of a list, a number per repetition."""

    at: str
    scale: float | Callable[[NumberAt], float] = 1.0
    each: str = ""


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of speculation: verified steps, draft tokens, accepted ones.

    `length`, `rate`: the tool's own means, which the counts must give; `full_rate`: its rate if all is accepted.
    `positions`: the acceptance rate of each position. `there`: the path that every result with counts has.
    """

    steps: Source
    drafted: Source
    accepted: Source
    length: str = ""
    rate: str = ""
    full_rate: float = 1.0
    positions: str = ""
    there: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """One form of one tool's results.

    `keys`: dotted paths that every such result has; a list counts as its first item. `where`: values that it has.
    `figures`: metric → where it stands.
    `asked`: paths of what was asked, by which results are matched; of a mapping, all that it holds.
    `settings`, `sizes`: what tells results of one side apart besides, so that they are no repetitions: paths; and
        name → paths of a number of tokens and of the requests to divide it by.
    `counts`: None if the tool has none. `length`: path of a mean acceptance length, where there are no counts.
    `always`: every result with speculation has one of them, so that a result without is a baseline.
    `draft_length`: paths of the draft tokens per step. `failed`: path of the number of failed requests.
    `form`: what to give `specgate`, for the documentation.
    """

    name: str
    keys: tuple[str, ...]
    where: Mapping[str, object] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    asked: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    sizes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    counts: Counts | None = None
    length: str = ""
    always: bool = False
    draft_length: tuple[str, ...] = ()
    failed: str = ""
    form: str = ""


def latencies(at: str, statistics: Mapping[str, str], scale: float = 1.0, **quantities: str) -> dict[str, Figure]:
    """Metric → figure of each statistic of each quantity. `at`: the path, with their names for `{q}` and `{s}`."""
    return {
        per_request(statistic, quantity): Figure(at.format(q=name, s=word), scale)
        for quantity, name in quantities.items()
        for statistic, word in statistics.items()
    }


_NAMED = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}
_AVERAGED = {"mean": "avg", "p50": "p50", "p90": "p90", "p99": "p99"}
_OF_GUIDELLM = {"mean": "mean", "p50": "median", "p90": "percentiles.p90", "p99": "percentiles.p99"}
_OF_TRTLLM = {"mean": "average", "p50": "p50", "p90": "p90", "p99": "p99"}
_GUIDELLM = "metrics.{q}.successful.{s}"
_DRAFTS = "decoding_stats.num_draft_tokens_percentiles.average"
_ACCEPTED = "decoding_stats.num_accepted_draft_tokens_percentiles.average"
_LLAMA = ("avg_ts", "n_gen", "n_prompt")
_LLAMA_ASKED = ("model_type", "n_prompt", "n_gen", "n_depth")
_LLAMA_SETTINGS = (
    *("n_batch", "n_ubatch", "n_threads", "cpu_mask", "type_k", "type_v", "n_gpu_layers", "n_cpu_moe", "split_mode"),
    *("flash_attn", "no_kv_offload", "devices", "tensor_split", "use_mmap", "embeddings"),
)
_LENGTHS = {"input": ("total_input_tokens", "completed"), "output": ("total_output_tokens", "completed")}


def llama_bench(
    where: Mapping[str, object], metric: str, scale: float | Callable[[NumberAt], float] = 1.0, form: str = ""
) -> Tool:
    """Return one of the forms of llama-bench, whose rate is of what a row measured."""
    figures = {metric: Figure("avg_ts", scale, "samples_ts")}
    return Tool("llama-bench", _LLAMA, where, figures, _LLAMA_ASKED, _LLAMA_SETTINGS, form=form)


SCRIPTS: Final = Tool(
    "benchmark_speculative.py",
    ("throughput_tokens_per_sec",),
    figures={"output_tok_s": Figure("throughput_tokens_per_sec.mean", each="throughput_tokens_per_sec.values")},
    counts=Counts(
        "eagle_speculation.num_drafts",
        "eagle_speculation.total_draft_tokens",
        "eagle_speculation.total_accepted_tokens",
        "eagle_speculation.mean_acceptance_length",
        "eagle_speculation.mean_acceptance_rate",
        there="eagle_speculation.num_drafts",
    ),
    always=True,
    form="its JSON, or what `runs report --report benchmark_json` writes",
)
TOOLS: Final = (
    SCRIPTS,
    Tool(
        "vllm bench serve",
        ("output_throughput", "total_token_throughput", "completed"),
        figures={
            "output_tok_s": Figure("output_throughput"),
            "throughput_req_s": Figure("request_throughput"),
            "goodput_req_s": Figure("request_goodput"),
            # Its ITL is a gap between chunks, whatever they hold.
            **latencies("{s}_{q}_ms", _NAMED, ttft="ttft", tpot="tpot", icl="itl", e2e="e2el"),
        },
        asked=("request_rate", "burstiness", "max_concurrency", "num_prompts"),
        settings=("model_id",),
        sizes=_LENGTHS,
        counts=Counts(
            "spec_decode_num_drafts",
            "spec_decode_draft_tokens",
            "spec_decode_accepted_tokens",
            "spec_decode_acceptance_length",
            "spec_decode_acceptance_rate",
            100.0,
            "spec_decode_per_position_acceptance_rates",
            "spec_decode_num_drafts",
        ),
        always=True,
        failed="failed",
        form="`--save-result`, also with `--save-detailed` or `--append-result`",
    ),
    Tool(
        "sglang.bench_serving",
        ("output_throughput", "dataset_name"),
        figures={
            "output_tok_s": Figure("output_throughput"),
            "throughput_req_s": Figure("request_throughput"),
            **latencies("{s}_{q}_ms", _NAMED, ttft="ttft", tpot="tpot", itl="itl", e2e="e2e_latency"),
        },
        asked=("dataset_name", "request_rate", "max_concurrency", "random_input_len", "random_output_len"),
        sizes=_LENGTHS,
        length="accept_length",
        always=True,
        draft_length=("server_info.speculative_num_steps",),
        form="`--output-file`, a line per run",
    ),
    Tool(
        "AIPerf",
        ("output_token_throughput.unit",),
        figures={
            "output_tok_s": Figure("output_token_throughput.avg"),
            "throughput_req_s": Figure("request_throughput.avg"),
            "goodput_req_s": Figure("goodput.avg"),
            **latencies("{q}.{s}", _AVERAGED, ttft="time_to_first_token", tpot="inter_token_latency"),
            **latencies("{q}.{s}", _AVERAGED, icl="inter_chunk_latency", e2e="request_latency"),
        },
        asked=("input_config.loadgen",),
        sizes={"input": ("input_sequence_length.avg",), "output": ("output_sequence_length.avg",)},
        counts=Counts(
            "total_spec_decode_steps.avg",
            "total_draft_tokens.avg",
            "total_accepted_draft_tokens.avg",
            "spec_decode_token_weighted_acceptance_length.avg",
            "spec_decode_overall_draft_acceptance_rate.avg",
            100.0,
            there="total_spec_decode_steps.avg",
        ),
        length="spec_decode_acceptance_length.avg",
        failed="error_request_count.avg",
        form="`profile_export_aiperf.json`",
    ),
    Tool(
        "GuideLLM",
        ("metrics.output_tokens_per_second",),
        figures={
            "output_tok_s": Figure("metrics.output_tokens_per_second.successful.mean"),
            "throughput_req_s": Figure("metrics.requests_per_second.successful.mean"),
            **latencies(_GUIDELLM, _OF_GUIDELLM, ttft="time_to_first_token_ms", tpot="inter_token_latency_ms"),
            **latencies(_GUIDELLM, _OF_GUIDELLM, 1e3, e2e="request_latency"),
        },
        asked=("config.strategy", "args.strategy"),
        sizes={
            "input": ("metrics.prompt_token_count.successful.mean",),
            "output": ("metrics.output_token_count.successful.mean",),
        },
        failed="metrics.request_totals.errored",
        form="`benchmarks.json`",
    ),
    Tool(
        "trtllm-bench",
        ("performance.system_output_throughput_tok_s", "request_info.num_requests"),
        figures={
            "output_tok_s": Figure("performance.system_output_throughput_tok_s"),
            "throughput_req_s": Figure("performance.request_throughput_req_s"),
            **latencies("streaming_metrics.{q}_percentiles.{s}", _OF_TRTLLM, ttft="ttft", tpot="tpot"),
            **latencies("performance.{q}.{s}", _OF_TRTLLM, e2e="request_latency_percentiles_ms"),
        },
        asked=("request_info.num_requests", "request_info.avg_input_length", "world_info.max_batch_size"),
        # Per request: drafted = K · iterations, accepted = output tokens − iterations. The prefill is an iteration.
        counts=Counts(
            lambda of: of("request_info.num_requests") * (of("request_info.avg_output_length") - of(_ACCEPTED)),
            lambda of: of("request_info.num_requests") * of(_DRAFTS),
            lambda of: of("request_info.num_requests") * of(_ACCEPTED),
            there=_DRAFTS,
        ),
        always=True,
        form="`--report_json`",
    ),
    llama_bench({"n_gen": 0}, "prefill_tok_s", form="`-o json`, `jsonl` or `csv`"),
    llama_bench({"n_prompt": 0}, "decode_tok_s"),
    # Its rate is of prompt and generated tokens together.
    llama_bench({}, "output_tok_s", lambda n: n("n_gen") / (n("n_prompt") + n("n_gen"))),
)
"""Tools whose results are read; the first that fits counts."""


def tool_of(value: object) -> Tool | None:
    """Return the first of `TOOLS` that a file which holds `value` may come from; None if none fits."""
    return next((tool for tool in TOOLS if fits(tool, value)), None)


def fits(tool: Tool, value: object) -> bool:
    """Tell whether `value` has the keys and values of the tool."""
    return all(has(value, key) for key in tool.keys) and all(at(value, key) == w for key, w in tool.where.items())


def has(value: object, path: str) -> bool:
    """Tell whether `value`, or the first item of a list, has the dotted `path`."""
    value = value[0] if isinstance(value, list) and value else value
    name, _, rest = path.partition(".")
    return isinstance(value, Mapping) and name in value and (not rest or has(value[name], rest))


def at(value: object, path: str) -> object:
    """Return what stands at the dotted `path` of a mapping; None if nothing does."""
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
