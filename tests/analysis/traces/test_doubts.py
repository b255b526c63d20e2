"""Traces that do not show all that happened: their figures are not observable, never none."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from specgate.analysis.traces.steps import Loop, loop_of
from specgate.analysis.traces.trace_file import read_trace
from tests.support.traces import FLASH, GEMM, US, Timeline, nsys_file, vllm_loop


def loop_in(made: Timeline, folder: Path) -> Loop:
    return loop_of(read_trace(made.write_chrome(folder / "trace.json")))


def test_a_loop_of_which_everything_is_known_leaves_no_doubt(tmp_path: Path) -> None:
    assert loop_in(vllm_loop(steps=4), tmp_path).doubts == ()


@pytest.mark.parametrize("lost", [1, 2, 6])
def test_launches_without_work_leave_kernels_and_busy_time_not_observable(tmp_path: Path, lost: int) -> None:
    made = vllm_loop(steps=4)
    kernels = [work for work in made.work if work[0] == "kernel" and work[2] > 100 * US]
    launches = sorted({work[4] for work in kernels})[: (lost + 1) // 2]
    made.work = [work for work in made.work if work[4] not in launches]
    loop = loop_in(made, tmp_path)
    assert f"{len(launches)} of 3 launches have no work on a GPU (cudaGraphLaunch)" in (loop.why_not("work") or "")
    assert loop.why_not("calls") is None


def test_a_launch_within_a_call_that_has_the_work_is_not_missing_any(tmp_path: Path) -> None:
    made = vllm_loop(steps=4)
    begin, end = next((begin, end) for name, begin, end, *_ in made.calls if name == "cudaGraphLaunch" and begin > 100)
    made.call("cuGraphLaunch", begin + 1, end - begin - 2)
    assert loop_in(made, tmp_path).doubts == ()
    made.call("cuLaunchKernel", end + 5 * US)
    assert "1 of 5 launches" in (loop_in(made, tmp_path).why_not("work") or "")


def test_work_without_a_launch_leaves_waits_and_allocations_not_observable(tmp_path: Path) -> None:
    made = vllm_loop(steps=4)
    made.calls = [call for call in made.calls if call[0] != "cudaGraphLaunch"]
    loop = loop_in(made, tmp_path)
    assert loop.kernels == {FLASH: 3, GEMM: 3} and loop.why_not("work") is None
    assert "6 of 9 pieces of work have no call that launched them" in (loop.why_not("calls") or "")


@pytest.mark.parametrize("call", ["cudaGraphInstantiate", "cudaSomethingNew", "hipModuleLoad"])
def test_calls_that_are_not_known_may_wait_or_allocate(tmp_path: Path, call: str) -> None:
    made = vllm_loop(steps=4)
    made.call(call, 150 * US)
    loop = loop_in(made, tmp_path)
    assert f"whether these calls wait or allocate: {call}" in (loop.why_not("waits") or "")
    assert loop.why_not("work") is loop.why_not("calls") is None


def test_copies_that_left_no_trace_or_whose_name_says_nothing_may_lead_to_the_host(tmp_path: Path) -> None:
    made = vllm_loop(steps=4)
    made.kernel("__amd_rocclr_copyBuffer", 180 * US, US, made.call("hipMemcpyAsync", 150 * US))
    assert "1 of 4 calls that copy or set memory" in (loop_in(made, tmp_path).why_not("copies") or "")
    made = vllm_loop(steps=4)
    made.copy("Memcpy 77", 180 * US, US, made.call("cudaMemcpyAsync", 150 * US), 8)
    loop = loop_in(made, tmp_path)
    assert loop.why_not("copies") == "it is not known where these copies lead: Memcpy 77"
    assert loop.why_not("work") is None


@pytest.mark.parametrize("same_process", [True, False])
def test_merged_traces_whose_numbers_collide_cannot_be_told_apart(tmp_path: Path, same_process: bool) -> None:
    def other(event: dict[str, object]) -> dict[str, object]:
        return {**event, "ts": event["ts"] + 0.003, "pid": event["pid"] if same_process else 8}  # type: ignore[operator]

    made = vllm_loop(steps=4)
    whole = made.chrome
    events: list[dict[str, object]] = whole()["traceEvents"]  # type: ignore[assignment]
    merged = [*events, *(other(event) for event in events if event["ph"] == "X" and event["cat"] != "kernel")]
    made.chrome = lambda: {**whole(), "traceEvents": merged}  # type: ignore[method-assign]
    loop = loop_in(made, tmp_path)
    assert "traces of several processes are merged" in (loop.partial or "")
    assert loop.why_not("work") is not None and (loop.why_not("calls") is not None) == same_process
    one = loop_of(read_trace(vllm_loop(steps=4).write_chrome(tmp_path / "one.json")))
    assert loop.calls == one.calls and loop.kernels == {}, "no count is too high"
    assert same_process or any("the calls of 2 processes are in it" in note for note in loop.notes)


def test_of_two_processes_whose_numbers_differ_only_the_loops_own_counts(tmp_path: Path) -> None:
    file = vllm_loop(steps=4).write_nsys(tmp_path / "a.sqlite", process=1)
    vllm_loop(steps=4).write_nsys(tmp_path / "b.sqlite", process=2)
    one = loop_of(read_trace(file))
    with closing(sqlite3.connect(file)) as db:
        db.execute("attach ? as other", (str(tmp_path / "b.sqlite"),))
        for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"):
            db.execute(f"insert into {table} select * from other.{table}")
        db.commit()
        assert "processes without steps of their own have calls" in (loop_of(read_trace(file)).partial or "")
        db.execute("insert into NVTX_EVENTS select * from other.NVTX_EVENTS")
        db.commit()
    both = loop_of(read_trace(file))
    assert (both.kernels, both.calls, both.doubts) == (one.kernels, one.calls, ())


def test_without_numbers_work_counts_by_its_time_and_is_in_doubt(tmp_path: Path) -> None:
    made = vllm_loop(steps=4)
    made.calls = [(*call[:4], 0) for call in made.calls]
    made.work = [(*work[:4], 0, work[5]) for work in made.work]
    loop = loop_in(made, tmp_path)
    assert loop.kernels == {FLASH: 3, GEMM: 3} and "3 of 3 launches" in (loop.why_not("work") or "")


def test_what_is_recorded_twice_is_not_counted_twice_unsaid(tmp_path: Path) -> None:
    for twice, part in (("work", "work"), ("calls", "calls")):
        made = vllm_loop(steps=4)
        setattr(made, twice, getattr(made, twice) * 2)
        loop = loop_in(made, tmp_path)
        assert loop.why_not(part) is not None  # type: ignore[arg-type]
        assert sum(loop.kernels.values()) <= 6 and sum(loop.calls.values()) == 9


@pytest.mark.parametrize(("factor", "shift"), [(0.5, 0), (1, 10**15)])
def test_work_that_begins_before_its_launch_or_long_after_it_is_of_another_clock(
    tmp_path: Path, factor: float, shift: int
) -> None:
    made = vllm_loop(steps=40)
    made.work = [
        (kind, name, int(begin * factor) + shift, int(end * factor) + shift, number, x)
        for kind, name, begin, end, number, x in made.work
    ]
    assert "the clocks differ" in (loop_in(made, tmp_path).why_not("work") or "")


@pytest.mark.parametrize(
    ("category", "name", "known"),
    [
        ("my_app", "preprocess", True),
        ("xpu_runtime", "piEnqueueKernelLaunch", False),
        ("npu", "aclrtSynchronizeStream", False),
        ("zz", "zeCommandQueueSynchronize", False),
        ("user_annotation_v2", "execute_context_0(0)_generation_1(4)", False),
        ("app", "step[ DECODE bs=1 ]", False),
        (None, "a lane of somebody", False),
    ],
)
def test_events_of_categories_that_may_be_calls_or_work_are_named(
    tmp_path: Path, category: str | None, name: str, known: bool
) -> None:
    made = vllm_loop(steps=4)
    whole = made.chrome
    event = {"ph": "X", "name": name, "pid": 7, "tid": 1, "ts": 150.0, "dur": 1.0}
    event |= {"cat": category} if category else {}
    made.chrome = lambda: {"traceEvents": [*whole()["traceEvents"], event, event]}  # type: ignore[method-assign,misc]
    loop = loop_in(made, tmp_path)
    assert (loop.partial is None) == known
    assert known or f"categories that are not known: {category or 'no category'} (2)" in (loop.why_not("calls") or "")


# Tables of nsys


def changed(folder: Path, *statements: str) -> Loop:
    return loop_of(read_trace(nsys_file(vllm_loop(steps=4), folder / "a.sqlite", *statements)))


@pytest.mark.parametrize("suffix", ["_V2", "_V3", "_v12", "2"])
def test_tables_with_a_version_in_their_names_are_read_like_others(tmp_path: Path, suffix: str) -> None:
    kinds = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY", "NVTX_EVENTS")
    tables = (*kinds, "StringIds", "TARGET_INFO_GPU", "TARGET_INFO_SESSION_START_TIME")
    loop = changed(tmp_path, *(f"alter table {table} rename to {table}{suffix}" for table in tables))
    assert (loop.kernels, loop.steps, loop.doubts) == ({FLASH: 3, GEMM: 3}, 3, ())


@pytest.mark.parametrize(
    ("statements", "part", "reason"),
    [
        (("alter table {}KERNEL rename to {}KERNEL_NEXT",), "work", "no table {}KERNEL among {}KERNEL_NEXT"),
        (("alter table {}RUNTIME rename to RUNTIME",), "calls", "no table {}RUNTIME among "),
        (("alter table {}MEMCPY rename to {}COPIES",), "calls", "the table {}COPIES is not read"),
        (("alter table {}KERNEL drop column correlationId",), "work", "3 of 3 launches have no work"),
        (("create table {}KERNEL_V2 as select * from {}KERNEL",), "work", "the table {}KERNEL_V2 is not read"),
        (
            ("create table CUDA_UM_X (a)", "insert into CUDA_UM_X values (1)"),
            "calls",
            "the table CUDA_UM_X is not read",
        ),
        (("create table {}NEW (a int)", "insert into {}NEW values (1)"), "work", "the table {}NEW is not read"),
    ],
)
def test_tables_that_are_not_known_leave_their_figures_not_observable(
    tmp_path: Path, statements: tuple[str, ...], part: str, reason: str
) -> None:
    kind = "CUPTI_ACTIVITY_KIND_"
    loop = changed(tmp_path, *(statement.replace("{}", kind) for statement in statements))
    assert reason.replace("{}", kind) in (loop.partial or "")
    assert loop.why_not(part) is not None  # type: ignore[arg-type]


def test_a_range_that_nobody_closed_tells_its_step(tmp_path: Path) -> None:
    loop = changed(tmp_path, "update NVTX_EVENTS set end = null where rowid % 2 = 1")
    assert (loop.steps, loop.kernels, loop.doubts) == (3, {FLASH: 3, GEMM: 3}, ())


@pytest.mark.parametrize("change", ["text = x'07'", "textId = 99", "textId = null"])
def test_a_range_whose_name_cannot_be_read_may_be_a_step(tmp_path: Path, change: str) -> None:
    loop = changed(tmp_path, f"update NVTX_EVENTS set {change} where start = 200000")
    assert "NVTX_EVENTS.text" in (loop.why_not("work") or "")


def test_an_export_of_one_process_needs_no_process_at_its_kernels(tmp_path: Path) -> None:
    loop = changed(tmp_path, "alter table CUPTI_ACTIVITY_KIND_KERNEL drop column globalPid")
    assert (loop.kernels, loop.doubts) == ({FLASH: 3, GEMM: 3}, ())


# Ranges


@pytest.mark.parametrize(
    ("spelled", "told_by"),
    [
        (lambda n: "execute_4_context_0(sq0sk0sqsq0sqsk0)_generation_1(sq4sk1024sqsq16sqsk4096)", "detailed"),
        (lambda n: f"execute_12_context_0(sq0sk0)_generation_3(sq12sk{1024 * n})", "detailed"),
        (lambda n: "execute_new_0_cached_2", "a later chunk of a prefill counts"),
        (lambda n: "step[ DECODE bs=1 ]", "SGLang's"),
        (lambda n: f"step[TARGET_VERIFY bs=1 toks=4 ctx_reqs=0 gen_reqs=1 gen_sq=4 gen_sk={n}]", "SGLang's"),
        (lambda n: f"[Executor] _forward_step {n}: 0 ctx reqs, 1 gen reqs", "TensorRT-LLM's"),
        (lambda n: "_forward_step: 0 ctx reqs, 4 gen reqs", "TensorRT-LLM's"),
    ],
)
def test_steps_are_told_by_the_ranges_of_every_release(
    tmp_path: Path, spelled: Callable[[int], str], told_by: str
) -> None:
    window = loop_in(respelled(spelled), tmp_path).window
    assert window.steps == 3 and told_by in window.told_by


def respelled(spelled: Callable[[int], str]) -> Timeline:
    made = vllm_loop(steps=4)
    steps = [(begin, end, thread) for name, begin, end, thread in made.ranges if "_generation_1" in name]
    made.ranges = [(spelled(number), *step) for number, step in enumerate(steps)]
    return made


def test_ranges_that_tell_nothing_are_named_with_how_often_they_occur(tmp_path: Path) -> None:
    loop = loop_in(respelled(lambda n: "decode" if n else "prefill"), tmp_path)
    assert loop.steps is None and any("its ranges are decode (3), prefill (1)" in note for note in loop.notes)


def test_ranges_over_the_time_of_a_gpu_alone_tell_no_steps(tmp_path: Path) -> None:
    made = vllm_loop(steps=4)
    whole = made.chrome
    made.chrome = lambda: {  # type: ignore[method-assign]
        "traceEvents": [event for event in whole()["traceEvents"] if event.get("cat") != "user_annotation"]  # type: ignore[attr-defined]
    }
    loop = loop_in(made, tmp_path)
    assert loop.steps is None
    assert any("over the time of a GPU alone: execute_context_0(0)_generation_1(4) (4)" in note for note in loop.notes)


def test_steps_on_other_threads_or_in_processes_without_calls_are_not_the_loops(tmp_path: Path) -> None:
    made = vllm_loop(steps=4)
    name, begin, end, thread = made.ranges[2]
    made.range(name, begin + 45 * US, end + 45 * US, thread + 1)
    assert "steps are told on several threads of the process 7" in (loop_in(made, tmp_path).partial or "")
    whole = vllm_loop(steps=4).chrome()
    events: list[dict[str, object]] = whole["traceEvents"]  # type: ignore[assignment]
    lane = [{**event, "pid": "lane"} for event in events if event.get("cat") == "user_annotation"]
    made.chrome = lambda: {**whole, "traceEvents": [*events, *lane]}  # type: ignore[method-assign]
    assert "steps are told in processes that have no calls: lane" in (loop_in(made, tmp_path).partial or "")


def test_steps_that_overlap_on_one_thread_are_of_merged_traces(tmp_path: Path) -> None:
    made = vllm_loop(steps=4)
    made.ranges += [(name, begin + 10 * US, end + 10 * US, thread) for name, begin, end, thread in made.ranges]
    assert "steps begin before the step before them has ended" in (loop_in(made, tmp_path).partial or "")
