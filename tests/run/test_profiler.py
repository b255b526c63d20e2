from __future__ import annotations

from typing import Any

import torch

from specgate.contract.protocols import BLOCK_MARK, Activity, block_marker
from specgate.contract.traces import TunedProduct
from specgate.run import profiler


def event(name: str, category: str, ts: float, correlation: int | None = None, dur: float = 1) -> dict[str, Any]:
    args = {} if correlation is None else {"args": {"correlation": correlation}}
    return {"ph": "X", "pid": 1, "tid": 1, "name": name, "cat": category, "ts": ts, "dur": dur, **args}


MARK = event(BLOCK_MARK, "user_annotation", 100, dur=50)


def test_work_belongs_to_a_block_by_the_call_that_launched_it_however_late_it_runs() -> None:
    seen = profiler.activity_of(
        [
            MARK,
            event("cudaMemcpyAsync", "cuda_runtime", 90, 1),
            event("cudaGraphLaunch", "cuda_runtime", 101, 2),
            event("cudaGraphLaunch", "cuda_runtime", 149, 3),
            event("cudaStreamSynchronize", "cuda_runtime", 151, 4),
            event("Memcpy HtoD", "gpu_memcpy", 120, 1),
            event("mine", "kernel", 130, 2),
            event("mine", "kernel", 400, 3),
            event("other", "kernel", 401, 3),
            event("Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", 500, 3),
            event("later", "kernel", 600, 9),
        ]
    )
    assert seen == Activity(
        kernels={"mine": 2, "other": 1}, copies={"Memcpy DtoH (Device -> Pinned)": 1}, calls={"cudaGraphLaunch": 2}
    )


def test_calls_of_the_driver_count_as_those_of_the_runtime() -> None:
    seen = profiler.activity_of(
        [
            MARK,
            event("cuStreamSynchronize", "cuda_driver", 120, 5),
            event("cuLaunchKernel", "cuda_driver", 121, 6),
            event("mine", "kernel", 122, 6),
        ]
    )
    assert seen.calls == {"cuLaunchKernel": 1, "cuStreamSynchronize": 1}


def test_launches_of_the_kernels_of_products_are_counted_by_their_grids_blocks_and_shared_memory() -> None:
    sizes = {"grid": [132, 1, 1], "block": [256, 1, 1], "shared memory": 49152}
    launches = [event(name, "kernel", 120 + i, 2) for i, name in enumerate(["mine", "mine", "mine_too", "mine"])]
    for launch, changed in zip(launches, ({}, {"grid": [64, 2, 1]}, {}, {}), strict=True):
        launch["args"] |= sizes | changed
    del launches[3]["args"]["grid"]
    seen = profiler.activity_of(
        [MARK, event("cudaGraphLaunch", "cuda_runtime", 101, 2), *launches], (TunedProduct("O", "mine", None),)
    )
    assert seen.kernels == {"mine": 3, "mine_too": 1} and seen.products[0].name == "O"
    assert seen.launches == {
        "mine 132x1x1 blocks of 256x1x1 threads and 49152 bytes": 1,
        "mine 64x2x1 blocks of 256x1x1 threads and 49152 bytes": 1,
    }


def test_what_was_not_seen_is_said_and_not_taken_for_nothing() -> None:
    unmarked = profiler.activity_of([event("mine", "kernel", 122, 6)])
    assert "0 blocks are marked" in (unmarked.unseen or "")
    assert "2 blocks are marked" in (profiler.activity_of([MARK, MARK]).unseen or "")
    assert "no work on a CUDA device" in (profiler.activity_of([MARK]).unseen or "")


def test_the_marker_is_what_torchs_profiler_finds() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen, block_marker():
        torch.ones(3).sum()
    assert [e.name for e in seen.events() or []].count(BLOCK_MARK) == 1
