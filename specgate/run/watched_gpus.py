"""Which GPUs a run uses, so that every one of them is watched."""

from __future__ import annotations

from collections.abc import Mapping

from specgate import plugins
from specgate.api import UsesGpus
from specgate.machine import inventory


def used_gpus(backend: str, options: Mapping[str, str]) -> tuple[str, ...]:
    """The UUIDs of the GPUs that an engine of `backend` uses under `options`: the first that CUDA programs see.

    One, where this process does not know the back end: a side of a comparison may bring it along.
    """
    known = backend in plugins.registered("specgate.backends")
    plugin = plugins.backend(backend) if known else None
    return inventory.visible_gpu_uuids(plugin.gpus(options) if isinstance(plugin, UsesGpus) else 1)
