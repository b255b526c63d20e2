"""RoPE scaling of a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Final, Literal

from specgate.contract.types import (
    FACTOR,
    Factor,
    Positions,
    Range,
)

ROPE_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "linear": frozenset(),
    "yarn": frozenset({"attention_factor", "beta_fast", "beta_slow"}),
    "llama3": frozenset({"low_freq_factor", "high_freq_factor"}),
}
"""`rope_type` → the keys that only this type has."""


@dataclass(frozen=True, slots=True)
class Rope:
    """RoPE scaling of a target, with the keys of `rope_scaling` in its Hugging Face config."""

    rope_type: Literal["yarn", "linear", "llama3"]
    factor: Annotated[float, Range(ge=1, le=FACTOR)]
    original_max_position_embeddings: Positions | None = None
    attention_factor: Factor | None = None
    beta_fast: Factor | None = None
    beta_slow: Factor | None = None
    low_freq_factor: Factor | None = None
    high_freq_factor: Factor | None = None

    def __post_init__(self) -> None:
        of_type = ROPE_KEYS[self.rope_type]
        extra = self.keys.keys() - {"rope_type", "factor", "original_max_position_embeddings"}
        if extra - of_type:
            raise ValueError(f"rope_type {self.rope_type} has no {', '.join(sorted(extra - of_type))}")
        if self.rope_type == "llama3" and extra != of_type:
            raise ValueError("rope_type llama3 needs low_freq_factor and high_freq_factor")

    @property
    def keys(self) -> dict[str, float | str]:
        """The keys that are set, as `PairRef.rope` has them."""
        values = ((key.name, getattr(self, key.name)) for key in fields(self))
        return {key: value for key, value in values if value is not None}
