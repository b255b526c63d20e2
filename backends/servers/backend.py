"""Registers other engines, behind their servers, as back ends."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Final, Literal

from specgate.checkpoints.exports import StartCommand
from specgate.contract import LogCause, PairRef, Role, Sampling
from specgate.contract.protocols import Availability, Engine, FoundServer, OpenRequest, TextOrChat
from specgate.errors import UsageError

if TYPE_CHECKING:
    from specgate.checkpoints.auxiliary_layers import AuxiliaryLayers
    from specgate.checkpoints.hf_keys import Keys

NONE: Final = "-"
"""The program of an engine that is not started here."""
PORT: Final = 8000
"""Of a server that a user starts by hand."""


class ServerBackend:
    """One engine behind a server.

    It is never the default: its rank is below that of engines that show their single steps.
    """

    serves_load: Literal[True] = True
    samples: Literal[True] = True
    answers_turns: Literal[True] = True

    def __init__(self, name: str, program: str, description: str) -> None:
        self.name, self.program, self.description = name, program, description

    def available(self) -> Availability:
        if which(self.program) is None:
            why = (
                "no program starts it"
                if self.program == NONE
                else f"{self.program} is not on the PATH: -o program=FILE"
            )
            return Availability(True, f"{why}, or the URL of one that runs", rank=-1)
        return Availability(True, f"{self.program} is on the PATH", rank=-1)

    def check_options(self, options: Mapping[str, str]) -> None:
        """Raise UsageError for bad options. Secrets are refused here, before a run folder stores the options.

        The key that `api_key_env` names is masked from here on: the server runs behind another process than this one,
        and may repeat its key in errors, which come here. Raises EnvironmentRefused where it cannot be masked.
        """
        from specgate.backends.servers.adapter import check_method
        from specgate.backends.servers.engines import adapter_named
        from specgate.backends.servers.options import Options, file_of
        from specgate.backends.servers.secrets import Secret

        adapter = adapter_named(self.name)
        parsed = Options.parse(options, adapter.own_options)
        check_method(adapter, parsed, parsed.drafter)
        if os.environ.get(parsed.api_key_env or "", "").strip():
            Secret.from_environment(parsed.api_key_env)
        if self.program == NONE and not parsed.url:
            hint = "specgate micro URL,URL names servers that run"
            raise UsageError(f"back end {self.name}: no program starts a server, and no URL names one", hint=hint)
        for key in adapter.needed_files if not parsed.url else ():
            file_of(parsed, key)

    def check_sampling(self, sampling: Sampling, where: str) -> None:
        """As `protocols.ChecksSampling` says. A server's random numbers are its own, and requests cannot say
        everything.
        """
        from specgate.backends.servers.engines import adapter_named
        from specgate.backends.servers.sampling import check_sampling

        check_sampling(self.name, adapter_named(self.name).expresses, sampling, where)

    @property
    def switches_prefix_cache(self) -> bool:
        """As `protocols.SwitchesPrefixCache` says."""
        from specgate.backends.servers.engines import adapter_named

        return adapter_named(self.name).switches_prefix_cache

    def explain_log(self, lines: Sequence[str]) -> Sequence[LogCause]:
        """The lines of a server's log that have a known cause."""
        from specgate.backends.servers.engines import adapter_named
        from specgate.backends.servers.failures import causes_in

        return causes_in(lines, adapter_named(self.name).failures)

    def find_server(self, url: str, options: Mapping[str, str]) -> FoundServer:
        from specgate.backends.servers.engines import find_server

        return find_server(url, options)

    def server_tokens(
        self, server: FoundServer, options: Mapping[str, str], texts: Sequence[TextOrChat]
    ) -> list[tuple[int, ...]] | None:
        from specgate.backends.servers.engines import server_tokens

        return server_tokens(server, options, texts)

    def attaches(self, options: Mapping[str, str]) -> bool:
        """True if a server that runs already is named."""
        return any(key.partition(".")[0] == "url" for key in options)

    def local_ports(self, options: Mapping[str, str]) -> tuple[int, ...]:
        """The ports of the servers of this machine that run already."""
        from specgate.backends.servers.options import local_port

        urls = (value for key, value in options.items() if key.partition(".")[0] == "url")
        return tuple(sorted({port for url in urls if (port := local_port(url)) is not None}))

    def start_command(
        self, pair: PairRef, role: Role, dtype: str, max_positions: int, own: Mapping[str, str]
    ) -> StartCommand:
        """As `checkpoints.exports.ReadsExports` says; the command that `open` would start."""
        from specgate.backends.servers.adapter import Launch
        from specgate.backends.servers.engines import adapter_named
        from specgate.backends.servers.options import Options

        folder = pair.target.parent
        launch = Launch(role, pair, PORT, dtype, 1, max_positions, Options(own=own), folder)
        command = adapter_named(self.name).command(launch)
        return StartCommand(command.argv, command.env)

    def misread_layers(self, draft: Keys, layers: int, meant: AuxiliaryLayers) -> str | None:
        """As `checkpoints.exports.ReadsExports` says."""
        from specgate.backends.servers.engines import adapter_named
        from specgate.backends.servers.facts.served import warning

        return warning(self.name, adapter_named(self.name).capture(draft, layers), meant)

    def open(self, request: OpenRequest) -> Engine:
        from specgate.backends.servers.engine import ServerEngine
        from specgate.backends.servers.engines import adapter_named
        from specgate.backends.servers.facts.engine import check_request
        from specgate.backends.servers.options import Options

        adapter = adapter_named(self.name)
        options = Options.parse(request.options, adapter.own_options)
        check_request(adapter, request, options)
        if options.prefix_cache is not None and not adapter.switches_prefix_cache:
            raise UsageError(
                f"option prefix_cache: the cache of {self.name}'s server is not switched here",
                hint="vllm, sglang, llamacpp, vllm-offline and lmdeploy-pipeline know the option",
            )
        folder = request.logs or Path(tempfile.mkdtemp(prefix="specgate-"))
        return ServerEngine(adapter, request, options, folder)


VLLM = ServerBackend("vllm", "vllm", "vLLM behind its server, started here or attached to")
SGLANG = ServerBackend("sglang", "python3", "SGLang behind its server, started here or attached to")
TRTLLM = ServerBackend("trtllm", "trtllm-serve", "TensorRT-LLM behind its server, started here or attached to")
LMDEPLOY = ServerBackend("lmdeploy", "lmdeploy", "LMDeploy behind its server, started here or attached to")
LLAMACPP = ServerBackend("llamacpp", "llama-server", "llama.cpp behind its server, on GGUF files (-o target_gguf=FILE)")
COMPATIBLE = ServerBackend("openai", NONE, "any other server of the OpenAI format that runs already")
