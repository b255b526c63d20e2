"""What may be asked of sampling."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields

from specgate.contract import Sampling
from specgate.errors import UsageError


def check_settings(asked: Sampling, where: str = "sampling") -> None:
    """Raise UsageError for the first setting that makes no sense. `where`: what has these settings."""
    for name, why in problems(asked):
        raise UsageError(f"{where}.{name} = {getattr(asked, name)!r}", hint=why)


def problems(asked: Sampling) -> Iterator[tuple[str, str]]:
    """(setting, what would be right) of every setting that makes no sense."""
    for field in fields(asked):
        value = getattr(asked, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            yield field.name, "a finite number"
    if asked.temperature < 0:
        yield "temperature", "0 or more; 0 is greedy"
    if not 0 < asked.top_p <= 1:
        yield "top_p", "more than 0, at most 1; 1 keeps every token"
    if asked.top_k < 0:
        yield "top_k", "0 or more; 0 keeps every token"
    if not 0 <= asked.min_p <= 1:
        yield "min_p", "from 0 to 1; 0 keeps every token"
    if not asked.repetition_penalty > 0:
        yield "repetition_penalty", "more than 0; 1 is none"
    if not 0 <= asked.seed < 1 << 64:
        yield "seed", "from 0 to 2**64 - 1"
    tokens = [token for token, _ in asked.logit_bias]
    if len(set(tokens)) < len(tokens) or any(t < 0 for t in tokens):
        yield "logit_bias", "every token once, by its id"
    if not all(math.isfinite(bias) for _, bias in asked.logit_bias):
        yield "logit_bias", "finite numbers; a large negative one, such as -100, rules a token out"
