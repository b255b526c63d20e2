"""The known causes of speculation that is off or of no use. Each is checked, whether or not another one was found."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from specgate.analysis.intervals.decision import FALSE_FAIL
from specgate.analysis.prompt_acceptance import by_prompt, pooled
from specgate.analysis.speculation import configs, errors
from specgate.analysis.speculation.configs import found, line_about, ruled_out, unchecked
from specgate.analysis.speculation.drafting import Drafting, short_of, shortness_in_words
from specgate.analysis.speculation.evidence import Evidence, Finding
from specgate.analysis.speculation.forced import asked_in_words, forced_by, looks_forced, wrong_shape
from specgate.analysis.speculation.rewinds import check_rewinds
from specgate.contract import MAY_NOT_DRAFT, Block, Finish
from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.samples.counters import NO_DRAFT_COUNTERS, REWOUND
from specgate.errors import InvalidResult

ENOUGH_STEPS: Final = 8
"""Steps with a draft from which on none accepted is no accident."""
LOOP: Final = 0.5
"""The share of repeated 8-grams from which on a text counts as a loop."""
NO_COUNTERS: Final = re.compile(
    r"no counters?\b|not a list of iterations|needs (its metrics|--enable-metrics|--metrics)"
)
"""What the server back ends say where counters are missing."""


SWITCHES: Final[Mapping[str, str]] = {
    "vllm": "num_speculative_tokens_per_batch_size with 0 for this batch; a prompt beyond the draft's max_model_len",
    "sglang": "--speculative-adaptive, whose steps may fall to 0; --speculative-num-steps without an algorithm",
    "trtllm": "max_concurrency and draft_len_schedule (by batch size), acceptance_rate_threshold (for good)",
    "lmdeploy": "--backend turbomind, which warns and goes on without; a TurboMind draft whose load failed",
    "llamacpp": "--spec-type none (the default); --spec-draft-p-min, below which it drafts nothing",
}
"""Back end → what switches drafts off without an error (versions: `checkpoints/spec_config/formats`)."""


def findings_of(e: Evidence) -> tuple[Finding, ...]:
    """Every known cause, checked, in the order of `CAUSES`."""
    return tuple(check(e) for check in CAUSES)


def draft_not_loaded(e: Evidence) -> Finding:
    """The engine runs without its draft, or with one that was not initialised."""
    check = "what the engine says of its draft, steps that had none for it, and its log"
    draft_error = e.facts.draft_error if e.facts else None
    failed = e.block.counters.get("disabled_draft_error", 0) if e.block else 0
    head = e.pair.head
    if head is not None and head.state in ("unsupported", "unread") and head.text in (e.error or ""):
        return found("draft_not_loaded", check, head.text, head.todo)
    logged = line_about(e, "draft not loaded", "draft was not loaded", "without its draft")
    todo = "see the draft's config and weights: every tensor under the name that the engine expects"
    if draft_error or logged or failed:
        observation = draft_error or logged or f"{failed} request-steps had no draft because it could not be used"
        return found("draft_not_loaded", check, observation, todo)
    if e.facts is None:
        return unchecked("draft_not_loaded", check, "the engine did not open")
    return ruled_out("draft_not_loaded", check, "it names no problem" + (", nor does its log" if e.log == () else ""))


def switched_off(e: Evidence) -> Finding:
    """The engine says, or is known, to go on without speculation."""
    check = "lines of the log that say so, the engine's own reasons (disabled_…), and engines that take no draft"
    logged = line_about(e, "speculation is off", "does not speculate", "only the pytorch engine drafts", "no eagle-3")
    terminal = {f"disabled_multitoken_{why}" for why in ("eos", "stop", "length")} | {"disabled_draft_error"}
    counters = e.block.counters if e.block else {}
    reasons = [f"{k} = {n}" for k, n in counters.items() if k.startswith("disabled_") and k not in terminal and n]
    drafts_nothing = e.drafting is not None and not e.drafting.num_drafts
    warnings = [
        w.removeprefix(MAY_NOT_DRAFT) for w in (e.facts.warnings if e.facts else ()) if w.startswith(MAY_NOT_DRAFT)
    ]
    if logged or reasons or (warnings and drafts_nothing):
        observation = logged or ", ".join(reasons or warnings)
        return found(
            "switched_off", check, observation, "leave out what switches it off, or take another engine or target"
        )
    if e.log is None and not any(name.startswith("disabled_") for name in counters):
        return unchecked("switched_off", check, "the engine counts no reasons, and its log is not here")
    return ruled_out("switched_off", check, "nothing of the kind")


def baseline_server(e: Evidence) -> Finding:
    """The requests went to a server that was started without speculation."""
    check = "whether the server has counters of speculation, or an event of several tokens"
    if e.block is None or e.block.served is None:
        return unchecked("baseline_server", check, "no answer of a server")
    if e.block.counters.get(NO_DRAFT_COUNTERS):
        todo = f"start it with its speculative flags, or correct -o url.{e.role}=URL"
        return found("baseline_server", check, "none: this server was started without speculation", todo)
    return ruled_out("baseline_server", check, "it has them, or is not known to lack them")


def counters_off(e: Evidence) -> Finding:
    """The server does not show its counters, so that nothing can be said."""
    check = "whether the server shows its counters"
    if e.error and (match := NO_COUNTERS.search(e.error)):
        line = next(line for line in e.error.splitlines() if NO_COUNTERS.search(line))
        return found("counters_off", check, line.strip() or match[0], "start the server with its metrics on")
    if e.block is None:
        return unchecked("counters_off", check, "no block was decoded")
    return ruled_out("counters_off", check, "the block has its counts")


def memory(e: Evidence) -> Finding:
    """There was no memory for the weights or the KV cache."""
    check = "the log and the error, for memory that ran out"
    logged = line_about(e, "memory ran out", "share the gpu", "wants 92 %")
    if logged:
        return found("memory", check, logged, "a smaller share or context per server, or -o servers=apart")
    if e.error and re.search(r"out of memory|does not fit", e.error, re.IGNORECASE):
        return found("memory", check, e.error.splitlines()[0], "a shorter context, or a machine with more memory")
    return ruled_out("memory", check, "nothing of the kind")


def cuda_error(e: Evidence) -> Finding:
    """A call or a kernel failed on the GPU, with whatever was lost thereby."""
    check = "the log and the error, for CUDA errors"
    if logged := line_about(e, "CUDA error"):
        return found("cuda_error", check, logged, "run it with -o env.CUDA_LAUNCH_BLOCKING=1: the log names the call")
    return ruled_out("cuda_error", check, "none")


def prefix_clamped(e: Evidence) -> Finding:
    """The prefix cache holds fewer blocks of a text than it has tokens, as after a rewind."""
    check = "the log, for cached prefixes that were cut"
    if logged := line_about(e, "prefix cache"):
        todo = "compare with the prefix cache off: texts and acceptance must be the same"
        return found("prefix_clamped", check, logged, todo)
    if e.log is None:
        return unchecked("prefix_clamped", check, "its log is not here")
    return ruled_out("prefix_clamped", check, "none")


def too_short(e: Evidence) -> Finding:
    """The prompt or the answer is too short for several tokens per step."""
    check = "room for a step that accepts all drafts, and the length of the prompt"
    room = e.budget.new_tokens if e.budget.new_tokens is not None else e.budget.longest(e.role.k)
    if room < e.role.k + 2:
        observation = f"{room} tokens are asked for, one step of {e.role} emits up to {e.role.k + 1} after the first"
        return found("too_short", check, observation, f"--tokens {8 * (e.role.k + 1)} or more")
    if e.prompt_tokens < 2:
        return found("too_short", check, f"a prompt of {e.prompt_tokens} token", "a prompt of a sentence or more")
    return ruled_out("too_short", check, f"{e.prompt_tokens} prompt tokens, room for {room}")


def ended_at_once(e: Evidence) -> Finding:
    """The model ended its answer before there was anything to draft."""
    check = "how the request ended, and after how many tokens"
    if e.block is None:
        return unchecked("ended_at_once", check, "no block was decoded")
    ended = e.block.finish[0] in (Finish.EOS, Finish.STOP)
    steps = e.drafting.num_drafts if e.drafting else 0
    observation = f"{len(e.block.tokens[0])} tokens, end: {e.block.finish[0]}"
    if ended and (len(e.block.tokens[0]) <= e.role.k + 1 or steps < ENOUGH_STEPS // 2):
        return found("ended_at_once", check, observation, "--ignore-eos, or a prompt that asks for a longer answer")
    return ruled_out("ended_at_once", check, observation)


def zero_acceptance(e: Evidence) -> Finding:
    """Drafts are proposed, and not one first draft token is accepted: the draft proposes noise."""
    check = f"draft token 1 accepted in at least one of {ENOUGH_STEPS} or more steps"
    d = e.drafting
    if d is None or not d.num_drafts:
        return unchecked("zero_acceptance", check, "nothing was drafted")
    if d.accepted == 0 and d.num_drafts >= ENOUGH_STEPS:
        todo = "draft weights that are not loaded, are no numbers, or belong to another target: see the other causes"
        return found("zero_acceptance", check, f"none in {d.num_drafts} steps", todo)
    return ruled_out("zero_acceptance", check, f"{d.accepted} draft tokens accepted in {d.num_drafts} steps")


def single_token(e: Evidence) -> Finding:
    """The engine drafts one token per step although more are asked for."""
    check = "draft tokens per step with a draft"
    d = e.drafting
    if d is None or d.drafted_per_step is None:
        return unchecked("single_token", check, "nothing was drafted")
    observation = f"{d.drafted_per_step:.2f} of {e.role.k}"
    if d.state == "single-token":
        todo = "TurboMind drafts one token with tp > 1; else see the draft length in the engine's flags"
        return found("single_token", check, observation, todo)
    return ruled_out("single_token", check, observation)


def silently_off(e: Evidence) -> Finding:
    """The engine was started with speculation, counts its drafts, and drafts nothing."""
    check = "steps without any draft in an engine that counts drafts"
    d = e.drafting
    if d is None or e.block is None:
        return unchecked("silently_off", check, "no block was decoded")
    if e.block.counters.get(NO_DRAFT_COUNTERS):
        return ruled_out("silently_off", check, "it counts no drafts at all")
    if not d.num_drafts and e.block.emitted:
        return found("silently_off", check, f"0 drafts for {e.block.emitted} tokens", switches(e))
    return ruled_out("silently_off", check, f"{d.num_drafts} steps had a draft")


def switches(e: Evidence) -> str:
    """Known ways in which this engine switches drafts off without a word."""
    engine = e.backend.removesuffix("-offline").removesuffix("-pipeline")
    known = SWITCHES.get(engine)
    return f"known switches of {engine}: {known}" if known else "see the engine's log, and its flags"


def steps_without_drafts(e: Evidence) -> Finding:
    """Part of the steps had no draft."""
    check = "request-steps without a draft"
    d = e.drafting
    if d is None or d.undrafted is None:
        return unchecked("steps_without_drafts", check, "not counted")
    if not d.num_drafts:
        return ruled_out("steps_without_drafts", check, "no step had one: see silently_off")
    total = d.num_drafts + d.undrafted
    observation = f"{d.undrafted} of {total}"
    if need_not_draft(e):
        return ruled_out("steps_without_drafts", check, f"{observation}: its method need not draft")
    if d.undrafted > max(2, total // 10):
        return found("steps_without_drafts", check, observation, "see the engine's log: something pauses the draft")
    return ruled_out("steps_without_drafts", check, observation)


def need_not_draft(e: Evidence) -> bool:
    """True if the engine's method sets the lengths of its drafts."""
    return e.facts is not None and e.facts.sets_lengths


