"""The memory behind a block: what the engine tells of it, and what the harness reads of it."""

from __future__ import annotations

from dataclasses import dataclass

from specgate.contract.types import Size


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Memory that a role decodes in, as the engine tells it. None: it does not tell.

    `process`: the number of the process that holds it, with all that this one has started. None where nobody knows it,
        as of a server on another machine.
    `kv_tokens`: how many tokens its KV cache has room for, over all requests together.
    `kv_bytes`: how much memory its KV cache takes.
    `kv_beside`: its KV cache was sized by the memory that other processes had left when it started, the other role's
        among them. Such sizes say nothing of each other.
    """

    process: Size | None = None
    kv_tokens: Size | None = None
    kv_bytes: Size | None = None
    kv_beside: bool = False


@dataclass(frozen=True, slots=True)
class MemoryUse(EngineMemory):
    """Memory in use when a block had just been answered, in bytes. None where it could not be read.

    `process`: the process whose tree (itself and all that it has started) was looked at; None where nobody knows it.
    `host_bytes`: resident memory of that tree (RSS). A page that several processes share counts in each of them.
    `gpu_bytes`: what the driver says that the processes of that tree hold on the GPU; of several, on the fullest.
    `device_bytes`: GPU memory in use, whoever uses it; of several GPUs, on the fullest.
    `kv_tokens`, `kv_bytes`, `kv_beside`: the engine's word, as in `EngineMemory`.
    """

    host_bytes: int | None = None
    gpu_bytes: int | None = None
    device_bytes: int | None = None
