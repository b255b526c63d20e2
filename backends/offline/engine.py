"""Libraries as an `api.Engine`: one process per role. A block is a set of requests that begin together.

A block prefills anew. vLLM's loop is driven step by step, so its blocks have steps; an LMDeploy engine gives outputs
request by request, so its blocks are like those of a server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from specgate.api import Activity, Decoded, OpenRequest, masked
from specgate.backends.offline import requests, steps
from specgate.backends.offline.library import Library, Opening
from specgate.backends.offline.options import OfflineOptions
from specgate.backends.offline.replies import loop_of, requests_of, two_of
from specgate.backends.offline.wire import Driven
from specgate.backends.servers.facts import server_facts
from specgate.core import BASELINE, Budget, EngineFacts, Role
from specgate.errors import BackendError, UsageError

LONGEST_FACT: Final = 200


class OfflineEngine:
    """Starts one process per role. The baseline's comes at once, and that of the longest drafts before the first block,
    so that no block waits for it.

    With `servers=together` all of them stay loaded, and at most one is busy. With `servers=apart` the previous one is
    ended before another is started.
    """

    def __init__(self, library: Library, request: OpenRequest, options: OfflineOptions, folder: Path) -> None:
        self.library, self.request, self.options, self.folder = library, request, options, folder
        self.processes: dict[Role, Driven] = {}
        self.prompts: list[list[int]] = []
        try:
            baseline = self.process(BASELINE)
            opening = Opening(BASELINE, request, options)
            self.shows_steps = library.shows_steps(opening, baseline.facts)
            self._facts = facts_of(library, opening, baseline, self.shows_steps)
            if request.max_k and options.common.servers == "together":
                self.process(Role(request.max_k))
        except BaseException:
            self.close()
            raise

    def facts(self) -> EngineFacts:
        return self._facts

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        """Keep the prompts, because every block prefills anew. Raises BackendError where they do not fit."""
        longest = max(map(len, prompts), default=0)
        if not 0 < len(prompts) <= self.request.max_batch or not 0 < longest < self.request.max_positions:
            raise BackendError(
                f"{len(prompts)} prompts of up to {longest} tokens, but the engine was opened for "
                f"{self.request.max_batch} requests of {self.request.max_positions} positions"
            )
        self.prompts = [list(map(int, prompt)) for prompt in prompts]
        for process in self.processes.values():
            process.ask("prompts_are", {"prompts": self.prompts})
        return 0

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        """Prefill, and decode until the budget is spent.

        Where blocks have no steps, a budget of steps is so many tokens after the first one, in every role.
        """
        if not self.prompts:
            raise BackendError("decode before prefill")
        process, eos = self.process(role), self._facts.eos_token_ids
        check_forced(self.options.common.force_al, role)
        stop = [] if budget.ignore_eos else sorted({*stop_token_ids, *eos})
        counted = self.shows_steps and budget.steps is not None
        most = budget.longest(role.k) + 1 if counted else requests.limit_of(budget)
        room = [self.request.max_positions - len(prompt) for prompt in self.prompts]
        arguments = {
            "tokens": [min(most, left) for left in room],
            "steps": budget.steps if counted else None,
            "ignore_eos": budget.ignore_eos,
            "stop": stop,
        }
        reply = process.ask("decode", arguments)
        lengths, where, vocab = [len(p) for p in self.prompts], process.where, self._facts.vocab
        if self.library.module != "vllm":
            found = requests_of(reply, len(lengths), where)
            return requests.of_requests(role, budget, found, lengths, eos, vocab, where)
        loop = loop_of(reply, len(lengths), where)
        if self.shows_steps:
            return steps.block_of(role, budget, loop, eos, len(lengths), where)
        return requests.of_loop(role, budget, loop, lengths, eos, vocab, where)

    def trace(self, role: Role, budget: Budget) -> tuple[Decoded, Activity]:
        """Decode an ordinary block; the library's process is not profiled."""
        return self.decode(role, budget, ()), Activity(unseen="the engine runs in a process of its own")

    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float] | None:
        """Two log-probabilities from the baseline's process; None where the engine gives fewer."""
        process = self.process(BASELINE)
        prompt = [*self.prompts[slot], *map(int, continuation)]
        return two_of(process.ask("top", {"prompt": prompt}), process.where)

    def close(self) -> None:
        """End all processes. All are asked first, and an error of one does not stop the others."""
        with ExitStack() as stack:
            for process in self.processes.values():
                process.ask_to_stop()
                stack.callback(process.stop)
            self.processes = {}

    def process(self, role: Role) -> Driven:
        if role in self.processes:
            return self.processes[role]
        if self.options.common.servers == "apart":
            self.close()
        process = self.processes[role] = Driven(self.library, Opening(role, self.request, self.options), self.folder)
        if self.prompts:
            process.ask("prompts_are", {"prompts": self.prompts})
        return process


def check_forced(length: float | None, role: Role) -> None:
    """Raise UsageError where a forced acceptance length is out of the role's range."""
    if length is not None and role.speculative and not 1 <= length <= role.k + 1:
        raise UsageError(
            f"option force_al = {length:g}: {role} accepts 1 to {role.k + 1} tokens per step, bonus included"
        )


def facts_of(library: Library, opening: Opening, process: Driven, shows_steps: bool) -> EngineFacts:
    """The pair's facts, and what the driver says of the engine."""
    told = {key: text_of(value) for key, value in process.facts.items() if key != "shown"}
    shown = process.facts.get("shown")
    details = {str(k): text_of(v) for k, v in shown.items()} if isinstance(shown, Mapping) else {}
    build = told.get("build")
    version = told.get("version", "not told") + (f" ({build})" if build and build != "None" else "")
    facts = server_facts(library.adapter, opening.request, opening.options.common, version)
    device = told.get("device", "None")
    return replace(
        facts,
        backend=library.name,
        device=f"{library.module} in a process of its own" if device == "None" else device,
        dtype=opening.request.dtype,
        details={
            **facts.details,
            "servers": opening.options.common.servers,
            "blocks show": "steps" if shows_steps else "requests",
            "torch": told.get("torch", "not told"),
            **details,
        },
        engine_version=version,
    )


def text_of(value: object) -> str:
    """A fact as text of a bounded length, without credentials."""
    return masked(str(value))[:LONGEST_FACT]
