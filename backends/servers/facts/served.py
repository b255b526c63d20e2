"""A running server's report of its model and settings, checked against the pair.

A log may be long, and hold several starts, of several servers. The last start counts that says it is this version and,
by whether it speculates, this role. The baseline may also be a request of a server that speculates. Where no start is
like that, the log tells nothing.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from specgate.backends.servers.facts.reported import ServerReport, vllm_settings
from specgate.checkpoints.auxiliary_layers import AuxiliaryLayers, shown
from specgate.checkpoints.hf.any_target import AnyTarget
from specgate.contract import Role, ServedModel
from specgate.contract.protocols import OpenRequest, cleaned
from specgate.errors import BackendError


def window_warning(name: str, window: int | None, reads_window: bool | None) -> str | None:
    """A warning where an engine ignores a draft's window, so that the draft sees more than it was trained on."""
    if window is None or reads_window is not False:
        return None
    return (
        f"{name} reads no window of a draft, and this one's is {window} tokens: beyond them it sees more than it was "
        "trained on, and acceptance falls"
    )


def warning(name: str, engines: AuxiliaryLayers, meant: AuxiliaryLayers) -> str | None:
    """A warning where an engine feeds a draft from other layers than it was made for."""
    if engines.boundaries == meant.boundaries:
        return None
    return (
        f"{name} feeds this draft boundaries {shown(engines.boundaries)} ({engines.rule}), but it was made for "
        f"{shown(meant.boundaries)} ({meant.rule}): one layer off costs about 0.1 acceptance length"
    )


VLLM_START: Final = b"Initializing a V1 LLM engine"
READ_AT_MOST: Final = 4 << 20
"""Bytes from a start on that are read: what an engine chooses, it says within its start."""
STARTS: Final = 64
"""Starts that are looked at, from the last one back."""


def settings_in(engine: str, log: Path, version: str, role: Role) -> dict[str, str]:
    """Return the settings that the log of a server with this adapter name reports; {} if it cannot be read."""
    if engine != "vllm":
        return {}
    speculating = None
    try:
        for text in starts(log):
            first = text.partition("\n")[0]
            if f"(v{version})" not in first:
                continue
            if ("speculative_config=None" not in first) is role.speculative:
                return vllm_settings(text.splitlines())
            speculating = speculating or text
    except (OSError, ValueError):  # an empty file cannot be mapped
        return {}
    return {} if speculating is None or role.speculative else vllm_settings(speculating.splitlines())


def starts(log: Path) -> Iterator[str]:
    """The text of each start of vLLM, from its first line to the next start, the last one first. Raises OSError, and
    ValueError for an empty file.
    """
    with log.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        end = len(content)
        for _ in range(STARTS):
            if (at := content.rfind(VLLM_START, 0, end)) < 0:
                return
            begin = content.rfind(b"\n", 0, at) + 1
            yield cleaned(content[begin : min(end, begin + READ_AT_MOST)].decode(errors="replace"))
            end = begin


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
            f"{engine} was started by someone else: what it serves is its own word ({listing}), and no hash says which "
            "weights these are; --target names them where they are on this machine"
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
