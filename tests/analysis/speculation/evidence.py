"""Evidence of short runs for tests: a block with given counts, and what else is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specgate.analysis.speculation.drafting import drafting_of
from specgate.analysis.speculation.evidence import Evidence, PairConfigs
from specgate.analysis.speculation.summary import Request, counted, undrafted_in
from specgate.analysis.tokens.repetition import repeated_ngram_share
from specgate.contract import Block, Budget, EngineFacts, Finish, Point, Role, Served, ServedRequest
from specgate.contract.acceptance import AcceptanceRecord

FACTS = EngineFacts(
    backend="cupy", device="a GPU", dtype="bfloat16", vocab=1000, max_positions=4096, eos_token_ids=(0,),
    target_sha256="aa", draft_sha256="bb", capture_rule="boundaries [2, 4, 5]", has_draft=True,
)  # fmt: skip
PAIR = PairConfigs(
    target_hidden=64, target_vocab=1000, target_layers=8, target_positions=4096, made_for_hidden=64,
    made_for_vocab=1000, made_for_layers=8, made_for_sha256="aa", draft_vocab=100, draft_positions=4096,
    boundaries=(2, 4, 5), vocabulary_map="", tokenizers="",
)  # fmt: skip


def stepped(
    accepted: Sequence[int],
    drafted: int | None = None,
    k: int = 3,
    finish: Finish = Finish.LENGTH,
    counters: Mapping[str, int] | None = None,
    tokens: Sequence[int] | None = None,
) -> Block:
    """A block of one request whose steps accepted so many of `drafted` tokens each (default: `k`)."""
    drafts = k if drafted is None else drafted
    text = tuple(tokens or range(1, sum(accepted) + len(accepted) + 2))
    return Block(
        point=Point("smoke", "cupy", 100, 1), role=Role(k), prompt_set=0, round=0, position_in_round=0, warmup=False,
        worker_generation=0, prefill_ns=1, elapsed_ns=10**6 * len(accepted), step_ns=(10**6,) * len(accepted),
        tokens=(text,), accepted=tuple((a,) for a in accepted), drafted=((drafts,),) * len(accepted), truncated=(0,),
        finish=(finish,), counters=counters or {},
    )  # fmt: skip


def served(hist: Sequence[int], undrafted: int = 0, counters: Mapping[str, int] | None = None, k: int = 3) -> Block:
    """A server's block of one request, whose counters say `hist`."""
    steps, accepted = sum(hist), sum(i * n for i, n in enumerate(hist))
    emitted = steps + accepted
    record = AcceptanceRecord(k, tuple(hist), (steps,) * k, emitted, 0)
    arrivals = tuple(range(0, 1000 * (emitted + undrafted + 1), 1000))
    return replace(
        stepped((), k=k),
        accepted=(), drafted=(), step_ns=(), tokens=(tuple(range(1, emitted + undrafted + 2)),),
        elapsed_ns=arrivals[-1], counters={"undrafted_steps": undrafted, **(counters or {})},
        served=Served((ServedRequest(0, arrivals, (1,) * len(arrivals)),), record),
    )  # fmt: skip


def evidence(block: Block | None = None, **changes: Any) -> Evidence:
    """Evidence of a short run of spec-3 on 100 prompt tokens, which went well but for `block` and `changes`."""
    known: dict[str, Any] = {
        "backend": "cupy", "role": Role(3), "budget": Budget(new_tokens=64), "prompt_tokens": 100, "pair": PAIR,
        "facts": FACTS, "block": block, "drafting": drafting_of(block) if block is not None else None,
    }  # fmt: skip
    return Evidence(**{**known, **changes})


def request(block: Block, **changes: Any) -> Request:
    """The first request of a block, as a stored run's would be but for `changes`."""
    ((slot, record), *_) = counted(block)
    made = Request(
        run="a", cell=block.cell.key, pair="demo", acceptance="real", engine="cupy bfloat16",
        context=100, prompt_class="code", prompt=("a prompt", 0), record=record, requests=1,
        undrafted=undrafted_in(block, slot), repeated=repeated_ngram_share(block.tokens[slot]),
    )  # fmt: skip
    return replace(made, **changes)
