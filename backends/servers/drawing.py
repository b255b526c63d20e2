"""Texts that a server draws, and the distribution that it is to draw from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from specgate.backends.servers.adapter import Adapter
from specgate.backends.servers.answers import Answer
from specgate.backends.servers.client import TurnedAway
from specgate.backends.servers.exchange import Ask
from specgate.backends.servers.sampling import seed_of, token_law
from specgate.contract import FORBIDS_ENDS, OWN_NUMBERS, Sampling
from specgate.contract.draws import TokenLaw
from specgate.contract.load import OfferedLoad
from specgate.errors import BackendError


class Serving(Protocol):
    """The part of `server.Server` that drawing uses."""

    adapter: Adapter
    where: str

    def serve(
        self, asks: Sequence[Ask], prompt_tokens: Sequence[int | None], offered: OfferedLoad
    ) -> tuple[list[Answer | TurnedAway], object]: ...


def draw_texts(
    server: Serving, asks: Sequence[Ask], prompt_tokens: int | None, clients: int
) -> tuple[tuple[int, ...], ...]:
    """Return the texts of `asks`, with as many under way at a time as a block has.

    Raises BackendError if the server turns a request away: the set of answered texts must not depend on refusals.
    """
    outcomes, _ = server.serve(asks, [prompt_tokens] * len(asks), OfferedLoad(clients=min(clients, len(asks))))
    texts = []
    for one in outcomes:
        if isinstance(one, TurnedAway):
            raise BackendError(f"{server.where}: a request to draw was refused: {one.reason}")
        texts.append(one.tokens)
    return tuple(texts)


def law_of(
    where: str,
    answer: Answer,
    vocab: int,
    sampling: Sampling,
    prompt: Sequence[int],
    continuation: tuple[int, ...],
    least: float,
) -> TokenLaw:
    """The distribution of the first token of `answer`. Raises BackendError where it does not show it."""
    if not answer.top:
        raise BackendError(f"{where}: it lists no log-probabilities")
    try:
        return token_law(answer.top, answer.top_tokens, vocab, sampling, prompt, continuation, least, answer.forbidden)
    except BackendError as error:
        raise BackendError(f"{where}: {error.message}", hint=error.hint) from error


def seed_for(adapter: Adapter, sampling: Sampling | None, request: int) -> int | None:
    """The seed of a request, by its number; None where nothing is drawn, and for an engine that takes none."""
    return None if sampling is None else seed_of(sampling.seed, request, adapter.expresses.seed_bits)


def details_of(adapter: Adapter, sampling: Sampling | None) -> Iterator[tuple[str, str]]:
    """Yield the facts about drawing that an engine's facts include."""
    if sampling is not None:
        seeded = "a seed for every request" if adapter.expresses.seed_bits else "requests take no seed"
        yield OWN_NUMBERS, f"the server's own; {seeded}"
        if adapter.expresses.forbids_ends:
            yield FORBIDS_ENDS, "have no chance where ends are ignored"