def short_drafts(e: Evidence) -> Finding:
    """Fewer draft tokens per step than K, although a chain has K in every step. More would be a contradiction."""
    check = "draft tokens against K × steps"
    record = record_of(e.block)
    if e.block is None or record is None or not record.steps:
        return unchecked("short_drafts", check, "nothing was drafted")
    observation = f"{record.drafted} of {record.k * record.steps}"
    if need_not_draft(e):
        return ruled_out("short_drafts", check, f"{observation}: its method sets the lengths")
    if record.drafted > record.steps and short_of(record, len(e.block.tokens)):
        todo = "a draft that stops where it is unsure (llama.cpp: --spec-draft-p-min 0), or a K that varies"
        return found("short_drafts", check, shortness_in_words(record, e.backend), todo)
    return ruled_out("short_drafts", check, observation)


def forced_shape(e: Evidence) -> Finding:
    """Forced acceptance with the right mean, but not with the distribution that the engine documents (`forced.py`)."""
    check = "how many drafts each step accepted, against the distribution that a forced length has"
    forced, record = forced_by(e.backend, forced_length(e)), record_of(e.block)
    if forced is None or e.block is None or record is None or not record.steps:
        return unchecked("forced_shape", check, "acceptance is not forced, or its shape is not documented")
    requests = len(e.block.tokens)
    wrong = wrong_shape(record, forced, error=FALSE_FAIL, requests=requests, batch=requests)
    if wrong:
        return found("forced_shape", check, wrong, "another engine version; its speed is that of another distribution")
    counts = asked_in_words(forced, e.role.k)
    return ruled_out("forced_shape", check, f"{record.steps} steps agree with {counts}")


