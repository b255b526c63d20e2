"""The figures of a cell, from its blocks: speed, times of requests, active slots, acceptance, cache hits."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from specgate.analysis.block_figures import JOINT, block_figures, ms_per_token
from specgate.analysis.checks.drafting import left_multi_token_mode, missed_steps
from specgate.analysis.checks.identities import draft_errors
from specgate.analysis.checks.served import served_steps
from specgate.analysis.prompt_acceptance import PromptRecords, counted_by_request, length_values, position_values
from specgate.analysis.requests.figures import request_values
from specgate.analysis.requests.goodput import goodput_values
from specgate.analysis.requests.joint_decoding import NO_JOINT_DECODING, decodes_in_company
from specgate.analysis.requests.percentiles import ERROR
from specgate.analysis.requests.timing import TimedRequest
from specgate.analysis.stats import planned_interim_looks
from specgate.contract import Block, Budget, CellResult, Scenario, TimeEnd, Value
from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.samples.counters import (
    AS_TEXTS,
    ASKED_AGAIN,
    ENDED_EARLY,
    JOINED_OUTPUTS,
    REPORTED_ACCEPTED,
    STEPS_ACCEPT_GE2,
)


def speed_values(blocks: Sequence[Block], whole_requests: bool) -> Iterator[Value]:
    """Medians over the blocks. A block that emitted nothing (every request ended at its prefill token) has no speed."""
    live = [b for b in blocks if b.emitted]
    figures = block_figures(live, whole_requests)
    for name, of in figures.items():
        yield Value(name, statistics.median(map(of, live)), "p50", len(live))
    if any(decodes_in_company(b, whole_requests) for b in live) and not figures.keys() & set(JOINT):
        yield from (Value(name, None, n=len(live), reason_code=NO_JOINT_DECODING) for name in JOINT)


def latency_values(
    blocks: Sequence[Block], requests: Sequence[Sequence[TimedRequest]], scenario: Scenario, ends: Sequence[TimeEnd]
) -> Iterator[Value]:
    """The times of the cell's requests, and of a server's its goodput where the scenario has limits.

    `requests`: those of each of `blocks`. `ends`: where the time of the point was spent.
    The error of an interval is split equally over the interim looks: a rule on the tail may decide at each.
    """
    error = ERROR / len(planned_interim_looks(scenario, ends))
    yield from request_values(requests, error)
    if scenario.goodput is not None and all(block.served for block in blocks):
        seconds = sum(block.prefill_ns + block.elapsed_ns for block in blocks) / 1e9
        turned_away = [len(block.served.refused) if block.served else 0 for block in blocks]
        yield from goodput_values(requests, seconds, scenario.goodput, error, turned_away)


def active_values(blocks: Sequence[Block]) -> Iterator[Value]:
    """Yield the number of active slots, and the tokens that an active slot emitted per step."""
    counts = active_counts(blocks)
    if not counts:
        yield from served_steps(blocks)
        return
    request_steps = sum(counts)
    yield Value("emitted_per_step", sum(b.emitted for b in blocks) / request_steps, "tok_weighted", request_steps)
    yield Value("active_count_min", float(min(counts)), "min", len(counts))
    yield Value("active_count_avg", statistics.fmean(counts), "mean", len(counts))
    yield Value("active_count_max", float(max(counts)), "max", len(counts))


def draft_values(
    blocks: Sequence[Block], prompts: PromptRecords, record: AcceptanceRecord | None, budget: Budget
) -> Iterator[Value]:
    """Acceptance figures; nothing for a baseline cell, which has no `record`. `prompts`: the records of `blocks`."""
    if record is None:
        return
    rows = list(active_rows(blocks))
    yield Value("disabled_draft_error", float(sum(map(draft_errors, blocks))), "count", sum(map(len, rows)))
    if not record.steps:
        return
    if missed := sum(missed_steps(block, budget) for block in blocks):
        yield Value("undrafted_steps", float(missed), "count", record.steps + missed)
    if record.skipped is not None:
        yield Value("skipped_steps", float(record.skipped), "count", record.counted_steps)
    if joined := sum(block.counters.get(JOINED_OUTPUTS, 0) for block in blocks):
        yield Value("joined_outputs", float(joined), "count", record.steps)
    if (whole := record.k * record.steps) > record.drafted:
        yield Value("drafted_share", record.drafted / whole, "tok_weighted", whole)
    length, *others = length_values(prompts.values(), record)
    yield length if counted_by_request(blocks) else replace(length, reason_code="requests_counted_together")
    yield from others
    if all(REPORTED_ACCEPTED in block.counters for block in blocks):
        reported = 1 + sum(block.counters[REPORTED_ACCEPTED] for block in blocks) / record.steps
        yield Value("reported_acceptance_length", reported, "tok_weighted", record.steps)
    ragged = [1 - (sum(row) / len(row) + 1) / (max(row) + 1) for row in rows if len(row) > 1]
    if ragged:
        yield Value("raggedness_ratio", statistics.fmean(ragged), "mean", len(ragged))
    yield from position_values(prompts.values(), record)


def active_rows(blocks: Sequence[Block]) -> Iterator[list[int]]:
    """For every step with an active slot: the accepted draft tokens of its active slots."""
    return ([a for a in row if a >= 0] for b in blocks for row in b.accepted if max(row, default=-1) >= 0)


def active_counts(blocks: Sequence[Block]) -> list[int]:
    """The number of active slots, for every step that had one."""
    return [len(row) for row in active_rows(blocks)]


def decoding_in(block: Block) -> Iterator[tuple[int, int]]:
    """(requests that decode at the same time, for how many ns) of a server's block, but for times when none does."""
    requests = block.served.requests if block.served else ()
    changes = sorted([(r.chunk_ns[0], 1) for r in requests] + [(r.chunk_ns[-1], -1) for r in requests])
    running = 0
    for (at, change), (until, _) in pairwise(changes):
        running += change
        if running and until > at:
            yield running, until - at


