"""The metrics that specgate reports: name, unit, direction and definition. Reports format a figure by its unit, never
by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Direction = Literal["higher", "lower", "equal", "none"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    `direction`: what is better. `equal` metrics are exact and must not change; `none` metrics only describe.
    `note`: words for a figure that is not 0, behind which it stands in the note on its cell; empty: no note names it.
    """

    name: str
    unit: str
    direction: Direction
    definition: str
    note: str = ""


PERCENTILES: Final = (50, 90, 95, 99)
"""The percentiles that are stored of every quantity in `PER_REQUEST`."""

PER_REQUEST: Final[Mapping[str, str]] = {
    "ttft": "time to first token: request sent to first token; without a server there is no queue in it",
    "tpot": "time per output token of a request: (e2e − ttft) / (output tokens − 1)",
    "itl": "inter-token latency: a gap between two arrivals, shared evenly by the tokens that arrived after it",
    "icl": "inter-chunk latency: a gap between two arrivals (engine steps, or chunks of a server's answer)",
    "e2e": "end-to-end latency: request sent to last token",
}
"""Quantity → what one sample of it is. `ttft`, `tpot` and `e2e` have one per request, `itl` one per output token after
the first, `icl` one per arrival after the first.
"""


def per_request(statistic: str, quantity: str) -> str:
    """The name of a metric: `p99_itl_ms` for the statistic `p99` of the quantity `itl`."""
    return f"{statistic}_{quantity}_ms"


STATISTICS: Final = ("mean", *(f"p{p}" for p in PERCENTILES))

_LATENCIES = tuple(
    Metric(per_request(statistic, quantity), "ms", "lower", f"{statistic} of the {meaning}")
    for quantity, meaning in PER_REQUEST.items()
    for statistic in STATISTICS
)

