"""`specgate diagnose trace`, and a run whose server profiles itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specgate.analysis.perf_invariants.loop import quiet_loop
from specgate.analysis.traces.steps import loop_of
from specgate.analysis.traces.trace_file import read_trace
from specgate.commands.diagnose.trace import block_of
from specgate.contract import BlockTrace
from specgate.contract.protocols import Activity
from specgate.files.run_folder import RunFolder
from specgate.run.runner import source_of
from tests.backends.servers.helpers import program
from tests.support.command import Cli
from tests.support.traces import FLASH, GEMM, US, Timeline, turbomind_loop, vllm_loop


def test_a_trace_is_shown_per_step_and_ends_with_1_where_an_invariant_is_broken(cli: Cli) -> None:
    vllm_loop(steps=9).write_chrome(cli.folder / "trace.json.gz")
    done = cli.run("diagnose", "trace", "trace.json.gz", pair=False, code=1)
    lines = done.stdout.splitlines()
    assert lines[0] == "trace trace.json.gz: torch profiler, NVIDIA H200"
    assert "  8 decode steps, told by vLLM's ranges" in lines
    assert f"  {'kernels':24}{'2.00':>16}{'16':>16}" in lines and f"  {'waits':24}{'1.00':>16}{'8':>16}" in lines
    assert any(line.startswith("GPU busy for 83.2% of 0.788 ms, 0.099 ms per step") for line in lines)
    assert "  64 bytes to the host, 8 per step" in lines and "attention: FlashAttention" in lines
    assert lines[-2].startswith("I1 not observable") and lines[-1].startswith("I6 broken: per step 1.00 copies")


def test_a_quiet_loop_of_allowed_kernels_ends_with_0_and_others_are_named(cli: Cli) -> None:
    made = vllm_loop(steps=4)
    made.calls = [call for call in made.calls if call[0] == "cudaGraphLaunch" or call[1] < 100_000]
    made.work = [work for work in made.work if work[0] == "kernel"]
    made.write_nsys(cli.folder / "report.sqlite")
    cli.write("kernels.txt", "*flash::*\nnvjet_*\n")
    done = cli.run("diagnose", "trace", "report.sqlite", "--kernels", "kernels.txt", "--json", pair=False)
    data = json.loads(done.stdout)
    assert done.returncode == 0 and data["profiler"] == "nsys" and data["steps"] == 3
    assert data["kernels"] == {FLASH: {"launches": 3, "gpu_ns": 180_000}, GEMM: {"launches": 3, "gpu_ns": 60_000}}
    assert {i["id"]: i["held"] for i in data["invariants"]} == {"I1": "held", "I6": "held"}
    cli.write("kernels.txt", "nvjet_*\n")
    done = cli.run("diagnose", "trace", "report.sqlite", "--kernels", "kernels.txt", pair=False)
    assert done.returncode == 1 and "1 kernels in the loop are not on the list" in done.stdout


def test_a_trace_that_tells_no_steps_shows_no_loop_until_they_are_stated(cli: Cli) -> None:
    made = vllm_loop(steps=4)
    made.ranges = []
    made.write_chrome(cli.folder / "trace.json")
    done = cli.run("diagnose", "trace", "trace.json", pair=False)
    assert done.returncode == 0 and "nothing tells the decode steps from the prefill" in done.stdout
    done = cli.run("diagnose", "trace", "trace.json", "--steps", "4", pair=False)
    assert done.returncode == 1 and "4 decode steps, told by what was stated" in done.stdout


def test_phases_that_ranges_tell_are_shown_per_step(cli: Cli) -> None:
    turbomind_loop(steps=5).write_chrome(cli.folder / "trace.json")
    lines = cli.run("diagnose", "trace", "trace.json", pair=False).stdout.splitlines()
    at = lines.index("phases, ms per step       host       GPU")
    assert lines[at + 1].split() == ["draft", "0.040", "0.027", "8", "ranges"]
    data = json.loads(cli.run("diagnose", "trace", "trace.json", "--json", pair=False).stdout)
    assert data["phases"]["commit"] == {"host_ns": 4 * 5 * US, "gpu_ns": 4 * 2 * US, "ranges": 4}
    stated = cli.run("diagnose", "trace", "trace.json", "--steps", "4", pair=False)
    assert stated.returncode == 2 and "begin 5 decode steps\n  leave --steps out" in stated.stderr


def hip(name: str) -> str:
    return name.replace("cuda", "hip")


@pytest.mark.parametrize(
    ("extra", "copy", "verdict"),
    [
        (None, None, "I6 held: no copy to the host"),
        ("hipMalloc", None, "I6 broken: per step 0.00 copies to the host (0 bytes), 0.00 waits and 1.00 allocations"),
        ("hipFreeAsync", None, "0.00 waits and 1.00 allocations"),
        ("hipStreamSynchronize", None, "1.00 waits (0.00 on other threads than the loop's) and 0.00 allocations"),
        ("hipMemcpyWithStream", "CopyDeviceToHost", "per step 1.00 copies to the host (16 bytes), 1.00 waits"),
        (
            "hipModuleLoad",
            None,
            "I6 not observable: it is not known whether these calls wait or allocate: hipModuleLoad",
        ),
        ("aclrtMalloc", None, "I6 not observable: it is not known whether these calls wait or allocate: aclrtMalloc"),
    ],
)
@pytest.mark.parametrize("of", [str, hip])
def test_calls_of_hip_are_judged_as_those_of_cuda(
    tmp_path: Path, of: Callable[[str], str], extra: str | None, copy: str | None, verdict: str
) -> None:
    if of is str and extra in ("hipMemcpyWithStream", "aclrtMalloc"):
        return
    made = Timeline()
    for at in range(0, 5 * 100 * US, 100 * US):
        made.range("execute_context_0(0)_generation_1(4)", at, at + 50 * US)
        made.kernel("k", at + 5 * US, 80 * US, made.call(of("cudaGraphLaunch"), at + US))
        number = made.call(of(extra.replace("hip", "cuda")), at + 40 * US) if extra else 0
        if copy:
            made.copy(copy, at + 90 * US, US, number, 16)
    recording = read_trace(made.write_chrome(tmp_path / "trace.json"))
    invariant = quiet_loop(block_of(recording, loop_of(recording), None))
    assert verdict.replace("hip", of("cuda")) in f"{invariant.id} {invariant.held}: {invariant.message}"


def test_figures_that_cannot_be_told_are_not_observable_with_what_was_seen(cli: Cli) -> None:
    made = vllm_loop(steps=4)
    made.work = [work for work in made.work if work[0] == "copy"]
    made.write_chrome(cli.folder / "trace.json")
    done = cli.run("diagnose", "trace", "trace.json", pair=False)
    assert f"  {'kernels':24}{'not observable':>16}{'≥ 0':>16}" in done.stdout.splitlines()
    assert "  not observable: 3 of 3 launches have no work on a GPU (cudaGraphLaunch)" in done.stdout.splitlines()
    assert "GPU busy: not observable" in done.stdout
    assert done.returncode == 1 and "I6 broken: at least 3 copies to the host, 3 waits" in done.stdout
    data = json.loads(cli.run("diagnose", "trace", "trace.json", "--json", pair=False).stdout)
    assert (data["counts"]["kernels"], data["at_least"]["kernels"], data["loop"]) == (None, 0, None)
    assert (data["counts"]["waits"], data["at_least"]["waits"]) == (3, 3)


def test_shapes_that_turbomind_wrote_are_shown_and_odd_ones_refused(cli: Cli) -> None:
    shape = {"tag": "EAGLE3_FC", "M": 3, "K": 8640, "N": 2880, "dtype": 14, "layout": "row", "count": 512}
    cli.write("shapes.json", json.dumps([{**shape, "count": 7, "tag": "EAGLE3_LM_HEAD"}, shape]))
    done = cli.run("diagnose", "trace", "shapes.json", pair=False)
    assert done.returncode == 0 and "2 shapes of matrix products, 519 products" in done.stdout
    assert done.stdout.splitlines()[2].split() == ["512", "3", "×", "8640", "×", "2880", "EAGLE3_FC"]
    cli.write("shapes.json", json.dumps([{**shape, "M": "three"}]))
    done = cli.run("diagnose", "trace", "shapes.json", pair=False)
    assert done.returncode == 2 and "shapes.json: [0].M: 'three': an integer of at least 0 is needed" in done.stderr


def test_what_is_no_trace_ends_with_2_and_without_a_traceback(cli: Cli) -> None:
    cli.write("trace.json", "{}")
    for arguments, text in (
        (["trace.json"], "no list traceEvents"),
        (["none.json"], "No such file"),
        (["tiny.yaml"], "it begins with"),
    ):
        done = cli.run("diagnose", "trace", *arguments, pair=False)
        assert done.returncode == 2 and text in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow("starts servers")
def test_a_run_on_a_server_that_profiles_itself_is_certified(cli: Cli) -> None:
    rule = "  - {id: perf-mode, gate: invariants, required: true, accept_unseen: I1 I2 I3 I4 I5, accept_broken: I6}\n"
    policy = (cli.folder / "policy.yaml").read_text() + rule
    cli.write("policy.yaml", policy)
    (kept := cli.folder / "kept").mkdir()
    server = program(cli.folder, "vllm", "--rate 500")
    options = ("-o", f"program={server}", "-o", "profile=on", "-o", f"profile_dir={kept}")
    done = cli.micro("--backend", "vllm", "--perf-mode", *options, code=0)
    folder = RunFolder.open(cli.newest())
    run, traces = folder.read_run(), folder.keyed(BlockTrace)
    assert {trace.source for trace in traces.values()} == {"server-profiler"}
    spec = next(key for key in traces if key.endswith("spec-3"))
    quiet = next(i for i in run.certificates[spec] if i.id == "I6")
    assert quiet.message.startswith("per step 1.00 copies to the host (16 bytes)")
    first = next(v.message for v in run.verdicts if v.gate == "invariants" and v.cell == spec)
    assert "I6 is broken, which the policy accepts: per step" in first
    sentence = "The policy accepts that I6 is broken in 3 cells: per step 1.00 copies to the host (16 bytes)"
    assert sentence in " ".join(done.stdout.split()) and sentence in (folder.path / "report.html").read_text()
    assert cli.run("runs", "verify", cli.newest(), pair=False).returncode == 0
    assert sorted(kept.glob("*.json.gz"))


def test_only_a_back_end_that_comes_with_specgate_is_believed_to_have_read_a_servers_profile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = Activity(kernels={"k": 1}, server_profiler=True)
    assert source_of(seen, "vllm", scripted=True) == "server-profiler"
    assert source_of(replace(seen, server_profiler=False), "vllm", scripted=True) == "engine"
    assert source_of(seen, "vllm", scripted=False) == "profiler"
    monkeypatch.setattr("specgate.plugins.from_outside", lambda group, names: list(names))
    assert source_of(seen, "somebodys", scripted=True) == "engine"
