from __future__ import annotations

from typing import Any

import torch

from specgate.contract.protocols import BLOCK_MARK, Activity, block_marker
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


def test_what_was_not_seen_is_said_and_not_taken_for_nothing() -> None:
    unmarked = profiler.activity_of([event("mine", "kernel", 122, 6)])
    assert "0 blocks are marked" in (unmarked.unseen or "")
    assert "2 blocks are marked" in (profiler.activity_of([MARK, MARK]).unseen or "")
    assert "no work on a CUDA device" in (profiler.activity_of([MARK]).unseen or "")


def test_the_marker_is_what_torchs_profiler_finds() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen, block_marker():
        torch.ones(3).sum()
    assert [e.name for e in seen.events() or []].count(BLOCK_MARK) == 1
