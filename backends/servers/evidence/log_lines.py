"""Findings about PERF_MODE invariants in an engine's log and other files. Lines that are not known say nothing.

The formats were read from these sources:

    TurboMind   `[TM][FATAL][gemm.cu:341] No feasible kernel found …` (lmdeploy, `kernels/gemm/gemm.cu`); tagged lines
                of its EAGLE branch: `[LlamaV2][EAGLE]…`, `[LlamaBatch][EAGLE][fallback] …`, `[EAGLE][KVRewind] …`,
                `[LlamaBatch][EAGLE_METRICS] …`, `[EAGLE][EagleModule::load] …`, `[EAGLE3][GEMM]…`,
                `[EAGLE3][FMHA_TILE_STATS] …`, and `[BlockTrie][cache] …`
    vLLM        0.25.1: `fused_moe.py`, `topk_topp_sampler.py`, `chunked_prefill_paged_decode.py`, `config/model.py`
    SGLang      0.5.17: `fused_moe_triton_config.py`, `server_args.py`
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from specgate.analysis.grouping import collected
from specgate.analysis.traces.families import has_shapes, read_shapes
from specgate.backends.servers.failures import LONGEST_LINE
from specgate.contract import Finding, Role
from specgate.contract.protocols import cleaned
from specgate.contract.samples.counters import FMHA_TILES
from specgate.contract.traces import StatedInvariant
from specgate.errors import UsageError


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that matches `pattern` (regular expression, ignoring case) says `meaning` about `invariant`.

    The numbers of its named groups are summed over all such lines; of those named `mean_…`, the mean is taken.
    `breaks`: it breaks the invariant, for this reason code. Otherwise it is evidence that holds nothing.
    `speculative`: only said of a role that drafts.
    """

    pattern: str
    invariant: StatedInvariant
    reason_code: str
    meaning: str
    breaks: bool = True
    speculative: bool = False


TILES: Final = (
    r"\[FMHA_TILE_STATS\] total=(?P<tiles>\d+) span_empty=(?P<outside_spans>\d+) mask_empty=(?P<masked>\d+) "
    r"executed=(?P<computed>\d+)"
)
TURBOMIND: Final = (
    LogLine(r"No feasible kernel found", "I1", "fallback_kernel", "no fused kernel for a product"),
    LogLine(r"\[GEMM\]\[fallback\]|falling back to naive", "I1", "fallback_kernel", "a product on a naive kernel"),
    LogLine(r"cuBLAS fallback", "I1", "fallback_kernel", "a product on cuBLAS, which failed as well"),
    LogLine(r"Failed to find a feasible kernel in the cache|No valid kernel found", "I2", "untuned_kernel",
            "a product without a tuned configuration"),
    LogLine(r"\[GEMM_TUNED\] loaded", "I2", "tuned_cache", "the tuned configurations that were loaded", breaks=False),
    LogLine(r"(finished slot|no remaining max_new_tokens).*disabling multi-token for this slot", "I3", "ended",
            "a request left multi-token mode at its end", breaks=False, speculative=True),
    LogLine(r"disabling multi-token for this slot|non-terminal slot=", "I3", "left_multi_token_mode",
            "a request was put into single-token mode", speculative=True),
    LogLine(r"\[EAGLE\]\[fallback\]", "I3", "left_multi_token_mode", "speculation fell back", speculative=True),
    LogLine(r"EagleModule::load\].*(fail|disabl)|disabling EAGLE", "I3", "left_multi_token_mode",
            "the draft was not loaded, and speculation is off", speculative=True),
    LogLine(r"\[LlamaV2\]\[EAGLE\].*eagle_max_engine_tokens_per_step=", "I3", "engine_budget",
            "the tokens per step that speculation was started with", breaks=False, speculative=True),
    LogLine(r"\[multitoken_summary\].*disabled_other=[1-9]", "I3", "left_multi_token_mode",
            "requests were put into single-token mode before their end", speculative=True),
    LogLine(r"\[EAGLE_METRICS\](.*active_slots=(?P<mean_active_slots>\d+))?.*draft_tokens=(?P<draft_tokens>\d+)"
            r".*accepted_tokens=(?P<accepted_tokens>\d+)", "I3", "steps_logged",
            "steps with the slots that were active and their draft tokens", breaks=False, speculative=True),
    LogLine(r"\[EAGLE\]\[Metrics\]|\[EAGLE\]\[(batch4|multitoken)_summary\]", "I3", "summary_logged",
            "sums of drafts, as spec_info has them", breaks=False, speculative=True),
    LogLine(r"\[EAGLE\]\[KVRewind\].*non_zero_slots=(?P<slots>\d+) total_rewound_tokens=(?P<rewound_tokens>\d+)", "I4",
            "rewinds_logged", "rejected drafts that were taken back in the KV cache", breaks=False, speculative=True),
    LogLine(TILES, "I4", "tiles_logged",
            "tiles of the draft's attention, and those skipped since their span or mask is empty", breaks=False,
            speculative=True),
    LogLine(r"\[BlockTrie\].*clamping cached prefix", "I4", "prefix_clamped",
            "a text has more tokens than its blocks hold, as after a rewind: less of it goes into the prefix cache",
            breaks=False),
    LogLine(r"\]\[invariants\] CUDA error|illegal memory access|cudaErrorIllegalAddress", "I4", "kv_integrity",
            "a kernel left the engine's buffers, or the engine's check of them failed"),
)  # fmt: skip
DEFAULT_CONFIGURATION: Final = LogLine(
    r"Using default .*config.*sub-?optimal|MoE kernel config .*sub-?optimal",
    "I2",
    "default_configuration",
    "kernels run with a default configuration, none was tuned for this GPU and shape",
    breaks=False,
)
VLLM: Final = (
    DEFAULT_CONFIGURATION,
    LogLine(r"falling back to (Triton implementation|PyTorch-native|\S+ \S+ kernels)|fallback to the eager mode", "I1",
            "engines_fallback", "the engine has fallen back", breaks=False),
)  # fmt: skip
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
    numbers: dict[LogLine, list[dict[str, str | None]]] = {}
    try:
        for number, text in numbered_lines(log, start):
            for line, pattern in patterns:
                if match := pattern.search(text):
                    numbers.setdefault(line, []).append(match.groupdict())
                    first.setdefault(line, (number, cleaned(text).strip()[:LONGEST_LINE]))
                    break
    except OSError:
        return ()
    return tuple(
        Finding(
            invariant=line.invariant,
            reason_code=line.reason_code,
            breaks=line.breaks,
            count=len(numbers[line]),
            where=f"{log.name}:{number}",
            text=summed(numbers[line]) or text,
            meaning=line.meaning,
        )
        for line, (number, text) in first.items()
    )


def summed(lines: Sequence[Mapping[str, str | None]]) -> str:
    """The numbers of lines of one kind, by name: their sum, or their mean where the name begins with `mean_`."""
    of = collected((name, int(number)) for line in lines for name, number in line.items() if number is not None)
    return ", ".join(
        f"{name} {sum(n) / len(n):.2f}" if name.startswith("mean_") else f"{name} {sum(n):,}" for name, n in of.items()
    )


def tile_counters(log: Sequence[str]) -> dict[str, int]:
    """Counters of the tiles of attention by their use, as the last line of a log that has them says; {} without one."""
    last = next((match for line in reversed(log) if (match := re.search(TILES, line))), None)
    return dict(zip(FMHA_TILES.values(), map(int, last.groups()), strict=True)) if last else {}


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
