"""Libraries as an `protocols.Engine`: one process per role. A block is a set of requests that begin together.

A block prefills anew. vLLM's loop is driven step by step, so its blocks have steps; an LMDeploy engine gives outputs
request by request, so its blocks are like those of a server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from specgate.backends.offline import blocks
from specgate.backends.offline.library import Library, Opening
from specgate.backends.offline.options import OfflineOptions
from specgate.backends.offline.replies import began_of, loop_of, ranking_of, requests_of, tokens_of
from specgate.backends.offline.wire import Driven
from specgate.backends.servers.blocks import check_prompts
from specgate.backends.servers.evidence.log_lines import findings_of_files, tile_counters
from specgate.backends.servers.evidence.second_pass import led_along
from specgate.backends.servers.facts.engine import server_facts
from specgate.backends.servers.facts.reported import ServerReport
from specgate.backends.servers.failures import read_end
from specgate.backends.servers.options import check_forced
from specgate.checkpoints.spec_config.launch_checks import check_mapping
from specgate.contract import BASELINE, Budget, EngineFacts, Role, TopTokens
from specgate.contract.protocols import Activity, Decoded, OpenRequest, masked
from specgate.contract.samples.memory import EngineMemory
from specgate.errors import BackendError

LONGEST_FACT: Final = 200


class OfflineEngine:
    """Starts one process per role. Those of the baseline and of the longest drafts come at once, so that no block waits
    for them, and what they tell of themselves is part of the facts.

    With `servers=together` all of them stay loaded, and at most one is busy. With `servers=apart` the previous one is
    ended before another is started.
    """

    def __init__(self, library: Library, request: OpenRequest, options: OfflineOptions, folder: Path) -> None:
        self.library, self.request, self.options, self.folder = library, request, options, folder
        self.processes: dict[Role, Driven] = {}
        self.memory: dict[Role, EngineMemory] = {}
        self.trees: dict[Role, str | None] = {}
        self.prompts: list[list[int]] = []
        self.first = BASELINE if request.baseline else Role(request.max_k)
        longest = Role(request.max_k)
        tree = tree_of(library, Opening(longest, request, options))  # refused before anything is loaded
        try:
            process, opening = self.process(self.first), Opening(self.first, request, options)
            self.shows_steps = library.shows_steps(opening, process.facts)
            if options.common.servers == "together":
                self.process(longest)
            self._facts = facts_of(library, opening, list(self.processes.values()), self.shows_steps, tree)
        except BaseException:
            self.close()
            raise

    def facts(self) -> EngineFacts:
        return self._facts

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        """Keep the prompts, because every block prefills anew. Raises BackendError where they do not fit."""
        check_prompts(prompts, self.request)
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
        most = budget.longest(role.k) + 1 if counted else blocks.limit_of(budget)
        room = [self.request.max_positions - len(prompt) for prompt in self.prompts]
        arguments = {
            "tokens": [min(most, left) for left in room],
            "steps": budget.steps if counted else None,
            "ignore_eos": budget.ignore_eos,
            "stop": stop,
        }
        reply = process.ask("decode", arguments)
        lengths, where, vocab = [len(p) for p in self.prompts], process.where, self._facts.vocab
        tree = self.trees.get(role) is not None
        if self.library.module != "vllm":
            answers = requests_of(reply, len(lengths), where)
            block = blocks.of_requests(role, budget, answers, lengths, eos, vocab, where, tree=tree)
        elif self.shows_steps:
            block = blocks.block_of_steps(
                role, budget, loop_of(reply, len(lengths), where), eos, len(lengths), where, tree=tree
            )
        else:
            loop = loop_of(reply, len(lengths), where)
            block = blocks.of_loop(role, budget, loop, lengths, eos, vocab, where, tree=tree)
        tiles = tile_counters(read_end(process.log, process.log_start)) if role.speculative else {}
        counters = {**block.counters, **tiles}
        return replace(block, memory=self.memory[role], began_ns=began_of(reply, where), counters=counters)

    def trace(self, role: Role, budget: Budget) -> tuple[Decoded, Activity]:
        """Decode an ordinary block, and read what the engine's log says; the library's process is not profiled."""
        block, process, named = self.decode(role, budget, ()), self.process(role), self.options.common.log_of(role)
        files = [(process.log, process.log_start), *([(named, 0)] if named else [])]
        findings = tuple(findings_of_files(self.library.adapter.name, role, files))
        return block, Activity(unseen="the engine runs in a process of its own", findings=findings)

    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float] | None:
        """Two log-probabilities from the baseline's process; None where the engine gives fewer."""
        top = self.ranked(slot, continuation, 2)
        return None if top is None else (top.values[0], top.values[1])

    def ranked(self, slot: int, continuation: Sequence[int], count: int) -> TopTokens | None:
        """`count` log-probabilities, or logits, from the baseline's process; None where it gives fewer than two."""
        _, top = self._ranked(slot, continuation, count, 1)
        return top

    def ranked_again(self, slot: int, continuation: Sequence[int], count: int) -> TopTokens | None:
        """The same from a request that decodes the last tokens of the continuation (`protocols.RanksAgain`)."""
        end = len(continuation)
        return led_along(continuation, lambda led: self._ranked(slot, continuation[: end - led], count, led + 1))

    def _ranked(
        self, slot: int, continuation: Sequence[int], count: int, tokens: int
    ) -> tuple[tuple[int, ...], TopTokens | None]:
        process, prompt = self.process(self.first), [*self.prompts[slot], *map(int, continuation)]
        reply = process.ask("ranked", {"prompt": prompt, "count": count, "tokens": tokens})
        return ranking_of(reply, count, tokens, self._facts.vocab, process.where)

    def follow(self, slot: int, continuation: Sequence[int], new_tokens: int) -> tuple[int, ...]:
        """Decode on from there with the baseline's process."""
        process, prompt = self.process(BASELINE), [*self.prompts[slot], *map(int, continuation)]
        reply = process.ask("follow", {"prompt": prompt, "tokens": new_tokens})
        return tokens_of(reply, new_tokens, self._facts.vocab, process.where)

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
        opening = Opening(role, self.request, self.options)
        self.trees[role] = tree_of(self.library, opening)
        process = self.processes[role] = Driven(self.library, opening, self.folder)
        kv = self.library.kv_cache_in(read_end(process.log, process.log_start))
        self.memory[role] = EngineMemory(process.process.pid, kv.tokens, kv.bytes)
        if self.prompts:
            process.ask("prompts_are", {"prompts": self.prompts})
        return process


