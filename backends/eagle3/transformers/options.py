"""The options of this back end (`-o KEY=VALUE`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from specgate.contract.protocols.option_values import build_of, choice
from specgate.errors import UsageError

Attention = Literal["sdpa", "eager"]
DEVICES: Final = ("auto", "cpu", "cuda")
OF_THE_LOOP: Final = ("capture", "drafter", "spec_config", "tape")
"""Options that the loop has with the reference engine in common."""
KNOWN: Final = ("device", "attention", "prefill_rows", "build", *OF_THE_LOOP)


@dataclass(frozen=True, slots=True)
class Options:
    """The options, as docs/engines.md explains them.

    `attention`: None for what transformers takes for this model. `prefill_rows`: rows of a prompt in one pass; None for
    the whole prompt, where its masks stay small.
    """

    device: str = "auto"
    attention: Attention | None = None
    prefill_rows: int | None = None
    build: str | None = None

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> Options:
        """Parse the options. Raises UsageError for unknown and bad ones."""
        if unknown := [key for key in raw if key not in KNOWN]:
            hint = f"the back end transformers knows: {', '.join(KNOWN)}"
            raise UsageError(f"option {', '.join(unknown)}: not known", hint=hint)
        return cls(
            device=choice(raw, "device", DEVICES),
            attention=attention_of(raw["attention"]) if "attention" in raw else None,
            prefill_rows=rows_of(raw["prefill_rows"]) if "prefill_rows" in raw else None,
            build=build_of(raw["build"]) if "build" in raw else None,
        )


def attention_of(text: str) -> Attention:
    for known in get_args(Attention):
        if text == known:
            return "eager" if known == "eager" else "sdpa"
    raise UsageError(
        f"option attention = {text!r}",
        hint="sdpa or eager: other kernels of transformers take no mask for slots at different positions",
    )


def rows_of(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"option prefill_rows = {text!r}: a number of rows, 1 or more, is needed")
    return int(text)
