"""Blocks whose passes touch experts: every row's choice is drawn, and what an engine would count of it."""

from __future__ import annotations

import random
from dataclasses import replace

from specgate.analysis.experts import rows_of_steps
from specgate.contract import Block
from specgate.contract.routing import counts_of
from specgate.contract.traffic import DraftTraffic, ExpertTraffic, PassTraffic, Traffic

EXPERTS = ExpertTraffic(layers=4, count=32, active=4, expert_bytes=50_000_000)
ROUTED = Traffic(
    PassTraffic(3_000_000_000, 8192, (), EXPERTS),
    DraftTraffic(PassTraffic(850_000_000, 0, ()), PassTraffic(750_000_000, 0, ())),
)


def with_counts(made: Block, *, overlap: float = 0.5, experts: ExpertTraffic = EXPERTS, by_row: bool = True) -> Block:
    """The block with its experts counted. A row keeps each expert of the row before it with the chance `overlap`."""
    dice = random.Random(f"{made.cell.key} {made.prompt_set}")  # rounds over the same prompts repeat themselves
    by_step, fresh = list[list[int]](), [0] * (made.role.k + 1)
    rows = rows_of_steps(made)
    for step in rows:
        touched = []
        for _ in range(experts.layers if step else 0):
            of_all: set[int] = set()
            for of in step:
                mine, last = set[int](), list[int]()
                for row in range(of):
                    kept = [e for e in last if dice.random() < overlap]
                    others = [e for e in range(experts.count) if e not in kept]
                    last = kept + dice.sample(others, experts.active - len(kept))
                    fresh[row] += len(set(last) - mine)
                    mine |= set(last)
                of_all |= mine
            touched.append(len(of_all))
        by_step.append(touched or [0] * experts.layers)
    return replace(made, experts=counts_of(by_step, fresh if by_row else ()))