def unexpected_rewind(e: Evidence) -> Finding:
    """The engine rewinds its KV cache by other tokens than those of rejected drafts: its text may be cut or repeat."""
    check = "rewound tokens against rejected drafts, where the engine counts them"
    if e.block is None or REWOUND not in e.block.counters:
        return unchecked("unexpected_rewind", check, "not counted")
    try:
        check_rewinds([e.block])
    except InvalidResult as error:
        todo = "TurboMind: LMDEPLOY_EAGLE_KV_DEBUG=1 logs every rewind; block size and batch must be the cache's own"
        return found("unexpected_rewind", check, str(error), todo)
    return ruled_out("unexpected_rewind", check, f"{e.block.counters[REWOUND]} tokens, as drafts were rejected")


def looks_made_up(e: Evidence) -> Finding:
    """Acceptance that looks forced, of an engine that does not say so."""
    check = "whether the counts of accepted drafts spread as those of text do"
    source, record = e.facts.acceptance if e.facts else None, record_of(e.block)
    if source in ("forced", "scripted") or record is None or not record.hist:
        return unchecked("looks_made_up", check, "acceptance is made up and says so, or has no histogram")
    if observation := looks_forced(record):
        todo = "look for what forces it: SGLANG_SIMULATE_ACC_LEN, TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS, "
        return found("looks_made_up", check, observation, f"{todo}rejection_sample_method, --spec-synth-len")
    return ruled_out("looks_made_up", check, f"{record.steps} steps: {list(record.hist)}")


