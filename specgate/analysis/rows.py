"""The blocks, requests and verdicts of a run as rows of tables, with names of columns that are the same in every table.

Times are in milliseconds. What was not observable, or may not be quoted, is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from specgate.analysis.machine.disturbed_blocks import set_aside, timed
from specgate.analysis.paired_blocks import speed
from specgate.analysis.requests.timing import requests_of
from specgate.analysis.speculation.summary import counted, undrafted_in
from specgate.contract import Block, Cell, Run

Scalar = str | int | float | None
Row = Mapping[str, Scalar]
PLACE: Final = ("scenario", "backend", "role", "context_len", "batch", "rate", "k")
IDENTITY: Final = ("run_id", "kind", *PLACE, "acceptance_source")
TURN: Final = ("prompt_set", "round", "position_in_round", "session")
DRAFTS: Final = ("num_drafts", "undrafted", "total_draft_tokens", "total_accepted_tokens")
BLOCKS: Final = (
    *(*IDENTITY, *TURN, "set_aside", "requests", "emitted", "prefill_ms", "elapsed_ms", "decode_tok_s", "output_tok_s"),
    *DRAFTS,
)
REQUESTS: Final = (
    *(*IDENTITY, *TURN, "slot", "prompt", "prompt_tokens", "output_tokens", "finish", "ttft_ms", "tpot_ms", "e2e_ms"),
    "prefix_hit_tokens",
    *DRAFTS,
)
VERDICTS: Final = (*("run_id", *PLACE, "rule", "gate", "state", "required", "reason_code", "message", "next_step"),)
"""Columns of the tables."""


def identity(run: Run, cell: Cell) -> Row:
    """Return the columns that say which run and cell a row belongs to."""
    return {"run_id": run.id, "kind": run.kind, **place(cell), "acceptance_source": source(run, cell)}


def place(cell: Cell) -> Row:
    """Return the columns that say which cell of a run a row belongs to."""
    point = cell.point
    return {
        "scenario": point.unvaried,
        "backend": point.backend,
        "role": cell.role_name,
        "context_len": point.context,
        "batch": point.batch,
        "rate": point.rate,
        "k": cell.role.k,
    }


def source(run: Run, cell: Cell) -> str | None:
    """Return where the acceptance of a cell comes from; None for a cell without a draft."""
    return run.acceptance if cell.role.speculative else None


def withheld(run: Run, cell: Cell) -> bool:
    """Tell whether no time of a cell may be quoted, because its tokens differ from the baseline's."""
    comparison = run.comparison(cell.key)
    return comparison is not None and bool(comparison.tokens.defects)


def sound(run: Run, blocks: Sequence[Block]) -> Iterator[tuple[Block, bool]]:
    """Yield (block, whether its times may be quoted), but for blocks whose records contradict themselves."""
    quotable = {r.cell: not withheld(run, r.cell) for r in run.cells if r.status != "failed"}
    yield from ((block, quotable[block.cell]) for block in blocks if block.cell in quotable)


def block_rows(run: Run, blocks: Sequence[Block]) -> Iterator[Row]:
    """Yield a row per block, but for those of cells that have failed."""
    aside = set_aside({key: c.host for key, c in run.conditions.items() if c.host is not None})
    counts = {id(block) for block in timed(blocks, aside)}
    for block, quotable in sound(run, blocks):
        whole = run.scenarios[block.point.scenario].whole_requests
        records = [record for _, record in counted(block)] if block.role.speculative else []
        undrafted = [undrafted_in(block, slot) for slot, _ in counted(block)] if records else []
        yield {
            **identity(run, block.cell),
            **turn(block),
            "set_aside": id(block) not in counts,
            "requests": len(block.tokens),
            "emitted": block.emitted,
            "prefill_ms": block.prefill_ns / 1e6 if quotable else None,
            "elapsed_ms": block.elapsed_ns / 1e6 if quotable else None,
            "decode_tok_s": speed(block, False) if quotable else None,
            "output_tok_s": speed(block, True) if quotable and whole else None,
            "num_drafts": sum(r.steps for r in records) if records else None,
            "undrafted": None if not undrafted or None in undrafted else sum(n for n in undrafted if n is not None),
            "total_draft_tokens": sum(r.drafted for r in records) if records else None,
            "total_accepted_tokens": sum(r.accepted for r in records) if records else None,
        }


def request_rows(run: Run, blocks: Sequence[Block]) -> Iterator[Row]:
    """Yield a row per answered request, but for those of cells that have failed.

    Where a server's arrivals do not tell its requests apart, they have no counts of drafts.
    """
    for block, quotable in sound(run, blocks):
        records = dict(counted(block)) if block.role.speculative else {}
        records = records if len(records) == len(block.tokens) else {}
        prompts = block.served.prompts if block.served is not None else ()
        timings = requests_of(block, run.scenarios[block.point.scenario].whole_requests)
        for slot, timing in enumerate(timings):
            record = records.get(slot)
            yield {
                **identity(run, block.cell),
                **turn(block),
                "slot": slot,
                "prompt": prompts[slot] if prompts else slot,
                "prompt_tokens": block.prompt_lengths[slot],
                "output_tokens": timing.tokens,
                "finish": block.finish[slot].value,
                "ttft_ms": timing.ttft_ms if quotable else None,
                "tpot_ms": timing.tpot_ms if quotable else None,
                "e2e_ms": timing.e2e_ms if quotable else None,
                "prefix_hit_tokens": block.served.requests[slot].prefix_hit_tokens if block.served else None,
                "num_drafts": record.steps if record else None,
                "undrafted": undrafted_in(block, slot) if record else None,
                "total_draft_tokens": record.drafted if record else None,
                "total_accepted_tokens": record.accepted if record else None,
            }


def turn(block: Block) -> Row:
    """Return the columns that say which block of its cell a row belongs to."""
    return {
        "prompt_set": block.prompt_set,
        "round": block.round,
        "position_in_round": block.position_in_round,
        "session": block.worker_generation,
    }


def verdict_rows(run: Run) -> Iterator[Row]:
    """Yield a row per verdict, with the cell that it is on; a verdict on the whole run is on none."""
    places = {result.cell.key: place(result.cell) for result in run.cells}
    nowhere = dict.fromkeys(PLACE)
    for verdict in run.verdicts:
        yield {
            "run_id": run.id,
            **places.get(verdict.cell, nowhere),
            "rule": verdict.rule,
            "gate": verdict.gate,
            "state": verdict.state.value,
            "required": verdict.required,
            "reason_code": verdict.reason_code,
            "message": verdict.message,
            "next_step": verdict.next_step,
        }