_METRICS = (
    Metric("decode_tok_s", "tok/s", "higher",
           "tokens per second from the first token of any request to the last one of all; a server's batch has the "
           "prefill of its later requests in it"),
    Metric("decode_tok_s_per_user", "tok/s", "higher", "tokens per second of decoding of one request"),
    Metric("joint_decode_tok_s", "tok/s", "higher",
           "tokens per second while every request of a block decodes: from the last one's first token to the first "
           "one's last token"),
    Metric("joint_tpot_ms", "ms", "lower", "time per output token of a request while every request decodes"),
    Metric("joint_decode_share", "ratio", "none",
           "share of a block's decoded tokens that came while every request decoded"),
    Metric("output_tok_s", "tok/s", "higher", "output tokens per second of whole requests, prefill included"),
    Metric("output_tok_s_per_user", "tok/s", "higher", "the same of one request"),
    *_LATENCIES,
    Metric("decode_ms_per_token", "ms", "lower", "decode time of one block per token, averaged over its requests"),
    Metric("throughput_req_s", "req/s", "higher", "answered requests per second, from first sending to last token"),
    Metric("in_flight_avg", "requests", "none", "mean over time of the requests that were sent and not yet answered"),
    Metric("refused_requests", "requests", "equal", "requests that the server turned away with HTTP 429 or 503"),
    Metric("p50_send_lag_ms", "ms", "lower", "open loop: p50 of the time from when a request was due to its sending"),
    Metric("p99_send_lag_ms", "ms", "lower", "open loop: p99 of the time from when a request was due to its sending"),
    Metric("send_lag_ms", "ms", "lower", "open loop: by how much the latest request was sent after it was due"),
    Metric("break_even_level", "level", "higher",
           "the level of load (clients, or requests per second) at which spec / baseline falls to 1, interpolated"),
    Metric("max_goodput_level", "level", "higher",
           "the greatest level of load (clients, or requests per second) at which the scenario's latency limits hold"),
    Metric("goodput_share", "ratio", "higher", "share of the requests that kept to the scenario's latency limits"),
    Metric("limit_use", "ratio", "lower",
           "latency over the scenario's limit, of the limit that a request came nearest to: the quantile at the "
           "limits' `share`"),
    Metric("goodput_req_s", "req/s", "higher", "requests per second that kept to the scenario's latency limits"),
    Metric("prefill_tok_s", "tok/s", "higher", "prompt tokens per second, no cache hits"),
    Metric("step_ms", "ms", "lower",
           "one engine step: a baseline decode step, or one speculative cycle; of a server, one arrival, in a batch "
           "while every request decodes"),
    Metric("draft_ms", "ms", "lower", "share of a step spent drafting"),
    Metric("verify_ms", "ms", "lower", "share of a step spent in the target's pass"),
    Metric("accept_ms", "ms", "lower", "share of a step spent comparing drafts with the target"),
    Metric("commit_ms", "ms", "lower", "share of a step spent on bookkeeping and reading results"),
    Metric("acceptance_length", "tokens", "higher",
           "1 + accepted / steps with drafts, and steps that may have none; bonus included, prefill excluded"),
    Metric("draft_acceptance_rate", "ratio", "higher", "accepted / drafted tokens"),
    Metric("reported_acceptance_length", "tokens", "higher",
           "1 + accepted / steps with drafts by an engine's own count that has each step's own token in it"),
    Metric("emitted_per_step", "tokens", "higher", "tokens really emitted per active slot and step"),
    Metric("active_count_min", "slots", "none", "fewest slots active in a step; steps without one are not counted"),
    Metric("active_count_avg", "slots", "none", "mean over steps of the slots active in a step"),
    Metric("active_count_max", "slots", "none", "most slots active in a step"),
    Metric("disabled_draft_error", "steps", "equal", "request-steps without a draft because it could not be used"),
    Metric("undrafted_steps", "steps", "equal", "request-steps of a spec cell without a draft, for whatever reason"),
    Metric("skipped_steps", "steps", "none", "request-steps without a draft of a method that need not draft"),
    Metric("joined_outputs", "outputs", "equal",
           "outputs of a server with the tokens of several steps, at least, where it counts one step per output"),
    Metric("chains_ended_early", "steps", "none",
           "request-steps whose chain the engine ended before K tokens on purpose"),
    Metric("drafted_share", "ratio", "none", "draft tokens / (K × steps with a draft), where that is below 1"),
    Metric("asked_again", "requests", "equal",
           "how often a server was asked for a block again that was seen in one piece"),
    Metric("answers_as_texts", "requests", "equal", "answers without token ids, which are compared as texts"),
    Metric("cache_hit_tokens", "tokens", "equal", "prompt tokens that a cache saved from being prefilled"),
    Metric("prefix_hit_tokens", "tokens", "none",
           "prompt tokens of a request that came from a prefix cache, by its answer's own count; mean over requests",
           note="prompt tokens of a request from a prefix cache:"),
    Metric("client_clock_ratio", "ratio", "none",
           "decode time of the requests at the client / by the engine's own clock, where a server has one"),
    Metric("peak_gpu_memory_bytes", "B", "lower",
           "most GPU memory that the processes of the engine held at the end of a block, by the driver's account"),
    Metric("peak_device_memory_bytes", "B", "lower", "most GPU memory in use at the end of a block, whoever used it"),
    Metric("peak_host_memory_bytes", "B", "lower",
           "most resident host memory (RSS) of the processes of the engine at the end of a block"),
    Metric("kv_capacity_tokens", "tok", "higher", "tokens that the engine's KV cache has room for, by its own account"),
    Metric("kv_cache_bytes", "B", "none", "memory of the engine's KV cache, by its own account"),
    Metric("extra_gpu_memory_bytes", "B", "none",
           "peak_gpu_memory_bytes of a spec cell less its baseline's, where each role has processes of its own"),
    Metric("extra_host_memory_bytes", "B", "none",
           "peak_host_memory_bytes of a spec cell less its baseline's, where each role has processes of its own"),
    Metric("gpu_memory_growth_bytes", "B", "lower",
           "GPU memory that a process of the engine holds at the end of a block: the median of its last third of "
           "blocks less that of the first third; 6 blocks or more"),
    Metric("host_memory_growth_bytes", "B", "lower", "the same of resident host memory (RSS)"),
    Metric("kv_capacity_loss", "ratio", "lower",
           "share of the baseline's KV cache capacity, in tokens, that a spec cell does not have"),
    Metric("joules_per_token", "J", "lower",
           "energy of the watched GPUs over the blocks / tokens of these blocks, prefill included where blocks have "
           "their own; by the GPU's counter, where every block lasts 0.5 s"),
    Metric("energy_per_token_ratio", "ratio", "lower", "geometric mean over pairs of spec / baseline joules_per_token"),
    Metric("exact_match", "ratio", "higher",
           "share of the questions whose answer is the key's, by a rule per kind of key"),
    Metric("exact_match_change", "ratio", "higher",
           "exact_match of a spec cell less its baseline's, on the same questions, with Newcombe's interval for pairs"),
    Metric("answers_lost", "answers", "lower", "questions that the baseline answers rightly and the spec cell wrongly"),
    Metric("answers_won", "answers", "none", "questions that the spec cell answers rightly and the baseline wrongly"),
    Metric("answers_cut", "answers", "none", "texts that end at the token budget, so that an answer may be missing"),
    Metric("wasted_verify_ratio", "ratio", "lower", "verified tokens that were not emitted / verified tokens"),
    Metric("raggedness_ratio", "ratio", "lower",
           "mean over steps of 1 − mean(accepted + 1) / max(accepted + 1) over slots"),
    Metric("repeated_8gram_share", "ratio", "lower",
           "share of generated 8-grams that occurred before in their sequence"),
    Metric("repeat_mismatches", "blocks", "equal",
           "blocks whose tokens differ from an earlier block of role and prompts"),
    Metric("repeat_unknown", "blocks", "none", "those of them where nothing tells how close the two tokens must be"),
    Metric("repeat_near_ties", "texts", "none", "texts that leave an earlier text of role and prompts at a near tie"),
    Metric("speedup_vs_ar_ratio", "ratio", "higher", "geometric mean over pairs of spec / baseline output_tok_s"),
    Metric("decode_speedup_ratio", "ratio", "higher", "geometric mean over pairs of spec / baseline decode_tok_s"),
    Metric("latency_speedup_ratio", "ratio", "higher",
           "open loop: geometric mean over pairs of the baseline's mean end-to-end latency / spec's"),
    Metric("joint_decode_speedup_ratio", "ratio", "higher",
           "geometric mean over pairs of spec / baseline joint_decode_tok_s"),
    Metric("harmonic_decode_speedup_ratio", "ratio", "higher",
           "geometric mean over pairs of baseline / spec joint_tpot_ms: what a server gains that a queue keeps full"),
    Metric("speedup_like_these_ratio", "ratio", "higher",
           "the judged speed-up on prompts like these: geometric mean over prompt sets; the interval is over sets"),
    Metric("throughput_ratio", "ratio", "higher", "spec / baseline of Σ output tokens / Σ time of whole requests"),
    Metric("decode_throughput_ratio", "ratio", "higher", "spec / baseline of Σ tokens / Σ time of decoding alone"),
)  # fmt: skip

