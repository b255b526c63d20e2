"""Servers that profile themselves: through the harness's protocol, with the real engines' endpoints and flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specgate.backends.servers.evidence import tracing
from specgate.backends.servers.evidence.tracing import PROFILERS, attention_findings, new_trace, traces_in, values_of
from specgate.backends.servers.options import Options
from specgate.contract import BASELINE, Budget, Role
from specgate.contract.protocols import Activity, ScriptedTrace
from specgate.errors import BackendError, UsageError
from tests.backends.servers.helpers import attached, running_stub, started
from tests.backends.servers.stub.engine import token
from tests.support.traces import FLASH, GEMM, IDS_TO_HOST, vllm_loop

PROMPTS = [[1, 2, 3], [4, 5, 6, 7]]
STEPS = Budget(steps=16)


def traced(engine: Any, role: Role) -> Activity:
    engine.prefill(PROMPTS, draft=True)
    assert isinstance(engine, ScriptedTrace)
    block, seen = engine.trace(role, STEPS)
    assert block.tokens == tuple(tuple(token(p, i) for i in range(17)) for p in PROMPTS)
    return seen


@pytest.mark.slow("starts two servers")
@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_a_server_profiles_a_block_of_every_role_and_the_file_is_read(
    name: str, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with started(tmp_path, pair, name, profile="on") as engine:
        baseline, spec, again = (traced(engine, role) for role in (BASELINE, Role(3), Role(3)))
    # 16 tokens after the first: 16 passes of the baseline; cycles of 4, 2, 3, 1, 4 and 3 with the draft.
    assert (baseline.steps, spec.steps) == (15, 5)
    for seen in (baseline, spec, again):
        assert seen.unseen is None and seen.server_profiler
        assert seen.copies == {IDS_TO_HOST: seen.steps} and "prefill_kernel" not in seen.kernels
        assert seen.kernels[FLASH] == seen.steps and seen.loop is not None and seen.loop.busy_share > 0.5
        assert f"{name}" in seen.notes[0].lower() and "own torch profiler" in seen.notes[0]
    assert again.notes[0] != spec.notes[0] and again.kernels == spec.kernels


@pytest.mark.slow("starts a server")
def test_without_the_option_nothing_is_asked_of_the_server(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with started(tmp_path, pair, "vllm", "--fault no_stop") as engine:
        seen = traced(engine, BASELINE)
    assert "-o profile=on" in (seen.unseen or "") and not seen.server_profiler and not list(tmp_path.glob("profile-*"))


@pytest.mark.slow("starts servers")
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no_stop", "refuses /stop_profile: HTTP 500: the profiler has failed"),
        ("no_trace", "no trace came within"),
        ("bad_trace", "Unknown compression method"),
    ],
)
def test_a_profile_that_fails_costs_no_block_and_is_said(
    fault: str, message: str, pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "APPEARING_S", 0.3)
    with started(tmp_path, pair, "vllm", f"--fault {fault}", profile="on") as engine:
        seen = traced(engine, BASELINE)
        assert message in (seen.unseen or "") and not seen.kernels
        assert traced(engine, BASELINE).unseen is not None


@pytest.mark.slow("starts a server")
def test_a_server_that_was_started_without_its_profiler_says_how_to_start_it(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    with running_stub("vllm", 0) as url:
        with attached(tmp_path, pair, "vllm", {"url.baseline": url, "profile": "on"}) as engine:
            assert "profile_dir=FOLDER says what its torch_profiler_dir is" in (traced(engine, BASELINE).unseen or "")
        named = {"url.baseline": url, "profile": "on", "profile_dir": str(tmp_path)}
        with attached(tmp_path, pair, "vllm", named) as engine:
            unseen = traced(engine, BASELINE).unseen or ""
    assert "/start_profile: HTTP 404" in unseen and "--profiler-config" in unseen


@pytest.mark.slow("starts servers")
def test_a_server_that_was_attached_to_is_profiled_where_its_folder_can_be_read(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    (folder := tmp_path / "traces").mkdir()
    config = json.dumps({"profiler": "torch", "torch_profiler_dir": str(folder)})
    with running_stub("vllm", 0, "--profiler-config", config) as url:
        options = {"url.baseline": url, "profile": "on", "profile_dir.baseline": str(folder)}
        with attached(tmp_path, pair, "vllm", options) as engine:
            assert traced(engine, BASELINE).kernels == {FLASH: 15, GEMM: 15}
    with running_stub("sglang", 0) as url, attached(tmp_path, pair, "sglang", {"url": url, "profile": "on"}) as engine:
        assert traced(engine, BASELINE).steps == 15


@pytest.mark.slow("starts servers")
def test_what_the_flags_promise_is_held_against_the_kernels_and_the_log_is_read(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    (kernels := tmp_path / "kernels.txt").write_text("nvjet_*\n")
    flags = "--fault attention=kernel_unified_attention_2d --fault 'log=Using default MoE config. sub-optimal'"
    options = {"profile": "on", "args": "--attention-backend FLASH_ATTN", "kernels": str(kernels)}
    with started(tmp_path, pair, "vllm", flags, **options) as engine:
        seen = traced(engine, BASELINE)
    by_invariant = {finding.invariant: finding for finding in seen.findings}
    assert by_invariant["I1"].breaks and by_invariant["I1"].where == "--attention-backend FLASH_ATTN"
    assert "kernel_unified_attention_2d, 15 launches" in by_invariant["I1"].text
    assert not by_invariant["I2"].breaks and by_invariant["I2"].where.startswith("vllm-baseline.log:")
    assert seen.allowed == ("nvjet_*",)


@pytest.mark.slow("starts a server")
def test_a_log_that_is_named_is_read_for_an_engine_without_a_profiler(pair: tuple[Path, Path], tmp_path: Path) -> None:
    (log := tmp_path / "turbomind.log").write_text("INFO\n[TM][FATAL] No feasible kernel found for the problem: x\n")
    with started(tmp_path, pair, "lmdeploy", log=str(log)) as engine:
        seen = traced(engine, BASELINE)
    assert [f.where for f in seen.findings] == ["turbomind.log:2"]
    assert "lmdeploy has no profiler of its own" in (seen.unseen or "")


# Parts


def test_vllm_is_started_with_its_profiler_and_without_stacks(tmp_path: Path) -> None:
    flag, config = PROFILERS["vllm"].flags(tmp_path)
    assert flag == "--profiler-config"
    assert (
        json.loads(config)["torch_profiler_dir"] == str(tmp_path)
        and not json.loads(config)["torch_profiler_with_stack"]
    )
    assert PROFILERS["sglang"].flags(tmp_path) == ()


def test_of_several_ranks_the_first_ones_trace_is_taken_and_the_front_ends_is_not(tmp_path: Path) -> None:
    vllm_loop(2).write_chrome(tmp_path / "rank0.old.pt.trace.json.gz")
    before = traces_in(tmp_path)
    for name in ("rank1", "rank0", "host_12.async_llm"):
        vllm_loop(2).write_chrome(tmp_path / f"{name}.new.pt.trace.json.gz")
    assert new_trace(tmp_path, before) == (tmp_path / "rank0.new.pt.trace.json.gz", 2)


def test_a_trace_that_does_not_come_is_an_error_that_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "APPEARING_S", 0.0)
    with pytest.raises(BackendError, match=f"{tmp_path}: no trace came"):
        new_trace(tmp_path, {})


def test_values_of_flags_are_found_in_both_forms() -> None:
    flags = ["--x", "1", "--attention-backend=fa3", "--decode-attention-backend", "triton", "--attention-backend"]
    names = ("--attention-backend", "--decode-attention-backend")
    assert list(values_of(flags, names)) == [("--attention-backend", "fa3"), ("--decode-attention-backend", "triton")]


def test_a_back_end_of_attention_is_not_judged_by_a_trace_that_shows_no_loop() -> None:
    seen = Activity(kernels={"kernel_unified_attention_2d": 3}, unseen="no ranges")
    assert list(attention_findings(["--attention-backend", "fa3"], "FLASH_ATTN 3", seen)) == []


def test_what_an_engine_says_of_its_attention_is_held_against_its_kernels_too() -> None:
    seen = Activity(kernels={"kernel_unified_attention_2d": 3})
    (finding,) = attention_findings([], "FLASH_ATTN 3", seen)
    assert finding.breaks and finding.where == "the engine says that its attention is FLASH_ATTN 3"
    assert list(attention_findings([], "TRITON_ATTN", seen)) == list(attention_findings([], None, seen)) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"profile": "yes"}, "option profile = 'yes'"),
        ({"profile_dir": "/nowhere/at/all"}, "option profile_dir = /nowhere/at/all: no such folder"),
        ({"log.spec-3": "/nowhere.log"}, "option log.spec-3 = /nowhere.log: no such file"),
        ({"kernels": "/nowhere.txt"}, "/nowhere.txt: No such file"),
    ],
)
def test_options_that_name_what_is_not_there_are_refused_before_anything_starts(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Options.parse(options, ())
