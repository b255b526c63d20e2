"""The script of the fake engine: what it does, and which faults it has. Read from the back end's options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from specgate.errors import UsageError


@dataclass(frozen=True, slots=True)
class Script:
    """Behaviour of the fake engine. Times are in nanoseconds. A cycle of spec-k costs (step_ns + k · draft_ns) ·
    slowdown.
    """

    accept: tuple[int, ...] = (3, 1, 2, 5, 0, 3)
    """Accepted draft tokens per step, at most k, repeated. Slot s starts s steps into the list."""
    vocab: int = 1000
    max_positions: int = 1 << 20
    prefill_ns: int = 1_000
    """Per prompt token."""
    step_ns: int = 1_000_000
    draft_ns: int = 100_000
    row_ns: int = 0
    """Under load: what a step takes longer for every token that it verifies."""
    refuse_beyond: int | None = None
    """Under load: requests that are there already beyond which another one is refused."""
    send_lag_ns: int = 0
    """In an open loop: every request is sent so long after it was due."""
    jitter: float = 0.01
    """The largest share by which a step takes longer. A fixed pseudo-random sequence decides."""
    prompt_jitter: float = 0.0
    """The largest share by which the steps over a prompt set take longer. Its first prompt decides."""
    eos_at: int | None = None
    """Index of the only generated token that is EOS; 0 is the prefill token."""
    margin: float = 8.0
    """Top-1 minus top-2 logit at every position."""

    # Faults, all off by default.
    slowdown: float = 1.0
    """Factor on the time of every cycle with draft tokens."""
    wrong_token_at: int | None = None
    """Spec roles emit a different token at this index (≥ 1) of slot 0."""
    no_drafts: bool = False
    """Spec roles silently decode without drafting."""
    draft_error: str | None = None
    """The draft cannot be used, for this reason. Spec roles decode without it and say so."""
    draft_dies_after_blocks: int | None = None
    """The draft becomes unusable after this many blocks, warm-up blocks included."""
    fallback_kernel: str | None = None
    """A kernel of this name runs in every step, beside the engine's own."""
    sync_in_loop: bool = False
    d2h_in_loop: bool = False
    alloc_in_loop: bool = False
    untuned_launches: int = 0
    """Launches per block that found no tuned configuration."""
    left_multi_token: int = 0
    """So many request-steps of every spec block, its first ones, decode without drafting for no good reason."""
    stale_steps: int = 0
    """So many more steps of every further block accept nothing, its first ones: a draft that goes stale with uptime."""
    kv_integrity_failures: int = 0
    mask_integrity_failures: int = 0
    """So many attention masks of trees are broken in every block. 0: it drafts chains, which need none."""
    cache_hit_tokens: int = 0
    """Prompt tokens that were not prefilled because a cache still held them from another request."""
    loop_period: int | None = None
    """The target's text repeats after this many tokens."""
    lost_tokens: int = 0
    """Tokens falsely reported as truncated, so that the counts no longer add up to the emitted tokens."""
    committed_rewound: int = 0
    """Tokens that every spec block says to have rewound beyond those of rejected drafts."""
    fail_open: str | None = None
    """Opening the engine fails with this message."""
    die_after_blocks: int | None = None
    """The next block after this many ends the process by SIGKILL. Only for engines in a worker process."""
    hang_after_blocks: int | None = None
    """The next block after this many never returns."""

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
    "prompt_jitter": ("a number", float),
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
