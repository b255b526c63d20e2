"""Stands in for vLLM 0.25.1: the names that the driver uses, and an engine that decodes by a rule."""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

from rule import FAULTS, accepted, go_wrong, ranking, token

from vllm.sampling_params import SamplingParams

__version__ = "0.25.1"


class FinishReason(enum.IntEnum):
    STOP = 0
    LENGTH = 1
    ABORT = 2

    def __str__(self) -> str:
        return ("stop", "length", "abort")[self.value]


class Mode(enum.Enum):
    FULL_AND_PIECEWISE = 2


@dataclass
class SpecDecodingStats:
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)


@dataclass
class EngineCoreOutput:
    request_id: str
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    prefill_stats: SimpleNamespace | None = None


@dataclass
class EngineCoreOutputs:
    outputs: list[EngineCoreOutput] = field(default_factory=list)
    scheduler_stats: SimpleNamespace | None = None
    timestamp: float = field(default_factory=time.monotonic)


@dataclass
class Counter:
    name: str
    value: int


@dataclass
class Vector:
    name: str
    values: list[int]


@dataclass
class Running:
    """A request in the scheduler. `cycle`: steps since its prefill; -1 before."""

    prompt: list[int]
    params: SamplingParams
    made: int = 0
    cycle: int = -1
    emitted: list[int] = field(default_factory=list)


class FlashAttention:
    @staticmethod
    def get_name() -> str:
        return "FLASH_ATTN"


class EngineCore:
    def __init__(self, k: int) -> None:
        self.k = k
        self.running: dict[str, Running] = {}
        self.batch_queue: deque[str] = deque()

    def step(self) -> EngineCoreOutputs:
        """With asynchronous scheduling, every other call only schedules, and one step is left over at the end."""
        if not self.batch_queue:
            self.batch_queue.append("scheduled")
            return EngineCoreOutputs()
        self.batch_queue.clear()
        if not self.running:
            return EngineCoreOutputs()
        time.sleep(float(FAULTS.get("step_s", 0.0005)) * (1.5 if self.k else 1))
        spec = SpecDecodingStats(num_accepted_tokens_per_pos=[0] * self.k)
        outputs = [self.output(name, request, spec) for name, request in self.scheduled()]
        if self.running or FAULTS.get("tidy") is None:
            self.batch_queue.append("one too many")
        stats = SimpleNamespace(spec_decoding_stats=spec if spec.num_drafts else None)
        return EngineCoreOutputs(outputs, stats)

    def scheduled(self) -> Iterator[tuple[str, Running]]:
        for number, (name, request) in enumerate(list(self.running.items())):
            if "mixed" in FAULTS and number and request.cycle < 0 and next(iter(self.running.values())).cycle < 2:
                continue  # its prompt did not fit into the first step
            if "preempt" in FAULTS and number and request.cycle == 3:
                request.cycle += 1
                continue
            yield name, request

    def output(self, name: str, request: Running, spec: SpecDecodingStats) -> EngineCoreOutput:
        first, room = request.cycle < 0, request.params.max_tokens - request.made
        k = 0 if first or "no_drafts" in FAULTS else self.k
        took = accepted(request.prompt, request.cycle, k)
        if k:
            spec.num_drafts += 1
            spec.num_draft_tokens += k
            spec.num_accepted_tokens += took
            for i in range(took):
                spec.num_accepted_tokens_per_pos[i] += 1
        emitted = [token(request.prompt, request.made + i) for i in range(min(took + 1, room))]
        request.made, request.cycle = request.made + len(emitted), request.cycle + 1
        stops = request.params.stop_token_ids or []
        stopped = next((i for i, t in enumerate(emitted) if t in stops), None)
        request.emitted += emitted
        finish = FinishReason.LENGTH if request.made == request.params.max_tokens else None
        if stopped is not None:
            emitted, finish = emitted[: stopped + 1], FinishReason.STOP
        if finish is not None:
            del self.running[name]
        cached = SimpleNamespace(num_cached_tokens=int(FAULTS.get("cached", 0)) if first else 0)
        return EngineCoreOutput(name, emitted, finish, cached if first else None)


class InprocClient:
    def __init__(self, k: int) -> None:
        self.engine_core = EngineCore(k)

    def get_output(self) -> EngineCoreOutputs:
        return self.engine_core.step()