def cache_hits(blocks: Sequence[Block]) -> Iterator[Value]:
    """Prompt tokens that a cache saved from prefill. Where there are any, the prefill time says nothing about the
    engine.
    """
    counted = [b.counters["cache_hit_tokens"] for b in blocks if "cache_hit_tokens" in b.counters]
    if counted:
        yield Value("cache_hit_tokens", float(sum(counted)), "count", len(counted))
    requests = [request for block in blocks if block.served for request in block.served.requests]
    if hits := [r.prefix_hit_tokens for r in requests if r.prefix_hit_tokens is not None]:
        yield Value("prefix_hit_tokens", statistics.fmean(hits), "mean", len(hits))


def asked_again(blocks: Sequence[Block]) -> Iterator[Value]:
    """Yield how often a block was sent to a server again because its client saw the answers in one piece, and how many
    of its answers are compared as texts.
    """
    if texts := sum(b.counters.get(AS_TEXTS, 0) for b in blocks):
        yield Value("answers_as_texts", float(texts), "count", len(blocks))
    if again := sum(b.counters.get(ASKED_AGAIN, 0) for b in blocks):
        yield Value("asked_again", float(again), "count", len(blocks))


def ended_early(blocks: Sequence[Block]) -> Iterator[Value]:
    """Yield the number of chains that the engine ended before K tokens on purpose, if it counts them."""
    counted = [b.counters[ENDED_EARLY] for b in blocks if ENDED_EARLY in b.counters]
    if counted:
        yield Value("chains_ended_early", float(sum(counted)), "count", len(counted))


def series(rounds: Sequence[tuple[int, int]], blocks: Sequence[Block]) -> tuple[tuple[int, int, float], ...]:
    """(round of the point in running order, position in round, decode ms per token) of every block that emitted.

    `rounds`: see `reduce_cell`.
    """
    return tuple(
        (rounds.index((b.prompt_set, b.round)), b.position_in_round, ms_per_token(b)) for b in blocks if b.emitted
    )


def eagle_speculation(result: CellResult, blocks: Sequence[Block], budget: Budget) -> dict[str, object] | None:
    """The `eagle_speculation` block of run.json; None for a baseline cell or a cell without blocks.

    `disabled_multitoken_other` is the harness's count where the blocks show their steps. The other counters are the
    engine's, summed over the blocks; of those named `max_…`, the largest. `active_count` is over steps; of a server,
    over the time in which any request decodes.
    """
    record = result.acceptance
    if record is None:
        return None
    mine = [b for b in blocks if b.cell == result.cell and not b.warmup]
    counters: dict[str, int] = defaultdict(int)
    for block in mine:
        for name, count in block.counters.items():
            counters[name] = max(counters[name], count) if name.startswith("max_") else counters[name] + count
    if (left := left_multi_token_mode(mine, budget)) is not None:
        counters["disabled_multitoken_other"] = left
    active = [(count, 1) for count in active_counts(mine)] or [part for block in mine for part in decoding_in(block)]
    effective = result.values.get("emitted_per_step")
    multi_token = record.multi_token_share
    if STEPS_ACCEPT_GE2 in counters and record.steps:
        multi_token = counters[STEPS_ACCEPT_GE2] / record.steps
    return {
        "enabled": True,
        "num_drafts": record.steps,
        "total_draft_tokens": record.drafted,
        "total_accepted_tokens": record.accepted,
        "mean_acceptance_rate": record.draft_acceptance_rate,
        "mean_acceptance_length": record.acceptance_length,
        "multi_token_step_share": multi_token,
        "active_count": {
            "min": min((count for count, _ in active), default=None),
            "avg": sum(count * part for count, part in active) / sum(part for _, part in active) if active else None,
            "max": max((count for count, _ in active), default=None),
        },
        "effective_accept_per_active_slot": effective.value if effective else None,
        **dict(sorted(counters.items())),
    }


def summary_line(cell: str, block: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line with a tag that logs can be searched by, of an `eagle_speculation` block that has active slots:
    requests that left multi-token mode at their end, active slots, and tokens per active slot and step.
    """
    active, tokens = block["active_count"], block["effective_accept_per_active_slot"]
    if active["avg"] is None or tokens is None:
        return
    ends = [block[name] for end in ("eos", "stop", "length") if (name := f"disabled_multitoken_{end}") in block]
    finished = f"disabled_finished={sum(ends)} " if ends else ""
    yield (
        f"EAGLE3_SUMMARY {cell} {finished}active_count_avg={active['avg']:.3f} active_count_min={active['min']} "
        f"active_count_max={active['max']} effective_accept_per_active_slot={tokens:.3f}"
    )
