"""llama.cpp: `llama-server` on GGUF files, counters per position in /metrics, forced acceptance ("synthetic")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from specgate.backends.servers.adapter import SERVED_NAME, Adapter, Drafter, Launch, Reported, integer, integers, part
from specgate.backends.servers.adapters import openai
from specgate.backends.servers.exchange import Ask, Chunk, Json, Usage
from specgate.backends.servers.facts.reported import text_of
from specgate.backends.servers.failures import Failure
from specgate.backends.servers.meter import PrometheusMeter, Speculation, counted_speculation
from specgate.backends.servers.options import file_of
from specgate.backends.servers.process import HOST, Command
from specgate.backends.servers.sampling import Expresses, sampling_fields
from specgate.checkpoints.auxiliary_layers import AuxiliaryLayers, resolve_boundaries
from specgate.checkpoints.hf_keys import Keys
from specgate.contract import Sampling
from specgate.contract.protocols import TextOrChat
from specgate.errors import BackendError

if TYPE_CHECKING:
    from specgate.backends.servers.client import Client

CACHE_TYPES: Final = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
"""A scenario's dtype → its name in the flags for the KV cache."""
LOOKUP: Final = 4
"""Length of the n-grams that are looked up, the same as for vLLM."""


class LlamaCpp(Adapter):
    name = "llamacpp"
    description = "llama.cpp's server (-o target_gguf=FILE -o draft_gguf=FILE)"
    program = "llama-server"
    owner = "llamacpp"
    versions = "b11434"
    drafters: tuple[Drafter, ...] = ("eagle3", "ngram")
    forces_acceptance = True
    reads_window: bool | None = False
    names_all = False
    draft_counter = "llamacpp:spec_decode_num_drafts_total"
    expresses = Expresses(
        settings=frozenset({"top_p", "top_k", "min_p", "repetition_penalty", "logit_bias"}),
        refused=dict.fromkeys(("presence_penalty", "frequency_penalty"), "counts the tokens of the prompt, too"),
        seed_bits=31,
        lists=True,
        forbids_ends=True,
    )
    own_options: frozenset[str] = frozenset({"target_gguf", "draft_gguf"})
    switches_prefix_cache = True
    needed_files: tuple[str, ...] = ("target_gguf",)
    failures: tuple[Failure, ...] = (
        Failure(r"unknown model architecture: 'eagle3'", "method mismatch: too old a version for EAGLE-3 drafts"),
        Failure(r"failed to load draft model|error loading draft", "draft not loaded: see the lines before"),
        Failure(r"vocab.*(do not match|mismatch|must match)", "the draft was converted for another target"),
        Failure(r"failed to initialize speculative decoding|no implementations specified for speculative"
                r"|speculative decoding (is )?not supported", "speculation is off", silent=True),
    )  # fmt: skip

    def command(self, launch: Launch) -> Command:
        """The KV cache gets the scenario's dtype; the weights have that of their file.

        `-c` is the total context of all slots. Without `--cache-ram 0` the server would copy the last request's cache
        away before it begins the next one.
        """
        batch, cache = launch.max_batch, CACHE_TYPES[launch.dtype]
        argv = [
            launch.options.program or self.program, "-m", str(file_of(launch.options, "target_gguf")), "--host", HOST,
            "--port", str(launch.port), "-c", str(launch.max_positions * batch), "-np", str(batch),
            "--cache-type-k", cache, "--cache-type-v", cache, "--cache-ram", "0",
            "--alias", SERVED_NAME, "--metrics", "--slots", "--no-ui",
        ]  # fmt: skip
        if launch.drafts:
            argv += self.speculation(launch)
        return Command((*argv, *launch.options.args_of(launch.role)))

    def speculation(self, launch: Launch) -> list[str]:
        """Flags for drafting. `p-min 0` proposes draft tokens of any probability, so that all chains are whole.

        With backend sampling, which is the default, draft tokens of simultaneous requests are mixed up (b11434), and
        half of them are lost.
        """
        k = str(launch.role.k)
        if launch.options.drafter == "ngram":
            # A chain that is shorter than the n-gram looked up is never proposed.
            lookup = str(min(LOOKUP, launch.role.k))
            argv = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", lookup]
            argv += ["--spec-ngram-simple-size-m", k]
        else:
            draft, cache = str(file_of(launch.options, "draft_gguf")), CACHE_TYPES[launch.dtype]
            argv = [
                "-md", draft, "--spec-type", "draft-eagle3", "--spec-draft-n-max", k, "--spec-draft-p-min", "0",
                "--spec-draft-type-k", cache, "--spec-draft-type-v", cache, "--no-spec-draft-backend-sampling",
            ]  # fmt: skip
        if launch.options.force_al is not None:  # llama.cpp's length includes the bonus token
            argv += ["--spec-synth-len", f"{launch.options.force_al:g}"]
        return argv

    def version(self, client: Client) -> str:
        return str(client.json("/props")["build_info"])

    def reported(self, client: Client, log: Sequence[str]) -> Reported:
        props = client.json("/props")
        most = openai.positive(props.get("total_slots")) if isinstance(props, Mapping) else None
        return Reported(path=text_of(props, "model_path"), max_requests=most)

    def recognises(self, client: Client) -> bool:
        return text_of(client.json("/props", may_be_missing=True), "build_info") is not None

    def running_speculation(self, client: Client) -> Speculation:
        """Its counters show drafts once there were any; before, its slots tell whether there may be."""
        if (counted := counted_speculation(client, self.meter())).length:
            return counted
        try:
            slots = client.json("/slots")
        except BackendError:  # --no-slots
            return counted
        drafting = [slot for slot in slots if slot.get("speculative")] if isinstance(slots, list) else []
        return Speculation(unknown="nothing was drafted for a short text") if drafting else counted

    def token_ids(self, client: Client, model: str, text: TextOrChat, special: bool = True) -> tuple[int, ...] | None:
        """A chat becomes text by `/apply-template` first, which has the special tokens of its template."""
        if isinstance(text, str):
            body: Json = {"content": text, "add_special": special}
        else:
            rendered = client.json("/apply-template", body=text, may_be_missing=True)
            if not isinstance(rendered, Mapping) or not isinstance(prompt := rendered.get("prompt"), str):
                return None
            body = {"content": prompt, "add_special": False}
        answer = client.json("/tokenize", body={**body, "parse_special": True}, may_be_missing=True)
        return None if answer is None else openai.listed_tokens(client, answer)

    def request(self, ask: Ask) -> tuple[str, Json]:
        return "/completion", {
            "prompt": list(ask.prompt) if isinstance(ask.prompt, tuple) else ask.prompt,
            "n_predict": ask.new_tokens,
            **(own_sampling_fields(ask.sampling, ask) if ask.sampling else {"temperature": 0, "top_k": 1}),
            "ignore_eos": ask.ignore_eos,
            "cache_prompt": ask.reuse,
            "return_tokens": True,
            "stream": not ask.whole,
            **({"n_probs": ask.top} if ask.top else {}),
        }

    def read(self, event: Json, tokens_so_far: int) -> Chunk:
        """The last event repeats no tokens, and an answer that is not streamed has all of them in it. Its `timings`
        cover the whole request.

        A token whose text ends in the middle of a UTF-8 character is streamed without its id (b11434), which comes in
        no later event either.
        """
        if not event["stop"]:
            return replace(ranking(event), tokens=integers(event, "tokens"))
        timings = part(event, "timings")
        cached = integer(timings, "cache_n")
        usage = Usage(integer(event, "tokens_evaluated"), integer(event, "tokens_predicted"), cached)
        top = replace(ranking(event), forbidden=forbidden(event))
        return replace(top, tokens=integers(event, "tokens"), finish=str(event["stop_type"]), usage=usage)

    def chat_fields(self, ask: Ask) -> Json:
        return {
            **(own_sampling_fields(ask.sampling, replace(ask, prompt=())) if ask.sampling else {"top_k": 1}),
            "cache_prompt": ask.reuse,
        }

    def meter(self) -> PrometheusMeter:
        return PrometheusMeter(
            path="/metrics",
            flag="--metrics",
            prefix="llamacpp:",
            busy=("llamacpp:requests_processing", "llamacpp:requests_deferred"),
            generated="llamacpp:tokens_predicted_total",
        )

    def capture(self, draft: Keys, target_layers: int) -> AuxiliaryLayers:
        """Fixed when the draft was converted to GGUF, by the converter's reading of the config."""
        layers = resolve_boundaries(draft, target_layers)
        return AuxiliaryLayers(layers.boundaries, f"{layers.rule}, if the converter to GGUF read it so")


