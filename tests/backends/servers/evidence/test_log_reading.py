"""Lines of engines' logs, as evidence with file and line number."""

from __future__ import annotations

from pathlib import Path

import pytest

from specgate.backends.servers.evidence import log_lines
from specgate.backends.servers.evidence.log_lines import LOG_LINES, findings_in
from specgate.contract import Finding

TURBOMIND = [
    ("[TM][FATAL][gemm.cu:341] No feasible kernel found for the problem: sm120_bf16_bf16_bf16_ttt_fff_3x34560x2880_1",
     "I1", "fallback_kernel"),
    ("[TM][ERROR] [EAGLE3][GEMM][fallback] Gemm::Run failed with error=1 for shape M=3 K=2880 N=34560; falling back to "
     "naive row-major kernel.", "I1", "fallback_kernel"),
    ("Failed to find a feasible kernel in the cache, will dispatch by heuristic: sm120_bf16_3x2880x2880_1",
     "I2", "untuned_kernel"),
    ("[TM][WARNING] [LlamaBatch][EAGLE][fallback] step=12 seq=0: KV mismatch; disabling multi-token for this slot",
     "I3", "left_multi_token_mode"),
    ("[TM][WARNING] [LlamaV2][EAGLE][fallback] target-tree decode unavailable; reverting to single-step target logits.",
     "I3", "left_multi_token_mode"),
    ("[TM][INFO] [LlamaBatch][EAGLE][multitoken_summary] disabled_finished=3 disabled_other=1",
     "I3", "left_multi_token_mode"),
    ("[TM][ERROR] [LlamaV2][EAGLE][invariants] CUDA error 700 (an illegal memory access) at pack_paths",
     "I4", "kv_integrity"),
    ("[TM][ERROR] CUDA runtime error: an illegal memory access was encountered gemm.cu:52", "I4", "kv_integrity"),
    ("[TM][ERROR] [EAGLE][EagleModule::load] Draft model load failed; disabling EAGLE for this engine",
     "I3", "left_multi_token_mode"),
]  # fmt: skip


def findings(folder: Path, engine: str, *lines: str, speculative: bool = True) -> tuple[Finding, ...]:
    (log := folder / "server.log").write_text("\n".join(lines) + "\n")
    return findings_in(log, LOG_LINES[engine], speculative=speculative)


@pytest.mark.parametrize(("line", "invariant", "code"), TURBOMIND)
def test_a_fatal_line_of_turbomind_breaks_its_invariant_with_file_and_line(
    tmp_path: Path, line: str, invariant: str, code: str
) -> None:
    (finding,) = findings(tmp_path, "lmdeploy", "INFO: started", line, "INFO: a request", line)
    assert (finding.invariant, finding.reason_code, finding.breaks) == (invariant, code, True)
    assert (finding.where, finding.count) == ("server.log:2", 2)
    assert finding.text == line[: len(finding.text)] and len(finding.text) >= min(len(line), 100)


@pytest.mark.parametrize(
    ("engine", "line", "invariant"),
    [
        ("lmdeploy", "[EAGLE3][GEMM_TUNED] loaded entries=42 device=sm120", "I2"),
        ("lmdeploy", "[TM][INFO] [LlamaV2][EAGLE] method=eagle3, spec_max_decoding_draft_tokens=3, "
         "max_forward_token_num=8192, eagle_max_engine_tokens_per_step=3", "I3"),
        ("lmdeploy", "[TM][WARNING] [LlamaBatch][EAGLE][fallback] step=9 seq=0: finished slot but EAGLE reported "
         "accepted_len > 1; disabling multi-token for this slot", "I3"),
        ("lmdeploy", "[TM][INFO] [LlamaBatch][EAGLE][multitoken_summary] disabled_finished=3 disabled_other=0", "I3"),
        ("lmdeploy", "[EAGLE][Metrics] steps=9 num_draft_tokens=27 num_accepted_tokens=14", "I3"),
        ("lmdeploy", "[TM][WARNING] [BlockTrie][cache] tokens.size()=70 exceeds block capacity=64; clamping cached "
         "prefix to available blocks", "I4"),
        ("vllm", "WARNING [fused_moe.py:1107] Using default MoE config. Performance might be sub-optimal! Config file "
         "not found at /x.json", "I2"),
        ("sglang", "Using default MoE kernel config. Performance might be sub-optimal! Config file not found", "I2"),
        ("sglang", "Cuda graph is disabled because of using torch native attention backend", "I1"),
    ],
)  # fmt: skip
def test_what_an_engine_says_for_itself_is_evidence_that_breaks_nothing(
    tmp_path: Path, engine: str, line: str, invariant: str
) -> None:
    (finding,) = findings(tmp_path, engine, line)
    assert (finding.invariant, finding.breaks, finding.where) == (invariant, False, "server.log:1")


