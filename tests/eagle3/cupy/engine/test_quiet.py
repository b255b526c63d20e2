"""A profiler's view between the first and the last cycle of a block: graph launches, our kernels, nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specgate.backends.eagle3.cupy.engine.decode_run import StopRule, graph_sizes, run
from specgate.backends.eagle3.cupy.engine.partial import graphs_of
from specgate.backends.eagle3.cupy.kernels.loader import entry_points
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.partial import PLAIN
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.contract import Budget, Role, Sampling
from specgate.run import profiler
from tests.eagle3.cupy.gpu_pairs import checkpoints, engine_of, random_prompts, shape

pytestmark = pytest.mark.gpu

STEPS = 35
# The last one only asks, on the host, whether the stream is being captured: torch does before it records an event.
HOST_CALLS = {"cudaGraphLaunch", "cudaEventRecord", "cudaEventRecordWithFlags", "cudaStreamIsCapturing"}
PROMPTS = random_prompts([100, 200, 64, 65])


SAMPLED = Sampling(temperature=0.8, top_k=50, top_p=0.9, min_p=0.01, logit_bias=((3, 1.0),))
REJECTED = replace(SAMPLED, method="rejection", repetition_penalty=1.1)


@pytest.mark.parametrize("sampling", [None, SAMPLED, REJECTED], ids=["greedy", "coupled", "rejection"])
@pytest.mark.parametrize("k", [0, 3])
def test_a_block_is_graph_launches_and_our_kernels_and_nothing_else(k: int, sampling: Sampling | None) -> None:
    sizes = Sizes(slots=4, positions=1024, max_rows=4, sampling=sampling)
    made = engine_of(*checkpoints(shape(8, 2, 64)), sizes)
    made.prefill(PROMPTS, draft=True)
    made.decode(Role(k), Budget(steps=STEPS), ())
    decoded, seen = profiler.trace(made, Role(k), Budget(steps=STEPS))
    assert seen.unseen is None and len(decoded.step_ns) == STEPS
    assert set(seen.calls) <= HOST_CALLS and seen.calls["cudaGraphLaunch"] == len(graph_sizes(STEPS))
    assert seen.copies == {}
    assert set(seen.kernels) <= entry_points() and seen.kernels["commit"] == STEPS
    races = {None: 0, "coupled": 1 + k, "rejection": k or 1}[sampling.method if sampling else None]
    assert seen.kernels.get("draw_rows", 0) == STEPS * races
    assert seen.kernels.get("verify_drafts", 0) == (STEPS if sampling is REJECTED and k else 0)
    assert seen.kernels.get("penalise_rows", 0) == (STEPS if sampling is REJECTED else 0)


def test_the_same_eyes_see_a_loop_that_is_driven_by_the_host() -> None:
    made = ReferenceEngine(*checkpoints(shape(8, 2, 64)), max_batch=4, max_positions=1024, device="cuda")
    made.prefill(PROMPTS, draft=True)
    _, seen = profiler.trace(made, Role(3), Budget(steps=8))
    assert sum(n for name, n in seen.calls.items() if "Synchronize" in name) >= 8
    assert any("DtoH" in name for name in seen.copies)
    assert not set(seen.kernels) & entry_points()


@pytest.mark.parametrize("k", [0, 3])
def test_a_block_allocates_nothing(k: int) -> None:
    import cupy

    made = engine_of(*checkpoints(shape(8, 2, 64)), Sizes(slots=4, positions=1024, max_rows=4))
    made.prefill(PROMPTS, draft=True)
    assert made.prefilled is not None
    with torch.inference_mode(), made.stream.current():
        graphs = graphs_of((PLAIN,) * STEPS)
        launch = {of: made.step(k, 4, of) for of in set(graphs)}
        made.prefilled.rewind(made.b, StopRule((), (), 1000))
        before = torch.cuda.memory_stats()["allocation.all.allocated"], cupy.get_default_memory_pool().total_bytes()
        run(graphs, lambda of, running: launch[of](), made.stream.torch)
        after = torch.cuda.memory_stats()["allocation.all.allocated"], cupy.get_default_memory_pool().total_bytes()
    assert after == before
