"""Drive an engine behind `lmdeploy.pipeline`: the PyTorch engine or TurboMind. Written for LMDeploy 0.10 to 0.18.

A pipeline's `Response` has no `req_metrics`, and a pipeline takes text. So requests go to instances of the pipeline's
own engine (`async_stream_infer`), as the pipeline's do, on the pipeline's own event loop. Each output has its new
tokens and `req_metrics.spec_info`. That is counted in two ways:

- LMDeploy's PyTorch engine: the drafted and accepted tokens of the step that the output came from.
- forks that put EAGLE-3 into TurboMind: everything is summed over the request so far, `num_drafts` among it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import importlib.util
import itertools
import mmap
import os
import re
import time
from pathlib import Path
from typing import Any

CONFIGS = {"pytorch": "PytorchEngineConfig", "turbomind": "TurbomindEngineConfig"}
METRICS = "enable_metrics"
PREFIXES = ("LMDEPLOY_", "TM_")
"""How the names of its environment variables begin."""
SUMMED = {"num_drafts", "max_tokens_per_seq"}
"""Keys of a `spec_info` that is summed up over a request."""
SHOWN = {"logprobs_mode": "raw_logits"}
"""The PyTorch engine shows no log-probabilities unless it is told which; it computes them for those that ask."""


class Engine:
    """One pipeline. `progress` counts the outputs of its engine."""

    def __init__(self) -> None:
        self.progress = 0
        self.prompts: list[list[int]] = []
        self.sessions = itertools.count(1_000_001)

    def open(
        self,
        model: str,
        kind: str,
        config: dict[str, Any],
        draft: dict[str, Any] | None,
        slots: int,
        environment: dict[str, str],
    ) -> dict[str, object]:
        """Load the model; return what it is. `environment`: variables to set if the library knows them."""
        variables = settle_environment(environment)
        self.lmdeploy = importlib.import_module("lmdeploy")
        form = getattr(self.lmdeploy, CONFIGS[kind])
        known = {field.name for field in dataclasses.fields(form)}
        if METRICS in known:
            config = {METRICS: True, **config}
        if known.issuperset(SHOWN):
            config = {**SHOWN, **config}
        speculative = speculative_config(draft) if draft is not None else None
        if speculative is not None and "speculative_config" in known:  # in forks, TurboMind reads it there
            config = {**config, "speculative_config": speculative}
        extra = {"speculative_config": speculative} if speculative is not None else {}
        self.pipe = self.lmdeploy.pipeline(model, backend_config=form(**config), **extra)
        around = getattr(self.pipe, "async_engine", self.pipe)  # until 0.10, the pipeline is its engine's wrapper
        self.ends_sessions = around is self.pipe and kind == "pytorch"
        self.loop = self.pipe.internal_thread.loop
        self.instances = [around.engine.create_instance() for _ in range(slots)]
        torch = importlib.import_module("torch")
        used = getattr(around, "backend_config", None)
        return {
            "version": self.lmdeploy.__version__,
            "build": None,
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            **variables,
            "settings": settings_of(used),
            "shown": {"cache share": str(getattr(used, "cache_max_entry_count", "not told"))},
        }

    def prompts_are(self, prompts: list[list[int]]) -> None:
        self.prompts = prompts

    def decode(self, tokens: list[int], steps: int | None, ignore_eos: bool, stop: list[int]) -> dict[str, object]:
        """Run all requests side by side, each up to `tokens[slot]` tokens."""
        if steps is not None:
            raise ValueError(f"steps = {steps}: an LMDeploy engine cannot be stopped after a number of steps")
        configs = [self.generation(limit, ignore_eos=ignore_eos, stop=stop) for limit in tokens]
        began = time.monotonic_ns()

        async def all_of_them() -> list[dict[str, object]]:
            jobs = zip(self.instances[: len(self.prompts)], self.prompts, configs, strict=True)
            return list(await asyncio.gather(*(self.request(*one, began) for one in jobs)))

        return {"requests": asyncio.run_coroutine_threadsafe(all_of_them(), self.loop).result(), "began": began}

    def ranked(self, prompt: list[int], count: int, tokens: int) -> dict[str, Any]:
        """`tokens` tokens that are decoded after `prompt`, and [logit or log-probability, token] of the `count` most
        likely ones at the last of them, from the largest on; fewer where the engine gives fewer.

        TurboMind shows no more tokens than it chooses from. Which one it chooses matters where others follow.
        """
        request = self.alone(prompt, tokens, logprobs=count, top_k=count if tokens == 1 else 1)
        return {"tokens": [token for _, new, _ in request["chunks"] for token in new], "top": request["top"][:count]}

    def follow(self, prompt: list[int], tokens: int) -> list[int]:
        """The `tokens` tokens that are decoded greedily after `prompt`."""
        chunks: list[Any] = self.alone(prompt, tokens)["chunks"]
        return [token for _, new, _ in chunks for token in new]

    def alone(self, prompt: list[int], tokens: int, **config: Any) -> dict[str, Any]:
        """One request by itself, untimed."""
        generation = self.generation(tokens, ignore_eos=True, stop=[], **config)
        request = self.request(self.instances[0], prompt, generation, time.monotonic_ns())
        return asyncio.run_coroutine_threadsafe(request, self.loop).result()

    def generation(
        self, tokens: int, ignore_eos: bool, stop: list[int], logprobs: int | None = None, top_k: int = 1
    ) -> Any:
        return self.lmdeploy.GenerationConfig(
            max_new_tokens=tokens,
            do_sample=top_k > 1,
            top_k=top_k,
            temperature=1.0,
            ignore_eos=ignore_eos,
            stop_token_ids=stop or None,
            logprobs=logprobs,
        )

    async def request(self, instance: Any, prompt: list[int], config: Any, began: int) -> dict[str, Any]:
        """One request: when it was sent, its outputs with their times, and how it ended."""
        session, cached, status = next(self.sessions), 0, "no output"
        chunks: list[list[object]] = []
        totals: dict[str, int] | None = None
        top: list[list[Any]] = []
        sent = time.monotonic_ns() - began
        outputs = instance.async_stream_infer(
            session,
            input_ids=prompt,
            gen_config=config,
            stream_output=True,
            sequence_start=True,  # the next three: until 0.11
            sequence_end=True,
            step=0,
        )
        async for output in outputs:
            arrived = time.monotonic_ns() - began
            self.progress += 1
            metrics = getattr(output, "req_metrics", None)
            status = getattr(output.status, "name", str(output.status))
            info = getattr(metrics, "spec_info", None) or {}
            summed = not info.keys().isdisjoint(SUMMED)
            totals = whole_numbers(info) if summed else totals
            chunks.append([arrived, list(map(int, output.token_ids)), None if summed else step_of(info)])
            cached = max(cached, int(getattr(metrics, "cached_tokens", 0) or 0))
            top = ranking_of(output.logprobs) or top
        if self.ends_sessions:
            await instance.async_end(session)
        return {"sent": sent, "chunks": chunks, "status": status, "cached": cached, "top": top, "totals": totals}


def settle_environment(wanted: dict[str, str]) -> dict[str, object]:
    """Set the variables of `wanted` that LMDeploy's files name and nobody has set. They are read when it is imported.

    Returns those set here (`own_environment`), those that were set before (`environment`), and of the latter the ones
    that no file names (`unread`).
    """
    before = {name: value for name, value in os.environ.items() if name.startswith(PREFIXES)}
    spec = importlib.util.find_spec("lmdeploy")
    folders = (spec.submodule_search_locations or []) if spec else []
    known = named_in([Path(folder) for folder in folders], {*before, *wanted})
    new = {name: value for name, value in wanted.items() if name in known and name not in before}
    os.environ.update(new)
    return {"own_environment": new, "environment": before, "unread": sorted(before.keys() - known)}


def named_in(folders: list[Path], names: set[str]) -> set[str]:
    """The names that stand in Python files or compiled libraries below `folders`."""
    left = {name: re.compile(rb"(?<!\w)" + name.encode() + rb"(?!\w)") for name in names}
    files = (file for folder in folders for file in folder.rglob("*") if file.suffix in (".py", ".so"))
    for path in files:
        if not left:
            break
        with path.open("rb") as file:
            if path.stat().st_size:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    left = {name: pattern for name, pattern in left.items() if not pattern.search(content)}
    return names - left.keys()


def settings_of(config: Any) -> dict[str, str]:
    """Return the engine's settings, as far as its configuration states them."""
    settings = {"dtype": getattr(config, "dtype", None)}
    eager = getattr(config, "eager_mode", None)  # the PyTorch engine's alone
    settings["cuda_graphs"] = None if eager is None else "off" if eager else "on"
    return {name: str(value) for name, value in settings.items() if value is not None}