@pytest.mark.parametrize(
    ("lines", "invariant", "text"),
    [
        (("[EAGLE3][FMHA_TILE_STATS] total=96 span_empty=12 mask_empty=4 executed=80",), "I4",
         "tiles 96, outside_spans 12, masked 4, computed 80"),
        (("[EAGLE][KVRewind] block_size=64 batch_size=4 max_batch_size=4 non_zero_slots=2 total_rewound_tokens=900",
          "[EAGLE][KVRewind] block_size=64 batch_size=4 max_batch_size=4 non_zero_slots=1 total_rewound_tokens=200"),
         "I4", "slots 3, rewound_tokens 1,100"),
        (("[LlamaBatch][EAGLE_METRICS] step=5, batch=4, active_slots=4, draft_tokens=12, accepted_tokens=8, x=2.0",
          "[LlamaBatch][EAGLE_METRICS] step=6, batch=4, active_slots=3, draft_tokens=9, accepted_tokens=3, x=1.0"),
         "I3", "mean_active_slots 3.50, draft_tokens 21, accepted_tokens 11"),
        (("[LlamaBatch][EAGLE_METRICS] step=5 batch=4 draft_tokens=12 accepted_tokens=8",), "I3",
         "draft_tokens 12, accepted_tokens 8"),
    ],
)  # fmt: skip
def test_the_numbers_of_lines_of_one_kind_are_added_up(
    tmp_path: Path, lines: tuple[str, ...], invariant: str, text: str
) -> None:
    (finding,) = findings(tmp_path, "lmdeploy", "INFO", *lines)
    assert (finding.invariant, finding.breaks, finding.text, finding.count) == (invariant, False, text, len(lines))
    assert findings(tmp_path, "lmdeploy", *lines, speculative=False) == ()


def test_unknown_lines_and_the_drafts_lines_of_a_baseline_say_nothing(tmp_path: Path) -> None:
    lines = [line for line, invariant, _ in TURBOMIND if invariant == "I3"]
    assert findings(tmp_path, "lmdeploy", *lines, speculative=False) == ()
    assert findings(tmp_path, "lmdeploy", "INFO: engine ready", "eagle", "GEMM", "") == ()
    assert findings_in(tmp_path / "none.log", LOG_LINES["lmdeploy"], speculative=True) == ()


def test_lines_of_an_earlier_server_count_for_the_number_and_not_as_evidence(tmp_path: Path) -> None:
    line = TURBOMIND[0][0]
    (log := tmp_path / "server.log").write_text(f"{line}\nINFO\n")
    start = log.stat().st_size
    assert findings_in(log, LOG_LINES["lmdeploy"], speculative=True, start=start) == ()
    log.write_text(f"{log.read_text()}ready\n{line}\n")
    (finding,) = findings_in(log, LOG_LINES["lmdeploy"], speculative=True, start=start)
    assert (finding.where, finding.count) == ("server.log:4", 1)


def test_of_a_long_log_the_end_is_searched_and_long_lines_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "READ_AT_MOST", 400)
    monkeypatch.setattr(log_lines, "LONGEST_SEARCHED", 120)
    line = TURBOMIND[2][0]
    (log := tmp_path / "server.log").write_text("\n".join([line, *["x" * 50] * 20, "y" * 200, line]) + "\n")
    (finding,) = findings_in(log, LOG_LINES["lmdeploy"], speculative=True)
    assert (finding.where, finding.count) == ("server.log:23", 1)


def test_a_credential_in_a_line_is_masked(tmp_path: Path) -> None:
    key = "hf_" + "aB3dE6gH9k" * 3
    (finding,) = findings(tmp_path, "lmdeploy", f"No feasible kernel found {key}")
    assert key not in finding.text and "No feasible kernel found" in finding.text
