"""Findings about PERF_MODE invariants in an engine's log and other files. Lines that are not known say nothing.

The formats were read from these sources:

    TurboMind   `[TM][FATAL][gemm.cu:341] No feasible kernel found …` (lmdeploy, `kernels/gemm/gemm.cu`); tagged lines
                of its EAGLE branch: `[LlamaV2][EAGLE]…`, `[LlamaBatch][EAGLE][fallback] …`,
                `[EAGLE][EagleModule::load] …`, `[EAGLE3][GEMM]…`
    vLLM        0.25.1: `fused_moe.py`, `topk_topp_sampler.py`, `chunked_prefill_paged_decode.py`, `config/model.py`
    SGLang      0.5.17: `fused_moe_triton_config.py`, `server_args.py`
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from specgate.analysis.traces.families import has_shapes, read_shapes
from specgate.backends.servers.failures import LONGEST_LINE
from specgate.contract import Finding, Role
from specgate.contract.protocols import cleaned
from specgate.contract.traces import StatedInvariant
from specgate.errors import UsageError


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that matches `pattern` (regular expression, ignoring case) says `meaning` about `invariant`.

    `breaks`: it breaks the invariant, for this reason code. Otherwise it is evidence that holds nothing.
    `speculative`: only said of a role that drafts.
    """

    pattern: str
    invariant: StatedInvariant
    reason_code: str
    meaning: str
    breaks: bool = True
    speculative: bool = False


TURBOMIND: Final = (
    LogLine(r"No feasible kernel found", "I1", "fallback_kernel", "no fused kernel for a product"),
    LogLine(r"\[GEMM\]\[fallback\]|falling back to naive", "I1", "fallback_kernel", "a product on a naive kernel"),
    LogLine(r"cuBLAS fallback", "I1", "fallback_kernel", "a product on cuBLAS, which failed as well"),
    LogLine(
        r"Failed to find a feasible kernel in the cache|No valid kernel found",
        "I2",
        "untuned_kernel",
        "a product without a tuned configuration",
    ),
    LogLine(r"\[GEMM_TUNED\] loaded", "I2", "tuned_cache", "the tuned configurations that were loaded", breaks=False),
    LogLine(
        r"disabling multi-token for this slot",
        "I3",
        "left_multi_token_mode",
        "a request was put into single-token mode",
        speculative=True,
    ),
    LogLine(
        r"\[EAGLE\]\[fallback\]",
        "I3",
        "left_multi_token_mode",
        "speculation fell back",
        speculative=True,
    ),
    LogLine(
        r"EagleModule::load\].*(fail|disabl)|disabling EAGLE",
        "I3",
        "left_multi_token_mode",
        "the draft was not loaded, and speculation is off",
        speculative=True,
    ),
    LogLine(
        r"\[LlamaV2\]\[EAGLE\].*eagle_max_engine_tokens_per_step=",
        "I3",
        "engine_budget",
        "the tokens per step that speculation was started with",
        breaks=False,
        speculative=True,
    ),
)
DEFAULT_CONFIGURATION: Final = LogLine(
    r"Using default .*config.*sub-?optimal|MoE kernel config .*sub-?optimal",
    "I2",
    "default_configuration",
    "kernels run with a default configuration, none was tuned for this GPU and shape",
    breaks=False,
)
VLLM: Final = (
    DEFAULT_CONFIGURATION,
    LogLine(
        r"falling back to (Triton implementation|PyTorch-native|\S+ \S+ kernels)|fallback to the eager mode",
        "I1",
        "engines_fallback",
        "the engine has fallen back",
        breaks=False,
    ),
)
SGLANG: Final = (
    DEFAULT_CONFIGURATION,
    LogLine(r"Cuda graph is disabled", "I1", "engines_fallback", "decoding runs without CUDA graphs", breaks=False),
)
LOG_LINES: Final[Mapping[str, tuple[LogLine, ...]]] = {"lmdeploy": TURBOMIND, "vllm": VLLM, "sglang": SGLANG}
"""Adapter name → the lines that its engine's log may have."""


