"""Checks a running server's report of its model against the pair, if somebody else started it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from specgate.backends.servers.facts.identity import ServerReport
from specgate.checkpoints.hf.any_target import AnyTarget
from specgate.contract import ServedModel
from specgate.contract.protocols import OpenRequest
from specgate.errors import BackendError


def check_served(engine: str, servers: Sequence[ServerReport], sizes: AnyTarget, request: OpenRequest) -> None:
    """Raise BackendError where a server says that it serves something else than the pair, or in too short a context."""
    for server in servers:
        if (model := server.served) is None:
            continue
        where, pair = f"{engine}: {server.role}'s server serves {named(model)}", request.pair
        if model.max_positions is not None and model.max_positions < request.max_positions:
            raise BackendError(
                f"{where} with {model.max_positions} positions, and {request.max_positions} are needed",
                hint="start it for a longer context, or ask for a shorter one",
            )
        if model.vocab is not None and model.vocab != sizes.vocab and pair.weights == "here":
            raise BackendError(
                f"{where} with {model.vocab} token ids, and the pair's target {pair.target} has {sizes.vocab}",
                hint="name the pair that it serves: --target and --draft; or only its tokenizer: --tokenizer",
            )
        if model.vocab is not None and sizes.vocab > model.vocab:
            raise BackendError(
                f"{where} with {model.vocab} token ids, and the tokenizer {pair.tokenizer} has {sizes.vocab}",
                hint="name the tokenizer of the model that it serves",
            )


def served_warnings(
    engine: str, servers: Sequence[ServerReport], sizes: AnyTarget, request: OpenRequest
) -> Iterator[str]:
    """Yield warnings about servers that somebody else has started."""
    models = {s.role.name: s.served for s in servers if s.served is not None}
    if not models:
        return
    listing = "; ".join(f"{role}: {named(model)}" for role, model in models.items())
    if len({Path(model.path).name.lower() for model in models.values() if model.path}) > 1:
        yield f"the servers say that they serve different models: {listing}"
    if request.pair.weights == "server":
        yield (
            f"{engine} was started by someone else, and its weights are not on this machine: what it serves is its own "
            f"word ({listing}), and no hash says which weights these are"
        )
        return
    yield (
        f"{engine} was started by someone else: that it serves this pair, with these roles, is its own word ({listing})"
    )
    target, own = request.pair.target, sizes.architecture
    for role, model in models.items():
        if model.path is not None and Path(model.path).name.lower() != target.name.lower():
            yield f"{role}'s server serves {model.path}, and the pair's target is {target.name}: are they the same?"
        if model.architecture is not None and own is not None and model.architecture != own:
            yield f"{role}'s server serves a {model.architecture}, and the pair's target is a {own}"


def named(model: ServedModel) -> str:
    return model.name if model.path in (None, model.name) else f"{model.name} ({model.path})"
