"""Drive `vllm.LLM`: its engine's loop, step by step. Written for the V1 engine of vLLM 0.25.

`LLM.generate` hands out finished requests only. So requests are added to `llm.llm_engine`, and `step` is called until
all have ended, which is what `generate` does. What the engine core returns to each step is kept: the tokens of every
request, the draft counts of the step, and the core's own time stamp (`EngineCoreOutputs`, monotonic seconds).
"""

from __future__ import annotations

import importlib
import time
from typing import Any

SPEC = "vllm:spec_decode_num_"
COUNTERS = ("drafts", "draft_tokens", "accepted_tokens")
MOST_LEFT = 8
"""Steps that may be under way when all requests have ended. Asynchronous scheduling has one."""


class Engine:
    """One `LLM`. `progress` counts what the engine core has returned."""

    def __init__(self) -> None:
        self.progress = 0
        self.serial = 0
        self.prompts: list[list[int]] = []
        self.heard: list[Any] = []

    def open(self, arguments: dict[str, Any]) -> dict[str, object]:
        """Load the model; return what it is."""
        self.vllm = importlib.import_module("vllm")
        self.llm = self.vllm.LLM(**arguments)
        self.engine = self.llm.llm_engine
        self.core = self.engine.engine_core
        hear = self.core.get_output

        def get_output() -> Any:
            outputs = hear()
            self.progress += 1
            if outputs.outputs:
                self.heard.append(outputs)
            return outputs

        self.core.get_output = get_output
        return self.facts()

    def facts(self) -> dict[str, object]:
        config = self.engine.vllm_config
        version = importlib.import_module("vllm._version")
        compilation, scheduler = config.compilation_config, config.scheduler_config
        return {
            "version": self.vllm.__version__,
            "build": getattr(version, "__commit_id__", None),
            "torch": importlib.import_module("torch").__version__,
            "device": device_name(),
            "batched_tokens": scheduler.max_num_scheduled_tokens or scheduler.max_num_batched_tokens,
            "in_one_process": hasattr(self.core, "engine_core"),
            "settings": {
                **attention_of(config),
                "cuda_graphs": "NONE" if config.model_config.enforce_eager else plain(compilation.cudagraph_mode),
                "dtype": plain(config.model_config.dtype).removeprefix("torch."),
                "quantization": plain(config.model_config.quantization),
                "kv_cache_dtype": plain(config.cache_config.cache_dtype),
            },
            "shown": {
                "compilation mode": plain(compilation.mode),
                "async scheduling": plain(scheduler.async_scheduling),
                "batched tokens": scheduler.max_num_batched_tokens,
                "model runner": "V2" if getattr(config, "use_v2_model_runner", False) else "V1",
            },
        }

    def prompts_are(self, prompts: list[list[int]]) -> None:
        self.prompts = prompts

    def decode(self, tokens: list[int], steps: int | None, ignore_eos: bool, stop: list[int]) -> dict[str, object]:
        """Prefill all prompts and decode greedily, up to `tokens[slot]` tokens or `steps` steps after the prefill."""
        samplings = [self.sampling(limit, ignore_eos=ignore_eos, stop=stop) for limit in tokens]
        before, self.heard = self.metrics(), []
        began = time.monotonic()
        slots = self.added(self.prompts, samplings)
        self.run(slots, steps)
        heard, self.heard = self.heard, []
        return {
            "steps": [step for outputs in heard if (step := step_of(outputs, slots, began))],
            "heard": [sum(column) for column in zip(*map(drafts_of, heard), strict=True)] or [0, 0, 0],
            "counted": self.difference(before),
            "began": round(began * 1e9),
        }

    def ranked(self, prompt: list[int], count: int, tokens: int) -> dict[str, Any]:
        """`tokens` tokens that are decoded greedily after `prompt`, and [log-probability, token] of the `count` most
        likely ones at the last of them, or of as many as the engine shows (`max_logprobs`), from the largest on.
        """
        most = self.engine.vllm_config.model_config.max_logprobs
        listed = count if most < 0 else min(count, most)
        [output] = self.answered(prompt, self.sampling(tokens, ignore_eos=True, stop=[], logprobs=listed))
        # The token that was chosen is there too, and may be one more.
        best = sorted(((float(e.logprob), int(token)) for token, e in output.logprobs[-1].items()), reverse=True)
        return {"tokens": list(map(int, output.token_ids)), "top": [list(entry) for entry in best[:listed]]}

    def follow(self, prompt: list[int], tokens: int) -> list[int]:
        """The `tokens` tokens that are decoded greedily after `prompt`."""
        [output] = self.answered(prompt, self.sampling(tokens, ignore_eos=True, stop=[]))
        return list(map(int, output.token_ids))

    def answered(self, prompt: list[int], sampling: Any) -> list[Any]:
        """Run one request alone and untimed; return its completions, of which there is one."""
        self.added([prompt], [sampling])
        finished: list[Any] = []
        while self.engine.has_unfinished_requests():
            finished += self.engine.step()
        self.drain()
        return list(finished[-1].outputs)

    def sampling(self, tokens: int, ignore_eos: bool, stop: list[int], logprobs: int | None = None) -> Any:
        kinds = importlib.import_module("vllm.sampling_params").RequestOutputKind
        return self.vllm.SamplingParams(
            temperature=0.0,
            max_tokens=tokens,
            ignore_eos=ignore_eos,
            stop_token_ids=stop or None,
            logprobs=logprobs,
            detokenize=False,
            output_kind=kinds.FINAL_ONLY,
        )

    def added(self, prompts: list[list[int]], samplings: list[Any]) -> dict[str, int]:
        """Add a request per prompt; return the engine core's names of them, and the slot of each."""
        slots = {}
        for slot, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
            self.serial += 1
            name = f"specgate-{self.serial}"
            core_name = self.engine.add_request(name, {"type": "token", "prompt_token_ids": prompt}, sampling)
            slots[core_name if isinstance(core_name, str) else name] = slot  # versions before 0.12 keep the name
        return slots

    def run(self, slots: dict[str, int], steps: int | None) -> None:
        """Step until all requests have ended, or have decoded for `steps` steps, which ends them."""
        started: set[str] = set()
        decoded = read = 0
        while self.engine.has_unfinished_requests():
            self.engine.step()
            if steps is None:
                continue
            for outputs in self.heard[read:]:
                mine = [output.request_id for output in outputs.outputs if output.request_id in slots]
                decoded += bool(mine) and len(started) == len(slots)
                started.update(mine)
            read = len(self.heard)
            if decoded >= steps:
                self.engine.abort_request([f"specgate-{self.serial - i}" for i in range(len(slots))])
                break
        self.drain()

    def drain(self) -> None:
        """Wait for steps under way, so that they do not lie in the next block's prefill."""
        core = getattr(self.core, "engine_core", None)
        for _ in range(MOST_LEFT):
            if core is None or not getattr(core, "batch_queue", None):
                return
            self.engine.step()

    def metrics(self) -> dict[str, int]:
        """The counters of speculation since the start, from `LLM.get_metrics`."""
        totals = dict.fromkeys(COUNTERS, 0)
        for metric in self.llm.get_metrics():
            name = metric.name.removeprefix(SPEC)
            if metric.name.startswith(SPEC) and name in totals:
                totals[name] += int(metric.value)
        return totals

    def difference(self, before: dict[str, int]) -> list[int]:
        after = self.metrics()
        return [after[name] - before[name] for name in COUNTERS]


