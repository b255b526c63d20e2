"""Steps, windows and figures of a loop."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.analysis.traces.families import fallen_back, read_patterns, strangers
from specgate.analysis.traces.recording import Recording
from specgate.analysis.traces.steps import Loop, loop_of, merged, percentile
from specgate.analysis.traces.trace_file import read_trace
from specgate.errors import UsageError
from tests.support.traces import FLASH, GEMM, US, Timeline, sglang_loop, turbomind_loop, vllm_loop

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda p: (p[0], p[0] + p[1])), max_size=12)


def loop_in(made: Timeline, folder: Path, stated: int | None = None) -> Loop:
    return loop_of(read_trace(made.write_chrome(folder / "trace.json")), stated)


@given(SPANS)
def test_merged_spans_cover_the_same_moments_and_do_not_touch(spans: list[tuple[int, int]]) -> None:
    joined = merged(spans)
    covered = {moment for begin, end in spans for moment in range(begin, end)}
    assert {moment for begin, end in joined for moment in range(begin, end)} == covered
    assert all(earlier[1] < later[0] for earlier, later in pairwise(joined))
    assert sum(end - begin for begin, end in joined) == len(covered)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=30), st.floats(0.01, 1.0))
def test_a_percentile_is_the_first_value_that_enough_values_do_not_exceed(values: list[int], share: float) -> None:
    value = percentile(sorted(values), share)
    assert value == min(v for v in values if sum(w <= v for w in values) >= share * len(values) - 1e-9)


def test_a_prefill_ends_a_run_of_decode_steps_and_the_longest_run_counts(tmp_path: Path) -> None:
    made, later = vllm_loop(steps=3), vllm_loop(steps=6)
    shift = 1_000 * US
    made.ranges += [(name, begin + shift, end + shift, thread) for name, begin, end, thread in later.ranges]
    made.calls += [(name, b + shift, e + shift, thread, n + 500) for name, b, e, thread, n in later.calls]
    made.work += [(kind, name, b + shift, e + shift, n + 500, x) for kind, name, b, e, n, x in later.work]
    loop = loop_in(made, tmp_path)
    assert (loop.steps, loop.window.ranges) == (5, 9)
    assert loop.kernels == {FLASH: 5, GEMM: 5}


@pytest.mark.parametrize("drafts", [True, False])
def test_a_step_of_sglang_is_a_verification_or_without_a_draft_a_decode_pass(tmp_path: Path, drafts: bool) -> None:
    loop = loop_in(sglang_loop(steps=7, drafts=drafts), tmp_path)
    assert (loop.steps, loop.window.told_by) == (6, "SGLang's ranges")
    assert loop.kernels == ({FLASH: 6, GEMM: 6} if drafts else {FLASH: 6})


@pytest.mark.parametrize("scope", ["", "LlamaBatch/"])
def test_ranges_of_turbomind_tell_steps_and_phases_and_the_innermost_one_counts(tmp_path: Path, scope: str) -> None:
    made = turbomind_loop(steps=5, scope=scope)
    for file in (made.write_chrome(tmp_path / "trace.json"), made.write_nsys(tmp_path / "report.sqlite")):
        loop = loop_of(read_trace(file))
        assert loop.steps == 4 and loop.window.told_by.startswith("BASE_DECODE_STEP")
        assert {name: (p.host_ns // US, p.gpu_ns // US, p.ranges) for name, p in loop.phases.items()} == {
            "draft": (4 * 40, 4 * 27, 8),
            "commit": (4 * 5, 4 * 2, 4),
            "rest of the step": (4 * 25, 4 * 30, 4),
        }
    assert loop_in(turbomind_loop(steps=3, draft=False), tmp_path).phases.keys() == {"rest of the step"}


def test_a_cycle_of_the_built_in_engine_is_a_step(tmp_path: Path) -> None:
    made = turbomind_loop(steps=5)
    made.ranges = [(n.replace("BASE_DECODE_STEP", "EAGLE_CYCLE_SPEC_3"), b, e, t) for n, b, e, t in made.ranges]
    window = loop_in(made, tmp_path).window
    assert (window.steps, window.told_by) == (4, "the engine's cycles")


def test_without_ranges_everything_counts_and_the_steps_are_what_was_stated(tmp_path: Path) -> None:
    made = vllm_loop(steps=4)
    made.ranges = []
    loop = loop_in(made, tmp_path, stated=4)
    assert loop.steps == 4 and loop.kernels["prefill_kernel"] == 1 and loop.per_step(8) == 2.0
    assert loop.figures is not None and loop.figures.waits_elsewhere is None
    assert any("prefill and whatever else" in note for note in loop.notes)
    assert loop_in(made, tmp_path).per_step(8) is None


def test_work_belongs_to_the_call_that_launched_it_however_late_it_runs(tmp_path: Path) -> None:
    made = vllm_loop(steps=3)
    early = made.call("cudaLaunchKernel", 99 * US)  # before the first step
    made.kernel("of_the_prefill", 150 * US, US, early)
    last = made.call("cudaLaunchKernel", 299 * US)  # in the last whole step
    made.kernel("of_the_loop", 900 * US, US, last)
    kernels = loop_in(made, tmp_path).kernels
    assert "of_the_loop" in kernels and "of_the_prefill" not in kernels


def test_a_trace_without_host_calls_shows_kernels_and_hides_waits(tmp_path: Path) -> None:
    made = vllm_loop(steps=4)
    made.calls = []
    loop = loop_in(made, tmp_path)
    assert loop.kernels == {FLASH: 3, GEMM: 3}
    assert loop.why_not("work") is None and "no calls of CUDA or HIP" in (loop.why_not("calls") or "")


def test_of_two_gpus_the_busier_one_is_timed(tmp_path: Path) -> None:
    made = vllm_loop(steps=4)
    made.kernel("elsewhere", 150 * US, 1_000 * US, made.call("cudaLaunchKernel", 140 * US), device=1)
    loop = loop_in(made, tmp_path)
    assert loop.figures is not None and loop.figures.window_ns == 3 * 100 * US - 12 * US
    assert any(note.startswith("2 GPUs") for note in loop.notes)


def test_an_empty_recording_has_no_loop() -> None:
    loop = loop_of(Recording("torch profiler", [], [], []))
    assert loop.figures is None and loop.steps is None and loop.unseen is not None


# Kernels by name


@pytest.mark.parametrize(
    ("flag", "kernels", "message"),
    [
        (
            "FLASH_ATTN",
            {"kernel_unified_attention_2d": 9, "gemm": 1},
            "Triton (kernel_unified_attention_2d, 9 launches)",
        ),
        ("fa3", {"void BatchDecodeWithPagedKVCacheKernel<x>": 2}, "FlashInfer"),
        ("TRITON_ATTN", {FLASH: 1}, "FlashAttention"),
        ("FLASH_ATTN", {FLASH: 1, "kernel_unified_attention_2d": 9}, None),
        ("FLASH_ATTN", {"gemm": 3}, None),
        ("SOMETHING_NEW", {FLASH: 1}, None),
    ],
)
def test_an_attention_back_end_that_does_not_run_in_place_of_another_is_named(
    flag: str, kernels: dict[str, int], message: str | None
) -> None:
    attention = fallen_back(flag, kernels)
    assert (attention is None) == (message is None) and (message or "") in (attention or "")


def test_patterns_of_ones_own_are_read_and_matched_against_whole_names(tmp_path: Path) -> None:
    (file := tmp_path / "kernels.txt").write_text("# ours\n\nnvjet_*\n  *flash::*  \n")
    assert read_patterns(file) == ("nvjet_*", "*flash::*")
    assert strangers({FLASH: 1, GEMM: 2, "my_nvjet_x": 3}, read_patterns(file)) == {"my_nvjet_x": 3}


@pytest.mark.parametrize(
    ("content", "message"), [(b"# nothing\n", "no pattern in it"), (b"\xff\xfe", "byte 0: not UTF-8")]
)
def test_a_file_without_patterns_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (file := tmp_path / "kernels.txt").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_patterns(file)
    with pytest.raises(UsageError, match="No such file"):
        read_patterns(tmp_path / "other.txt")
