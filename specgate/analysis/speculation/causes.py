"""The known causes of speculation that is off or of no use. Each is checked, whether or not another one was found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from specgate.analysis.intervals.decision import FALSE_FAIL
from specgate.analysis.prompt_acceptance import by_prompt, pooled
from specgate.analysis.speculation import configs as configs
from specgate.analysis.speculation import errors as errors  # their causes stand before these
from specgate.analysis.speculation.drafting import short_of, shortness_in_words
from specgate.analysis.speculation.evidence import CAUSES as CAUSES  # from here with all causes in it
from specgate.analysis.speculation.evidence import (
    Evidence,
    Finding,
    Seen,
    cause,
    found,
    line_about,
    ruled_out,
    unchecked,
)
from specgate.analysis.speculation.forced import asked_in_words, forced_by, looks_forced, wrong_shape
from specgate.analysis.speculation.rewinds import check_rewinds
from specgate.contract import Block, Finish
from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.samples.counters import NO_DRAFT_COUNTERS, REWOUND
from specgate.errors import InvalidResult

ENOUGH_STEPS: Final = 8
"""Steps with a draft from which on none accepted is no accident."""
LOOP: Final = 0.5
"""The share of repeated 8-grams from which on a text counts as a loop."""
SWITCHES: Final[Mapping[str, str]] = {
    "vllm": "num_speculative_tokens_per_batch_size with 0 for this batch; a prompt beyond the draft's max_model_len",
    "sglang": "--speculative-adaptive, whose steps may fall to 0; --speculative-num-steps without an algorithm",
    "trtllm": "max_concurrency and draft_len_schedule (by batch size), acceptance_rate_threshold (for good)",
    "lmdeploy": "--backend turbomind, which warns and goes on without; a TurboMind draft whose load failed",
    "llamacpp": "--spec-type none (the default); --spec-draft-p-min, below which it drafts nothing",
}
"""Back end → what switches drafts off without an error (versions: `checkpoints/spec_config/formats`)."""


@cause("memory ran out", "the log and the error, for memory that ran out")
def memory(e: Evidence) -> Seen:
    logged = line_about(e, "memory ran out", "share the gpu", "wants 92 %")
    if logged:
        return found(logged, "a smaller share or context per server, or -o servers=apart")
    if e.error and re.search(r"out of memory|does not fit", e.error, re.IGNORECASE):
        return found(e.error.splitlines()[0], "a shorter context, or a machine with more memory")
    return ruled_out("nothing of the kind")


@cause("a CUDA error in the engine", "the log and the error, for CUDA errors")
def cuda_error(e: Evidence) -> Seen:
    if logged := line_about(e, "CUDA error"):
        return found(logged, "run it with -o env.CUDA_LAUNCH_BLOCKING=1: the log names the call")
    return ruled_out("none")


@cause("cached prefixes are cut", "the log, for cached prefixes that were cut", harmless=True)
def prefix_clamped(e: Evidence) -> Seen:
    if logged := line_about(e, "prefix cache"):
        todo = "compare with the prefix cache off: texts and acceptance must be the same"
        return found(logged, todo)
    if e.log is None:
        return unchecked("its log is not here")
    return ruled_out("none")


@cause(
    "prompt or answer too short for several tokens",
    "room for a step that accepts all drafts, and the length of the prompt",
)
def too_short(e: Evidence) -> Seen:
    room = e.budget.new_tokens if e.budget.new_tokens is not None else e.budget.longest(e.role.k)
    if room < e.role.k + 2:
        observation = f"{room} tokens are asked for, one step of {e.role} emits up to {e.role.k + 1} after the first"
        return found(observation, f"--tokens {8 * (e.role.k + 1)} or more")
    if e.prompt_tokens < 2:
        return found(f"a prompt of {e.prompt_tokens} token", "a prompt of a sentence or more")
    return ruled_out(f"{e.prompt_tokens} prompt tokens, room for {room}")


@cause("the answer ended at once", "how the request ended, and after how many tokens")
def ended_at_once(e: Evidence) -> Seen:
    if e.block is None:
        return unchecked("no block was decoded")
    ended = e.block.finish[0] in (Finish.EOS, Finish.STOP)
    steps = e.drafting.num_drafts if e.drafting else 0
    observation = f"{len(e.block.tokens[0])} tokens, end: {e.block.finish[0]}"
    if ended and (len(e.block.tokens[0]) <= e.role.k + 1 or steps < ENOUGH_STEPS // 2):
        return found(observation, "--ignore-eos, or a prompt that asks for a longer answer")
    return ruled_out(observation)


@cause("next to no draft token is accepted", f"acceptance length of {ENOUGH_STEPS} or more steps")
def zero_acceptance(e: Evidence) -> Seen:
    d = e.drafting
    if d is None or not d.num_drafts:
        return unchecked("nothing was drafted")
    if d.state == "next to nothing accepted" and d.num_drafts >= ENOUGH_STEPS:
        todo = "draft weights that are not loaded, or belong to another target, or this text is hard to draft: --prompt"
        return found(f"{d.accepted} in {d.num_drafts} steps", todo)
    return ruled_out(f"{d.accepted} draft tokens accepted in {d.num_drafts} steps")


@cause("one draft token per step only", "draft tokens per step with a draft")
def single_token(e: Evidence) -> Seen:
    d = e.drafting
    if d is None or d.drafted_per_step is None:
        return unchecked("nothing was drafted")
    observation = f"{d.drafted_per_step:.2f} of {e.role.k}"
    if d.state == "single-token":
        todo = "TurboMind drafts one token with tp > 1; else see the draft length in the engine's flags"
        return found(observation, todo)
    return ruled_out(observation)


@cause("drafts are off, and the engine does not say so", "steps without any draft in an engine that counts drafts")
def silently_off(e: Evidence) -> Seen:
    d = e.drafting
    if d is None or e.block is None:
        return unchecked("no block was decoded")
    if e.block.counters.get(NO_DRAFT_COUNTERS):
        return ruled_out("it counts no drafts at all")
    if not d.num_drafts and e.block.emitted:
        return found(f"0 drafts for {e.block.emitted} tokens", switches(e))
    return ruled_out(f"{d.num_drafts} steps had a draft")


def switches(e: Evidence) -> str:
    """Known ways in which this engine switches drafts off without a word."""
    engine = e.backend.removesuffix("-offline").removesuffix("-pipeline")
    known = SWITCHES.get(engine)
    return f"known switches of {engine}: {known}" if known else "see the engine's log, and its flags"


@cause("steps without a draft", "request-steps without a draft", harmless=True)
def steps_without_drafts(e: Evidence) -> Seen:
    d = e.drafting
    if d is None or d.undrafted is None:
        return unchecked("not counted")
    if not d.num_drafts:
        return ruled_out("no step had one: see silently_off")
    total = d.num_drafts + d.undrafted
    observation = f"{d.undrafted} of {total}"
    if need_not_draft(e):
        if d.state == "next to nothing accepted" and d.undrafted > total // 2:
            return found(observation, "n-grams and suffixes draft where a text repeats itself: --prompt TEXT")
        return ruled_out(f"{observation}: its method need not draft")
    if d.undrafted > max(2, total // 10):
        return found(observation, "see the engine's log: something pauses the draft")
    return ruled_out(observation)


def need_not_draft(e: Evidence) -> bool:
    """True if the engine's method sets the lengths of its drafts."""
    return e.facts is not None and e.facts.sets_lengths


