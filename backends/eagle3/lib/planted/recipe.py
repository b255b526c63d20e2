"""Settings that determine a planted pair: the section `planted` in the configs of its target and its draft. Needs no
torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from specgate.checkpoints.hf_keys import Keys

GENERATOR: Final = 1
"""Version of the generator in `bits`. It goes up when the same seed gives other bits; pairs of another version are
refused.
"""
DEPTH: Final = 5
"""The longest chain that recipe B's register has bits for."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The choices that a planted pair is generated from.

    `name` A is for measuring speed: the draft needs nothing but the tokens. B is for correctness: the draft also needs
    the target's features and its own KV cache. `signal` (λ) is the weight of the planted successor in the target's LM
    head. `draft_error` is the share of draft tokens whose successor the draft gets wrong. `boundaries` are the
    auxiliary hidden-state layers. `expert_overlap` says how far neighbouring tokens choose the same experts, from 0
    (independent) to 1 (equal; `routing.py` has the formula); None for a dense target.
    """

    name: Literal["A", "B"]
    seed: int
    draft_vocab: int
    signal: float
    boundaries: tuple[int, ...]
    draft_error: float = 0.0
    expert_overlap: float | None = None

    @property
    def maps(self) -> int:
        """Number of successor maps. Recipe B has two, and a bit of an old token chooses between them."""
        return 2 if self.name == "B" else 1

    def keys(self) -> dict[str, object]:
        """The recipe as keys of the config section."""
        return {
            "generator": GENERATOR,
            "recipe": self.name,
            "seed": self.seed,
            "draft_vocab": self.draft_vocab,
            "signal": self.signal,
            "boundaries": list(self.boundaries),
            "draft_error": self.draft_error,
            **({} if self.expert_overlap is None else {"expert_overlap": self.expert_overlap}),
        }


def recipe_of(section: Keys) -> Recipe:
    """Parse the section. Raises CheckpointError with key, value, and what would be right."""
    if section.count("generator") != GENERATOR:
        raise section.wrong(
            "generator", f"this version makes the weights of generator {GENERATOR}: plant the pair anew"
        )
    name = section.text("recipe")
    if name not in ("A", "B"):
        raise section.wrong("recipe", "A or B")
    seed, error = section.values.get("seed"), section.values.get("draft_error", 0.0)
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise section.wrong("seed", "an integer is needed")
    if not isinstance(error, int | float) or isinstance(error, bool) or not 0 <= error < 1:
        raise section.wrong("draft_error", "a share of at least 0 and below 1 is needed")
    overlap = section.values.get("expert_overlap")
    if overlap is not None and (not isinstance(overlap, int | float) or isinstance(overlap, bool)):
        raise section.wrong("expert_overlap", "a share from 0 to 1 is needed")
    if overlap is not None and not 0 <= overlap <= 1:
        raise section.wrong("expert_overlap", "a share from 0 to 1 is needed")
    boundaries = section.ids("boundaries")
    if len(boundaries) != 3:
        raise section.wrong("boundaries", "three captured streams are needed")
    return Recipe(
        name="A" if name == "A" else "B",
        seed=seed,
        draft_vocab=section.count("draft_vocab"),
        signal=section.number("signal"),
        boundaries=boundaries,
        draft_error=float(error),
        expert_overlap=None if overlap is None else float(overlap),
    )
