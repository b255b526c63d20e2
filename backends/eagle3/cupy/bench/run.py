"""The benchmark itself: record a step, and for each kernel of it check, time, and put the library's beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import torch

from specgate.backends.eagle3.cupy.bench.checks import check
from specgate.backends.eagle3.cupy.bench.groups import groups_of, rotation
from specgate.backends.eagle3.cupy.bench.peers import peers_of, timed
from specgate.backends.eagle3.cupy.bench.stage import Stage, random_stages
from specgate.backends.eagle3.cupy.bench.synthetic import require_dense_pair
from specgate.backends.eagle3.cupy.bench.timing import read_bandwidth, time_launches
from specgate.backends.eagle3.cupy.device import first_gpu, l2_bytes
from specgate.backends.eagle3.cupy.kernels.compiling import compiler
from specgate.backends.eagle3.cupy.kernels.loader import Launch
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import MatmulRows
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.backends.eagle3.cupy.tuned.lookup import Tuned
from specgate.backends.eagle3.lib.kv.modes import DRAFT_KV, KV, KvModes
from specgate.backends.eagle3.lib.kv.options import kv_modes
from specgate.backends.eagle3.lib.memory import refusing_overflow
from specgate.backends.eagle3.nouns.kernel_bench import KernelBench, KernelBenchRequest, KernelTiming
from specgate.contract import Role
from specgate.errors import BackendError, UsageError


def bench_kernels(request: KernelBenchRequest) -> KernelBench:
    """Every kernel of the steps that `request` names, at its geometry, on the GPU that CUDA shows first.

    Raises UsageError for options that it has not, EnvironmentRefused where there is no GPU or too little memory,
    CheckpointError for a bad pair.
    """
    kv = chosen_kv(request)
    import cupy

    began = time.perf_counter()
    require_dense_pair(request.pair, "the benchmark of kernels")
    device = first_gpu()
    bandwidth, stream = read_bandwidth(), Stream()
    torch.cuda.empty_cache()  # what was read to measure the bandwidth
    with refusing_overflow(f"kernels of pair {request.pair.name}"), torch.inference_mode(), stream.current():
        tuned = Tuned.on(torch.cuda.get_device_name(), None)
        stages = random_stages(request.pair, request.context, request.batch, request.roles, tuned, device, kv)
        with compiler() as compiling:
            specs = (kernel.spec for stage in stages.values() for kernel in stage.cycle.kernels().values())
            if complaints := [f"{spec.stem}.cu: {why}" for spec, why in compiling.compile(specs).items() if why]:
                raise BackendError(complaints[0], hint="the kernel does not compile for this GPU")
        kernels = list[KernelTiming]()
        for role, stage in stages.items():
            stage.run()
            kernels += timings(role, stage, stream)
    return KernelBench(
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        device=torch.cuda.get_device_name(),
        pair=request.pair.name,
        context=request.context,
        batch=request.batch,
        bytes_per_s=bandwidth,
        l2_bytes=l2_bytes(),
        seconds=time.perf_counter() - began,
        kernels=tuple(kernels),
        versions={"torch": torch.__version__, "cupy": cupy.__version__},
        options=request.options,
    )


def chosen_kv(request: KernelBenchRequest) -> KvModes:
    """The formats of the caches. Raises UsageError for names that are none, and for other options: random weights need
    none.
    """
    if other := [name for name in request.options if name not in (KV, DRAFT_KV)]:
        raise UsageError(f"option {other[0]}: not of the benchmark of kernels", hint=f"known: {KV}, {DRAFT_KV}")
    return kv_modes(request.options)


def timings(role: Role, stage: Stage, stream: Stream) -> Iterator[KernelTiming]:
    errors: dict[int, tuple[float, float]] = {}
    for group in groups_of(stage.calls, stage.context):
        first = group.calls[0]
        if id(first) not in errors:
            errors[id(first)] = check(first, stage)
        stage.reset()
        launches = rotation(group, l2_bytes())
        timing = time_launches(in_turn(launches), len(launches), stream)
        products = [call for call in group.calls if isinstance(call.kernel, MatmulRows)]
        weights = list({w.data_ptr(): w for w in (call.named["weight"] for call in products)}.values())
        whole = first.launches[0].name == group.name
        error, tolerance = errors[id(first)]
        yield KernelTiming(
            role=role.name,
            tag=group.tag,
            function=group.name,
            shape=group.account.shape,
            per_step=len(group.launches),
            us=timing.latency_us,
            spread=timing.spread,
            size=group.account.size,
            error=error,
            tolerance=tolerance,
            peers=tuple(timed(peer) for peer in peers_of(first, weights, stage.context)) if whole else (),
        )


def in_turn(launches: Sequence[Launch]) -> Callable[[int], None]:
    return lambda i: launches[i]()
