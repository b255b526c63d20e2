"""Roles of a block: the baseline, and speculation with a number of draft tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, order=True)
class Role:
    """Way in which a block decodes: `k = 0` is `baseline` (no draft), `k > 0` is `spec-k` (a chain of k draft
    tokens).
    """

    k: int

    @property
    def name(self) -> str:
        """`"baseline"` or `"spec-k"`."""
        return f"spec-{self.k}" if self.k else "baseline"

    @property
    def speculative(self) -> bool:
        """True if blocks of this role draft."""
        return self.k > 0

    @classmethod
    def parse(cls, text: str) -> Role:
        """The role called `"baseline"` or `"spec-N"`. Raises ValueError for any other text."""
        if text == "baseline":
            return cls(0)
        prefix, _, digits = text.partition("-")
        if prefix == "spec" and digits.isdigit() and int(digits) > 0:
            return cls(int(digits))
        raise ValueError(f"{text!r} is not a role; a role is 'baseline' or 'spec-N' with N > 0")

    def __str__(self) -> str:
        return self.name


BASELINE = Role(0)


VARIANT_MARK: Final = "+"
"""What stands between a role, or a scenario, and the name of its variant. No scenario file may have it in its name."""
