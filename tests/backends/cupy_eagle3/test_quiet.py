"""What a profiler sees between the first and the last cycle of a block: graph launches, our kernels, nothing else."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from specgate.backends.cupy_eagle3.kernels import loader
from specgate.backends.cupy_eagle3.sizes import Sizes
from specgate.backends.cupy_eagle3.stretch import StopRule, run
from specgate.core import Budget, Role
from tests.backends.cupy_eagle3.gpu_pairs import checkpoints, engine_of, random_prompts, shape

pytestmark = pytest.mark.gpu

STEPS = 32
# The last one only asks, on the host, whether the stream is being captured: torch does before it records an event.
HOST_CALLS = {"cudaGraphLaunch", "cudaEventRecord", "cudaEventRecordWithFlags", "cudaStreamIsCapturing"}


@pytest.mark.parametrize("k", [0, 3])
def test_a_block_is_graph_launches_and_our_kernels_and_nothing_else(k: int, tmp_path: Path) -> None:
    made = engine_of(*checkpoints(shape(8, 2, 64)), Sizes(slots=4, positions=1024, max_rows=4))
    made.prefill(random_prompts([100, 200, 64, 65]), draft=True)
    made.decode(Role(k), Budget(steps=STEPS), ())
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        made.decode(Role(k), Budget(steps=STEPS), ())
    trace = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(trace))
    calls, device = between_graphs(json.loads(trace.read_text())["traceEvents"])
    assert calls["cudaGraphLaunch"] == STEPS
    assert set(calls) <= HOST_CALLS, calls
    assert set(device) == {"kernel"}, device


@pytest.mark.parametrize("k", [0, 3])
def test_a_block_allocates_nothing(k: int) -> None:
    import cupy

    made = engine_of(*checkpoints(shape(8, 2, 64)), Sizes(slots=4, positions=1024, max_rows=4))
    made.prefill(random_prompts([100, 200, 64, 65]), draft=True)
    assert made.prompted is not None
    with torch.inference_mode(), made.stream.current():
        step = made.step(k, 4)
        made.prompted.rewind(made.b, StopRule((), (), 1000))
        before = torch.cuda.memory_stats()["allocation.all.allocated"], cupy.get_default_memory_pool().total_bytes()
        run(step, STEPS, made.stream.torch)
        after = torch.cuda.memory_stats()["allocation.all.allocated"], cupy.get_default_memory_pool().total_bytes()
    assert after == before


def between_graphs(events: list[dict[str, Any]]) -> tuple[Counter[str], Counter[str]]:
    """Host calls from the first to the last graph launch, and what ran on the device from its first to its last kernel
    of ours; every kernel in that span must be ours.
    """
    launches = [e for e in events if e.get("name") == "cudaGraphLaunch"]
    first, last = min(e["ts"] for e in launches), max(e["ts"] for e in launches)
    calls = Counter(
        e["name"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver") and first <= e["ts"] <= last
    )
    ours = {path.stem for path in loader.FOLDER.glob("*.cu")} | {"attention_combine"}
    kernels = [e for e in events if e.get("cat") == "kernel" and e["name"] in ours]
    begin, end = min(e["ts"] for e in kernels), max(e["ts"] for e in kernels)
    span = [
        e for e in events if str(e.get("cat")) in ("kernel", "gpu_memcpy", "gpu_memset") and begin <= e["ts"] <= end
    ]
    strangers = {e["name"] for e in span if e["cat"] == "kernel"} - ours
    assert not strangers, strangers
    return calls, Counter(e["cat"] for e in span)
