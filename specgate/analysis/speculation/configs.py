"""Causes of speculation that is off, or of no use, which the pair's configs and the engine's options show."""

from __future__ import annotations

import re
from collections.abc import Iterator

from specgate.analysis.speculation.evidence import Evidence, Finding


def wrong_target(e: Evidence) -> Finding:
    """The draft was made for another target: another width, vocabulary, number of layers, or other weights."""
    p = e.pair
    pairs = (
        ("hidden size", p.made_for_hidden, p.target_hidden),
        ("vocabulary", p.made_for_vocab, p.target_vocab),
        ("layers", p.made_for_layers, p.target_layers),
    )
    check = "the target that the draft's config describes, against the target"
    differing = [f"{what} {made} for, {is_so} here" for what, made, is_so in pairs if both_differ(made, is_so)]
    sha256 = e.facts.target_sha256 if e.facts and e.facts.acceptance != "scripted" else None
    known = [what for what, made, is_so in pairs if made is not None and is_so is not None]
    if logged := line_about(e, "width error", "draft of another target", "does not fit this target"):
        differing.append(logged)
    if p.head is not None and p.head.state == "other target" and not differing:
        differing.append(p.head.text)
    todo = "give the draft that was trained for this target"
    if both_differ(p.made_for_sha256, sha256):
        todo += "" if differing else ", unless the target's config.json alone was edited since: it is part of the hash"
        differing.append(f"weights and configs {p.made_for_sha256} for, {sha256} here")
    if differing:
        return found("wrong_target", check, "; ".join(differing), todo)
    if not known:
        return unchecked("wrong_target", check, "the configs say nothing of it on this machine")
    return ruled_out("wrong_target", check, f"the same {', '.join(known)}")


def both_differ(a: object, b: object) -> bool:
    return a is not None and b is not None and a != b


def vocabulary(e: Evidence) -> Finding:
    """The draft's vocabulary, or its map to the target's, does not fit."""
    p, check = e.pair, "draft_vocab_size, and the map d2t with its mask t2d"
    if p.draft_vocab is not None and p.target_vocab is not None and p.draft_vocab > p.target_vocab:
        observation = f"draft_vocab_size = {p.draft_vocab}, the target has {p.target_vocab} tokens"
        return found("vocabulary", check, observation, "a draft's vocabulary is part of its target's")
    head_is_read = p.head is None or p.head.state in ("fits", "unread")
    if observation := p.vocabulary_map or (line_about(e, "d2t", "t2d") if head_is_read else ""):
        return found("vocabulary", check, observation, p.map_todo or "export the draft's d2t and t2d again")
    if p.head is not None and not head_is_read:
        return unchecked("vocabulary", check, "the head could not be read")
    if p.vocabulary_map is None and p.draft_vocab is None:
        return unchecked("vocabulary", check, "no draft on this machine")
    if p.vocabulary_map is None and p.draft_vocab != p.target_vocab:
        return unchecked("vocabulary", check, f"{p.draft_vocab} draft tokens, but no d2t that can be read here")
    return ruled_out("vocabulary", check, f"{p.draft_vocab} of {p.target_vocab} tokens")


def tokenizer(e: Evidence) -> Finding:
    """The draft comes with another tokenizer than the target."""
    check = "tokenizer.json of the draft against the target's"
    if e.pair.tokenizers is None:
        return unchecked("tokenizer", check, "the draft or the target has no tokenizer.json here")
    if e.pair.tokenizers:
        return found("tokenizer", check, e.pair.tokenizers, "give the draft that was trained for this target")
    return ruled_out("tokenizer", check, "the same vocabulary")


def draft_positions(e: Evidence) -> Finding:
    """The prompt is longer than the draft's positions, beyond which engines draft nothing of use."""
    check = "the draft's max_position_embeddings, and the limit that the options give it, against the prompt"
    limits = [n for n in (e.pair.draft_positions, as_count(e.stated.get("draft_positions"))) if n is not None]
    if not limits:
        return unchecked("draft_positions", check, "nothing here states them")
    if e.pair.window is not None and e.pair.window <= min(limits):
        observation = f"the draft's attention has a window of {e.pair.window} tokens, so that its positions may go on"
        return ruled_out("draft_positions", check, observation)
    needed, limit = e.prompt_tokens + e.role.k + 1, min(limits)
    if needed > limit:
        observation = f"the draft has {limit} positions, the prompt of {e.prompt_tokens} tokens needs {needed}"
        todo = "a shorter prompt, or a draft trained for this length (vLLM drafts nothing of use beyond it)"
        return found("draft_positions", check, observation, todo)
    return ruled_out("draft_positions", check, f"{needed} of {limit} positions")


