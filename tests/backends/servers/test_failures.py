"""Known lines of a log are explained; a log without any is quoted."""

from __future__ import annotations

from pathlib import Path

import pytest

from specgate.backends.servers.engines import adapter_named
from specgate.backends.servers.failures import COMMON, causes_in, diagnosis


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("vllm", "ValueError: Eagle3 is only supported for ['llama'] models. Got mixtral", "method mismatch"),
        ("vllm", "ValueError: Free memory on device cuda:0 is less than desired", "gpu-memory-utilization"),
        (
            "vllm",
            "(VllmWorker-0 pid=1) ERROR 11-21 [x.py:9] ValueError: Available memory on node 0 (9.53/12.09 GiB) on "
            "is less than desired CPU memory utilization (0.92, 11.12 GiB).",
            "VLLM_CPU_KVCACHE_SPACE",
        ),
        ("vllm", "vllm serve: error: unrecognized arguments: --x", "a flag that this version"),
        ("sglang", "WARNING: Parameter midlayer.fc.weight not found in params_dict", "draft not loaded"),
        ("sglang", "AttributeError: 'M' object has no attribute 'set_eagle3_layers_to_capture'", "method mismatch"),
        ("trtllm", "pydantic: Extra inputs are not permitted", "a key of the --config"),
        ("lmdeploy", "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x1728 and 576x576)", "width error"),
        ("lmdeploy", "WARNING - speculative decoding is not supported by turbomind ", "speculation is off"),
        ("lmdeploy", "[TM][ERROR] [EAGLE][EagleModule::load] Failed to open fc.weight", "draft not loaded"),
        (
            "lmdeploy",
            "[TM][WARNING] [LlamaV2][EAGLE] Draft model load failed; disabling EAGLE and",
            "speculation is off",
        ),
        (
            "lmdeploy",
            "RuntimeError: Speculative decoding on CUDA requires FlashAttention-3 (FA3), which is missing",
            "drafting needs FlashAttention-3",
        ),
        (
            "lmdeploy",
            "lmdeploy - WARNING - archs.py:40 - Fallback to pytorch engine because turbomind is not built.",
            "LMDeploy's PyTorch engine has taken its place",
        ),
        ("lmdeploy", "[TM][ERROR] CUDA runtime error: an illegal memory access was encountered x.cc:9", "its buffers"),
        ("lmdeploy", "[TM][ERROR] CUDA runtime error: invalid argument x.cc:34", "longer than its buffer"),
        ("vllm", "RuntimeError: CUDA error: invalid argument", "longer than its buffer"),
        ("lmdeploy", "[BlockTrie][cache] size()=9 exceeds it; clamping cached prefix to", "prefix cache: a text"),
        ("lmdeploy", "WARNING - Harmony parsing failed for session 3, raw text is used", "a parser of harmony"),
        ("llamacpp", "error: invalid argument: --x", "a flag that this version"),
        ("llamacpp", "error loading model: unknown model architecture: 'eagle3'", "too old a version"),
        ("llamacpp", "srv: couldn't bind HTTP server socket, port: 8080", "the port is in use"),
        ("llamacpp", "ggml_backend: failed to allocate buffer", "memory ran out"),
    ],
)
def test_a_known_line_is_explained_and_shown(name: str, line: str, message: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"starting\n{line}\nbye\n")
    text = diagnosis(log, 0, (*adapter_named(name).failures, *COMMON))
    assert message in text and line[:60] in text and str(log) in text


def test_lines_of_one_cause_are_counted() -> None:
    line = "ERROR [serving.py:932] openai_harmony.HarmonyError: Unexpected token {} while expecting start token 200006"
    quiet = "INFO non-default args: {'reasoning_parser': 'openai_gptoss', 'ignore_errors': True}"
    (cause,) = causes_in([line.format(200002), quiet, line.format(12606)], adapter_named("vllm").failures)
    assert cause.cause.startswith("a parser of harmony") and cause.count == 2 and "200002" in cause.line


def test_an_argument_that_cuda_refuses_is_no_flag_of_the_server(tmp_path: Path) -> None:
    (log := tmp_path / "log").write_text("RuntimeError: CUDA error: invalid argument\n")
    assert "a flag that" not in diagnosis(log, 0, COMMON)


def test_a_traceback_through_an_attention_kernel_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('  File "lmdeploy/pytorch/backends/cuda/attention/fa3.py", line 80, in forward\nRuntimeError: odd\n')
    assert "FlashAttention" not in diagnosis(log, 0, (*adapter_named("lmdeploy").failures, *COMMON)).partition("odd")[0]


def test_a_module_that_an_engine_warns_of_is_not_what_ended_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "lmdeploy - WARNING - parsers.py:12 - gpt-oss is off: No module named 'openai_harmony'\n"
        "RuntimeError: Can not found rewrite for architectures: ['LlamaForCausalLMEagle3']\n"
    )
    text = diagnosis(log, 0, (*adapter_named("lmdeploy").failures, *COMMON))
    assert "lacks a module" not in text and "architecture as LlamaForCausalLM" in text


def test_of_several_processes_tracebacks_the_first_ones_end_is_shown(tmp_path: Path) -> None:
    """As vLLM prints them: worker, engine core, server; and before them a warning that mentions an error."""
    log = tmp_path / "log"
    log.write_text(
        "(APIServer pid=1) WARNING 11-21 [s.py:255] Errors like `OSError: [Errno 24] Too many open files`.\n"
        "(VllmWorker-0 pid=3) ERROR 11-21 [m.py:953] Traceback (most recent call last):\n"
        "(VllmWorker-0 pid=3) ERROR 11-21 [m.py:953]     raise ValueError(\n"
        "(VllmWorker-0 pid=3) ERROR 11-21 [m.py:953] ValueError: the root of it\n"
        "(EngineCore pid=2) ERROR 11-21 [c.py:15] Exception: WorkerProc initialization failed\n"
        "Traceback (most recent call last):\n"
        "    raise RuntimeError(\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    text = diagnosis(log, 0, (*adapter_named("vllm").failures, *COMMON))
    assert "    ValueError: the root of it\n" in text and text.endswith("See root cause above.")


def test_lines_of_an_earlier_run_explain_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("CUDA out of memory\n")
    start = log.stat().st_size
    assert diagnosis(log, start, COMMON) == f"it has printed nothing: {log}"
    log.write_text("CUDA out of memory\nsomething else\n")
    text = diagnosis(log, start, COMMON)
    assert "something else" in text and "memory ran out" not in text


def test_a_harmless_line_of_llama_cpp_is_no_failure(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("eagle3 requires ctx_other to be set\n")
    assert diagnosis(log, 0, (*adapter_named("llamacpp").failures, *COMMON)).startswith("last lines of")
