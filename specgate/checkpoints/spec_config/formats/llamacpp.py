"""llama.cpp: `--spec-…` flags of its server (`tools/server/README.md`, 2026)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from specgate.checkpoints.spec_config.flags import Kind, from_argv
from specgate.checkpoints.spec_config.formats.collect_terms import Terms, chain, count_of, default, fixed, name_of, take
from specgate.checkpoints.spec_config.formats.draft_folder import NOT_APPLIED
from specgate.checkpoints.spec_config.terms import StatedConfig

FLAGS: Final[Mapping[str, tuple[str, Kind]]] = {
    **dict.fromkeys(("--spec-draft-model", "-md", "--model-draft"), ("draft", "text")),
    **dict.fromkeys(("--spec-draft-p-min", "--draft-p-min"), ("p_min", "number")),
    **dict.fromkeys(("--spec-draft-p-split", "--draft-p-split"), ("p_split", "number")),
    **dict.fromkeys(("-m", "--model"), ("target", "text")),
    **dict.fromkeys(("-c", "--ctx-size"), ("context", "count")),
    **dict.fromkeys(("-np", "--parallel"), ("slots", "text")),
    **dict.fromkeys(("--cache-type-k", "-ctk"), ("kv_dtype", "text")),
    **dict.fromkeys(("--draft", "--draft-n", "--draft-max"), ("removed_max", "count")),
    "--spec-type": ("type", "text"),
    "--spec-draft-n-max": ("k", "count"),
    "--spec-draft-n-min": ("k_min", "count"),
    "--spec-ngram-simple-size-m": ("ngram", "count"),
    "--spec-ngram-simple-size-n": ("lookup", "count"),
    "--spec-synth-len": ("forced", "number"),
    "--spec-synth-rates": ("rates", "text"),
    "--spec-draft-sampling": ("sampling", "text"),
    "--spec-draft-backend-sampling": ("backend_sampling", "flag"),
    "--no-spec-draft-backend-sampling": ("backend_sampling", "off"),
    "--spec-draft-type-k": ("draft_kv", "text"),
    "--spec-draft-type-v": ("draft_kv_v", "text"),
    "--spec-draft-ngl": ("draft_ngl", "text"),
    "--spec-draft-device": ("draft_device", "text"),
    "--spec-draft-hf": ("draft", "text"),
    "--cache-prompt": ("prefix_cache", "flag"),
    "--no-cache-prompt": ("prefix_cache", "off"),
}
EXPRESSES: Final = frozenset({
    "method", "draft_model", "target", "k", "varies", "p_min", "draft_sampling", "forced", "kv_dtype", "prefix_cache",
    "max_positions", "max_batch",
})  # fmt: skip
METHODS: Final = {
    "draft-eagle3": "eagle3", "draft-simple": "draft_model", "draft-mtp": "mtp", "ngram-simple": "ngram",
}  # fmt: skip


def read_flags(argv: Sequence[str], where: str) -> StatedConfig:
    """The config of a command line. Raises UsageError for a value of the wrong type."""
    flags = from_argv(argv, FLAGS, ("--spec", "--draft"), where)
    terms: Terms = {}
    notes = flags.notes
    if "removed_max" in flags:
        notes += (f"{flags.names['removed_max']} has been removed from llama.cpp: --spec-draft-n-max is right",)
    take(terms, flags, "target", "target", name_of)
    take(terms, flags, "kv_dtype", "kv_dtype")
    take(terms, flags, "prefix_cache", "prefix_cache")
    take(terms, flags, "slots", "max_batch", count_of)
    slots = terms["max_batch"].value if "max_batch" in terms else 1
    assert isinstance(slots, int)
    take(terms, flags, "context", "max_positions", lambda n: int(str(n)) // max(1, slots) or None)
    default(terms, kv_dtype="f16", prefix_cache=True)
    fixed(terms, dtype="as in the GGUF files", tp=1)
    if flags.values.get("type", "none") == "none" and "draft" not in flags:
        return StatedConfig("llamacpp", where, terms, EXPRESSES, notes)
    take(terms, flags, "type", "method", lambda name: METHODS.get(str(name), name))
    default(terms, method="draft_model")
    take(terms, flags, "draft", "draft_model", name_of)
    take(terms, flags, "ngram" if terms["method"].value == "ngram" else "k", "k")
    default(terms, k=48 if terms["method"].value == "ngram" else 3)
    take(terms, flags, "p_min", "p_min", lambda p: float(str(p)))
    default(terms, p_min=0.0)
    take(terms, flags, "sampling", "draft_sampling")
    default(terms, draft_sampling="greedy")
    probabilistic = terms["draft_sampling"].value == "probabilistic"
    if probabilistic and terms["method"].value == "eagle3":
        probabilistic = False
        notes += ("--spec-draft-sampling probabilistic changes nothing for EAGLE-3 drafts (b11434)",)
    fixed(terms, verification="rejection sampling" if probabilistic else "sampled tokens must match")
    take(terms, flags, "forced", "forced")
    default(terms, forced=None)
    varies = "shorter where the draft is unsure" if terms["p_min"].value else "constant"
    fixed(terms, varies=varies, window=NOT_APPLIED, capture="baked in at conversion to GGUF", draft_tp=1)
    chain(terms)
    return StatedConfig("llamacpp", where, terms, EXPRESSES, notes)
