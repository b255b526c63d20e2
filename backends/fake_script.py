"""What the fake engine does, and what goes wrong in it: one frozen object, read from back-end options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from specgate.errors import UsageError


@dataclass(frozen=True, slots=True)
class Script:
    """What the engine does. Times in nanoseconds; a cycle of spec-k costs (step_ns + k · draft_ns) · slowdown."""

    accept: tuple[int, ...] = (3, 1, 2, 5, 0, 3)
    """Drafts accepted by step (cut to k), repeated; slot s starts s further on."""
    vocab: int = 1000
    max_positions: int = 1 << 20
    prefill_ns: int = 1_000
    """Per prompt token."""
    step_ns: int = 1_000_000
    draft_ns: int = 100_000
    jitter: float = 0.01
    """Steps take up to this share longer, by a fixed pseudo-random sequence."""
    eos_at: int | None = None
    """Index of the one generated token that is EOS; 0 is the prefill token."""
    margin: float = 8.0
    """Top-1 minus top-2 logit at every position."""

    # Faults. Each is off by default.
    slowdown: float = 1.0
    wrong_token_at: int | None = None
    """Spec roles emit another token at this index of slot 0 (≥ 1)."""
    no_drafts: bool = False
    """Spec roles silently decode without drafting."""
    draft_error: str | None = None
    """The draft cannot be used, for this reason: spec roles decode plainly and say so."""
    draft_dies_after_blocks: int | None = None
    """The draft becomes unusable after so many blocks, warm-up blocks among them."""
    fallback_kernel: str | None = None
    """A kernel of this name is launched in every step, beside the engine's own."""
    sync_in_loop: bool = False
    d2h_in_loop: bool = False
    alloc_in_loop: bool = False
    untuned_launches: int = 0
    """Look-ups per block that found no tuned configuration."""
    left_multi_token: int = 0
    """Request-steps per spec block that left multi-token mode for no good reason."""
    kv_integrity_failures: int = 0
    cache_hit_tokens: int = 0
    """Prompt tokens that were not prefilled, because another request had left them in a cache."""
    loop_period: int | None = None
    """The target's text repeats itself after so many tokens."""
    lost_tokens: int = 0
    """Reported as truncated though they were not: breaks the identity of emitted tokens."""
    fail_open: str | None = None
    """Refuse to open, with this message."""
    die_after_blocks: int | None = None
    """End the own process by SIGKILL when asked for one block more. For engines in a worker process only."""
    hang_after_blocks: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Script:
        """Raises UsageError for an unknown option or a value that cannot be read."""
        values: dict[str, Any] = {key: _read(key, text) for key, text in options.items()}
        return cls(**values)


def _integers(text: str) -> tuple[int, ...]:
    values = tuple(int(part) for part in text.split(","))
    if min(values) < 0:
        raise ValueError("a count cannot be negative")
    return values


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text]


_READ: dict[str, tuple[str, Callable[[str], object]]] = {
    "accept": ("integers ≥ 0 with commas", _integers),
    "jitter": ("a number", float),
    "margin": ("a number", float),
    "slowdown": ("a number", float),
    "no_drafts": ("true or false", _boolean),
    "sync_in_loop": ("true or false", _boolean),
    "d2h_in_loop": ("true or false", _boolean),
    "alloc_in_loop": ("true or false", _boolean),
    "fallback_kernel": ("a text", str),
    "draft_error": ("a text", str),
    "fail_open": ("a text", str),
}


def _read(key: str, text: str) -> object:
    known = [f.name for f in fields(Script)]
    if key not in known:
        close = get_close_matches(key, known, n=1)
        hint = (f"did you mean {close[0]!r}? " if close else "") + f"known: {', '.join(known)}"
        raise UsageError(f"back end fake: option {key!r} is not known", hint=hint)
    what, read = _READ.get(key, ("an integer", int))
    try:
        return read(text)
    except (ValueError, KeyError):
        raise UsageError(f"back end fake: option {key} = {text!r}", hint=f"{what} was expected") from None
