"""Ranges that engines set around the passes of their loop, and the decode steps that these tell.

A spelling is a row of `SPELLINGS`, by the engine and its versions. Ranges in no row tell nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from specgate.analysis.traces.recording import Mark, Recording


@dataclass(frozen=True, slots=True)
class Step:
    """One pass of an engine's loop. `decodes`: it has requests that decode, and none in prefill."""

    begin_ns: int
    end_ns: int
    thread: str
    decodes: bool


@dataclass(frozen=True, slots=True)
class Spelling:
    """A way in which an engine names its passes.

    `told_by`: as in "5 decode steps, told by …". `read`: (requests in prefill, requests that decode) of
    a name that `pattern` matches. The latter is None if the name does not tell.
    """

    told_by: str
    pattern: re.Pattern[str]
    read: Callable[[re.Match[str]], tuple[int, int | None]]


SPELLINGS: Final = (
    Spelling(  # 0.11 to 0.25: execute_context_0(0)_generation_1(4): requests (tokens)
        "vLLM's ranges",
        re.compile(r"execute_context_(\d+)\(\d+\)_generation_(\d+)\(\d+\)$"),
        lambda m: (int(m[1]), int(m[2])),
    ),
    Spelling(  # detailed: execute_4_context_0(sq0sk0sqsq0sqsk0)_generation_1(sq4sk1024sqsq16sqsk4096)
        "vLLM's detailed ranges",
        re.compile(r"execute_\d+_context_(\d+)\(\w*\)_generation_(\d+)\(sq\d+\w*\)$"),
        lambda m: (int(m[1]), int(m[2])),
    ),
    Spelling(  # before 0.11: execute_new_0_cached_1
        "vLLM's older ranges, in which a later chunk of a prefill counts as decoding",
        re.compile(r"execute_new_(\d+)_cached_(\d+)$"),
        lambda m: (int(m[1]), int(m[2])),
    ),
    Spelling(  # 1.0 to 1.2: [Executor] _forward_step 12: 0 ctx reqs, 4 gen reqs
        "TensorRT-LLM's ranges",
        re.compile(r"(?:\[Executor\] )?_forward_step(?: \d+)?: (\d+) ctx reqs, (\d+) gen reqs$"),
        lambda m: (int(m[1]), int(m[2])),
    ),
    Spelling(  # the built-in engine without graphs: EAGLE_CYCLE_SPEC_3
        "the engine's cycles", re.compile(r"EAGLE_CYCLE_SPEC_\d+$"), lambda m: (0, None)
    ),
    Spelling(  # TurboMind with EAGLE-3, FT_NVTX=ON, and the built-in engine's baseline
        "BASE_DECODE_STEP, between two of which a prefill counts as decoding",
        re.compile(r"(?:.*/)?BASE_DECODE_STEP$"),
        lambda m: (0, None),
    ),
    Spelling(  # TurboMind 0.10, FT_NVTX=ON
        "TurboMind's dynamicDecode, between two of which a prefill counts as decoding",
        re.compile(r"(?:.*/)?dynamicDecode$"),
        lambda m: (0, None),
    ),
)
SGLANG: Final = re.compile(r"step\[\s*(\w+)\s+bs=\d+")
"""SGLang 0.5: step[DECODE bs=1], step[EXTEND bs=1 toks=512]; with a draft, step[TARGET_VERIFY bs=1] once per cycle."""
IGNORED_BY_SGLANG: Final = ("IDLE", "DRAFT_EXTEND", "DRAFT_EXTEND_V2")
"""Ranges of SGLang's draft passes, which lie within a cycle, and of steps without work."""
MOST_NAMED: Final = 5
"""Names of ranges that a message lists."""


def names_step(name: str) -> bool:
    """True for a name that tells a step."""
    return any(pattern.match(name) for pattern in (SGLANG, *(spelling.pattern for spelling in SPELLINGS)))


def steps_by_ranges(recording: Recording) -> Mapping[str, list[Step]]:
    """What tells the steps → the steps that it tells, for each way of telling."""
    steps = {spelling.told_by: steps_of(spelling, recording.marks) for spelling in SPELLINGS}
    return {**steps, "SGLang's ranges": sglang_steps(recording.marks)}


def steps_of(spelling: Spelling, marks: Sequence[Mark]) -> list[Step]:
    """The steps that ranges of one spelling tell. A pass without requests only polls, and is no step."""
    steps = []
    for mark in marks:
        if match := spelling.pattern.match(mark.name):
            prefills, requests = spelling.read(match)
            if prefills or requests is None or requests:
                decodes = requests != 0 and not prefills
                steps.append(Step(mark.begin_ns, mark.end_ns, mark.thread, decodes))
    return steps


def sglang_steps(marks: Sequence[Mark]) -> list[Step]:
    """With a draft, the target's verification is the step: the draft's own passes are ranges of the same form."""
    named = [(mark, match[1]) for mark in marks if (match := SGLANG.match(mark.name))]
    verifies = any(mode == "TARGET_VERIFY" for _, mode in named)
    step = "TARGET_VERIFY" if verifies else "DECODE"
    ignored = (*IGNORED_BY_SGLANG, "DECODE") if verifies else IGNORED_BY_SGLANG
    return [Step(mark.begin_ns, mark.end_ns, mark.thread, mode == step) for mark, mode in named if mode not in ignored]


def longest_run(steps: Sequence[Step]) -> list[Step]:
    """The longest stretch of decode steps one after the other, all on one thread."""
    runs = [
        list(run)
        for _, of_thread in groupby(sorted(steps, key=lambda s: (s.thread, s.begin_ns)), key=lambda s: s.thread)
        for decodes, run in groupby(of_thread, key=lambda s: s.decodes)
        if decodes
    ]
    return max(runs, key=len, default=[])


def ranges_in(recording: Recording) -> str:
    """The ranges that there are, for a message that none of them tells the steps."""
    names = Counter(mark.name for mark in recording.marks)
    if names:
        return f"its ranges are {most_common(names)}"
    if recording.others:
        return f"its ranges lie over the time of a GPU alone: {most_common(Counter(recording.others))}"
    return "it has no ranges"


def most_common(names: Counter[str]) -> str:
    listed = ", ".join(f"{name[:80]} ({n:,})" for name, n in names.most_common(MOST_NAMED))
    return listed + (f" and {len(names) - MOST_NAMED:,} other names" if len(names) > MOST_NAMED else "")
