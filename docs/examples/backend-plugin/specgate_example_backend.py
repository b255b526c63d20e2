"""The smallest engine that keeps specgate's protocol: its greedy text counts upwards, its drafts are right at times.

What an author implements is in `specgate.contract.protocols`; the nouns are in `specgate.contract`. Importing this
module, constructing the back end and asking `available` must be cheap: an engine library is imported in `open`.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

from specgate.contract import Budget, EngineFacts, Finish, Role
from specgate.contract.protocols import Availability, Decoded, Engine, OpenRequest
from specgate.errors import BackendError, UsageError

VOCAB = 1000


class CountingBackend:
    name = "counting"
    description = "an example from outside: counts upwards, drafts right every other time"

    def available(self) -> Availability:
        return Availability(True, "needs nothing", rank=-1)  # below 0: never a default

    def open(self, request: OpenRequest) -> Engine:
        """Refuse at load time what cannot be meant or held, naming the key and the value."""
        if request.options:
            raise UsageError(f"option {next(iter(request.options))}: not known", hint="this back end has no options")
        return CountingEngine(request)


class CountingEngine:
    """An `protocols.Engine`. Slots of a block decode in step; one that is finished has -1 in its column."""

    def __init__(self, request: OpenRequest) -> None:
        self.request = request
        self.firsts: list[int] = []

    def facts(self) -> EngineFacts:
        return EngineFacts(
            backend="counting",
            device="no device",
            dtype=self.request.dtype,
            vocab=VOCAB,
            max_positions=self.request.max_positions,
            eos_token_ids=(),
            target_sha256="0" * 64,
            draft_sha256=None,
            capture_rule=None,
            has_draft=True,
            acceptance="scripted",
            warnings=("an example: it decodes nothing",),
        )

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        began = perf_counter_ns()
        self.firsts = [sum(prompt) % VOCAB for prompt in prompts]
        return perf_counter_ns() - began

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        """Every step emits what it accepted and one token more, from the same state as every other block."""
        if not self.firsts:
            raise BackendError("decode before prefill")
        slots = len(self.firsts)
        tokens = [[first] for first in self.firsts]
        accepted: list[tuple[int, ...]] = []
        truncated = [0] * slots
        step_ns = []
        # A budget of steps ends no slot for its length: a longer answer is no other answer.
        limit = budget.new_tokens or budget.longest(role.k) + 2
        while len(accepted) != budget.steps and any(len(row) < limit for row in tokens):
            began = perf_counter_ns()
            right = role.k if len(accepted) % 2 else role.k // 2
            accepted.append(tuple(-1 if len(row) >= limit else right for row in tokens))
            for slot, row in enumerate(tokens):
                if len(row) < limit:
                    emitted = min(right + 1, limit - len(row))
                    row += [(row[-1] + i) % VOCAB for i in range(1, emitted + 1)]
                    truncated[slot] += right + 1 - emitted
            step_ns.append(perf_counter_ns() - began)
        return Decoded(
            elapsed_ns=sum(step_ns),
            step_ns=tuple(step_ns),
            tokens=tuple(map(tuple, tokens)),
            accepted=tuple(accepted),
            drafted=tuple(tuple(-1 if a < 0 else role.k for a in row) for row in accepted),
            truncated=tuple(truncated),
            finish=tuple(Finish.LENGTH if len(row) >= limit else Finish.STEPS for row in tokens),
        )

    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float] | None:
        return None  # it has no logits; a divergence then has no margin

    def close(self) -> None:
        self.firsts = []


BACKEND = CountingBackend()