def tree_of(library: Library, opening: Opening) -> str | None:
    """Check the speculative config of a role; return the shape of its tree, None for a chain. Raises UsageError for
    another draft length than the role's, for broken rules and for values of the wrong type.
    """
    if not opening.role.speculative:
        return None
    where = f"{library.name} {opening.role}: speculative config"
    return check_mapping(library.spec_format(opening.options), library.speculation(opening), opening.role.k, where)


def facts_of(
    library: Library, opening: Opening, processes: Sequence[Driven], shows_steps: bool, tree: str | None
) -> EngineFacts:
    """Return the pair's facts and the drivers' reports of the engine. Raises BackendError if the processes run
    different versions.
    """
    common, first = opening.options.common, processes[0].facts
    reports = [
        ServerReport(process.role, version_of(process.facts), settings_of(library, process)) for process in processes
    ]
    facts = server_facts(library.adapter, opening.request, common, reports, tree)
    device, extra = first.get("device"), first.get("shown")
    environment = texts_of(first.get("environment"))
    variables = {**environment, **texts_of(first.get("own_environment"))}
    return replace(
        facts,
        identity=replace(facts.identity, environment=environment) if facts.identity else None,
        warnings=(*facts.warnings, *ignored(library, environment, first.get("unread"))),
        backend=library.name,
        device=text_of(device) if device is not None else f"{library.module} in a process of its own",
        dtype=opening.request.dtype,
        details={
            **facts.details,
            "servers": common.servers,
            "blocks show": "steps" if shows_steps else "requests",
            "torch": text_of(first.get("torch")),
            **texts_of(extra),
            **{f"env {name}": value for name, value in variables.items()},
        },
    )


def ignored(library: Library, environment: Mapping[str, str], unread: object) -> Iterator[str]:
    """Yield a warning for each environment variable that the driver names as `unread`."""
    for name in unread if isinstance(unread, list) else ():
        value = environment.get(str(name), "")
        yield f"{name}={value}: no file of {library.module} names this environment variable: it may be ignored"


def version_of(facts: Mapping[str, object]) -> str:
    """Return the version. The commit that it was built from stands behind `+`, if it is reported and not in the version
    already.
    """
    version, build = text_of(facts.get("version")), facts.get("build")
    return version if build is None or str(build) in version else f"{version}+{text_of(build)}"


def settings_of(library: Library, process: Driven) -> Mapping[str, str]:
    """Return the engine's settings. The log's count over the driver's: they are in the words of a server's."""
    raw = process.facts.get("settings")
    return {**texts_of(raw), **library.settings_in(read_end(process.log, process.log_start))}


def texts_of(facts: object) -> dict[str, str]:
    """Name → text of a fact, for what should be a mapping; {} otherwise."""
    return {str(key): text_of(value) for key, value in facts.items()} if isinstance(facts, Mapping) else {}


def text_of(value: object) -> str:
    """A fact as text of a bounded length, without credentials."""
    return masked(str(value))[:LONGEST_FACT]
