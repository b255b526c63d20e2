"""Causes that an engine, its log or its error names: drafts off, no counters, another K, tensors that misfit."""

from __future__ import annotations

import re
from typing import Final

from specgate.analysis.speculation.evidence import Evidence, Seen, cause, found, line_about, ruled_out, unchecked
from specgate.contract import MAY_NOT_DRAFT
from specgate.contract.samples.counters import NO_DRAFT_COUNTERS
from specgate.contract.types import DRAFT_TOKENS

NO_COUNTERS: Final = re.compile(
    r"no counters?\b|not a list of iterations|needs (its metrics|--enable-metrics|--metrics)"
)
"""What the server back ends say where counters are missing."""
_BINS: Final = re.compile(
    r"k = (?P<k>\d+) needs \d+ histogram bins and \d+ positions, got (?P<bins>\d+)"
    r"|a step had (?P<drafted>\d+) draft tokens, and (?P<most>\d+) are the most here"
    r"|an event holds (?P<event>\d+) tokens, more than a step with a draft of (?P<stated>\d+) gives"
)
_NO_COMPLETIONS: Final = re.compile(r"/(?:v1/completions|completion|generate)\b[^\n]*: HTTP 404\b(?![^\n]*\bmodel\b)")
_MISFIT: Final = re.compile(r"[^\n]*(?:tensors do not fit the config|(?<![\w/.-])missing: )[^\n]*")


@cause(
    "the draft is not loaded, or not initialised",
    "what the engine says of its draft, steps that had none for it, and its log",
)
def draft_not_loaded(e: Evidence) -> Seen:
    draft_error = e.facts.draft_error if e.facts else None
    failed = e.block.counters.get("disabled_draft_error", 0) if e.block else 0
    head = e.pair.head
    if head is not None and head.state in ("unsupported", "unread") and head.text in (e.error or ""):
        return found(head.text, head.todo)
    logged = line_about(e, "draft not loaded", "draft was not loaded", "without its draft")
    todo = "see the draft's config and weights: every tensor under the name that the engine expects"
    if draft_error or logged or failed:
        observation = draft_error or logged or f"{failed} request-steps had no draft because it could not be used"
        return found(observation, todo)
    if e.facts is None:
        return unchecked("the engine did not open")
    return ruled_out("it names no problem" + (", nor does its log" if e.log == () else ""))


@cause(
    "the engine has switched speculation off",
    "lines of the log that say so, the engine's own reasons (disabled_…), and engines that take no draft",
)
def switched_off(e: Evidence) -> Seen:
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
        return found(observation, "leave out what switches it off, or take another engine or target")
    if e.log is None and not any(name.startswith("disabled_") for name in counters):
        return unchecked("the engine counts no reasons, and its log is not here")
    return ruled_out("nothing of the kind")


@cause("a server that was started without speculation", "counters of speculation, or an event of several tokens")
def baseline_server(e: Evidence) -> Seen:
    if e.block is None or e.block.served is None:
        return unchecked("no answer of a server")
    if e.block.counters.get(NO_DRAFT_COUNTERS):
        todo = "start it with its speculative flags, or give the URL of a server that has them"
        return found("none: this server was started without speculation", todo)
    return ruled_out("it has them, or is not known to lack them")


@cause("the server's counters are off", "whether the server shows its counters")
def counters_off(e: Evidence) -> Seen:
    if e.error and (match := NO_COUNTERS.search(e.error)):
        line = next(line for line in e.error.splitlines() if NO_COUNTERS.search(line))
        return found(line.strip() or match[0], "start the server with its metrics on")
    if e.block is None:
        return unchecked("no block was decoded")
    return ruled_out("the block has its counts")


@cause("the server has no completions end point", "the answer of the completions end point")
def chat_only(e: Evidence) -> Seen:
    match = _NO_COMPLETIONS.search(e.error or "")
    if match is None:
        return ruled_out("it is there, or was not asked")
    todo = "-o endpoint=chat, if it has that one; or the engine that the server is: --backend NAME"
    return found(match[0].lstrip("/"), todo)


@cause(
    "the engine drafts another number of tokens per step",
    "draft tokens per step that the engine counts, against --spec",
)
def other_k(e: Evidence) -> Seen:
    match = _BINS.search(e.error or "")
    drafted = int(match["drafted"] or int(match["bins"] or match["event"]) - 1) if match else 0
    if match is None or drafted < 1:
        return ruled_out("no counts of another draft length")
    todo = f"--spec {drafted}" if drafted <= DRAFT_TOKENS else f"{DRAFT_TOKENS} draft tokens per step are the most here"
    return found(
        f"it drafts up to {drafted} tokens per step, --spec says {match['k'] or match['most'] or match['stated']}", todo
    )


@cause(
    "the tensors do not fit their config",
    "the draft's tensors against its config, and the error, for those of the target",
)
def misfits(e: Evidence) -> Seen:
    head = e.pair.head
    if head is not None and head.state == "misfit":
        if e.drafting is not None and e.drafting.state == "active":
            return unchecked(f"the engine drafts with it all the same: {head.text}")
        return found(head.text, head.todo or "export or fetch the draft again")
    match = _MISFIT.search(e.error or "")
    if match is None and head is not None and head.state != "fits":
        return unchecked(f"{head.text}: {head.todo}" if head.todo else head.text)
    if match is None:
        seen = "no such error" if head is None else "the draft's tensors have their names, types and sizes"
        return ruled_out(seen)
    tied = "tie_word_embeddings: true if the head is the embedding, " if "lm_head" in match[0] else ""
    todo = f"{tied}sizes and auxiliary layers in config.json as in the weights, or the weights of this config"
    return found(match[0].strip(), todo)
