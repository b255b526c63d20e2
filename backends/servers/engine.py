"""Servers as an `protocols.Engine`: one server per role. A block is a set of requests that are sent together.

A server prefills and decodes in one go and does not show single steps. docs/engines.md says what that means for a
block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Final

from specgate.backends.servers.adapter import Adapter, Launch
from specgate.backends.servers.adapters import chat
from specgate.backends.servers.answers import Answer, LostIds, refuse_strange_ids
from specgate.backends.servers.blocks import (
    check_prompts,
    decoded,
    in_one_piece,
    refuse_silent,
    with_lengths,
    with_prompts,
)
from specgate.backends.servers.drawing import draw_texts, law_of
from specgate.backends.servers.evidence.log_lines import findings_of_files
from specgate.backends.servers.evidence.second_pass import led_along
from specgate.backends.servers.evidence.tracing import OFF, PROFILERS, attention_findings, traced
from specgate.backends.servers.exchange import Reading
from specgate.backends.servers.facts.engine import server_facts, sizes_of
from specgate.backends.servers.facts.reported import ServerReport, identity_of
from specgate.backends.servers.options import Options, check_forced
from specgate.backends.servers.process import free_port
from specgate.backends.servers.requests.requests import Requests
from specgate.backends.servers.server import Running, Server, checked_command
from specgate.backends.servers.texts import ENCODED, NAMED, TextTokens, encoder
from specgate.checkpoints.spec_config.launch_checks import check_named, stated_method
from specgate.checkpoints.spec_config.terms import NAMES
from specgate.contract import BASELINE, Budget, EngineFacts, Finding, Role, Sampling, TopTokens
from specgate.contract.draws import TokenLaw
from specgate.contract.load import OfferedLoad
from specgate.contract.protocols import Activity, Decoded, OpenRequest
from specgate.contract.samples.counters import ASKED_AGAIN
from specgate.errors import BackendError, UsageError
from specgate.sampling.keys import requests_of

ENDPOINT: Final = "end point"
"""The detail of a server's facts that names the path which chats were sent to."""
ASK_AGAIN: Final = 2
"""How often a block is asked for again whose answers came in one piece: a client whose machine stood still for a moment
sees it then only, and a proxy that buffers does so every time.
"""
DRAW_AGAIN: Final = 16
"""How often a block is drawn again whose streams left out ids (`Adapter.names_all`). Only the requests that lost some
get other seeds, so that a few times are enough.
"""