@cause("drafts shorter than K", "draft tokens against K × steps", harmless=True)
def short_drafts(e: Evidence) -> Seen:
    record = record_of(e.block)
    if e.block is None or record is None or not record.steps:
        return unchecked("nothing was drafted")
    observation = f"{record.drafted} of {record.k * record.steps}"
    if need_not_draft(e):
        return ruled_out(f"{observation}: its method sets the lengths")
    if record.drafted > record.steps and short_of(record, len(e.block.tokens)):
        todo = "a draft that stops where it is unsure (llama.cpp: --spec-draft-p-min 0), or a K that varies"
        return found(shortness_in_words(record, e.backend), todo)
    return ruled_out(observation)


@cause(
    "forced acceptance of another distribution",
    "how many drafts each step accepted, against the distribution that a forced length has",
    harmless=True,
)
def forced_shape(e: Evidence) -> Seen:
    forced, record = forced_by(e.backend, forced_length(e)), record_of(e.block)
    if forced is None or e.block is None or record is None or not record.steps:
        return unchecked("acceptance is not forced, or its shape is not documented")
    requests = len(e.block.tokens)
    wrong = wrong_shape(record, forced, error=FALSE_FAIL, requests=requests, batch=requests)
    if wrong:
        return found(wrong, "another engine version; its speed is that of another distribution")
    counts = asked_in_words(forced, e.role.k)
    return ruled_out(f"{record.steps} steps agree with {counts}")


