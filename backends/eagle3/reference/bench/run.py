"""Check and time every part of the steps that are asked for, on the CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import torch
from torch import Tensor

from specgate.backends.eagle3.lib.checkpoint import TensorFiles
from specgate.backends.eagle3.lib.memory import free_bytes
from specgate.backends.eagle3.lib.pair import canonical_names
from specgate.backends.eagle3.nouns.kernel_bench import KernelBench, KernelBenchRequest, KernelTiming
from specgate.backends.eagle3.reference.bench.memory_reads import read_memory
from specgate.backends.eagle3.reference.bench.parts import Part, Sizes, parts_of
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry
from specgate.checkpoints.hf.draft import draft_geometry
from specgate.checkpoints.hf.target import require_dense, target_geometry
from specgate.checkpoints.hf_keys import read_config
from specgate.checkpoints.planted import from_seed
from specgate.contract import PairRef, Role
from specgate.errors import BackendError, EnvironmentRefused, UsageError
from specgate.machine.host import cache_bytes
from specgate.machine.inventory import cpu_model

READS: Final = 5
TIMES_CACHE: Final = 3
"""How many times larger than the caches the operands of a part are together."""
SMALL: Final = 256 << 10
"""Bytes below which operands come from a cache in a step, too."""
MOST_SETS: Final = 512
CACHE: Final = 32 << 20
"""Bytes that are taken for the caches of a host that does not show them."""
CALLS: Final = 7
"""Fewest timed calls."""
ENOUGH_NS: Final = 200_000_000


def bench_kernels(request: KernelBenchRequest) -> KernelBench:
    """Every part of the steps that `request` names: float32, plain torch, random operands of the pair's sizes.

    Raises UsageError for options and for a context that has no room for the step, EnvironmentRefused where too little
    memory is free, CheckpointError for a bad pair or one with experts, and BackendError for a missing draft.
    """
    if request.options:
        raise UsageError(
            f"option {next(iter(request.options))}: the reference engine's parts are timed without options",
            hint="--backend cupy knows kv and draft_kv",
        )
    began, largest_k = time.perf_counter(), max(role.k for role in request.roles)
    if request.context <= largest_k + 1:
        raise UsageError(f"--context {request.context}: spec-{largest_k} needs more cached positions")
    target, draft = geometries(request.pair, drafts=largest_k > 0)
    reads, cache = read_memory(READS), cache_bytes() or CACHE
    with torch.inference_mode():
        timings = tuple(
            timing(role, part, cache)
            for role in request.roles
            for part in parts_of(target, draft, Sizes(request.batch, request.context, role.k))
        )
    return KernelBench(
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        device=cpu_model() or "cpu",
        pair=request.pair.name,
        context=request.context,
        batch=request.batch,
        bytes_per_s=reads.size / statistics.median(reads.elapsed_ns) * 1e9,
        l2_bytes=cache,
        seconds=time.perf_counter() - began,
        kernels=timings,
        versions={"torch": torch.__version__, "threads": str(torch.get_num_threads())},
    )


def geometries(pair: PairRef, *, drafts: bool) -> tuple[TargetGeometry, DraftGeometry | None]:
    """From the configs alone, and the names of the draft's tensors."""
    config = read_config(pair.target)
    target = target_geometry(config, pair.rope)
    require_dense(target, config.file, "this benchmark")
    if not drafts:
        return target, None
    if pair.draft is None:
        raise BackendError(f"pair {pair.name!r} has no draft, but a step that drafts was asked for")
    head = read_config(pair.draft)
    names = ("lm_head.weight",) if from_seed(head) else canonical_names(TensorFiles(pair.draft))
    return target, draft_geometry(head, target, tuple(names))[0]


def timing(role: Role, part: Part, cache: int) -> KernelTiming:
    """Check the first set of operands of `part`, then time calls on all of them in turn."""
    sets = operand_sets(part.size, cache)
    if part.size * sets > free_bytes(torch.device("cpu")):
        raise EnvironmentRefused(
            f"{part.tag} {part.shape}: {part.size * sets / 1e9:.2f} GB of operands do not fit into the free memory",
            hint="a smaller pair, context or batch is needed",
        )
    made = [part.make() for _ in range(sets)]
    call, expected = made[0]
    error = relative_error(call(), expected())
    elapsed = timed([call for call, _ in made])
    low, median, high = statistics.quantiles(elapsed, n=4)
    return KernelTiming(
        role=role.name,
        tag=part.tag,
        function=part.function,
        shape=part.shape,
        per_step=part.per_step,
        us=median / 1e3,
        spread=(high - low) / median,
        size=part.size,
        error=error,
        tolerance=part.tolerance,
    )


def operand_sets(size: int, cache: int) -> int:
    """How many sets of `size` bytes take turns, so that none is still in a cache when it is read again."""
    return 2 if size < SMALL else min(MOST_SETS, max(2, -(-TIMES_CACHE * cache // size)))


def timed(calls: Sequence[Callable[[], object]]) -> list[int]:
    """Nanoseconds of every call, in turn, after one round that warms up."""
    for call in calls:
        call()
    elapsed, began = list[int](), time.perf_counter_ns()
    while len(elapsed) < CALLS or time.perf_counter_ns() - began < ENOUGH_NS:
        call, start = calls[len(elapsed) % len(calls)], time.perf_counter_ns()
        call()
        elapsed.append(time.perf_counter_ns() - start)
    return elapsed


def relative_error(found: Tensor, expected: Tensor) -> float:
    """‖found − expected‖ / ‖expected‖; for whole numbers 0, or infinity where they are not equal."""
    if not found.is_floating_point():
        return 0.0 if torch.equal(found, expected) else float("inf")
    wanted = expected.double().reshape(found.shape)
    return float((found.double() - wanted).norm() / wanted.norm())
