"""The adapters, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from specgate.backends.servers.adapter import Adapter
from specgate.backends.servers.adapters import llamacpp, lmdeploy, sglang, trtllm, vllm

ADAPTERS: Final[Mapping[str, Adapter]] = {
    a.name: a for a in (vllm.ADAPTER, sglang.ADAPTER, trtllm.ADAPTER, lmdeploy.ADAPTER, llamacpp.ADAPTER)
}


def adapter_named(name: str) -> Adapter:
    return ADAPTERS[name]