METRICS: Mapping[str, Metric] = {m.name: m for m in _METRICS}

TIMES_OVER: Final = (
    "speedup_vs_ar_ratio", "decode_speedup_ratio", "throughput_ratio", "decode_throughput_ratio",
    "latency_speedup_ratio", "joint_decode_speedup_ratio", "harmonic_decode_speedup_ratio", "speedup_like_these_ratio",
    "energy_per_token_ratio",
)  # fmt: skip
"""Ratios of a spec cell over its baseline. They are written as 1.63×, where other ratios are shares."""

BATCH_SPEEDUPS: Final[Mapping[str, str]] = {
    "joint_decode_speedup_ratio": "joint",
    "decode_speedup_ratio": "by the clock",
    "harmonic_decode_speedup_ratio": "with a queue",
}
"""The speed-ups of a batch's decoding → in words. A rule judges one of them."""

_INDEXED = {
    "acceptance_at_pos": Metric(
        "acceptance_at_pos", "ratio", "higher", "share of the steps that drafted i which accepted it (unconditional)"
    ),
    "cond_acceptance_at_pos": Metric(
        "cond_acceptance_at_pos", "ratio", "higher", "accepted at i, given accepted at i − 1"
    ),
    "acceptance_length": Metric(
        "acceptance_length", "tokens", "higher", "acceptance length over the prompts of one category of the user's file"
    ),
    "draft_acceptance_rate": Metric(
        "draft_acceptance_rate", "ratio", "higher", "accepted / drafted tokens over the prompts of one category"
    ),
    "accept_hist": Metric("accept_hist", "steps", "none", "steps with exactly i accepted drafts"),
}


def metric(name: str) -> Metric:
    """The definition of `name`, which may have an index as in `acceptance_at_pos[2]`, or a category as in
    `acceptance_length[coding]`. Raises KeyError where it is unknown.
    """
    base, bracket, _ = name.partition("[")
    return _INDEXED[base] if bracket else METRICS[name]
