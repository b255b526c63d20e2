"""Configurations of attention: as an option has them, and as sweeps found them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specgate.contract.sweeps import SWEEP, Sweep
from specgate.errors import UsageError
from specgate.files.cache import cache_path
from specgate.files.json_text import to_plain
from specgate.files.writing import write_json
from specgate.files.yaml_schema import parse
from specgate.files.yamlfile import load

AttentionConfig = Mapping[str, int]
"""Setting → value, with the engine's own names for the settings."""
FMHA: Final = "fmha"
"""The option that has a configuration, and is swept."""
OF_ATTENTION: Final = ("kv", "draft_kv", "tp", "draft_tp")
"""Other options that attention's kernels depend on: an engine takes a sweep's result only under the same ones."""
HEADS: Final = "target heads"
"""The detail of an engine that says which attention its target has."""
REACH: Final = 2
"""An engine takes the result of a sweep at prompts of N tokens from N positions on, below so many times N."""


def heads_in_words(layers: int, heads: int, kv_heads: int, head_dim: int) -> str:
    """Attention of a target, as `HEADS` has it."""
    return f"{heads} of {head_dim}, {kv_heads} cached, in {layers} layers"


def parse_config(text: str) -> AttentionConfig:
    """`kv_tile:512,warps:4` → settings. Raises UsageError for text of another form and for a repeated setting."""
    config = dict[str, int]()
    for part in text.split(","):
        name, _, value = part.partition(":")
        if not name.strip() or not value.strip().isdigit() or name.strip() in config:
            raise UsageError(f"attention configuration {text!r}: {part!r}", hint="write KNOB:NUMBER,KNOB:NUMBER")
        config[name.strip()] = int(value)
    return config


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an engine wants a configuration for: `slots` requests of up to `positions` positions each, of a target whose
    attention is as `heads` says.
    """

    device: str
    heads: str
    slots: int
    positions: int
    options: Mapping[str, str]


def read_sweep(file: Path) -> Sweep:
    """The sweep in `file`. Raises UsageError with file, line, key, value and what would be right."""
    return parse(Sweep, load(file), SWEEP)


def best_of(sweep: Sweep) -> AttentionConfig | None:
    """The configuration that a sweep proved to be faster than the default; None where it proved none."""
    best = sweep.best
    return parse_config(best.config[FMHA]) if best is not None and best.faster and set(best.config) == {FMHA} else None


def chosen_in(file: Path, device: str) -> AttentionConfig:
    """The configuration that the sweep in `file` proved to be faster than the default.

    Raises UsageError for a sweep of another device, and for one that proved none.
    """
    sweep = read_sweep(file)
    if sweep.device != device:
        raise UsageError(f"{file}: device: {sweep.device!r}, but this is {device!r}", hint="sweep on this device")
    if (config := best_of(sweep)) is None:
        raise UsageError(f"{file}: best: no value of {FMHA} is proven faster than the default", hint=sweep.verdict)
    return config


def keep(sweep: Sweep) -> Path:
    """Store a sweep in the user's cache, where engines find it; one of the same points is replaced."""
    points = "-".join(f"{p.batch}x{p.context}" for p in sweep.points)
    of = f"{sweep.engine.get(HEADS)} {[sweep.options.get(name) for name in OF_ATTENTION]}"
    device = re.sub(r"[^a-z0-9]+", "-", (sweep.device or "").lower()).strip("-")
    file = kept_in() / f"{device}-{points}-{hashlib.sha256(of.encode()).hexdigest()[:8]}.json"
    write_json(file, {"schema": SWEEP, **to_plain(Sweep, sweep)})
    return file


def kept_in() -> Path:
    """The folder of the sweeps that were kept."""
    return cache_path() / "tuned" / FMHA


def kept_config(wanted: Wanted) -> AttentionConfig | None:
    """The configuration of the kept sweep whose prompts are nearest to what is wanted; None where none is near."""
    sweeps = (read_sweep(file) for file in sorted(kept_in().glob("*.json")))
    near = [(context, config) for sweep in sweeps for context, config in fitting(sweep, wanted)]
    return max(near, key=lambda each: each[0])[1] if near else None


def fitting(sweep: Sweep, wanted: Wanted) -> Iterator[tuple[int, AttentionConfig]]:
    """Yield (context, configuration) for each point of `sweep` that is like what is wanted."""
    same = (sweep.device, sweep.engine.get(HEADS)) == (wanted.device, wanted.heads)
    if not same or any(sweep.options.get(name) != wanted.options.get(name) for name in OF_ATTENTION):
        return
    if (config := best_of(sweep)) is not None:
        for point in sweep.points:
            if point.batch == wanted.slots and point.context <= wanted.positions < REACH * point.context:
                yield point.context, config
