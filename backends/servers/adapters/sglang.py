"""SGLang: `sglang.launch_server`, acceptance in the `meta_info` of every answer, forced acceptance ("simulated")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from specgate.backends.servers.adapter import (
    SERVED_NAME,
    Adapter,
    Drafter,
    Launch,
    Reported,
    integer,
    integers,
    last_ranking,
    part,
)
from specgate.backends.servers.adapters import openai
from specgate.backends.servers.exchange import Ask, Chunk, Json, MissingFields, SpecCounts, Usage
from specgate.backends.servers.facts.kv_cache import sglang_answer
from specgate.backends.servers.facts.reported import sglang_settings, text_of
from specgate.backends.servers.failures import Failure
from specgate.backends.servers.meter import MOST_POSITIONS, Meter, PrometheusMeter, Speculation, has_metrics
from specgate.backends.servers.process import HOST, Command
from specgate.backends.servers.sampling import Expresses, sampling_fields
from specgate.checkpoints.auxiliary_layers import AuxiliaryLayers, nested_ids
from specgate.checkpoints.hf_keys import Keys
from specgate.contract import Sampling
from specgate.contract.protocols import TextOrChat

if TYPE_CHECKING:
    from specgate.backends.servers.client import Client

SPARE: Final = 1
"""Places for requests beyond those of a batch. While a prompt is prefilled in pieces, SGLang 0.5.17 counts it among the
taken places and among those to be taken. With as many places as requests it then thinks that it is full, and the last
request waits until another has ended (`get_num_allocatable_reqs` in its scheduler; seen with four prompts of 16K).
"""


class Sglang(Adapter):
    name = "sglang"
    description = "SGLang's server"
    program = "python3"
    owner = "sglang"
    versions = "0.5.17, 0.5.23"
    drafters: tuple[Drafter, ...] = ("eagle3", "ngram")
    forces_acceptance = True
    cumulative = True
    draft_counter = "spec_verify_ct in meta_info"
    expresses = Expresses(
        settings=frozenset({"top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "logit_bias"}),
        refused={"repetition_penalty": "does not count the tokens of the prompt"},
        not_together=("top_p", "top_k"),
        lists=True,
    )
    switches_prefix_cache = True
    failures: tuple[Failure, ...] = (
        Failure(r"has no attribute 'set_eagle3_layers_to_capture'",
                "method mismatch: this target's class has no EAGLE-3 hooks"),
        Failure(
            r"unknown speculative algorithm|invalid choice: '(EAGLE3|NGRAM)'", "method mismatch: too old a version"
        ),
        Failure(r"parameter .* not found in params_dict", "draft not loaded: a tensor of it has no place in the model",
                silent=True),
        Failure(
            r"context length .* (longer|greater) than", "the draft's max_position_embeddings are below the context"
        ),
    )  # fmt: skip

    def command(self, launch: Launch) -> Command:
        argv = [
            launch.options.program or self.program, "-m", "sglang.launch_server",
            "--model-path", str(launch.pair.target), "--host", HOST, "--port", str(launch.port),
            "--served-model-name", SERVED_NAME, "--dtype", launch.dtype,
            "--context-length", str(launch.max_positions), "--max-running-requests", str(launch.max_batch + SPARE),
            "--enable-metrics",
        ]  # fmt: skip
        if launch.options.prefix_cache != "on":
            argv.append("--disable-radix-cache")
        if not launch.has_tokenizer:
            argv.append("--skip-tokenizer-init")
        if launch.drafts:
            argv += self.speculation(launch)
        return Command((*argv, *launch.options.args_of(launch.role)), {"HF_HUB_OFFLINE": "1", **self.forcing(launch)})

    def speculation(self, launch: Launch) -> list[str]:
        """Flags for a chain of k draft tokens: k steps, one candidate each, k + 1 tokens verified."""
        k = launch.role.k
        if launch.options.drafter == "ngram":
            return ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(k + 1)]
        return [
            "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(launch.draft),
            "--speculative-num-steps", str(k), "--speculative-eagle-topk", "1",
            "--speculative-num-draft-tokens", str(k + 1),
        ]  # fmt: skip

    def forcing(self, launch: Launch) -> Mapping[str, str]:
        """Environment that forces acceptance. SGLang's length includes the bonus token.

        Draft tokens are emitted as they are, so that the text stays diverse.
        """
        if launch.options.force_al is None or not launch.role.speculative:
            return {}
        return {
            "SGLANG_SIMULATE_ACC_LEN": f"{launch.options.force_al:g}",
            "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
            "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
        }

    def version(self, client: Client) -> str:
        return str(info_of(client, "server_info")["version"])

    def reported(self, client: Client, log: Sequence[str]) -> Reported:
        answer, model = info_of(client, "server_info"), info_of(client, "model_info")
        path, architecture = text_of(answer, "model_path"), text_of(model, "architectures")
        on_cpu = text_of(answer, "device") == "cpu"
        most = openai.positive(answer.get("max_running_requests")) if isinstance(answer, Mapping) else None
        return Reported(sglang_settings(answer), path, architecture, sglang_answer(answer), on_cpu, most)

    def recognises(self, client: Client) -> bool:
        return text_of(info_of(client, "server_info"), "model_path") is not None or has_metrics(
            client, "/metrics", "sglang:"
        )

    def running_speculation(self, client: Client) -> Speculation:
        return sglang_speculation(info_of(client, "server_info"))

    def token_ids(self, client: Client, model: str, text: TextOrChat, special: bool = True) -> tuple[int, ...] | None:
        return openai.token_ids(client, model, text, special=special)

    def forget(self, client: Client) -> None:
        client.text("/flush_cache", method="POST")

    def request(self, ask: Ask) -> tuple[str, Json]:
        sampling: dict[str, object] = {
            "max_new_tokens": ask.new_tokens,
            **(own_sampling_fields(ask.sampling) if ask.sampling else {"temperature": 0}),
            "ignore_eos": ask.ignore_eos,
            **({"stop_token_ids": list(ask.stop)} if ask.stop else {}),
        }
        prompt = {"text": ask.prompt} if isinstance(ask.prompt, str) else {"input_ids": list(ask.prompt)}
        top = {"return_logprob": True, "top_logprobs_num": ask.top} if ask.top else {}
        apart = {"extra_key": ask.salt} if ask.salt else {}
        return "/generate", {**prompt, "sampling_params": sampling, "stream": True, **top, **apart}

    def read(self, event: Json, tokens_so_far: int) -> Chunk:
        """One event. Its `output_ids` are all tokens so far or, with incremental streaming, only the new ones.

        Their number, beside `completion_tokens`, tells which.
        """
        if "meta_info" not in event:  # of a gateway, not of an answer
            return Chunk()
        meta = part(event, "meta_info")
        if "output_ids" not in event:
            raise MissingFields("output_ids is missing from its answers (SGLang 0.4.4 and later have it)")
        ids, total = integers(event, "output_ids"), integer(meta, "completion_tokens")
        if len(ids) not in (total, total - tokens_so_far):
            raise ValueError(f"{len(ids)} output_ids after {tokens_so_far} tokens, but completion_tokens = {total}")
        finish = meta.get("finish_reason")
        return replace(
            last_ranking(meta.get("output_top_logprobs")),
            tokens=ids[tokens_so_far:] if len(ids) == total else ids,
            finish=str(part(meta, "finish_reason")["type"]) if finish else None,
            usage=Usage(integer(meta, "prompt_tokens"), total, cached_of(meta)) if finish else None,
            spec=counts_of(meta) if finish and "spec_verify_ct" in meta else None,
        )

    def chat_fields(self, ask: Ask) -> Json:
        sampling = own_sampling_fields(ask.sampling) if ask.sampling else {}
        return {**sampling, "return_spec_tokens_details": True, **({"extra_key": ask.salt} if ask.salt else {})}

    def meter(self) -> Meter:
        return PrometheusMeter(
            path="/metrics",
            flag="--enable-metrics",
            prefix="sglang:",
            busy=("sglang:num_running_reqs", "sglang:num_queue_reqs"),
            requests="sglang:num_requests_total",
            decode_s="sglang:inter_token_latency_seconds_sum",
        )

    def capture(self, draft: Keys, target_layers: int) -> AuxiliaryLayers:
        return nested_ids(draft, target_layers)


def sglang_speculation(info: object) -> Speculation:
    """Read its server arguments: the longest accepted path is that of the steps; n-grams state their tokens alone."""
    if not isinstance(info, Mapping) or "speculative_algorithm" not in info:
        return Speculation()
    if (method := text_of(info, "speculative_algorithm")) is None:
        return Speculation(0)
    steps, tokens = (info.get(f"speculative_num_{name}") for name in ("steps", "draft_tokens"))
    length = steps or (tokens - 1 if isinstance(tokens, int) else None)
    return Speculation(length if isinstance(length, int) and 0 < length < MOST_POSITIONS else None, method.lower())


def own_sampling_fields(sampling: Sampling) -> dict[str, object]:
    """-1 keeps every token. A request's seed is heeded in deterministic mode only, so none is sent."""
    settings = sampling_fields(
        sampling, "temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", seed=None
    )
    bias = {str(token): added for token, added in sampling.logit_bias}
    return {**settings, "top_k": sampling.top_k or -1, **({"logit_bias": bias} if bias else {})}