class LLMEngine:
    def __init__(self, arguments: dict[str, object]) -> None:
        spec = arguments.get("speculative_config") or {}
        self.engine_core = InprocClient(spec.get("num_speculative_tokens", 0))
        self.requests: dict[str, str] = {}
        self.totals = SpecDecodingStats()
        batched = arguments.get("max_num_batched_tokens", 8192)
        self.vllm_config = SimpleNamespace(
            compilation_config=SimpleNamespace(
                mode=3,
                cudagraph_mode=Mode.FULL_AND_PIECEWISE,
                static_forward_context={"layer.0": SimpleNamespace(attn_backend=FlashAttention), "other": object()},
            ),
            scheduler_config=SimpleNamespace(
                async_scheduling=True, max_num_batched_tokens=batched, max_num_scheduled_tokens=None
            ),
            model_config=SimpleNamespace(
                enforce_eager=bool(arguments.get("enforce_eager")),
                dtype="torch.bfloat16",
                quantization=None,
                max_logprobs=arguments.get("max_logprobs", 20),
            ),
            cache_config=SimpleNamespace(cache_dtype="auto"),
            attention_config=SimpleNamespace(backend=None),
        )

    def add_request(self, request_id: str, prompt: dict[str, object], params: SamplingParams) -> str:
        assert prompt["type"] == "token"
        internal = f"{request_id}-{len(request_id):08x}"
        self.requests[request_id] = internal
        self.engine_core.engine_core.running[internal] = Running(prompt["prompt_token_ids"], params)
        return internal

    def abort_request(self, request_ids: list[str]) -> None:
        for name in request_ids:
            self.engine_core.engine_core.running.pop(self.requests.pop(name, ""), None)

    def has_unfinished_requests(self) -> bool:
        return bool(self.engine_core.engine_core.running)

    def step(self) -> list[SimpleNamespace]:
        running = dict(self.engine_core.engine_core.running)
        outputs = self.engine_core.get_output()
        if any(request.cycle == 2 for request in running.values()):
            print("noise of the engine on standard output", flush=True)
            go_wrong("step")
        stats = outputs.scheduler_stats.spec_decoding_stats if outputs.scheduler_stats else None
        if stats is not None:
            self.totals.num_drafts += stats.num_drafts + ("miscount" in FAULTS)
            self.totals.num_draft_tokens += stats.num_draft_tokens
            self.totals.num_accepted_tokens += stats.num_accepted_tokens
        ended = [running[o.request_id] for o in outputs.outputs if o.finish_reason is not None]
        return [SimpleNamespace(outputs=[completion(request)]) for request in ended]


def completion(request: Running) -> SimpleNamespace:
    """As a `CompletionOutput`: the most likely tokens at every place, and the chosen one after them."""
    logprobs = request.params.logprobs
    if logprobs is None:
        return SimpleNamespace(token_ids=request.emitted, logprobs=None)
    chosen = [(0, -20.0)] if "blind" not in FAULTS else []
    shown = [[*ranking(request.prompt, place)[:logprobs], *chosen] for place in range(len(request.emitted))]
    entries = [{token: SimpleNamespace(logprob=value) for token, value in reversed(place)} for place in shown]
    return SimpleNamespace(token_ids=request.emitted, logprobs=entries)


class LLM:
    def __init__(self, **arguments: object) -> None:
        go_wrong("open")
        print("arguments of LLM:", arguments, flush=True)
        tokens = 4096 if "speculative_config" in arguments else 8192
        print(f"INFO [kv_cache_utils.py:2146] GPU KV cache size: {tokens:,} tokens", flush=True)
        self.llm_engine = LLMEngine(arguments)

    def get_metrics(self) -> list[Counter | Vector]:
        totals = self.llm_engine.totals
        return [
            Counter("vllm:generation_tokens", 7),
            Counter("vllm:spec_decode_num_drafts", totals.num_drafts),
            Counter("vllm:spec_decode_num_draft_tokens", totals.num_draft_tokens),
            Counter("vllm:spec_decode_num_accepted_tokens", totals.num_accepted_tokens),
            Vector("vllm:spec_decode_num_accepted_tokens_per_pos", [1]),
        ]
