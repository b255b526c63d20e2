"""The metrics that specgate reports: name, unit, direction and definition. Reports format a figure by its unit, never
by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Direction = Literal["higher", "lower", "equal", "none"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    `direction`: what is better. `equal` metrics are exact and must not change; `none` metrics only describe.
    """

    name: str
    unit: str
    direction: Direction
    definition: str


_METRICS = (
    Metric("output_tok_s", "tok/s", "higher", "emitted tokens per second, all requests together"),
    Metric("output_tok_s_per_user", "tok/s", "higher", "emitted tokens per second of one request"),
    Metric("tpot_ms", "ms", "lower", "decode time per emitted token of one request, prefill token excluded"),
    Metric("ttft_ms", "ms", "lower", "prefill time: request start to first token"),
    Metric("e2e_ms", "ms", "lower", "request start to last token"),
    Metric("icl_ms", "ms", "lower", "gap between two chunks of a server's answer, which may hold several tokens"),
    Metric("prefill_tok_s", "tok/s", "higher", "prompt tokens per second, no cache hits"),
    Metric("step_ms", "ms", "lower", "one engine step: a baseline decode step, or one speculative cycle"),
    Metric("draft_ms", "ms", "lower", "share of a step spent drafting"),
    Metric("verify_ms", "ms", "lower", "share of a step spent in the target's pass"),
    Metric("accept_ms", "ms", "lower", "share of a step spent comparing drafts with the target"),
    Metric("commit_ms", "ms", "lower", "share of a step spent on bookkeeping and reading results"),
    Metric(
        "acceptance_length", "tokens", "higher", "1 + accepted / steps with drafts; bonus included, prefill excluded"
    ),
    Metric("draft_acceptance_rate", "ratio", "higher", "accepted / drafted tokens"),
    Metric("emitted_per_step", "tokens", "higher", "tokens really emitted per active slot and step"),
    Metric("active_count_min", "slots", "none", "fewest slots active in a step; steps without one are not counted"),
    Metric("active_count_avg", "slots", "none", "mean over steps of the slots active in a step"),
    Metric("active_count_max", "slots", "none", "most slots active in a step"),
    Metric("disabled_draft_error", "steps", "equal", "request-steps without a draft because it could not be used"),
    Metric("undrafted_steps", "steps", "equal", "request-steps of a spec cell without a draft, for whatever reason"),
    Metric("cache_hit_tokens", "tokens", "equal", "prompt tokens that a cache saved from being prefilled"),
    Metric("wasted_verify_ratio", "ratio", "lower", "verified tokens that were not emitted / verified tokens"),
    Metric(
        "raggedness_ratio", "ratio", "lower", "mean over steps of 1 − mean(accepted + 1) / max(accepted + 1) over slots"
    ),
    Metric(
        "repeated_8gram_share", "ratio", "lower", "share of generated 8-grams that occurred before in their sequence"
    ),
    Metric(
        "repeat_mismatches", "blocks", "equal", "blocks whose tokens differ from an earlier block of role and prompts"
    ),
    Metric("speedup_vs_ar_ratio", "ratio", "higher", "geometric mean over pairs of spec / baseline output_tok_s"),
)

METRICS: Mapping[str, Metric] = {m.name: m for m in _METRICS}

_PER_POSITION = {
    "acceptance_at_pos": Metric("acceptance_at_pos", "ratio", "higher", "share of steps whose draft i was accepted"),
    "cond_acceptance_at_pos": Metric(
        "cond_acceptance_at_pos", "ratio", "higher", "accepted at i, given accepted at i − 1"
    ),
    "accept_hist": Metric("accept_hist", "steps", "none", "steps with exactly i accepted drafts"),
}


def metric(name: str) -> Metric:
    """The definition of `name`, which may have an index as in `acceptance_at_pos[2]`. Raises KeyError where it is
    unknown.
    """
    base, bracket, _ = name.partition("[")
    return _PER_POSITION[base] if bracket else METRICS[name]