def own_sampling_fields(sampling: Sampling, ask: Ask) -> dict[str, object]:
    """The samplers in our order: by default it has the temperature behind the filters. Its repetition penalty looks at
    the last 64 tokens, unless it is told how many; as text, a prompt has at most one per byte.
    """
    prompt = ask.prompt.encode() if isinstance(ask.prompt, str) else ask.prompt
    return {
        **sampling_fields(sampling, "temperature", "top_p", "top_k", "min_p", seed=ask.seed),
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": len(prompt) + ask.new_tokens,
        "logit_bias": [[token, bias] for token, bias in sampling.logit_bias],
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
    }


def forbidden(event: Json) -> tuple[int, ...]:
    """The tokens that end a text, where ends are to be ignored: these are biased by -infinity, in JSON null."""
    settings = event.get("generation_settings")
    biases = settings.get("logit_bias") if isinstance(settings, Mapping) else None
    return tuple(integer(one, "token") for one in biases or () if one["bias"] is None)


def ranking(event: Json) -> Chunk:
    """The candidates for the last token."""
    candidates = event.get("completion_probabilities")
    if not isinstance(candidates, list) or not candidates:
        return Chunk()
    return Chunk.ranking((float(entry["logprob"]), int(entry["id"])) for entry in candidates[-1]["top_logprobs"])


ADAPTER = LlamaCpp()
