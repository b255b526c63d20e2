"""Measure one peer in the current process; see `peers.py`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from bench.static_decoder import Attention, StaticDecoder
from specgate import plugins
from specgate.checkpoints.geometry import TargetGeometry
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.hf_keys import read_config
from specgate.contract import Budget, PairRef, Role
from specgate.contract.protocols import OpenRequest
from specgate.pairs.resolve import resolve_pair

WARM_UP: Final = 8
"""Steps before the first timed one. Whatever is compiled or captured on first use is done by then."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Decoding that every peer is given.

    `layers` of the pair's target (two counts to extrapolate from; none means all), `batch` slots of `context` cached
    positions, `steps` timed steps.
    """

    pair: str
    context: int
    batch: int
    spec: int
    steps: int
    layers: tuple[int, ...]
    device: str

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device == "cuda" else torch.float32

    @property
    def reference(self) -> PairRef:
        return resolve_pair(self.pair, None, None)

    @property
    def geometry(self) -> TargetGeometry:
        return target_geometry(read_config(self.reference.target))

    @property
    def positions(self) -> int:
        return self.context + WARM_UP + self.steps + 1


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds per step, and per token of a slot. `layers` are the counts that were timed."""

    name: str
    ms_per_step: float
    ms_per_token: float
    layers: tuple[int, ...] = ()


class Clock:
    """Takes times on the device's own time line, without waiting for it. On a CPU it uses the wall clock."""

    def __init__(self, device: str) -> None:
        self.cuda, self.ticks = device == "cuda", list[Any]()

    def tick(self) -> None:
        if self.cuda:
            event: Any = torch.cuda.Event
            self.ticks.append(event(enable_timing=True))
            self.ticks[-1].record()
        else:
            self.ticks.append(time.perf_counter())

    def median_ms(self, last: int) -> float:
        """The median of the last `last` intervals, in milliseconds."""
        if self.cuda:
            torch.cuda.synchronize()
        pairs = list(zip(self.ticks, self.ticks[1:], strict=False))[-last:]
        times: list[float] = [a.elapsed_time(b) if self.cuda else (b - a) * 1e3 for a, b in pairs]
        return statistics.median(times)


def engine(setup: Setup) -> list[Measured]:
    """The built-in engine, baseline and speculating. On a CPU the reference engine takes its place."""
    name, dtype = ("cupy", "bfloat16") if setup.device == "cuda" else ("reference", "float32")
    room = setup.context + (setup.steps + 2) * (setup.spec + 1) + 8
    opened = plugins.backend(name).open(
        OpenRequest(setup.reference, dtype, setup.batch, room, setup.spec, perf_mode=False)
    )
    prompts = torch.randint(setup.geometry.vocab, (setup.batch, setup.context)).tolist()
    opened.prefill(prompts, draft=True)
    times = []
    for role in (Role(0), Role(setup.spec)):
        opened.decode(role, Budget(steps=min(WARM_UP, setup.steps)), ())
        block = opened.decode(role, Budget(steps=setup.steps), ())
        step = block.elapsed_ns / len(block.step_ns) / 1e6  # a median would leave out the time between two graphs
        tokens = sum(len(t) - 1 for t in block.tokens) / setup.batch / len(block.step_ns)
        times.append(Measured(f"specgate {name}, {role.name}", step, step / tokens))
    return times


def compiled(setup: Setup, attention: Attention) -> list[Measured]:
    """`StaticDecoder` under torch.compile, with CUDA graphs."""

    def run(layers: int) -> float:
        with torch.device(setup.device):
            model = StaticDecoder(setup.geometry, layers, setup.batch, setup.positions, attention)
            token = torch.randint(setup.geometry.vocab, (setup.batch, 1))
            position = torch.tensor([setup.context])
        model.to(setup.device, setup.dtype).randomise()
        torch.compiler.reset()
        step: Callable[..., torch.Tensor] = torch.compile(model, mode="reduce-overhead", fullgraph=True)
        clock = Clock(setup.device)
        with torch.no_grad():
            for _ in range(WARM_UP + setup.steps):
                token = step(token, position).clone()  # the next step overwrites this one's output
                position = position + 1
                clock.tick()
        return clock.median_ms(setup.steps - 1)

    return extrapolated(f"torch.compile, static cache, {attention}", setup, run)


def transformers(setup: Setup, *, static: bool) -> list[Measured]:
    """`generate`: eager with its default cache, or with a static cache, whose steps it compiles on a GPU."""
    import transformers as library

    g = setup.geometry

    class Ticking(library.StoppingCriteria):  # type: ignore[misc]  # transformers ships no types
        """Called after every step. Takes the time and never stops the generation."""

        def __init__(self, clock: Clock) -> None:
            self.clock = clock

        def __call__(self, input_ids: torch.Tensor, scores: object, **keywords: object) -> torch.Tensor:
            self.clock.tick()
            return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    def run(layers: int) -> float:
        torch.compiler.reset()
        config = library.LlamaConfig(
            vocab_size=g.vocab,
            hidden_size=g.hidden,
            intermediate_size=g.intermediate,
            num_hidden_layers=layers,
            num_attention_heads=g.heads,
            num_key_value_heads=g.kv_heads,
            head_dim=g.head_dim,
            max_position_embeddings=setup.positions + 1,
            tie_word_embeddings=g.tied_embeddings,
            eos_token_id=None,
            bos_token_id=None,
            pad_token_id=0,
        )
        with torch.device(setup.device):
            model = library.AutoModelForCausalLM.from_config(config, dtype=setup.dtype).eval()
            ids = torch.randint(g.vocab, (setup.batch, setup.context))
        clock, how = Clock(setup.device), dict[str, object]()
        if static:
            how["cache_implementation"] = "static"
            if setup.device == "cpu":
                compile_config = library.CompileConfig()
                compile_config._compile_all_devices = True
                how["compile_config"] = compile_config
        with torch.no_grad():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=WARM_UP + setup.steps,
                do_sample=False,
                stopping_criteria=library.StoppingCriteriaList([Ticking(clock)]),
                **how,
            )
        return clock.median_ms(setup.steps - 1)

    return extrapolated(f"transformers {'static cache + compile' if static else 'eager'}", setup, run)


def extrapolated(name: str, setup: Setup, run: Callable[[int], float]) -> list[Measured]:
    """The time of a step of all layers: measured, or on the line through two measured layer counts.

    Raises ValueError where more layers took less time, because such a line means nothing.
    """
    whole = setup.geometry.layers
    counts: Sequence[int] = setup.layers or (whole,)
    times = [run(count) for count in counts]
    step = times[0]
    if len(counts) == 2:
        (fewer, more), (low, high) = counts, times
        if high <= low:
            raise ValueError(f"{more} layers took {high:.3f} ms, {fewer} layers {low:.3f}: no line to {whole} layers")
        step = low + (whole - fewer) * (high - low) / (more - fewer)
    return [Measured(name, step, step, tuple(counts))]


RUNS: Final[dict[str, Callable[[Setup], list[Measured]]]] = {
    "engine": engine,
    "compiled-matmul": lambda setup: compiled(setup, "matmul"),
    "compiled-sdpa": lambda setup: compiled(setup, "sdpa"),
    "transformers-static": lambda setup: transformers(setup, static=True),
    "transformers-eager": lambda setup: transformers(setup, static=False),
}
"""In running order, the most important first."""
