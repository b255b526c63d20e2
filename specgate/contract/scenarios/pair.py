"""A pair of checkpoints, and where its acceptance comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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
