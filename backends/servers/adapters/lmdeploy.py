"""LMDeploy: `lmdeploy serve api_server` on its PyTorch engine or TurboMind, counters per position in /metrics.

Released versions log that TurboMind takes no draft, and go on without. Forks put EAGLE-3 into it. So a draft is passed
to both engines, and what its counters say decides whether it was used.

Its counters count outputs: of one that holds the tokens of several steps they have the last step only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from specgate.backends.servers.adapter import SERVED_NAME, Adapter, Launch, integer, integers, last_ranking, part
from specgate.backends.servers.exchange import Ask, Chunk, Json, Usage
from specgate.backends.servers.failures import Failure
from specgate.backends.servers.meter import PrometheusMeter, Speculation, counted_speculation, has_metrics
from specgate.backends.servers.process import HOST, Command
from specgate.backends.servers.sampling import Expresses, sampling_fields
from specgate.checkpoints.auxiliary_layers import AuxiliaryLayers, no_ids
from specgate.checkpoints.hf_keys import Keys
from specgate.contract.protocols import TextOrChat
from specgate.errors import UsageError

if TYPE_CHECKING:
    from specgate.backends.servers.client import Client

ENGINES = ("pytorch", "turbomind")
BLOCKS = "--num-gpu-blocks"
"""The size of the PyTorch engine's KV cache. TurboMind takes the flag, and pays no heed to it."""
SETTINGS = ("temperature", "top_p", "top_k", "min_p")
"""What is sent of a scenario's `sampling`."""


