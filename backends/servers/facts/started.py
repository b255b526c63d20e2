"""The settings of a running server, as the log tells them that its owner names.

A log may be long, and hold several starts, of several servers. The last start counts that says it is this version and,
by whether it speculates, this role. The baseline may also be a request of a server that speculates. Where no start is
like that, the log tells nothing.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from specgate.backends.servers.facts.reported import vllm_settings
from specgate.contract import Role
from specgate.contract.protocols import cleaned

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