def step_of(outputs: Any, slots: dict[str, int], began: float) -> dict[str, object] | None:
    """Return one step's record of our requests, or None if none of them was in it."""
    out = [
        [
            slots[o.request_id],
            list(map(int, o.new_token_ids)),
            None if o.finish_reason is None else str(o.finish_reason),
        ]
        for o in outputs.outputs
        if o.request_id in slots
    ]
    if not out:
        return None
    cached = sum(cached_tokens(o) for o in outputs.outputs if o.request_id in slots)
    spec = getattr(outputs.scheduler_stats, "spec_decoding_stats", None)
    by_position = list(map(int, spec.num_accepted_tokens_per_pos)) if spec is not None else []
    counts = [*drafts_of(outputs), by_position]
    return {"ns": round((outputs.timestamp - began) * 1e9), "out": out, "spec": counts, "cached": cached}


def drafts_of(outputs: Any) -> list[int]:
    """Drafts, draft tokens and accepted tokens of a step."""
    spec = getattr(outputs.scheduler_stats, "spec_decoding_stats", None)
    if spec is None:
        return [0, 0, 0]
    return [int(spec.num_drafts), int(spec.num_draft_tokens), int(spec.num_accepted_tokens)]


def cached_tokens(output: Any) -> int:
    """Prompt tokens that came from a cache, which the first output of a request says."""
    stats = getattr(output, "prefill_stats", None)
    return int((stats.num_cached_tokens if stats is not None else getattr(output, "num_cached_tokens", 0)) or 0)


def attention_of(config: Any) -> dict[str, str]:
    """Return the attention back ends of the loaded layers, or the requested one if the layers are in another process;
    empty if neither is known.
    """
    layers = getattr(config.compilation_config, "static_forward_context", {}).values()
    used = {layer.attn_backend.get_name() for layer in layers if getattr(layer, "attn_backend", None) is not None}
    requested = getattr(getattr(config, "attention_config", None), "backend", None)
    names = ", ".join(sorted(used)) or (plain(requested) if requested is not None else "")
    return {"attention": names} if names else {}


def plain(value: object) -> str:
    """The name of an enumeration's member, or the value as text."""
    return str(getattr(value, "name", value))


def device_name() -> str | None:
    """The GPU's name without a CUDA context in this process. None where there is no GPU, or its platform tells no name.

    A platform without names raises NotImplementedError, a driver that does not answer torch's RuntimeError or NVML's
    error, and an id in CUDA_VISIBLE_DEVICES that nobody knows IndexError or ValueError.
    """
    platform = importlib.import_module("vllm.platforms").current_platform
    if not platform.is_cuda():
        return None
    try:
        return str(platform.get_device_name())
    except (NotImplementedError, RuntimeError, IndexError, ValueError, nvml_error()):
        return None  # a name for the report is worth no failure


def nvml_error() -> type[Exception]:
    """The error of vLLM's own copy of pynvml, which has no other type above it than Exception."""
    error_type: type[Exception] = importlib.import_module("vllm.third_party.pynvml").NVMLError
    return error_type
