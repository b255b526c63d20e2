"""vLLM: `vllm serve`, counters per position in /metrics, forced acceptance ("synthetic")."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specgate.backends.servers.adapter import SERVED_NAME, Drafter, Launch, Reported
from specgate.backends.servers.adapters import openai
from specgate.backends.servers.exchange import Ask, Json
from specgate.backends.servers.facts.kv_cache import vllm_log, vllm_metrics
from specgate.backends.servers.facts.reported import vllm_answer, vllm_method, vllm_on_cpu, vllm_settings
from specgate.backends.servers.failures import Failure
from specgate.backends.servers.meter import PrometheusMeter, Speculation, counted_speculation, has_metrics
from specgate.backends.servers.options import Options
from specgate.backends.servers.process import HOST, Command
from specgate.backends.servers.sampling import Expresses
from specgate.checkpoints.auxiliary_layers import AuxiliaryLayers, top_level_ids
from specgate.checkpoints.hf_keys import Keys
from specgate.contract import Role
from specgate.contract.protocols import TextOrChat

if TYPE_CHECKING:
    from specgate.backends.servers.client import Client

LOOKUP: Final = {"prompt_lookup_max": 4, "prompt_lookup_min": 2}


class Vllm(openai.Format):
    name = "vllm"
    description = "vLLM's server"
    program = "vllm"
    owner = "vllm"
    versions = "0.25.1, 0.32, 0.33"
    drafters: tuple[Drafter, ...] = ("eagle3", "ngram")
    forces_acceptance = True
    reads_window: bool | None = True
    draft_counter = "vllm:spec_decode_num_drafts_total"
    expresses = Expresses(
        settings=frozenset({"top_p", "top_k", "repetition_penalty", "presence_penalty", "frequency_penalty"}),
        refused=dict.fromkeys(("min_p", "logit_bias"), "takes none where it speculates"),
        seed_bits=63,
        lists=True,
    )
    switches_prefix_cache = True
    failures: tuple[Failure, ...] = (
        Failure(r"eagle3 is only supported for", "method mismatch: vLLM has no EAGLE-3 hooks in this target's class"),
        Failure(r"unsupported speculative method|speculative method .* not supported",
                "method mismatch: see the draft's architectures"),
        Failure(
            r"PackageNotFoundError: No package metadata was found for vllm", "vllm is installed without its metadata"
        ),
        Failure(r"Free memory on device .* less than desired",
                "two servers share the GPU: -o args='--gpu-memory-utilization 0.45'"),
        Failure(r"Available memory on node .* less than desired",
                "on a CPU vLLM wants 92 % of the memory: VLLM_CPU_KVCACHE_SPACE=GIB in the environment, or "
                "-o args='--gpu-memory-utilization 0.3'"),
        Failure(r"Synthetic acceptance not supported",
                "this build of vLLM cannot force acceptance, as on a CPU: no -o force_al"),
        Failure(r"weights were not initialized from checkpoint", "draft not loaded: tensors of it have other names"),
        Failure(
            r"speculative decoding (is|has been) disabled|disabling speculative", "speculation is off", silent=True
        ),
    )  # fmt: skip

    def command(self, launch: Launch) -> Command:
        argv = [
            launch.options.program or self.program, "serve", str(launch.pair.target), "--host", HOST,
            "--port", str(launch.port), "--served-model-name", SERVED_NAME, "--dtype", launch.dtype,
            "--max-model-len", str(launch.max_positions), "--max-num-seqs", str(launch.max_batch),
            "--enable-prefix-caching" if launch.options.prefix_cache == "on" else "--no-enable-prefix-caching",
            "--enable-prompt-tokens-details",
        ]  # fmt: skip
        if launch.drafts:
            spec = self.speculation_of(launch.role, launch.pair.draft, launch.options)
            argv += ["--speculative-config", json.dumps(spec)]
        if not launch.has_tokenizer:
            argv.append("--skip-tokenizer-init")
        if launch.lists_all:  # 20 without it
            argv += ["--max-logprobs", "-1"]
        env = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": HOST}
        return Command((*argv, *launch.options.args_of(launch.role)), env)

    def speculation_of(self, role: Role, draft: Path | None, options: Options) -> dict[str, object]:
        """vLLM's `speculative_config`, of its server and its `LLM` alike."""
        config: dict[str, object] = {"num_speculative_tokens": role.k}
        if options.drafter == "ngram":
            config |= {"method": "ngram", **LOOKUP}
        else:
            config |= {"method": "eagle3", "model": str(draft)}
        if options.force_al is not None:  # vLLM's length includes the bonus token
            forced = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": options.force_al}
            config |= forced
        return config

    def version(self, client: Client) -> str:
        return str(client.json("/version")["version"])

    def reported(self, client: Client, log: Sequence[str]) -> Reported:
        """The log of a server that was started here; of another one its config, which only development mode shows, and
        its metrics.
        """
        if log:
            return Reported(vllm_settings(log), kv=vllm_log(log))
        metrics, info = client.text("/metrics", may_be_missing=True), info_of(client)
        return Reported(vllm_answer(info), kv=vllm_metrics(metrics), on_cpu=vllm_on_cpu(info))

    def recognises(self, client: Client) -> bool:
        return has_metrics(client, "/metrics", "vllm:")

    def running_speculation(self, client: Client) -> Speculation:
        """Its counters, which are there from the start; its method, if it is in development mode."""
        return replace(counted_speculation(client, self.meter()), method=vllm_method(info_of(client)))

    def token_ids(self, client: Client, model: str, text: TextOrChat, special: bool = True) -> tuple[int, ...] | None:
        return openai.token_ids(client, model, text, special=special)

    def forget(self, client: Client) -> None:
        """Reset the prefix cache. Only a server in development mode has this path.

        Cache hits are counted in any case, where the server reports them.
        """
        client.text("/reset_prefix_cache", method="POST", may_be_missing=True)

    def request(self, ask: Ask) -> tuple[str, Json]:
        ids: dict[str, object] = {"return_token_ids": True}
        if ask.top:  # otherwise two tokens with the same text would share a key
            ids["return_tokens_as_token_ids"] = True
        if ask.salt:
            ids["cache_salt"] = ask.salt
        return openai.PATH, openai.body(ask, *sorted({*self.expresses.settings, "min_p"}), **ids)

    def chat_fields(self, ask: Ask) -> Json:
        own: dict[str, object] = {"return_token_ids": True}
        if ask.top or ask.named:
            own["return_tokens_as_token_ids"] = True
        if ask.sampling:
            own["min_p"] = ask.sampling.min_p
        return {**own, **({"cache_salt": ask.salt} if ask.salt else {})}

    def meter(self) -> PrometheusMeter:
        return PrometheusMeter(
            path="/metrics",
            flag="its metrics: leave out --disable-log-stats",
            prefix="vllm:",
            busy=("vllm:num_requests_running", "vllm:num_requests_waiting"),
            requests="vllm:request_success_total",
            generated="vllm:generation_tokens_total",
            cached=("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),  # the second: up to 0.9.1
            decode_s="vllm:request_decode_time_seconds_sum",
            speculation_since="vLLM counts drafts since 0.8.5, in its V1 engine alone (VLLM_USE_V1=1 up to 0.10)",
        )

    def capture(self, draft: Keys, target_layers: int) -> AuxiliaryLayers:
        return top_level_ids(draft, target_layers)


def info_of(client: Client) -> object:
    """The config that a server in development mode tells; None of others."""
    return client.json("/server_info", may_be_missing=True)


ADAPTER = Vllm()
