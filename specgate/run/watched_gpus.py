"""GPUs that the engines of a run use, so that every one of them is watched."""

from __future__ import annotations

from collections.abc import Mapping

from specgate import plugins
from specgate.contract import Scenario
from specgate.contract.protocols import UsesGpus
from specgate.files.config import Config
from specgate.machine import inventory


def used_gpus(backend: str, options: Mapping[str, str]) -> tuple[str, ...]:
    """The UUIDs of the GPUs that an engine of `backend` uses under `options`: the first that CUDA programs see.

    One, where this process does not know the back end: a side of a comparison may bring it along.
    """
    known = backend in plugins.registered("specgate.backends")
    plugin = plugins.backend(backend) if known else None
    return inventory.visible_gpu_uuids(plugin.gpus(options) if isinstance(plugin, UsesGpus) else 1)


def engine_options(config: Config, scenario: Scenario) -> dict[str, str]:
    """The options that reach the engine of `scenario`: those of the run, and those of the scenario or variant."""
    return {**config.options, **scenario.options}


def scenario_gpus(config: Config, scenario: Scenario) -> tuple[str, ...]:
    """The UUIDs of the GPUs that the engine of `scenario` uses."""
    return used_gpus(config.backend, engine_options(config, scenario))


def run_gpus(config: Config) -> tuple[str, ...]:
    """The UUIDs of all GPUs that a run uses. Every engine uses the first ones, so they are those of the largest."""
    return max((scenario_gpus(config, scenario) for scenario in config.scenarios.values()), key=len, default=())