def speculative_config(draft: dict[str, Any]) -> Any:
    """A `SpeculativeConfig`: in `lmdeploy.messages`, or in a module of its own in forks."""
    messages = importlib.import_module("lmdeploy.messages")
    form = getattr(messages, "SpeculativeConfig", None)
    if form is None:
        form = importlib.import_module("lmdeploy.speculative_config").SpeculativeConfig
    return form(**draft)


def step_of(info: dict[str, Any]) -> list[int] | None:
    """[draft tokens, accepted tokens] of the step that an output came from; None if it had no draft."""
    return [int(info["num_draft_tokens"]), int(info["num_accepted_tokens"])] if info else None


def whole_numbers(info: dict[str, Any]) -> dict[str, int]:
    """The counts of a `spec_info`, those of objects within it too. Its means follow from them and are left out."""
    inner = [whole_numbers(value) for value in info.values() if isinstance(value, dict)]
    own = {name: value for name, value in info.items() if type(value) is int}
    return {name: value for part in (own, *inner) for name, value in part.items()}


def ranking_of(logprobs: Any) -> list[list[Any]]:
    """[logit or log-probability, token] at the last token, from the largest on: from {id: value}, or from (values,
    ids) with the sampled token in front, which may come again.
    """
    if not logprobs:
        return []
    last = logprobs[-1]
    by_id = last if isinstance(last, dict) else dict(zip(last[1], last[0], strict=True))
    return [list(entry) for entry in sorted(((float(v), int(token)) for token, v in by_id.items()), reverse=True)]