class Lmdeploy(Adapter):
    name = "lmdeploy"
    description = "LMDeploy's server (-o engine=pytorch or turbomind)"
    program = "lmdeploy"
    owner = "lmdeploy"
    versions = "0.18"
    reads_window: bool | None = False
    counts_outputs = True
    draft_counter = "lmdeploy:spec_decode_num_drafts_total"
    expresses = Expresses(settings=frozenset({"top_p", "top_k", "min_p"}), forbids_ends=True)
    own_options: frozenset[str] = frozenset({"engine"})
    failures: tuple[Failure, ...] = (
        Failure(r"(unsupported|invalid choice).*(speculative|eagle3)", "method mismatch: too old a version"),
        Failure(
            r"speculative.*(turbomind|pytorch (backend|engine) only)",
            "this TurboMind takes no draft and goes on without: -o engine=pytorch, or a build whose TurboMind drafts",
        ),
        Failure(r"speculative decoding is not supported by turbomind",
                "speculation is off: TurboMind does not speculate in this version"),
        Failure(r"\[EAGLE\]\[EagleModule::load\]|\[EAGLE\] Draft model load failed",
                "draft not loaded: see model_config in the draft's config.yaml, and its weight files"),
        Failure(r"\[LlamaV2\]\[EAGLE\].*(disabling EAGLE|EAGLE disabled)",
                "speculation is off: TurboMind goes on without its draft"),
        Failure(r"\[EAGLE\]\[fallback\]", "speculation is off for a while: TurboMind falls back to one token per step"),
        Failure(r"\[BlockTrie\].*clamping cached prefix",
                "prefix cache: a text has more tokens than its blocks hold, as after a rewind; harmless by itself"),
        Failure(r"Can not found rewrite for architectures",
                "LMDeploy 0.18 knows a draft's architecture as LlamaForCausalLM: change it in the draft's config.json"),
        Failure(r"requires FlashAttention-3|flash.?attention.?3.*(not|unavailable)",
                "drafting needs FlashAttention-3: the package flash_attn_interface, and a GPU of sm_80 or later"),
        Failure(
            r"Fallback to pytorch engine because",
            "TurboMind does not run this target, and LMDeploy's PyTorch engine has taken its place: -o engine=pytorch",
            silent=True,
        ),
    )  # fmt: skip

    def command(self, launch: Launch) -> Command:
        engine = launch.options.own.get("engine", ENGINES[0])
        if engine not in ENGINES:
            raise UsageError(f"option engine = {engine!r}", hint=f"it is one of: {', '.join(ENGINES)}")
        args = launch.options.args_of(launch.role)
        if engine != "pytorch" and any(word.partition("=")[0] == BLOCKS for word in args):
            raise UsageError(
                f"option args: {BLOCKS} with engine = {engine}: it is the PyTorch engine's",
                hint="TurboMind sizes its cache by --cache-max-entry-count",
            )
        argv = [
            launch.options.program or self.program, "serve", "api_server", str(launch.pair.target), "--backend", engine,
            "--server-name", HOST, "--server-port", str(launch.port), "--model-name", SERVED_NAME,
            "--dtype", launch.dtype, "--session-len", str(launch.max_positions),
            "--max-batch-size", str(launch.max_batch),
        ]  # fmt: skip
        if launch.drafts:
            argv += ["--speculative-algorithm", "eagle3", "--speculative-draft-model", str(launch.draft)]
            argv += ["--speculative-num-draft-tokens", str(launch.role.k)]
        if engine == "pytorch":
            # Without a mode it refuses to rank tokens; where nobody asks for that, it costs nothing. Log-probabilities
            # are rounded to bfloat16, on a finer grid than that of the logits: gaps would seem to be of more units.
            argv += ["--logprobs-mode", "raw_logits"]
        return Command((*argv, *args), {"HF_HUB_OFFLINE": "1"})

    def recognises(self, client: Client) -> bool:
        return has_metrics(client, "/metrics", "lmdeploy:")

    def running_speculation(self, client: Client) -> Speculation:
        return counted_speculation(client, self.meter())

    def token_ids(self, client: Client, model: str, text: TextOrChat, special: bool = True) -> tuple[int, ...] | None:
        """Its `/v1/encode` puts a BOS token before a text. It knows no template."""
        if not isinstance(text, str):
            return None
        answer = client.json("/v1/encode", body={"input": text, "add_bos": special}, may_be_missing=True)
        return None if answer is None else integers(answer if isinstance(answer, dict) else {}, "input_ids")

    def request(self, ask: Ask) -> tuple[str, Json]:
        prompt = {"prompt": ask.prompt} if isinstance(ask.prompt, str) else {"input_ids": list(ask.prompt)}
        stop = {"stop_token_ids": list(ask.stop)} if ask.stop else {}
        top = {"return_logprob": True, "top_logprobs_num": ask.top} if ask.top else {}
        return "/generate", {
            **prompt,
            **stop,
            **top,
            "max_tokens": ask.new_tokens,
            **(
                sampling_fields(ask.sampling, *SETTINGS, seed=ask.seed)
                if ask.sampling
                else {"temperature": 0, "top_k": 1}
            ),
            "ignore_eos": ask.ignore_eos,
            "stream": True,
        }

    def read(self, event: Json, tokens_so_far: int) -> Chunk:
        meta = part(event, "meta_info")
        finish = meta.get("finish_reason")
        return replace(
            last_ranking(meta.get("output_top_logprobs")),
            tokens=integers(event, "output_ids"),
            finish=str(part(meta, "finish_reason")["type"]) if finish else None,
            usage=Usage(integer(meta, "prompt_tokens"), integer(meta, "completion_tokens")) if finish else None,
        )

    def chat_fields(self, ask: Ask) -> Json:
        return {"return_token_ids": True, **({} if ask.sampling else {"top_k": 1})}

    def meter(self) -> PrometheusMeter:
        """Its gauges of running and waiting requests are brought up to date every 10 s only, so they tell nothing."""
        return PrometheusMeter(
            path="/metrics",
            flag="its metrics: leave out --disable-metrics",
            prefix="lmdeploy:",
            busy=(),
            requests="lmdeploy:e2e_request_latency_seconds_count",
        )

    def capture(self, draft: Keys, target_layers: int) -> AuxiliaryLayers:
        return no_ids(draft, target_layers)


ADAPTER = Lmdeploy()
