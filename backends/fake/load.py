"""The fake engine under load: requests that come and go, on a scripted clock.

A step decodes all requests that run, and takes longer the more tokens it verifies (`Script.row_ns`). So speculation,
which verifies K + 1 tokens per request, pays with few requests and costs with many, as it does on a real GPU. Requests
that arrive wait for the next step, are prefilled before it, and are refused where too many are there (`refuse_beyond`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from specgate.backends.fake.script import Script
from specgate.contract import AcceptanceRecord, Budget, Finish, RefusedRequest, Role, Served, ServedRequest
from specgate.contract.load import OfferedLoad
from specgate.contract.protocols import Decoded, OpenRequest

REFUSAL: Final = 503


class Scripted(Protocol):
    """The part of the fake engine (`fake.FakeEngine`) that is used here."""

    script: Script
    request: OpenRequest

    @property
    def draft_usable(self) -> bool: ...

    def accepts(self, k: int, step: int, slot: int) -> int: ...

    def step_ns(self, k: int, step: int) -> int: ...

    def emitted(self, role: Role, slot: int, index: int) -> int: ...


@dataclass(slots=True)
class Running:
    """One request. `at_ns` and `held`: when each chunk came, and how many tokens it held."""

    number: int
    prompt: int
    sent_ns: int
    due_ns: int | None
    made: int = 0
    steps: int = 0
    at_ns: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)

    def emit(self, tokens: int, now: int) -> None:
        self.made += tokens
        self.at_ns.append(now)
        self.held.append(tokens)


class ServedLoad:
    """One block of requests under load. `now`: the scripted clock."""

    def __init__(self, engine: Scripted, role: Role, prompts: Sequence[Sequence[int]], budget: Budget) -> None:
        assert budget.new_tokens is not None
        self.engine, self.role, self.prompts, self.limit = engine, role, prompts, budget.new_tokens
        self.sent, self.lengths = 0, tuple[int, ...]()
        self.k = role.k if engine.draft_usable and not engine.script.no_drafts else 0
        self.lag = engine.script.send_lag_ns
        self.now = self.steps = self.truncated = 0
        self.waiting: list[Running] = []
        self.running: list[Running] = []
        self.done: list[Running] = []
        self.refused: list[RefusedRequest] = []
        self.hist = [0] * (role.k + 1)

    def run(self, offered: OfferedLoad) -> Decoded:
        """Serve all prompts, as often as the load takes them."""
        self.lengths = offered.new_tokens
        while self.comes(offered) or self.waiting or self.running:
            self.arrive(offered)
            self.admit()
            if self.running:
                self.step()
        return self.result()

    def comes(self, offered: OfferedLoad) -> bool:
        """Return whether another request is sent after `self.sent` of them."""
        if offered.until_ns is None:
            return self.sent < len(self.prompts)
        return self.sent < (offered.clients or 0) or self.now <= offered.until_ns

    def arrive(self, offered: OfferedLoad) -> None:
        """Take the requests that have arrived by now; where nothing else is left to do, wait for the next one."""
        starts = list(offered.starts_ns())
        if not self.waiting and not self.running and self.comes(offered):
            if offered.clients is None:
                self.now = max(self.now, offered.arrivals_ns[self.sent] + self.lag)
            elif self.sent < offered.clients:
                self.now = max(self.now, starts[self.sent])
        while self.comes(offered):
            due = None if offered.clients is not None else offered.arrivals_ns[self.sent]
            there = len(self.waiting) + len(self.running)
            begun = sum(start <= self.now for start in starts)
            if (due is None and there >= begun) or (due is not None and due + self.lag > self.now):
                return
            number, prompt, beyond = self.sent, self.sent % len(self.prompts), self.engine.script.refuse_beyond
            self.sent += 1
            if beyond is not None and there >= beyond:
                self.refused.append(RefusedRequest(prompt, REFUSAL, self.now))
                if due is None:
                    return  # the client has its answer, and turns to its next request after this step
            else:
                self.waiting.append(Running(number, prompt, self.now if due is None else due + self.lag, due))

    def admit(self) -> None:
        """Prefill as many waiting requests as there are slots free. Each has its first token then."""
        while self.waiting and len(self.running) < self.engine.request.max_batch:
            one = self.waiting.pop(0)
            self.now += self.engine.script.prefill_ns * len(self.prompts[one.prompt])
            one.emit(1, self.now)
            self.running.append(one)

    def step(self) -> None:
        """Decode one step of all running requests."""
        script = self.engine.script
        self.now += self.engine.step_ns(self.k, self.steps) + script.row_ns * len(self.running) * (self.k + 1)
        self.steps += 1
        for one in self.running:
            accepted = self.engine.accepts(self.k, one.steps, one.prompt)
            one.steps += 1
            self.hist[accepted] += 1
            tokens = min(accepted + 1, self.asked(one) - one.made)
            self.truncated += accepted + 1 - tokens
            one.emit(tokens, self.now)
        self.done += [one for one in self.running if one.made == self.asked(one)]
        self.running = [one for one in self.running if one.made < self.asked(one)]

    def asked(self, one: Running) -> int:
        """Return the tokens that a request asks for."""
        return self.lengths[one.prompt] if self.lengths else self.limit

    def result(self) -> Decoded:
        finished = sorted(self.done, key=lambda one: one.number)
        first, last = min(one.at_ns[0] for one in finished), max(one.at_ns[-1] for one in finished)
        requests = tuple(
            ServedRequest(
                o.sent_ns, tuple(o.at_ns), tuple(o.held), o.due_ns, None, self.asked(o) if self.lengths else None
            )
            for o in finished
        )
        record, undrafted = self.acceptance(finished)
        prompts = tuple(one.prompt for one in finished)
        prompts = () if prompts == tuple(range(len(self.prompts))) else prompts
        return Decoded(
            elapsed_ns=last - first,
            step_ns=(),
            tokens=tuple(
                tuple(self.engine.emitted(self.role, one.prompt, i) for i in range(self.asked(one))) for one in finished
            ),
            accepted=(),
            drafted=(),
            truncated=(0,) * len(finished),
            finish=(Finish.LENGTH,) * len(finished),
            counters={"undrafted_steps": undrafted} if self.role.speculative else {},
            prefill_ns=first,
            served=Served(requests, record, tuple(self.refused), prompts),
        )

    def acceptance(self, finished: Sequence[Running]) -> tuple[AcceptanceRecord | None, int]:
        """Return a server's counters over all requests: the acceptance record, and the request-steps without a
        draft.
        """
        if not self.role.speculative:
            return None, 0
        steps, emitted = sum(one.steps for one in finished), sum(one.made - 1 for one in finished)
        if not self.k:
            return AcceptanceRecord(self.role.k, (0,) * (self.role.k + 1), (0,) * self.role.k, 0, 0), steps
        return AcceptanceRecord(self.k, tuple(self.hist), (steps,) * self.k, emitted, self.truncated), 0