@cause(
    "the KV cache is rewound by other tokens than those of rejected drafts",
    "rewound tokens against rejected drafts, where the engine counts them",
    harmless=True,
)
def unexpected_rewind(e: Evidence) -> Seen:
    if e.block is None or REWOUND not in e.block.counters:
        return unchecked("not counted")
    try:
        check_rewinds([e.block])
    except InvalidResult as error:
        todo = "TurboMind: LMDEPLOY_EAGLE_KV_DEBUG=1 logs every rewind; block size and batch must be the cache's own"
        return found(str(error), todo)
    return ruled_out(f"{e.block.counters[REWOUND]} tokens, as drafts were rejected")


@cause(
    "acceptance that looks forced", "whether the counts of accepted drafts spread as those of text do", harmless=True
)
def looks_made_up(e: Evidence) -> Seen:
    source, record = e.facts.acceptance if e.facts else None, record_of(e.block)
    if source in ("forced", "scripted") or record is None or not record.hist:
        return unchecked("acceptance is made up and says so, or has no histogram")
    if observation := looks_forced(record):
        todo = "look for what forces it: SGLANG_SIMULATE_ACC_LEN, TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS, "
        return found(observation, f"{todo}rejection_sample_method, --spec-synth-len")
    return ruled_out(f"{record.steps} steps: {list(record.hist)}")


def record_of(block: Block | None) -> AcceptanceRecord | None:
    """The counts of a block over all its requests; None where there is none."""
    return pooled(by_prompt([block])) if block is not None else None


def forced_length(e: Evidence) -> float | None:
    """The acceptance length that the options force."""
    try:
        return float(e.options["force_al"])
    except (KeyError, ValueError):
        return None


@cause("the text is a loop", "share of 8-grams of the text that occurred before", harmless=True)
def looping(e: Evidence) -> Seen:
    if e.drafting is None:
        return unchecked("no text")
    observation = f"{e.drafting.repeated:.0%}"
    if e.drafting.repeated > LOOP:
        return found(observation, "another prompt: acceptance in a loop is that of the loop")
    return ruled_out(observation)


@cause("acceptance is not the draft's", "where acceptance comes from", harmless=True)
def made_up(e: Evidence) -> Seen:
    source = e.facts.acceptance if e.facts else None
    if source in ("forced", "scripted", "stand-in"):
        todo = "leave out the option that makes it up, to see the pair's own draft"
        return found(f"acceptance is {source}", todo)
    return ruled_out("the pair's own draft")


@cause("the text is not the baseline's", "the baseline's text of the same prompt", harmless=True)
def other_text(e: Evidence) -> Seen:
    if e.block is None or e.baseline is None:
        return unchecked("asked for with --baseline")
    mine, theirs = e.block.tokens[0], e.baseline.tokens[0]
    shared = min(len(mine), len(theirs))
    at = next((i for i in range(shared) if mine[i] != theirs[i]), None)
    if at is not None:
        observation = f"parts at token {at}: {theirs[at]} without speculation, {mine[at]} with it"
        todo = "a near tie where the engine is not bit-exact, else wrong tokens: specgate micro tells which"
        return found(observation, todo)
    return ruled_out(f"the same {shared} tokens")


def findings_of(e: Evidence) -> tuple[Finding, ...]:
    """Every known cause, checked, in the order of `CAUSES`."""
    return tuple(Finding(name, *known.check(e), known.checked) for name, known in CAUSES.items())
