"""Checks that servers which load side by side have the KV caches that their flags state.

Each would otherwise size its own by what the other happens to leave free at that moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from specgate.backends.servers.adapter import Adapter
from specgate.backends.servers.options import Options
from specgate.contract import Role
from specgate.errors import BackendError, UsageError

LARGEST_PAGE: Final = 256
"""No engine's page of a KV cache holds more tokens."""


def check_sized(adapter: Adapter, options: Options) -> None:
    """Raise UsageError where servers that load side by side would size their caches by what the other leaves free."""
    sizes, flags = adapter.cache_sizes, {word.partition("=")[0] for word in options.args.get("", ())}
    option, value = adapter.sized_with or ("", "")
    if sizes and (other := options.own.get(option, value)) != value:
        raise UsageError(
            f"option start = parallel with {option} = {other}: it is for {option} = {value}, whose KV cache {sizes[0]} "
            "gives a size",
            hint=f"leave one of them out: servers with {option} = {other} are started one after the other",
        )
    if sizes is None:
        raise UsageError(
            f"option start = parallel: {adapter.name} sizes its KV cache by the memory that is free while it starts, "
            "and another server takes of that meanwhile",
            hint="leave it out: the servers are then started one after the other",
        )
    if sizes and not flags & {*sizes}:
        raise UsageError(
            f"option start = parallel: without a size of its KV cache, {adapter.name} takes what is free while it "
            "starts, and another server takes of that meanwhile",
            hint=f"-o args='{sizes[0]} …', the same for both servers",
        )


def check_uncut(adapter: Adapter, options: Options, tokens: Mapping[Role, int | None]) -> None:
    """Raise BackendError if a server that loaded side by side with another found too little memory for its stated
    cache. `tokens`: role → the number that its cache has room for, None if it does not report one.
    """
    if (flag := adapter.cache_cap) is None:
        return
    for role, has in tokens.items():
        wish = stated_tokens(options.args_of(role), flag)
        # An engine rounds down to whole pages.
        if wish is not None and has is not None and has < wish - LARGEST_PAGE:
            raise BackendError(
                f"{adapter.name} {role}: its KV cache has room for {has:,} tokens, and {flag} asks for {wish:,}: too "
                "little memory was free while two servers loaded side by side",
                hint="a larger share of the memory for each, a smaller cache, or -o start=serial",
            )


def stated_tokens(flags: Sequence[str], name: str) -> int | None:
    """The number behind the last `name` of a command line; None where it is not there or is no number."""
    words = [part for flag in flags for part in flag.split("=", 1)]
    values = [after for word, after in pairwise(words) if word == name]
    return int(values[-1]) if values and values[-1].isascii() and values[-1].isdecimal() else None
