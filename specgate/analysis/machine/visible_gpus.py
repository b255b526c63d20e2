"""GPUs of a machine that CUDA programs were allowed to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def visible_among(gpus: Sequence[Mapping[str, object]], variable: str | None) -> list[dict[str, object]]:
    """Those of `gpus` that CUDA programs are allowed to see, in their order. `variable`: CUDA_VISIBLE_DEVICES, or None
    where it is not set. As CUDA does, it stops at the first word that names no GPU, or one again.
    """
    if variable is None:
        return [dict(gpu) for gpu in gpus]
    visible: list[dict[str, object]] = []
    for word in map(str.strip, variable.split(",")):
        named = [
            dict(gpu)
            for index, gpu in enumerate(gpus)
            if word == str(index) or (word.startswith("GPU-") and str(gpu["uuid"]).startswith(word))
        ]
        if not named or named[0] in visible:
            break
        visible.append(named[0])
    return visible


def seen_by(environment: Mapping[str, Any]) -> list[dict[str, object]]:
    """The GPUs of env.json that the run's programs were allowed to see, in their order."""
    variables = environment.get("variables") or {}
    return visible_among(environment.get("gpus") or [], variables.get("CUDA_VISIBLE_DEVICES"))