def window_ignored(e: Evidence) -> Finding:
    """The engine does not apply the draft's attention window, and the prompt is longer than it."""
    check = "the draft's attention window, and whether the engine applies it"
    if e.pair.window is None:
        return ruled_out("window_ignored", check, "the draft has no window, or none is known")
    warnings = [w for w in (e.facts.warnings if e.facts else ()) if "window" in w]
    if warnings and e.prompt_tokens > e.pair.window:
        return found("window_ignored", check, warnings[0], "a prompt within the window, or an engine that applies it")
    return ruled_out("window_ignored", check, f"a window of {e.pair.window} tokens; the engine names no problem")


def auxiliary_layers(e: Evidence) -> Finding:
    """The engine feeds the draft other hidden states of the target than it was made for."""
    check = "the layers that the draft was made for, against those that this engine makes of its config"
    rule = e.facts.capture_rule if e.facts else None
    warnings = [w for w in (e.facts.warnings if e.facts else ()) if "feeds this draft" in w]
    if warnings:
        todo = "write both keys into the draft's config so that they agree (docs/engines.md, auxiliary layers)"
        return found("auxiliary_layers", check, warnings[0], todo)
    if rule is None or e.pair.boundaries is None:
        return unchecked("auxiliary_layers", check, "the engine or the draft's config does not say")
    return ruled_out("auxiliary_layers", check, rule)


def weights(e: Evidence) -> Finding:
    """The draft's weights are no numbers, or all zero."""
    check = "the values of the draft's weights"
    if e.pair.weights is None:
        return unchecked("weights", check, "looked at only where nothing is accepted and the weights are here")
    if e.pair.weights:
        return found("weights", check, e.pair.weights, "export or download the draft again")
    return ruled_out("weights", check, "finite, and not all zero")


def positions(e: Evidence) -> Finding:
    """The target or its cache has too few positions for the prompt and its answer."""
    check = "the engine's positions against prompt, answer and drafts"
    limits = [n for n in (e.pair.target_positions, e.facts.max_positions if e.facts else None) if n is not None]
    if not limits:
        return unchecked("positions", check, "no limit is known")
    needed = e.prompt_tokens + e.budget.longest(e.role.k) + e.role.k + 1
    if needed > min(limits):
        observation = f"{needed} positions are needed, {min(limits)} are there"
        return found("positions", check, observation, "a shorter prompt or fewer --tokens; or a larger context length")
    return ruled_out("positions", check, f"{needed} of {min(limits)}")


def options(e: Evidence) -> Finding:
    """The flags ask for something that turns speculation off, or for another draft length."""
    check = "the flags among the options: draft length, schedule by batch size, several GPUs, synthetic acceptance"
    wrong = list(wrong_options(e))
    if wrong:
        return found("options", check, "; ".join(wrong), f"flags that leave a chain of {e.role.k} drafts on")
    return ruled_out("options", check, "nothing among them" if e.stated else "no such flags")


def wrong_options(e: Evidence) -> Iterator[str]:
    k, varies, tp = e.stated.get("k"), e.stated.get("varies"), e.stated.get("tp")
    if isinstance(k, int) and k != e.role.k:
        yield f"they ask for {k} draft tokens, {e.role} for {e.role.k}"
    if isinstance(varies, str) and varies != "constant":
        yield f"the draft length varies ({varies})"
    if isinstance(tp, int) and tp > 1 and e.role.k > 1 and "turbomind" in e.options.values():
        yield f"tp = {tp}: TurboMind drafts one token per step then"


def as_count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def found(cause: str, check: str, observation: str, todo: str) -> Finding:
    return Finding(cause, "found", check, observation, todo)


def ruled_out(cause: str, check: str, observation: str) -> Finding:
    return Finding(cause, "ruled out", check, observation)


def unchecked(cause: str, check: str, observation: str) -> Finding:
    return Finding(cause, "not checked", check, observation)


def line_about(e: Evidence, *words: str) -> str:
    """The first line of the log whose known cause, or the error's line that, has one of `words`; "" where none has.

    Words of a path do not count: a folder may be called `d2t-missing`.
    """
    sought = re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})(?!\w)", re.IGNORECASE)
    for line in e.log or ():
        if sought.search(line.cause):
            return f"{line.cause} ({line.line})"
    for text in (e.error or "").splitlines():
        if sought.search(re.sub(r"\S*/\S*", "", text)):
            return text.strip()
    return ""
