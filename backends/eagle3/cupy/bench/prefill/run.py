"""The benchmark of a prefill: every part checked and timed in every way that is known, and the whole."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import torch

from specgate.backends.eagle3.cupy.bench.peers import FAILURES, first_line
from specgate.backends.eagle3.cupy.bench.prefill.floors import Work, whole, works
from specgate.backends.eagle3.cupy.bench.prefill.stage import PrefillStage, Variant
from specgate.backends.eagle3.cupy.bench.prefill.timing import Read, gpu_reader, product_flops, time_part
from specgate.backends.eagle3.cupy.bench.synthetic import Geometry, random_pair, require_dense_pair
from specgate.backends.eagle3.cupy.bench.timing import read_bandwidth
from specgate.backends.eagle3.cupy.device import first_gpu
from specgate.backends.eagle3.cupy.engine import limits
from specgate.backends.eagle3.cupy.engine.prefill_attention import said_of
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.backends.eagle3.lib.memory import refusing_overflow
from specgate.backends.eagle3.nouns.kernel_bench import PartTiming, PrefillBench, PrefillBenchRequest
from specgate.contract.protocols import OpenRequest


def bench_prefill(request: PrefillBenchRequest) -> PrefillBench:
    """The prefills that `request` names, part by part, on the GPU that CUDA shows first.

    Raises EnvironmentRefused where there is no GPU or too little memory, CheckpointError for a bad pair.
    """
    import cupy

    began = time.perf_counter()
    require_dense_pair(request.pair, "the benchmark of prefill")
    device = first_gpu()
    bandwidth, stream, parts, attention = read_bandwidth(), Stream(), list[PartTiming](), ""
    torch.cuda.empty_cache()  # what was read to measure the bandwidth
    longest = max(request.lengths)
    with (
        refusing_overflow(f"prefill of pair {request.pair.name}"),
        torch.inference_mode(),
        stream.current(),
        gpu_reader() as read,
    ):
        flops = product_flops(stream, read)
        geometry = Geometry.of(request.pair, drafts=request.draft)
        limits.check_request(OpenRequest(request.pair, "bfloat16", 1, longest, 0, perf_mode=True))
        pair = random_pair(geometry, longest, device)
        for length in request.lengths:
            stage = PrefillStage(geometry, pair, length, device)
            attention = said_of(stage.mode.attention.library(length, stage.heads, device))
            parts += timings(stage, works(geometry, length), stream, read)
            del stage
            torch.cuda.empty_cache()
    return PrefillBench(
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        device=torch.cuda.get_device_name(),
        pair=request.pair.name,
        attention=attention,
        bytes_per_s=bandwidth,
        flops_per_s=flops,
        seconds=time.perf_counter() - began,
        parts=tuple(parts),
        versions={"torch": torch.__version__, "cupy": cupy.__version__},
    )


def timings(stage: PrefillStage, parts: Sequence[Work], stream: Stream, read: Read) -> Iterator[PartTiming]:
    variants = stage.variants()
    for work in parts:
        for variant in variants[work.part]:
            yield timed(variant, work, stage.positions, stream, read)
    for variant in stage.wholes():
        yield timed(variant, whole(tuple(parts), stage.positions), stage.positions, stream, read)


def timed(variant: Variant, work: Work, length: int, stream: Stream, read: Read) -> PartTiming:
    """A way that fails on this machine is reported with its reason, unless it is the engine's own."""

    made = PartTiming(
        length=length,
        part=work.part,
        how=variant.how,
        used=variant.used,
        shape=work.shape,
        times=work.times,
        us=None,
        spread=0.0,
        flops=work.flops,
        size=work.size,
        error=0.0,
        tolerance=0.0,
    )
    try:
        error, tolerance = variant.worst()
        timing = time_part(variant.run, stream, read)
    except FAILURES as failure:
        if variant.used or isinstance(failure, torch.OutOfMemoryError):
            raise
        return replace(made, reason=f"{type(failure).__name__}: {first_line(failure)}")
    return replace(
        made,
        us=timing.us,
        spread=timing.spread,
        error=error,
        tolerance=tolerance,
        sm_clock_mhz=timing.sm_clock_mhz,
        power_w=timing.power_w,
    )
