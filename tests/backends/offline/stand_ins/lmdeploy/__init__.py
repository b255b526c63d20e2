"""Stands in for LMDeploy 0.16.0, and for the fork whose TurboMind has EAGLE-3: the names that the driver uses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace

from rule import FAULTS, accepted, go_wrong, ranking, token

from lmdeploy.eagle import STEP_S, Eagle, RequestCounts
from lmdeploy.messages import (
    EngineOutput,
    GenerationConfig,
    PytorchEngineConfig,
    RequestMetrics,
    ResponseType,
    SpeculativeConfig,
    TurbomindEngineConfig,
)

__version__ = "0.16.0"


class Instance:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def async_stream_infer(
        self, session_id: int, input_ids: list[int], gen_config: GenerationConfig, **kwargs: object
    ) -> AsyncIterator[EngineOutput]:
        made, cycle, counts = 0, -1, RequestCounts(self.engine.eagle)
        stops = [] if gen_config.ignore_eos else gen_config.stop_token_ids or []
        self.engine.eagle.running += 1
        text, cached = list(input_ids), int(FAULTS.get("cached", 0)) or self.engine.cached(input_ids)
        while True:
            await asyncio.sleep(STEP_S if self.engine.eagle.config else 0.0005)
            left = gen_config.max_new_tokens - made
            emitted, spec = self.step(input_ids, cycle, left, counts)
            new = [token(input_ids, made + i) for i in range(min(emitted, left))]
            if stopped := [i for i, t in enumerate(new) if t in stops]:
                new = new[: stopped[0] + 1]
            if "joined" in FAULTS and cycle == 4:
                new = new + new
            made, cycle = made + len(new), cycle + 1
            done = bool(stopped) or made >= gen_config.max_new_tokens
            if cycle == 2:
                go_wrong("step")
            status = ResponseType.FINISH if done else ResponseType.SUCCESS
            if "error" in FAULTS and cycle == 3:
                status, new = ResponseType.INTERNAL_ENGINE_ERROR, []
            logprobs = self.shown(input_ids, made - 1, gen_config)
            text += new
            yield EngineOutput(status, new, logprobs, RequestMetrics(spec_info=spec, cached_tokens=cached))
            if status is not ResponseType.SUCCESS:
                self.engine.eagle.running -= 1
                self.engine.texts.append(text)
                return

    def step(
        self, prompt: list[int], cycle: int, left: int, counts: RequestCounts
    ) -> tuple[int, dict[str, object] | None]:
        """(tokens that a step emits, `spec_info` of its output). The first one is the prefill's."""
        turbomind = self.engine.kind == "turbomind"
        drafted = (
            0 if cycle < 0 or "no_drafts" in FAULTS else self.engine.eagle.planned(left) if turbomind else self.engine.k
        )
        took = accepted(prompt, cycle, drafted)
        if turbomind:
            return counts.add(drafted, took) if drafted else 1, counts.spec_info()
        return took + 1, {"num_draft_tokens": drafted, "num_accepted_tokens": took} if drafted else None

    def shown(self, prompt: list[int], place: int, config: GenerationConfig) -> list[object] | None:
        """TurboMind shows as many tokens as it chooses from; the PyTorch engine shows the chosen one first, and all
        only in the mode that it was opened with.
        """
        top = ranking(prompt, place)[: config.logprobs or 0]
        if not top or (self.engine.kind == "pytorch" and self.engine.mode is None):
            return None
        if self.engine.kind == "turbomind":
            return [dict(top[: config.top_k])]
        chosen, *_ = top
        return [([value for _, value in (chosen, *top)], [number for number, _ in (chosen, *top)])]


class Engine:
    def __init__(self, kind: str, speculative: SpeculativeConfig | None, config: object) -> None:
        self.mode = getattr(config, "logprobs_mode", None)
        self.eagle = Eagle(speculative, getattr(config, "tp", 1))
        self.caches, self.texts = bool(getattr(config, "enable_prefix_caching", False)), list[list[int]]()
        self.kind, self.k = kind, speculative.num_speculative_tokens if speculative else 0

    def cached(self, prompt: list[int]) -> int:
        """Tokens at the beginning of `prompt` in whole blocks of 16 that an earlier text begins with, but the last."""
        if not self.caches:
            return 0
        lengths = range(16 * ((len(prompt) - 1) // 16), 0, -16)
        return next((n for n in lengths if any(text[:-1][:n] == prompt[:n] for text in self.texts)), 0)

    def create_instance(self) -> Instance:
        return Instance(self)


class Pipeline:
    def __init__(self, engine: Engine, config: object) -> None:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        self.internal_thread = SimpleNamespace(loop=loop)
        self.async_engine = SimpleNamespace(engine=engine, backend_config=config)


def pipeline(
    model_path: str,
    backend_config: PytorchEngineConfig | TurbomindEngineConfig | None = None,
    speculative_config: SpeculativeConfig | None = None,
) -> Pipeline:
    go_wrong("open")
    if "says" in FAULTS:
        print(FAULTS["says"], flush=True)
    print("config:", backend_config, speculative_config, flush=True)
    kind = "turbomind" if isinstance(backend_config, TurbomindEngineConfig) else "pytorch"
    if kind == "turbomind" and "released" in FAULTS and speculative_config is not None:
        print("speculative decoding is not supported by turbomind ", flush=True)
        speculative_config = None
    return Pipeline(Engine(kind, speculative_config, backend_config), backend_config)
