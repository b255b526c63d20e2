"""TensorRT-LLM: `trtllm-serve`, counts per iteration in the JSON of /metrics, forced acceptance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from specgate.backends.servers.adapter import Launch, integer, part
from specgate.backends.servers.adapters import openai
from specgate.backends.servers.exchange import NOTHING, Ask, Json, Reading, SpecCounts
from specgate.backends.servers.failures import Failure
from specgate.backends.servers.meter import Meter, Samples, has_metrics
from specgate.backends.servers.process import HOST, Command
from specgate.backends.servers.sampling import Expresses
from specgate.checkpoints.auxiliary_layers import AuxiliaryLayers, nested_ids
from specgate.checkpoints.hf_keys import Keys
from specgate.errors import BackendError

if TYPE_CHECKING:
    from specgate.backends.servers.client import Client

FLAG = "enable_iter_perf_stats and return_perf_metrics in its --config"


class Trtllm(openai.Format):
    name = "trtllm"
    description = "TensorRT-LLM's server"
    program = "trtllm-serve"
    owner = "tensorrt_llm"
    versions = "1.2"
    forces_acceptance = True
    draft_counter = "specDecodingStats in /metrics"
    expresses = Expresses(settings=frozenset({"top_p", "top_k"}), seed_bits=63)
    failures: tuple[Failure, ...] = (
        Failure(r"extra inputs are not permitted|unexpected keyword argument",
                "a key of the --config that this version lacks"),
        Failure(r"speculative_model.*(required|not set|does not exist)",
                "draft not loaded: the draft's folder was not found"),
        Failure(r"disabling speculative decoding|speculative decoding is disabled", "speculation is off", silent=True),
    )  # fmt: skip

    def command(self, launch: Launch) -> Command:
        import yaml

        file = launch.folder / f"trtllm-{launch.role}.yaml"
        file.write_text(yaml.safe_dump(self.config(launch), sort_keys=False), encoding="utf-8")
        argv = [
            launch.options.program or self.program, str(launch.pair.target), "--host", HOST, "--port", str(launch.port),
            "--max_batch_size", str(launch.max_batch), "--max_seq_len", str(launch.max_positions),
            "--config", str(file),
        ]  # fmt: skip
        env = {"HF_HUB_OFFLINE": "1"}
        if launch.options.force_al is not None and launch.role.speculative:  # its length excludes the bonus token
            env["TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"] = f"{launch.options.force_al - 1:g}"
        return Command((*argv, *launch.options.args_of(launch.role)), env)

    def config(self, launch: Launch) -> dict[str, object]:
        config: dict[str, object] = {
            "dtype": launch.dtype,
            "kv_cache_config": {"enable_block_reuse": False},
            "enable_iter_perf_stats": True,
            "return_perf_metrics": True,
        }
        if launch.drafts:
            drafting = {
                "decoding_type": "Eagle3",
                "max_draft_len": launch.role.k,
                "speculative_model": str(launch.draft),
            }
            config["speculative_config"] = drafting
        return config

    def version(self, client: Client) -> str:
        return str(client.json("/version")["version"])

    def recognises(self, client: Client) -> bool:
        return has_metrics(client, "/prometheus/metrics", "trtllm_")

    def request(self, ask: Ask) -> tuple[str, Json]:
        return openai.PATH, openai.body(ask, *sorted(self.expresses.settings), detokenize=False)

    def meter(self) -> Meter:
        return IterationMeter()

    def capture(self, draft: Keys, target_layers: int) -> AuxiliaryLayers:
        return nested_ids(draft, target_layers)


class IterationMeter:
    """Sums the statistics of every iteration.

    Reading them consumes them, so nobody else may read them.
    """

    def __init__(self) -> None:
        self.spec = NOTHING

    def read(self, client: Client) -> Reading:
        iterations = client.json("/metrics")
        if not isinstance(iterations, list):
            raise BackendError(f"{client.url}/metrics: not a list of iterations", hint=f"the server needs {FLAG}")
        busy = 0
        for iteration in iterations:
            try:
                busy = integer(iteration, "numActiveRequests") + integer(iteration, "numQueuedRequests")
                self.spec += counts_of(iteration)
            except (KeyError, TypeError) as error:
                raise BackendError(
                    f"{client.url}/metrics: malformed iteration: {error}", hint=f"it needs {FLAG}"
                ) from error
        samples = Samples.scrape(client, "/prometheus/metrics", FLAG)
        return Reading(samples.total("trtllm_request_success_total") or 0, busy=busy, spec=self.spec)


def counts_of(iteration: Mapping[str, object]) -> SpecCounts:
    """The counts of one iteration. There is no histogram, because the engine does not count by position."""
    if not iteration.get("specDecodingStats"):
        return NOTHING
    stats = part(iteration, "specDecodingStats")
    steps, drafted = integer(stats, "numRequestsWithDraftTokens"), integer(stats, "numDraftTokens")
    return SpecCounts(steps, drafted, integer(stats, "numAcceptedTokens"))


ADAPTER = Trtllm()
