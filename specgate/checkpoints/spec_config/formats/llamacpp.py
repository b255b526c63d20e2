"""llama.cpp: the flags of its server that are about drafts, and those around them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from specgate.checkpoints.spec_config.flags import Given, from_argv
from specgate.checkpoints.spec_config.formats.collect_terms import (
    Terms,
    chain,
    count_of,
    default,
    fixed,
    name_of,
    object_text,
    take,
)
from specgate.checkpoints.spec_config.formats.draft_folder import NOT_APPLIED
from specgate.checkpoints.spec_config.tables.llamacpp import FLAGS, METHODS
from specgate.checkpoints.spec_config.terms import Said, StatedConfig

EXPRESSES: Final = frozenset({
    "method", "draft_model", "target", "k", "varies", "p_min", "draft_sampling", "forced", "kv_dtype", "overrides",
    "draft_kv_dtype", "lookup", "prefix_cache", "tp", "max_positions", "max_batch", "max_tokens",
})  # fmt: skip


def read_flags(argv: Sequence[str], where: str) -> StatedConfig:
    """The config of a command line. Raises UsageError for a value of the wrong type."""
    flags = from_argv(argv, FLAGS, where)
    target = next((t for key in ("model", "hf_repo", "model_url", "docker_repo") if (t := flags.text(key))), None)
    terms = around(flags, target)
    places = {"target": target} if target else {}
    draft = flags.text("spec_draft_model") or flags.text("spec_draft_hf")
    kind = flags.text("spec_type") or "none"
    undecided = list(flags.undecided)
    if flags.get("spec_default"):
        undecided.append("--spec-default: what it switches on is another thing in other builds")
    former = flags.names.get("spec_draft_n_max", "")
    if former.startswith("--draft") and "spec_draft_p_min" not in flags:
        undecided.append(f"{former} is of builds until April 2026, whose --draft-p-min had other defaults")
    if kind == "none" and draft is None:
        unclear = bool(flags.get("spec_default"))
        return StatedConfig(
            "llamacpp", where, terms, EXPRESSES, (), None, tuple(undecided), unclear, places, unread=flags.unread
        )
    if draft is not None:
        places["draft_model"] = draft
        terms["draft_model"] = Said(name_of(draft), "stated", flags.names.get("spec_draft_model", "--spec-draft-hf"))
    if kind == "none":
        default(terms, method="draft_model")
    else:
        terms["method"] = Said(METHODS.get(kind, kind), "stated", "--spec-type")
    notes = drafted(terms, flags, kind)
    return StatedConfig(
        "llamacpp", where, terms, EXPRESSES, notes, None, tuple(undecided), False, places, others(flags), flags.unread
    )


def others(flags: Given) -> dict[str, object]:
    """Keys about drafts that have become no term, but for those that say where drafts are computed."""
    placed = re.compile("threads|cpu|prio|poll|ngl|device|override-tensor|gpu-layers|p-split|-td|-otd")
    return {name: v for name, v in flags.rest().items() if re.search("spec|draft", name) and not placed.search(name)}


def around(flags: Given, target: str | None) -> Terms:
    """The terms that are not about drafts."""
    terms: Terms = {}
    if target is not None:
        file = flags.text("hf_file")
        terms["target"] = Said(name_of(target) + (f"/{name_of(file)}" if file else ""), "stated", "--model")
    take(terms, flags, "cache_prompt", "prefix_cache")
    take(terms, flags, "parallel", "max_batch", count_of)
    take(terms, flags, "batch_size", "max_tokens")
    take(terms, flags, "override_kv", "overrides")
    slots = terms["max_batch"].value if "max_batch" in terms else 1
    if isinstance(slots, int):
        take(terms, flags, "ctx_size", "max_positions", lambda n: int(str(n)) // max(1, slots) or None)
    kinds = [str(flags.get(key) or "f16") for key in ("cache_type_k", "cache_type_v")]
    if "cache_type_k" in flags or "cache_type_v" in flags:
        same = kinds[0] == kinds[1]
        terms["kv_dtype"] = Said(
            kinds[0] if same else f"{kinds[0]} keys, {kinds[1]} values", "stated", "--cache-type-k"
        )
    if flags.get("split_mode") in ("row", "tensor"):
        parts = str(flags.get("tensor_split") or "")
        if parts:
            terms["tp"] = Said(len(parts.split(",")), "stated", "--tensor-split")
    else:
        fixed(terms, tp=1)
    default(terms, kv_dtype="f16", prefix_cache=True, overrides=None)
    fixed(terms, dtype="as in the GGUF files")
    return terms


def drafted(terms: Terms, flags: Given, kind: str) -> tuple[str, ...]:
    """Put the terms about drafts into `terms`. Returns notes."""
    notes: tuple[str, ...] = ()
    lookups = {key: flags.get(key) for key in sorted(FLAGS.rows) if "ngram" in key and key in flags}
    if terms["method"].value == "ngram":
        name = kind.removeprefix("ngram-").replace("-", "_")
        for key in (f"spec_ngram_{name}_size_m", "spec_ngram_mod_n_max"):
            if key in lookups and "k" not in terms:
                terms["k"] = Said(lookups.pop(key), "stated", flags.names[key])
        default(terms, k=48)
        fixed(terms, draft_model=None)
    if lookups:
        terms["lookup"] = Said(object_text(lookups), "stated", next(iter(lookups)))
    take(terms, flags, "spec_draft_n_max", "k")
    default(terms, k=3, lookup=None)
    take(terms, flags, "spec_draft_p_min", "p_min", lambda p: float(str(p)))
    default(terms, p_min=0.0)
    take(terms, flags, "spec_draft_sampling", "draft_sampling")
    default(terms, draft_sampling="greedy")
    probabilistic = terms["draft_sampling"].value == "probabilistic"
    if probabilistic and terms["method"].value == "eagle3":
        probabilistic = False
        notes += ("--spec-draft-sampling probabilistic changes nothing for EAGLE-3 drafts (b11434)",)
    fixed(terms, verification="rejection sampling" if probabilistic else "sampled tokens must match")
    take(terms, flags, "spec_synth_len", "forced")
    take(terms, flags, "spec_synth_rates", "forced", rates_length)
    take(terms, flags, "spec_draft_type_k", "draft_kv_dtype")
    default(terms, forced=None, draft_kv_dtype="f16")
    fixed(terms, varies="shorter where the draft is unsure" if terms["p_min"].value else "constant", draft_tp=1)
    if terms["method"].value == "eagle3":
        fixed(terms, window=NOT_APPLIED, capture="baked in at conversion to GGUF")
    chain(terms)
    return notes


def rates_length(text: object) -> object:
    """The acceptance length of rates such as `0.8,0.5`, or the text where it is none."""
    try:
        return 1 + sum(map(float, str(text).split(",")))
    except ValueError:
        return text
