"""The `eagle_speculation` block of a cell, for outside readers of run.json."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from specgate.analysis.cell_figures import active_counts
from specgate.analysis.checks.drafting import left_multi_token_mode
from specgate.contract import Block, Budget, CellResult


def eagle_speculation(result: CellResult, blocks: Sequence[Block], budget: Budget) -> dict[str, object] | None:
    """The `eagle_speculation` block of run.json; None for a baseline cell or a cell without blocks.

    `disabled_multitoken_other` is the harness's count where the blocks show their steps. The other counters are the
    engine's.
    """
    record = result.acceptance
    if record is None:
        return None
    mine = [b for b in blocks if b.cell == result.cell and not b.warmup]
    counters: dict[str, int] = defaultdict(int)
    for block in mine:
        for name, count in block.counters.items():
            counters[name] += count
    if (left := left_multi_token_mode(mine, budget)) is not None:
        counters["disabled_multitoken_other"] = left
    active = active_counts(mine)
    effective = result.values.get("emitted_per_step")
    return {
        "enabled": True,
        "num_drafts": record.steps,
        "total_draft_tokens": record.drafted,
        "total_accepted_tokens": record.accepted,
        "mean_acceptance_rate": record.draft_acceptance_rate,
        "mean_acceptance_length": record.acceptance_length,
        "multi_token_step_share": record.multi_token_share,
        "active_count": {
            "min": min(active, default=None),
            "avg": statistics.fmean(active) if active else None,
            "max": max(active, default=None),
        },
        "effective_accept_per_active_slot": effective.value if effective else None,
        **dict(sorted(counters.items())),
    }
