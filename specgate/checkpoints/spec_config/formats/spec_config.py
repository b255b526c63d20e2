"""specgate's own `SpecConfig`, which its built-in engines decode: a chain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from specgate.checkpoints.spec_config.formats.collect_terms import Reading
from specgate.checkpoints.spec_config.formats.draft_folder import AS_THE_DRAFT_SAYS, EITHER
from specgate.checkpoints.spec_config.sizes import SpecConfig
from specgate.checkpoints.spec_config.terms import Said, StatedConfig

SIZES: Final = {
    "num_speculative_tokens": "k", "max_path_len": "path_len", "max_decoding_tokens": "verified",
    "max_non_leaves_per_layer": "non_leaves", "tp": "tp", "method": "method",
}  # fmt: skip
"""Key → term."""
EXPRESSES: Final = frozenset(SIZES.values())


def read_object(values: Mapping[str, object], where: str) -> StatedConfig:
    """The config of a mapping. Raises UsageError for unknown keys and values of the wrong type."""
    return of(SpecConfig.read(values, where), where, frozenset(values))


def of(config: SpecConfig, where: str, named: frozenset[str] = frozenset(SIZES)) -> StatedConfig:
    """The terms of `config`; `named` are the keys that its source states."""
    reading = Reading("specgate", where, {}, EXPRESSES)
    for key, term in SIZES.items():
        stated = key in named
        reading.terms[term] = Said(getattr(config, key), "stated" if stated else "default", key if stated else "")
    if config.max_decoding_tokens == config.num_speculative_tokens + 1:
        reading.fixed(topk=1, tree="chain")
    reading.fixed(varies="constant", verification="greedy match", draft_sampling="greedy", forced=None)
    reading.fixed(capture=EITHER, window=AS_THE_DRAFT_SAYS, prefix_cache=False)
    return reading