READ_AT_MOST: Final = 64 << 20
"""Bytes at the end of a log that are searched. What is before counts only towards the line numbers."""
LONGEST_SEARCHED: Final = 4096
"""Bytes of a line that are searched."""
PIECE: Final = 1 << 20


def findings_in(log: Path, known: Sequence[LogLine], *, speculative: bool, start: int = 0) -> tuple[Finding, ...]:
    """One finding per kind of line that occurs in `log` from byte `start` on. A log that cannot be read has none.

    `speculative`: whether the server drafts.
    """
    patterns = [(line, re.compile(line.pattern, re.I)) for line in known if speculative or not line.speculative]
    first: dict[LogLine, tuple[int, str]] = {}
    counts: dict[LogLine, int] = {}
    try:
        for number, text in numbered_lines(log, start):
            if kind := next((line for line, pattern in patterns if pattern.search(text)), None):
                counts[kind] = counts.get(kind, 0) + 1
                first.setdefault(kind, (number, cleaned(text).strip()[:LONGEST_LINE]))
    except OSError:
        return ()
    return tuple(
        Finding(
            invariant=line.invariant,
            reason_code=line.reason_code,
            breaks=line.breaks,
            count=counts[line],
            where=f"{log.name}:{number}",
            text=text,
            meaning=line.meaning,
        )
        for line, (number, text) in first.items()
    )


def numbered_lines(log: Path, start: int = 0) -> Iterator[tuple[int, str]]:
    """(number, text) of the lines of a log from byte `start` on, its end if it is long. Raises OSError."""
    with log.open("rb") as stream:
        begin = max(start, stream.seek(0, 2) - READ_AT_MOST)
        stream.seek(0)
        number = 1 + newlines(stream, begin)
        while raw := stream.readline(LONGEST_SEARCHED):
            yield number, raw.decode(errors="replace").rstrip("\n")
            while raw and not raw.endswith(b"\n"):  # the rest of a line that is too long
                raw = stream.readline(PIECE)
            number += 1


def newlines(stream: BinaryIO, end: int) -> int:
    """Count the lines that end before byte `end`. `stream` is read up to there."""
    count, left = 0, end
    while left > 0 and (piece := stream.read(min(PIECE, left))):
        count += piece.count(b"\n")
        left -= len(piece)
    return count


LISTS_PRODUCTS: Final = ("lmdeploy",)
SHOWN: Final = 3
"""Products that a finding names."""
LONGEST_TAG: Final = 60


def findings_of_files(engine: str, role: Role, files: Iterable[tuple[Path, int]]) -> Iterator[Finding]:
    """Yield the findings in `files` of the engine with this adapter name in `role`. Each file is read from its byte
    offset on.
    """
    for file, start in files:
        if engine in LISTS_PRODUCTS and has_shapes(file):
            yield from products_in(file) if role.speculative else ()
        else:
            yield from findings_in(file, LOG_LINES.get(engine, ()), speculative=role.speculative, start=start)


def products_in(file: Path) -> Iterator[Finding]:
    """The products of the draft, as TurboMind lists them: evidence beside I2 that holds and breaks nothing. A list that
    cannot be read says nothing.
    """
    try:
        products = read_shapes(file)
    except UsageError:
        return
    if not products:
        return
    first = ", ".join(
        f"{cleaned(p.tag)[:LONGEST_TAG]} {p.m} × {p.k} × {p.n} ({p.count:,} times)" for p in products[:SHOWN]
    )
    more = f", and {len(products) - SHOWN} more" if len(products) > SHOWN else ""
    yield Finding(
        invariant="I2",
        reason_code="products_listed",
        breaks=False,
        count=sum(p.count for p in products),
        where=file.name,
        text=first + more,
        meaning=f"the engine lists {len(products)} shapes of matrix products, and not which of them were tuned",
    )


def check_log(file: Path) -> None:
    """Raise UsageError where a file that is given as a log is a list of products that cannot be read."""
    if has_shapes(file):
        read_shapes(file)
