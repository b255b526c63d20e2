"""Causes of speculation that is off, or of no use, which the pair's configs and the engine's options show."""

from __future__ import annotations

from collections.abc import Iterator

from specgate.analysis.speculation.evidence import Evidence, Seen, cause, found, line_about, ruled_out, unchecked


@cause(
    "flags that turn speculation off or change it",
    "the flags among the options: draft length, schedule by batch size, several GPUs, synthetic acceptance",
)
def options(e: Evidence) -> Seen:
    wrong = list(wrong_options(e))
    if wrong:
        return found("; ".join(wrong), f"flags that leave a chain of {e.role.k} drafts on")
    return ruled_out("nothing among them" if e.stated else "no such flags")


def wrong_options(e: Evidence) -> Iterator[str]:
    k, varies, tp = e.stated.get("k"), e.stated.get("varies"), e.stated.get("tp")
    if isinstance(k, int) and k != e.role.k:
        yield f"they ask for {k} draft tokens, {e.role} for {e.role.k}"
    if isinstance(varies, str) and varies != "constant":
        yield f"the draft length varies ({varies})"
    if isinstance(tp, int) and tp > 1 and e.role.k > 1 and "turbomind" in e.options.values():
        yield f"tp = {tp}: TurboMind drafts one token per step then"


@cause("the draft of another target", "the target that the draft's config describes, against the target")
def wrong_target(e: Evidence) -> Seen:
    p = e.pair
    pairs = (
        ("hidden size", p.made_for_hidden, p.target_hidden),
        ("vocabulary", p.made_for_vocab, p.target_vocab),
        ("layers", p.made_for_layers, p.target_layers),
    )
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
        return found("; ".join(differing), todo)
    if not known:
        return unchecked("the configs say nothing of it on this machine")
    return ruled_out(f"the same {', '.join(known)}")


def both_differ(a: object, b: object) -> bool:
    return a is not None and b is not None and a != b


@cause("the draft's vocabulary does not fit", "draft_vocab_size, and the map d2t with its mask t2d")
def vocabulary(e: Evidence) -> Seen:
    p = e.pair
    if p.draft_vocab is not None and p.target_vocab is not None and p.draft_vocab > p.target_vocab:
        observation = f"draft_vocab_size = {p.draft_vocab}, the target has {p.target_vocab} tokens"
        return found(observation, "a draft's vocabulary is part of its target's")
    head_is_read = p.head is None or p.head.state in ("fits", "unread")
    if observation := p.vocabulary_map or (line_about(e, "d2t", "t2d") if head_is_read else ""):
        return found(observation, p.map_todo or "export the draft's d2t and t2d again")
    if p.head is not None and not head_is_read:
        return unchecked("the head could not be read")
    if p.vocabulary_map is None and p.draft_vocab is None:
        return unchecked("no draft on this machine")
    if p.vocabulary_map is None and p.draft_vocab != p.target_vocab:
        return unchecked(f"{p.draft_vocab} draft tokens, but no d2t that can be read here")
    return ruled_out(f"{p.draft_vocab} of {p.target_vocab} tokens")


@cause("another tokenizer", "tokenizer.json of the draft against the target's")
def tokenizer(e: Evidence) -> Seen:
    if e.pair.tokenizers is None:
        return unchecked("the draft or the target has no tokenizer.json here")
    if e.pair.tokenizers:
        return found(e.pair.tokenizers, "give the draft that was trained for this target")
    return ruled_out("the same vocabulary")


@cause("draft weights that are no numbers", "the values of the draft's weights")
def weights(e: Evidence) -> Seen:
    if e.pair.weights is None:
        return unchecked("looked at only where nothing is accepted and the weights are here")
    if e.pair.weights:
        return found(e.pair.weights, "export or download the draft again")
    return ruled_out("finite, and not all zero")


@cause(
    "other auxiliary layers than the draft was made for",
    "the layers that the draft was made for, against those that this engine makes of its config",
)
def auxiliary_layers(e: Evidence) -> Seen:
    rule = e.facts.capture_rule if e.facts else None
    warnings = [w for w in (e.facts.warnings if e.facts else ()) if "feeds this draft" in w]
    if warnings:
        todo = "write both keys into the draft's config so that they agree (docs/engines.md, auxiliary layers)"
        return found(warnings[0], todo)
    if rule is None or e.pair.boundaries is None:
        return unchecked("the engine or the draft's config does not say")
    return ruled_out(rule)


@cause(
    "a prompt beyond the draft's positions",
    "the draft's max_position_embeddings, and the limit that the options give it, against the prompt",
)
def draft_positions(e: Evidence) -> Seen:
    limits = [n for n in (e.pair.draft_positions, as_count(e.stated.get("draft_positions"))) if n is not None]
    if not limits:
        return unchecked("nothing here states them")
    if e.pair.window is not None and e.pair.window <= min(limits):
        observation = f"the draft's attention has a window of {e.pair.window} tokens, so that its positions may go on"
        return ruled_out(observation)
    needed, limit = e.prompt_tokens + e.role.k + 1, min(limits)
    if needed > limit:
        observation = f"the draft has {limit} positions, the prompt of {e.prompt_tokens} tokens needs {needed}"
        todo = "a shorter prompt, or a draft trained for this length (vLLM drafts nothing of use beyond it)"
        return found(observation, todo)
    return ruled_out(f"{needed} of {limit} positions")


def as_count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


@cause(
    "the draft's window is ignored", "the draft's attention window, and whether the engine applies it", harmless=True
)
def window_ignored(e: Evidence) -> Seen:
    if e.pair.window is None:
        return ruled_out("the draft has no window, or none is known")
    warnings = [w for w in (e.facts.warnings if e.facts else ()) if "window" in w]
    if warnings and e.prompt_tokens > e.pair.window:
        return found(warnings[0], "a prompt within the window, or an engine that applies it")
    return ruled_out(f"a window of {e.pair.window} tokens; the engine names no problem")


@cause("too few positions in the engine", "the engine's positions against prompt, answer and drafts")
def positions(e: Evidence) -> Seen:
    limits = [n for n in (e.pair.target_positions, e.facts.max_positions if e.facts else None) if n is not None]
    if not limits:
        return unchecked("no limit is known")
    needed = e.prompt_tokens + e.budget.longest(e.role.k) + e.role.k + 1
    if needed > min(limits):
        observation = f"{needed} positions are needed, {min(limits)} are there"
        return found(observation, "a shorter prompt or fewer --tokens; or a larger context length")
    return ruled_out(f"{needed} of {min(limits)}")