def info_of(client: Client, name: str) -> Any:
    """The JSON that a server tells of itself; None where there is none. Up to 0.5.5 its path begins with `get_`."""
    info = client.json(f"/{name}", may_be_missing=True)
    return client.json(f"/get_{name}", may_be_missing=True) if info is None else info


def cached_of(meta: Mapping[str, object]) -> int | None:
    """Prompt tokens that came from the prefix cache; None where the release does not tell."""
    return integer(meta, "cached_tokens") if "cached_tokens" in meta else None


COUNTS: Final = (
    ("0.5.12 and later", "spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
    ("0.5.11", "spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"),
    ("0.5.6 to 0.5.10", "spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram"),
)
"""(releases, accepted drafts, proposed drafts, steps by accepted drafts): names in `meta_info`. All leave out the bonus
token. Releases from 0.4.2 on count the steps, and none before 0.5.6 counts the drafts.
"""


def counts_of(meta: Mapping[str, object]) -> SpecCounts:
    """Return the engine's own counts for one answer, without the prefill token and without tokens cut off at the
    end. Raises MissingFields where it counts steps only.
    """
    steps = integer(meta, "spec_verify_ct")
    for _, accepted, drafted, hist in COUNTS:
        if accepted in meta and drafted in meta:
            return SpecCounts(steps, integer(meta, drafted), integer(meta, accepted), integers(meta, hist))
    if not steps:
        return SpecCounts(0, 0, 0)
    names = " or ".join(f"{accepted} ({releases})" for releases, accepted, _, _ in COUNTS)
    raise MissingFields(f"the count of accepted drafts is missing from meta_info: {names}")


ADAPTER = Sglang()
