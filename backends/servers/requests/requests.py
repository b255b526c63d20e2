"""The requests of an engine, and the tokens that a server must have read of each prompt."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from specgate.backends.servers.adapter import Adapter
from specgate.backends.servers.answers import Answer
from specgate.backends.servers.drawing import seed_for
from specgate.backends.servers.exchange import Ask, Json, PromptTexts
from specgate.backends.servers.options import Options
from specgate.backends.servers.requests.chats import Chats, Renderer
from specgate.backends.servers.server import Server
from specgate.contract import Role
from specgate.contract.protocols import OpenRequest
from specgate.errors import BackendError

TURN_TOKENS: Final = 256
"""Tokens of the answer to an earlier turn of a conversation, at most."""


class Requests:
    """Makes requests of prompts: of their ids, their text, or the chats that they stand for.

    `servers`: those that run by now. `first_server`: returns the one that answers earlier turns of conversations.
    """

    def __init__(
        self,
        adapter: Adapter,
        request: OpenRequest,
        options: Options,
        servers: Mapping[Role, Server],
        first_server: Callable[[], Server],
    ) -> None:
        self.adapter, self.options, self.servers, self.first_server = adapter, options, servers, first_server
        self.sampling, self.salt = request.sampling, new_salt()
        self.texts = PromptTexts(request.pair.tokenizer) if options.prompts == "text" else None
        self.chats = Chats(request.chats, Renderer.of(request.pair.tokenizer, options), options, self._answer)

    def talks(self) -> bool:
        """True if requests go to the chat end points: by option, or because a server has no other."""
        return self.options.endpoint == "chat" or any(server.chats_only for server in self.servers.values())

    def converse(self, prompts: Sequence[tuple[int, ...]]) -> None:
        """Have the earlier turns of conversations answered, before anything is timed. Raises BackendError if the server
        is not asked by messages, which alone have what a prompt needs.
        """
        if not self.talks() and (lost := next(filter(None, map(self.chats.lost_in_completions, prompts)), "")):
            raise BackendError(
                f"{self.adapter.name}: a prompt with {lost}, and it is asked for completions",
                hint="-o endpoint=chat asks for chats, which have that",
            )
        for prompt in prompts:
            if self.chats.is_conversation(prompt):
                self.chats.fields(prompt)

    def _answer(self, fields: Json) -> str:
        """The first server's answer to a turn of a conversation, up to its end or `TURN_TOKENS`; what it thought is
        left out, as chats do.
        """
        server = self.first_server()
        ask = Ask(server.model, (), TURN_TOKENS, ignore_eos=False, salt=new_salt(), chat=fields)
        [answer], _ = server.answer([ask], [None])
        return answer.text

    def ids(self, prompt: tuple[int, ...]) -> tuple[int, ...] | None:
        """The tokens that an answer to `prompt` goes on from; None for those of a chat without a known template."""
        return self.chats.ids(prompt) if self.talks() else prompt

    def lengths(self, prompts: Sequence[tuple[int, ...]], asks: Sequence[Ask]) -> list[int | None]:
        """Tokens that the server must count of each prompt. Those of chats are held against the template afterwards."""
        return [None if ask.chat is not None else len(p) for p, ask in zip(prompts, asks, strict=True)]

    def check_chats(self, asks: Sequence[Ask], prompts: Sequence[tuple[int, ...]], answers: Sequence[Answer]) -> None:
        if asks and asks[0].chat is not None:
            self.chats.check(prompts, answers, self.adapter.name)

    def of(
        self,
        server: Server,
        prompt: tuple[int, ...],
        new_tokens: int,
        ignore_eos: bool,
        stop: tuple[int, ...] = (),
        top: int = 0,
        *,
        number: int = 0,
        greedy: bool = False,
        talks: bool | None = None,
    ) -> Ask:
        """A request. `number`: which one it is, for its seed. `greedy`: it draws nothing, whatever the engine does.
        `talks`: whether it goes to the chat end point, if not as all others.
        """
        sampling = None if greedy else self.sampling
        turns = self.chats.fields(prompt) if (self.talks() if talks is None else talks) else None
        sent = prompt if self.texts is None or turns is not None else self.texts.of(prompt)
        cache = self.options.prefix_cache
        salt = None
        if server.running.process is None and cache is not None:
            # It cannot be restarted. With "off", its cache may be on. With "on", it may hold these very prompts, from
            # an engine that was opened before this one.
            salt = self.salt if cache == "on" else new_salt()
        return Ask(
            server.model, sent, new_tokens, ignore_eos, stop, top,
            reuse=cache == "on", salt=salt, sampling=sampling, seed=seed_for(self.adapter, sampling, number),
            chat=turns, named=self.options.logprobs,
        )  # fmt: skip


def new_salt() -> str:
    """A name that no cache has seen yet."""
    return f"specgate-{secrets.token_hex(8)}"
