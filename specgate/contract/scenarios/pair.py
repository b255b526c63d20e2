"""A pair of checkpoints, and RoPE scaling that overrides the target's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Final, Literal

from specgate.contract.types import FACTOR, Factor, Positions, Range

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


AcceptanceSource = Literal["real", "planted", "stand-in", "forced", "scripted"]
"""Where acceptance comes from. It is printed beside every figure.

`real`: a trained pair.
`planted`: a pair whose weights are analytic, not trained.
`stand-in`: another drafter in the place of the pair's. Its drafts are verified, so the tokens are right.
`forced`: a simulation option of the engine that sets how many drafts are accepted. The tokens are wrong.
`scripted`: an engine that decodes nothing at all.
"""


@dataclass(frozen=True, slots=True)
class PairRef:
    """A target checkpoint and a draft checkpoint.

    `acceptance`: holds for an engine that decodes with the pair as it is. Any other engine states its own in
        `EngineFacts`.
    `rope`: overrides the target's RoPE scaling (Hugging Face keys, e.g. ``{"rope_type": "yarn", "factor": 4.0}``). None
        keeps the checkpoint's.
    `weights`: `server` where a running server has them, and this machine does not. `target` is then no checkpoint, but
        what its tokens are known by: a folder with its `tokenizer.json`, or that file under any name.
    """

    name: str
    target: Path
    draft: Path | None
    acceptance: AcceptanceSource = "real"
    rope: Mapping[str, int | float | str] | None = None
    weights: Literal["here", "server"] = "here"

    @property
    def tokenizer(self) -> Path:
        """The target's tokenizer file, which need not be there."""
        is_file = self.weights == "server" and self.target.suffix == ".json"
        return self.target if is_file else self.target / "tokenizer.json"
