"""LMDeploy: `--speculative-…` flags and `SpeculativeConfig` (0.16, `lmdeploy/messages.py`, `lmdeploy/cli/utils.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from specgate.checkpoints.spec_config.flags import Given, Kind, from_argv, from_mapping
from specgate.checkpoints.spec_config.formats.collect_terms import Terms, after, chain, default, fixed, name_of, take
from specgate.checkpoints.spec_config.formats.draft_folder import NO_IDS, add_draft
from specgate.checkpoints.spec_config.terms import Said, StatedConfig

KEYS: Final[Mapping[str, Kind]] = {"method": "text", "model": "text", "num_speculative_tokens": "count"}
FLAGS: Final[Mapping[str, tuple[str, Kind]]] = {
    "--speculative-algorithm": ("method", "text"),
    "--speculative-draft-model": ("model", "text"),
    "--speculative-num-draft-tokens": ("num_speculative_tokens", "count"),
    "--backend": ("backend", "text"),
    "--tp": ("tp", "count"),
    "--dtype": ("dtype", "text"),
    "--session-len": ("max_positions", "count"),
    "--max-batch-size": ("max_batch", "count"),
    "--enable-prefix-caching": ("prefix_cache", "flag"),
    "--eager-mode": ("eager", "flag"),
}
EXPRESSES: Final = frozenset({
    "method", "draft_model", "target", "k", "dtype", "tp", "eager", "prefix_cache", "max_positions", "max_batch",
})  # fmt: skip


def read_flags(argv: Sequence[str], where: str) -> StatedConfig:
    """The config of a command line. Raises UsageError for a value of the wrong type."""
    flags = from_argv(argv, FLAGS, ("--spec",), where)
    return of(flags, where, after(tuple(argv), "api_server"))


def read_object(values: Mapping[str, object], where: str) -> StatedConfig:
    """The config of a `SpeculativeConfig`. Raises UsageError for a value of the wrong type."""
    return of(from_mapping(values, KEYS, where), where, None)


def of(flags: Given, where: str, served: str | None) -> StatedConfig:
    terms: Terms = {}
    for key in ("tp", "dtype", "prefix_cache", "eager", "max_positions", "max_batch"):
        take(terms, flags, key, key)
    default(terms, tp=1, dtype="auto", prefix_cache=False, eager=False)
    if served:
        terms["target"] = Said(name_of(served), "stated", "api_server")
    if "method" not in flags:
        return StatedConfig("lmdeploy", where, terms, EXPRESSES, flags.notes)
    notes = flags.notes
    if flags.values.get("backend") == "turbomind":
        notes += ("--backend turbomind: LMDeploy 0.16 warns that TurboMind does not speculate, and goes on without",)
    take(terms, flags, "method", "method")
    take(terms, flags, "model", "draft_model", name_of)
    take(terms, flags, "num_speculative_tokens", "k")
    default(terms, k=1)
    chain(terms)
    fixed(terms, capture=NO_IDS, varies="constant", forced=None, draft_tp=terms["tp"].value, draft_sampling="greedy")
    fixed(terms, verification="rejection sampling")
    draft = str(flags.values["model"]) if "model" in flags else None
    boundaries = add_draft(terms, draft, served, NO_IDS)
    return StatedConfig("lmdeploy", where, terms, EXPRESSES, notes, boundaries)