class ServerEngine:
    """Starts, or attaches to, one server per role when the role is first asked for. The baseline's server comes at
    once, and so does one with speculation that runs already: what they tell of themselves is part of the facts.

    With `servers=together` all of them keep running, and at most one is busy. With `servers=apart` the previous server
    is ended before another is started.
    """

    def __init__(self, adapter: Adapter, request: OpenRequest, options: Options, folder: Path) -> None:
        self.adapter, self.request, self.options, self.folder = adapter, request, options, folder
        self.profiler = PROFILERS.get(adapter.name)
        self.servers: dict[Role, Server] = {}
        self.prompts: list[tuple[int, ...]] = []
        self.reports: dict[Role, ServerReport] = {}
        sizes = sizes_of(request.pair)
        self.requests = Requests(adapter, request, options, self.servers, lambda: self.server(self._first))
        self._text_tokens = TextTokens(sizes.vocab, sizes.eos_token_ids, encoder(request.pair.tokenizer))
        self._trees: dict[Role, str | None] = {}
        self._made: str | None = None
        """How tokens were made of the last block's texts; None where the server told ids."""
        try:
            tree = self._tree(Role(request.max_k))  # flags that cannot be meant are refused before a target is loaded
            for role in self._at_once():
                self.server(role)
            reports = list(self.reports.values())
            self._facts = server_facts(adapter, request, options, reports, tree, self._method())
            if self.requests.talks():
                details = {**self._facts.details, ENDPOINT: chat.PATH}
                warnings = (*self._facts.warnings, *self.requests.chats.warnings())
                self._facts = replace(self._facts, details=details, warnings=warnings)
        except BaseException:
            self.close()
            raise

    def _at_once(self) -> list[Role]:
        """The roles whose servers are asked at once who they are: the baseline's, and all that run already."""
        spec = Role(self.request.max_k)
        return list(dict.fromkeys((self._first, *([spec] if self.options.url_of(spec) else []))))

    @property
    def _first(self) -> Role:
        """The role whose server is there from the beginning: the baseline, if it is measured."""
        return BASELINE if self.request.baseline else Role(self.request.max_k)

    def facts(self) -> EngineFacts:
        return self._facts

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        """Keep the prompts, because a server prefills with every request. Raises BackendError where they do not fit."""
        check_prompts(prompts, self.request)
        self.prompts = [tuple(prompt) for prompt in prompts]
        self.requests.converse(self.prompts)
        return 0

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        """Run whole requests. A budget of steps becomes that many tokens after the first one, in every role."""
        if not self.prompts:
            raise BackendError("decode before prefill")
        server = self.server(role)
        new_tokens = budget.new_tokens or budget.longest(0) + 1
        stop = () if budget.ignore_eos else tuple(stop_token_ids)

        numbers, redrawn = [int(number) for number in requests_of(self.prompts)], 0

        def asked() -> tuple[Sequence[Answer], Reading]:
            asks = [
                self.requests.of(server, prompt, new_tokens, budget.ignore_eos, stop, number=number)
                for prompt, number in zip(self.prompts, numbers, strict=True)
            ]
            answers, counted = server.answer(asks, self.requests.lengths(self.prompts, asks))
            self.requests.check_chats(asks, self.prompts, answers)
            return answers, counted

        def answered() -> tuple[Sequence[Answer], Reading]:
            """Send the requests. If a stream left out ids of sampled tokens, those requests are sent again with other
            seeds.
            """
            nonlocal redrawn
            while True:
                try:
                    return asked()
                except LostIds as error:
                    if self.request.sampling is None or self.adapter.names_all or redrawn >= DRAW_AGAIN:
                        raise
                    redrawn += 1
                    for slot in error.slots:
                        numbers[slot] += 1

        again, (answers, counted) = 0, answered()
        while again < ASK_AGAIN and in_one_piece(answers) is not None:
            again, (answers, counted) = again + 1, answered()
        again += redrawn
        self._made = next((a.made for a in answers if a.made), None)
        refuse_strange_ids(answers, self._facts.vocab, server.where)
        block = self._decoded(role, answers, counted, server)
        counters = {**block.counters, **({ASKED_AGAIN: again} if again else {})}
        return replace(block, counters=counters, memory=server.memory)

    def serve(
        self,
        role: Role,
        prompts: Sequence[Sequence[int]],
        budget: Budget,
        offered: OfferedLoad,
        stop_token_ids: Sequence[int],
    ) -> Decoded:
        """Put the role's server under load (`protocols.ServesLoad`)."""
        if budget.new_tokens is None:
            raise BackendError("a server under load answers whole requests: a budget of new_tokens is needed")
        self.prompts = [tuple(prompt) for prompt in prompts]
        self.requests.converse(self.prompts)
        server, stop = self.server(role), () if budget.ignore_eos else tuple(stop_token_ids)
        asks = [
            self.requests.of(server, p, offered.tokens_of(i, budget.new_tokens), budget.ignore_eos, stop)
            for i, p in enumerate(self.prompts)
        ]
        outcomes, counted = server.serve(asks, self.requests.lengths(self.prompts, asks), offered)
        answers = [one for one in outcomes if isinstance(one, Answer)]
        answered = [p for p, one in zip(cycle(self.prompts), outcomes, strict=False) if isinstance(one, Answer)]
        self.requests.check_chats(asks, answered, answers)
        refuse_strange_ids(answers, self._facts.vocab, server.where)
        block = replace(self._decoded(role, answers, counted, server), memory=server.memory)
        if offered.new_tokens:
            lengths = cycle(offered.new_tokens)
            block = with_lengths(
                block, [n for one, n in zip(outcomes, lengths, strict=False) if isinstance(one, Answer)]
            )
        whole = len(answers) == len(outcomes) == len(self.prompts)
        return block if whole else with_prompts(block, outcomes, len(self.prompts))

    def _decoded(self, role: Role, answers: Sequence[Answer], counted: Reading, server: Server) -> Decoded:
        with server.explained():
            refuse_silent(role, answers, counted, server.where, self.adapter.draft_counter)
        return decoded(
            role,
            answers,
            counted,
            server.where,
            counts_outputs=self.adapter.counts_outputs,
            tree=self._tree(role) is not None,
            own_lengths=self._facts.sets_lengths,
        )

    def trace(self, role: Role, budget: Budget) -> tuple[Decoded, Activity]:
        """Decode a block under the server's own profiler (-o profile=on), and read what its log says."""
        server, folder = self.server(role), self.trace_folder(role)

        def decode() -> Decoded:
            return self.decode(role, budget, ())

        if folder is not None and self.profiler is not None:
            block, activity = traced(self.profiler, server.client, folder, decode)
        else:
            block, activity = decode(), Activity(unseen=self._untraced())
        log_findings = self._log_findings(role, server)
        flags = self.options.args_of(role) if server.running.process else ()
        attention = self.reports[role].settings.get("attention")
        findings = (*log_findings, *attention_findings(flags, attention, activity))
        return block, replace(activity, findings=findings, allowed=self.options.kernels)

    def trace_folder(self, role: Role) -> Path | None:
        """Return the folder for traces of `role`'s server, made if the server is ours. None if it is to write none, or
        if the folder is not known.
        """
        if self.profiler is None or not self.options.profile:
            return None
        if (named := self.options.profile_dir_of(role)) is not None:
            return named
        if self.options.url_of(role) and self.profiler.needs_flags:
            return None
        folder = self.folder / f"profile-{role}"
        folder.mkdir(exist_ok=True)
        return folder

    def _untraced(self) -> str:
        if self.profiler is None:
            return f"{OFF}; {self.adapter.name} has no profiler of its own that is known here"
        if not self.options.profile:
            return f"{OFF} (-o profile=on has it profile itself)"
        return f"the server was started elsewhere: -o profile_dir=FOLDER says what its {self.profiler.folder_key} is"

    def _log_findings(self, role: Role, server: Server) -> Iterator[Finding]:
        running, named = server.running, self.options.log_of(role)
        files = [*([(running.log, running.log_start)] if running.log else []), *([(named, 0)] if named else [])]
        return findings_of_files(self.adapter.name, role, files)

    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float] | None:
        """Two log-probabilities from the baseline's server; None where the engine returns fewer."""
        top = self.ranked(slot, continuation, 2)
        return None if top is None else (top.values[0], top.values[1])

    def ranked(self, slot: int, continuation: Sequence[int], count: int) -> TopTokens | None:
        """`count` log-probabilities from the baseline's server; None where it returns fewer than two, or where the
        tokens are no ids that it knows.
        """
        if self._goes_on():
            return ranking_of(self._plainly(slot, continuation, new_tokens=1, top=count), count)
        exact = self._made in (None, NAMED)  # places in a text that was cut into pieces are none of its tokens
        return self._ranked_in_chat(slot, continuation, count) if self.requests.talks() and exact else None

    def ranked_again(self, slot: int, continuation: Sequence[int], count: int) -> TopTokens | None:
        """The same from a request that decodes the last tokens of the continuation (`protocols.RanksAgain`)."""
        if not self._goes_on():
            return None

        def decoded(led: int) -> tuple[tuple[int, ...], TopTokens | None]:
            answer = self._plainly(slot, continuation[: len(continuation) - led], led + 1, top=count)
            return answer.tokens, ranking_of(answer, count)

        return led_along(continuation, decoded)

    def follow(self, slot: int, continuation: Sequence[int], new_tokens: int) -> tuple[int, ...] | None:
        """Decode on from there with the baseline's server; None where nothing can be decoded on."""
        return self._plainly(slot, continuation, new_tokens).tokens if self._goes_on() else None

    def _goes_on(self) -> bool:
        """True if a prompt can go on with tokens of an answer: they are ids that the server knows, and it completes.
        Of a chat its prompt must be known here as tokens, too.
        """
        if self._made not in (None, ENCODED):
            return False
        return not self.requests.talks() or not (
            self.server(BASELINE).chats_only or self.requests.chats.ids(self.prompts[0]) is None
        )

    def _plainly(self, slot: int, continuation: Sequence[int], new_tokens: int, top: int = 0) -> Answer:
        read = self.requests.ids(self.prompts[slot])
        assert read is not None
        server, prompt = self.server(BASELINE), (*read, *continuation)
        ask = self.requests.of(server, prompt, new_tokens, ignore_eos=True, top=top, greedy=True, talks=False)
        answers, _ = server.answer([replace(ask, whole=not self.adapter.names_all)], [len(prompt)])
        return answers[0]

    def _ranked_in_chat(self, slot: int, continuation: Sequence[int], count: int) -> TopTokens | None:
        """The candidates behind `continuation` in the chat's answer, decoded again with log-probabilities. None if that
        answer goes another way.
        """
        server, tokens = self.server(BASELINE), len(continuation) + 1
        ask = self.requests.of(server, self.prompts[slot], tokens, ignore_eos=True, top=count, greedy=True)
        [answer], _ = server.answer([ask], [None])
        return ranking_of(answer, count) if answer.tokens[:-1] == tuple(continuation) else None

    # ── drawing (`protocols.DrawsTexts`, `protocols.ShowsDistribution`) ───────────────────────────────────────────────

    def draw(
        self, role: Role, prompt: Sequence[int], tokens: int, first: int, count: int
    ) -> tuple[tuple[int, ...], ...]:
        self._refuse_greedy()
        server = self.server(role)
        asks = [
            replace(
                self.requests.of(
                    server, tuple(prompt), tokens, ignore_eos=True, number=number, talks=server.chats_only
                ),
                whole=not self.adapter.names_all,
            )
            for number in range(first, first + count)
        ]
        length = self.requests.lengths([tuple(prompt)], asks[:1])[0]
        return draw_texts(server, asks, length, self.request.max_batch)

    def distribution(self, prompt: Sequence[int], continuation: Sequence[int], least: float) -> TokenLaw:
        """Return the distribution that the baseline's server lists for a request that is decoded greedily. Its
        log-probabilities are the model's own. Raises BackendError if it lists too little.
        """
        sampling, text = self._refuse_greedy(), (*prompt, *continuation)
        if not self.adapter.expresses.lists:
            raise BackendError(f"{self.adapter.name} is not asked for log-probabilities: whose they are is not known")
        server, vocab = self.server(self._first), self._facts.vocab
        if server.chats_only:
            raise BackendError(f"{server.where}: a chat end point alone, which continues no text with given tokens")
        ask = self.requests.of(server, text, 1, ignore_eos=True, top=vocab, greedy=True, talks=False)
        answers, _ = server.answer([ask], [len(text)])
        return law_of(server.where, answers[0], vocab, sampling, prompt, tuple(continuation), least)

    def _refuse_greedy(self) -> Sampling:
        """Return the sampling settings. Raises BackendError if the engine decodes greedily."""
        if self.request.sampling is None:
            raise BackendError("the engine was opened to decode greedily: it draws nothing")
        return self.request.sampling

    def close(self) -> None:
        """End all servers. All are asked first, and an error of one does not stop the others."""
        with ExitStack() as stack:
            for server in self.servers.values():
                server.ask_to_stop()
                stack.callback(server.stop)
            self.servers.clear()

    def server(self, role: Role) -> Server:
        if role in self.servers:
            return self.servers[role]
        if self.options.servers == "apart":
            self.close()
        self._tree(role)
        if url := self.options.url_of(role):
            server = Server(self.adapter, role, Running(url.rstrip("/")), self.options)
            here = self._text_tokens
            server.texts = here if here.encode is not None else replace(here, encode=server.encoded)
        else:
            running = self._launched(role)
            server = Server(self.adapter, role, running, self.options)
            server.texts = self._text_tokens if self.options.endpoint == "chat" else None
        self.servers[role], self.reports[role] = server, server.report
        identity_of(self.adapter.name, list(self.reports.values()), self.options.build)
        return server

    def _tree(self, role: Role) -> str | None:
        """Return the shape of the trees that `role` drafts: by the command that starts its server, or of one that runs
        already by the config that the options name. None for chains. Raises UsageError where one of the two is not the
        role's.
        """
        if role.speculative and role not in self._trees:
            named = self.options.spec_config
            self._trees[role] = check_named(named, role.k) if named is not None else None
            if self.options.url_of(role) is None and self.request.pair.weights == "here":
                _, self._trees[role] = checked_command(self.adapter, self._launch(role, port=0))
        return self._trees.get(role)

    def _method(self) -> tuple[str | None, str | None]:
        """Return (name of the method, place of its draft) where flags of the user choose it, or a server tells it; None
        for what is not known.
        """
        role = Role(self.request.max_k)
        if not role.speculative or self.options.drafter_of(role) != "given":
            return None, None
        if self.options.url_of(role):
            method = self.adapter.running_speculation(self.server(role).client).method
            return (NAMES.get(method.lower().replace("-", "_"), method) if method else None), None
        command, _ = checked_command(self.adapter, self._launch(role, port=0))
        return stated_method(self.adapter.name, command.argv, f"{self.adapter.name} {role}")

    def _launched(self, role: Role) -> Running:
        """Start the server of `role`, and do not wait for it."""
        if self.request.pair.weights == "server":
            alone = "" if role.speculative else "; or --no-baseline, to measure the other server by itself"
            raise UsageError(
                f"option url: no server is named for {role}, and there are no weights here to start one with",
                hint=f"-o url.{role}=URL; or the pair that it serves: --pair, or --target and --draft{alone}",
            )
        self._tree(role)
        check_forced(self.options.force_al, role)
        folder = self.trace_folder(role)
        launch = self._launch(role, self.options.port or free_port())
        return Server.launched(self.adapter, launch, self.profiler.flags(folder) if self.profiler and folder else ())

    def _launch(self, role: Role, port: int) -> Launch:
        return Launch(
            role=role,
            pair=self.request.pair,
            port=port,
            dtype=self.request.dtype,
            max_batch=self.request.max_batch,
            max_positions=self.request.max_positions,
            options=self.options,
            folder=self.folder,
            lists_all=self.request.sampling is not None and (not role.speculative or not self.request.baseline),
        )


def ranking_of(answer: Answer, count: int) -> TopTokens | None:
    """The `count` most likely tokens at the last token of an answer; None where it shows fewer than two."""
    return TopTokens(answer.top[:count], answer.top_tokens[:count]) if len(answer.top) > 1 else None