def record_of(block: Block | None) -> AcceptanceRecord | None:
    """The counts of a block over all its requests; None where there is none."""
    return pooled(by_prompt([block])) if block is not None else None


def forced_length(e: Evidence) -> float | None:
    """The acceptance length that the options force."""
    try:
        return float(e.options["force_al"])
    except (KeyError, ValueError):
        return None


def looping(e: Evidence) -> Finding:
    """The text repeats itself. Loops are easy to draft, so acceptance says nothing of other text."""
    check = "share of 8-grams of the text that occurred before"
    if e.drafting is None:
        return unchecked("looping", check, "no text")
    observation = f"{e.drafting.repeated:.0%}"
    if e.drafting.repeated > LOOP:
        return found("looping", check, observation, "another prompt: acceptance in a loop is that of the loop")
    return ruled_out("looping", check, observation)


def made_up(e: Evidence) -> Finding:
    """Acceptance is forced, scripted, or that of a stand-in, and says nothing of the pair's draft."""
    check = "where acceptance comes from"
    source = e.facts.acceptance if e.facts else None
    if source in ("forced", "scripted", "stand-in"):
        todo = "leave out the option that makes it up, to see the pair's own draft"
        return found("made_up", check, f"acceptance is {source}", todo)
    return ruled_out("made_up", check, "the pair's own draft")


