"""Causes that an engine's error names: another K than was asked for, no completions end point, tensors that misfit."""

from __future__ import annotations

import re
from typing import Final

from specgate.analysis.speculation.configs import found, ruled_out, unchecked
from specgate.analysis.speculation.evidence import Evidence, Finding
from specgate.contract.types import DRAFT_TOKENS

_BINS: Final = re.compile(
    r"k = (?P<k>\d+) needs \d+ histogram bins and \d+ positions, got (?P<bins>\d+)"
    r"|a step had (?P<drafted>\d+) draft tokens, and (?P<most>\d+) are the most here"
)
_NO_COMPLETIONS: Final = re.compile(r"/(?:v1/completions|completion|generate)\b[^\n]*: HTTP 404\b(?![^\n]*\bmodel\b)")
_MISFIT: Final = re.compile(r"[^\n]*(?:tensors do not fit the config|(?<![\w/.-])missing: )[^\n]*")


def other_k(e: Evidence) -> Finding:
    """The engine drafts another number of tokens per step than was asked for."""
    check = "draft tokens per step that the engine counts, against --spec"
    match = _BINS.search(e.error or "")
    drafted = int(match["drafted"] or int(match["bins"]) - 1) if match else 0
    if match is None or drafted < 1:
        return ruled_out("other_k", check, "no counts of another draft length")
    todo = f"--spec {drafted}" if drafted <= DRAFT_TOKENS else f"{DRAFT_TOKENS} draft tokens per step are the most here"
    return found(
        "other_k", check, f"it drafts up to {drafted} tokens per step, --spec says {match['k'] or match['most']}", todo
    )


def chat_only(e: Evidence) -> Finding:
    """The server has no end point that takes token ids: it speaks chat alone, or another engine's protocol."""
    check = "the answer of the completions end point"
    match = _NO_COMPLETIONS.search(e.error or "")
    if match is None:
        return ruled_out("chat_only", check, "it is there, or was not asked")
    todo = "a server that has it (chat end points are not measured), or the engine that the server is: --backend NAME"
    return found("chat_only", check, match[0].lstrip("/"), todo)


def misfits(e: Evidence) -> Finding:
    """Tensors of a checkpoint are missing, or have other shapes than its config says."""
    check = "the draft's tensors against its config, and the error, for those of the target"
    head = e.pair.head
    if head is not None and head.state == "misfit":
        if e.drafting is not None and e.drafting.state == "active":
            return unchecked("misfits", check, f"the engine drafts with it all the same: {head.text}")
        return found("misfits", check, head.text, head.todo or "export or fetch the draft again")
    match = _MISFIT.search(e.error or "")
    if match is None and head is not None and head.state != "fits":
        return unchecked("misfits", check, f"{head.text}: {head.todo}" if head.todo else head.text)
    if match is None:
        seen = "no such error" if head is None else "the draft's tensors have their names, types and sizes"
        return ruled_out("misfits", check, seen)
    tied = "tie_word_embeddings: true if the head is the embedding, " if "lm_head" in match[0] else ""
    todo = f"{tied}sizes and auxiliary layers in config.json as in the weights, or the weights of this config"
    return found("misfits", check, match[0].strip(), todo)
