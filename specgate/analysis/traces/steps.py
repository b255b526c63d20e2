"""The decode steps in a recording: told by the ranges that an engine sets around each step of its loop.

    vLLM       execute_context_0(0)_generation_1(4)     requests (tokens) in prefill, requests (tokens) in decoding
    SGLang     step[DECODE bs=1], step[EXTEND bs=1 toks=512]; with a draft, step[TARGET_VERIFY bs=1] once per cycle

Read from vLLM 0.25.1 (`Worker.annotate_profile`) and SGLang 0.5.17 (`build_step_span_name`). A step lasts from the
beginning of its range to that of the next one: what an engine does after its range (sampling, drafting, copying tokens)
belongs to the step. So n ranges enclose n − 1 whole steps, and the last one's beginning ends the window.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from specgate.analysis.traces.recording import Mark, Recording

VLLM: Final = re.compile(r"execute_context_(\d+)\(\d+\)_generation_(\d+)\((\d+)\)$")
SGLANG: Final = re.compile(r"step\[(\w+) bs=(\d+)")
IGNORED_BY_SGLANG: Final = ("IDLE", "DRAFT_EXTEND", "DRAFT_EXTEND_V2")
"""Ranges of SGLang's draft passes, which lie within a cycle, and of steps without work."""


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a recording that is looked at.

    `begin_ns` inclusive, `end_ns` exclusive: of host calls; work belongs to the call that launched it.
    `steps`: whole decode steps in it; None where nobody tells.
    `thread`: the thread of the loop; None where nobody tells.
    `told_by`: what tells the steps, as in a sentence.
    `ranges`: decode steps that ranges tell in the whole recording; None where there are no ranges.
    `requests`: the most requests of a step. `tokens`: the most tokens of a request that a step runs over: K + 1 where K
        drafts are verified. None where ranges do not tell.
    """

    begin_ns: int
    end_ns: int
    steps: int | None
    thread: str | None
    told_by: str
    ranges: int | None = None
    requests: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One pass of an engine's loop. `decodes`: it has requests that decode, and none in prefill.

    `requests`, `tokens`: as in `Window`.
    """

    begin_ns: int
    thread: str
    decodes: bool
    requests: int
    tokens: int | None


def window_of(recording: Recording, stated: int | None = None) -> Window:
    """The longest run of decode steps between two passes with a prefill.

    Where no ranges tell them, the whole recording, with `stated` steps: what the user says.
    """
    for told_by, steps in (
        ("vLLM's ranges", vllm_steps(recording.marks)),
        ("SGLang's ranges", sglang_steps(recording)),
    ):
        run = longest_run(steps)
        if len(run) > 1:
            return Window(
                begin_ns=run[0].begin_ns,
                end_ns=run[-1].begin_ns,
                steps=len(run) - 1,
                thread=run[0].thread,
                told_by=told_by,
                ranges=sum(step.decodes for step in steps),
                requests=max(step.requests for step in run),
                tokens=max((step.tokens for step in run if step.tokens is not None), default=None),
            )
    times = [entry.begin_ns for entries in (recording.calls, recording.work) for entry in entries]
    told_by = "what was stated for the whole trace" if stated else "nothing"
    return Window(min(times, default=0), max(times, default=0) + 1, stated, None, told_by)


def longest_run(steps: Sequence[Step]) -> list[Step]:
    """The longest stretch of decode steps one after the other, all on one thread."""
    runs = [
        list(run)
        for _, of_thread in groupby(sorted(steps, key=lambda s: (s.thread, s.begin_ns)), key=lambda s: s.thread)
        for decodes, run in groupby(of_thread, key=lambda s: s.decodes)
        if decodes
    ]
    return max(runs, key=len, default=[])


def vllm_steps(marks: Sequence[Mark]) -> list[Step]:
    return list(_vllm_steps(marks))


def _vllm_steps(marks: Sequence[Mark]) -> Iterator[Step]:
    for mark in marks:
        if match := VLLM.match(mark.name):
            prefills, decodes, tokens = map(int, match.groups())
            if prefills or decodes:  # a pass without requests only polls
                each = -(-tokens // decodes) if decodes else None
                yield Step(mark.begin_ns, mark.thread, decodes > 0 and not prefills, decodes, each)


def sglang_steps(recording: Recording) -> list[Step]:
    """With a draft, the target's verification is the step: the draft's own passes are ranges of the same form."""
    named = [(mark, match[1], int(match[2])) for mark in recording.marks if (match := SGLANG.match(mark.name))]
    verifies = any(mode == "TARGET_VERIFY" for _, mode, _ in named)
    step = "TARGET_VERIFY" if verifies else "DECODE"
    ignored = (*IGNORED_BY_SGLANG, "DECODE") if verifies else IGNORED_BY_SGLANG
    return [
        Step(mark.begin_ns, mark.thread, mode == step, requests, None if verifies else 1)
        for mark, mode, requests in named
        if mode not in ignored
    ]