def other_text(e: Evidence) -> Finding:
    """Speculation changes the text: drafts are accepted that the target would not have chosen."""
    check = "the baseline's text of the same prompt"
    if e.block is None or e.baseline is None:
        return unchecked("other_text", check, "asked for with --baseline")
    mine, theirs = e.block.tokens[0], e.baseline.tokens[0]
    shared = min(len(mine), len(theirs))
    at = next((i for i in range(shared) if mine[i] != theirs[i]), None)
    if at is not None:
        observation = f"parts at token {at}: {theirs[at]} without speculation, {mine[at]} with it"
        todo = "a near tie where the engine is not bit-exact, else wrong tokens: specgate micro tells which"
        return found("other_text", check, observation, todo)
    return ruled_out("other_text", check, f"the same {shared} tokens")


CAUSES: Final[tuple[Callable[[Evidence], Finding], ...]] = (
    draft_not_loaded,
    switched_off,
    baseline_server,
    counters_off,
    errors.chat_only,
    errors.other_k,
    errors.misfits,
    configs.options,
    configs.wrong_target,
    configs.vocabulary,
    configs.tokenizer,
    configs.weights,
    configs.auxiliary_layers,
    configs.draft_positions,
    configs.window_ignored,
    configs.positions,
    memory,
    cuda_error,
    prefix_clamped,
    too_short,
    ended_at_once,
    zero_acceptance,
    single_token,
    silently_off,
    steps_without_drafts,
    short_drafts,
    looping,
    made_up,
    forced_shape,
    looks_made_up,
    unexpected_rewind,
    other_text,
)
HARMLESS: Final = frozenset({
    "looping", "made_up", "other_text", "window_ignored", "steps_without_drafts", "short_drafts", "forced_shape",
    "looks_made_up", "prefix_clamped", "unexpected_rewind",
})  # fmt: skip
"""Causes that do not turn speculation off: they say how its figures are to be taken."""

TITLES: Final[Mapping[str, str]] = {
    "draft_not_loaded": "the draft is not loaded, or not initialised",
    "switched_off": "the engine has switched speculation off",
    "baseline_server": "a server that was started without speculation",
    "counters_off": "the server's counters are off",
    "chat_only": "the server has no completions end point",
    "other_k": "the engine drafts another number of tokens per step",
    "misfits": "the tensors do not fit their config",
    "options": "flags that turn speculation off or change it",
    "wrong_target": "the draft of another target",
    "vocabulary": "the draft's vocabulary does not fit",
    "tokenizer": "another tokenizer",
    "weights": "draft weights that are no numbers",
    "auxiliary_layers": "other auxiliary layers than the draft was made for",
    "draft_positions": "a prompt beyond the draft's positions",
    "window_ignored": "the draft's window is ignored",
    "positions": "too few positions in the engine",
    "memory": "memory ran out",
    "cuda_error": "a CUDA error in the engine",
    "prefix_clamped": "cached prefixes are cut",
    "too_short": "prompt or answer too short for several tokens",
    "ended_at_once": "the answer ended at once",
    "zero_acceptance": "not one draft token is accepted",
    "single_token": "one draft token per step only",
    "silently_off": "drafts are off, and the engine does not say so",
    "steps_without_drafts": "steps without a draft",
    "short_drafts": "drafts shorter than K",
    "looping": "the text is a loop",
    "made_up": "acceptance is not the draft's",
    "forced_shape": "forced acceptance of another distribution",
    "looks_made_up": "acceptance that looks forced",
    "unexpected_rewind": "the KV cache is rewound by other tokens than those of rejected drafts",
    "other_text": "the text is not the baseline's",
}
"""Cause → what it is, in a few words."""


def outcome(drafting: Drafting | None) -> str:
    """`active`, or why not, in one word or two."""
    return drafting.state if drafting is not None else "no drafts"
