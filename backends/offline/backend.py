"""Registers other engines, as libraries, as back ends."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from specgate.contract import LogCause
from specgate.contract.protocols import Availability, Engine, OpenRequest
from specgate.errors import UsageError


class OfflineBackend:
    """One library in processes of its own.

    It is never the default: its rank is below that of engines that run in the harness's worker.
    """

    switches_prefix_cache: Literal[True] = True

    def __init__(self, name: str, module: str, description: str) -> None:
        self.name, self.module, self.description = name, module, description

    def available(self) -> Availability:
        if find_spec(self.module) is None:
            reason = f"{self.module} is not installed here: -o python=/path/to/its/venv/bin/python"
            return Availability(True, reason, rank=-1)
        return Availability(True, f"{self.module} is installed", rank=-1)

    def check_options(self, options: Mapping[str, str]) -> None:
        """Raise UsageError for bad options. Secrets are refused here, before a run folder stores the options."""
        from specgate.backends.offline.libraries import library_named, parse
        from specgate.backends.offline.options import interpreter

        interpreter(parse(library_named(self.name), options).python)

    def explain_log(self, lines: Sequence[str]) -> Sequence[LogCause]:
        """The lines of the engine's log that have a known cause."""
        from specgate.backends.offline.libraries import library_named
        from specgate.backends.servers.failures import causes_in

        return causes_in(lines, library_named(self.name).adapter.failures)

    def open(self, request: OpenRequest) -> Engine:
        from specgate.backends.offline.engine import OfflineEngine
        from specgate.backends.offline.libraries import library_named, parse
        from specgate.backends.servers.facts.engine import check_request

        library = library_named(self.name)
        options = parse(library, request.options)
        if request.pair.weights != "here":
            raise UsageError(
                f"back end {self.name}: the pair's weights are with a server, and a library needs them here",
                hint="--target DIR, and --draft DIR",
            )
        check_request(library.adapter, request, options.common)
        folder = request.logs or Path(tempfile.mkdtemp(prefix="specgate-"))
        return OfflineEngine(library, request, options, folder)


VLLM = OfflineBackend("vllm-offline", "vllm", "vLLM's LLM in a process of ours, its loop driven step by step")
LMDEPLOY = OfflineBackend(
    "lmdeploy-pipeline", "lmdeploy", "LMDeploy's pipeline in a process of ours (-o engine=pytorch or turbomind)"
)
