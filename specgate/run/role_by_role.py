"""Blocks role by role, on an engine that holds one role at a time (`servers=apart`, `Schedule.by_load`).

All blocks of a role are measured, then those of the next, so that few loads measure many prompt sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specgate.analysis.rounds import in_round
from specgate.contract import Block, Plan, Point, Role, Round, Scenario
from specgate.planning.prompts import Prompts, PromptSet
from specgate.run.token_evidence import TokenEvidence
from specgate.run.worker import EngineWorker


class MeasuresBlocks(Protocol):
    """The runner: it measures single blocks, and knows which are there."""

    plan: Plan
    blocks: list[Block]
    evidence: TokenEvidence
    worker_generation: int

    def measure_block(
        self,
        scenario: Scenario,
        round_: Round,
        position: int,
        role: Role,
        prompts: PromptSet,
        shared_ns: int,
        alone: dict[Role, int],
        engine: EngineWorker,
    ) -> Block:
        """Measure one block."""

    def record(self, block: Block) -> None:
        """Keep a block."""

    def done(self, round_: Round) -> bool:
        """Tell whether every block of the round is there."""

    def comes_again(self, round_: Round) -> bool:
        """Tell whether a round in the other order is still to come."""


class RoleByRole:
    """The blocks of one point. `loaded`: the role that the engine holds, once it is warm."""

    def __init__(
        self, runner: MeasuresBlocks, scenario: Scenario, point: Point, prompts: Prompts, engine: EngineWorker
    ) -> None:
        self.runner, self.scenario, self.point = runner, scenario, point
        self.prompts, self.engine = prompts, engine
        self.draft = any(role.speculative for role in scenario.roles)
        self.loaded: Role | None = None

    def run(self, rounds: Sequence[Round]) -> None:
        """Measure neighbouring rounds of one order. A role that is loaded anew is warmed up."""
        todo = [r for r in rounds if not self.runner.done(r)]
        for position, role in enumerate(rounds[0].order if todo else ()):
            if role != self.loaded:
                self.warm_up(role)
            for round_ in todo:
                self.runner.record(self.block(round_, position, role, self.prompts.measured[round_.prompt_set]))
        if self.runner.comes_again(rounds[-1]):
            return  # the backward rounds end with the baseline, which the evidence asks
        for prompt_set in dict.fromkeys(r.prompt_set for r in rounds):
            if self.runner.evidence.wanting(self.point, prompt_set):
                self.engine.prefill(self.prompts.measured[prompt_set].token_ids, draft=self.draft)
                self.runner.evidence.gather(self.point, prompt_set, self.engine, self.runner.worker_generation)

    def warm_up(self, role: Role) -> None:
        """Run the warm-up rounds' blocks of one role. Those of its first load are stored."""
        of = role, self.runner.worker_generation
        for round_ in (r for r in self.runner.plan.rounds_of(self.point) if r.warmup):
            block = self.block(round_, round_.order.index(role), role, self.prompts.warmup[round_.prompt_set])
            if not any(in_round(b, round_) and (b.role, b.worker_generation) == of for b in self.runner.blocks):
                self.runner.record(block)
        self.loaded = role

    def block(self, round_: Round, position: int, role: Role, chosen: PromptSet) -> Block:
        """Prefill, and measure one block."""
        shared_ns = self.engine.prefill(chosen.token_ids, draft=self.draft)
        return self.runner.measure_block(self.scenario, round_, position, role, chosen, shared_ns, {}, self.engine)


def order_of(round_: Round) -> tuple[Role, ...]:
    """Return the order of a round's roles: neighbouring rounds of one order share a load."""
    return round_.order
