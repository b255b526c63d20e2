"""Results of a sweep: settings of an engine, each measured beside the default. What an engine reads to use the best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from specgate.contract.types import Count, Finite, Integer, Length, Positive, Text

SWEEP: Final = "specgate.sweep/v1"
Setting = Mapping[Text, Text]
"""Option of the back end → value, of those that are swept. An environment variable is `env.NAME`."""


@dataclass(frozen=True, slots=True)
class CellSpeed:
    """One cell under one setting.

    `throughput`: tokens per second of all requests together, decoding alone in micro scenarios.
    `accept_len`: acceptance length, in tokens; None without drafts.
    `tile_stats`: tiles of attention by their use (total, span_empty, mask_empty, executed) in the last block in which
        the engine states them; {} where it does not.
    """

    throughput: Positive
    accept_len: Positive | None = None
    tile_stats: Mapping[Text, Count] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting beside the default.

    `pairs`: process pairs that it was measured in, one process of the default and one of the setting each.
    `cells`, `default_cells`: `SCENARIO/cCONTEXT/bBATCH/ROLE` → what the setting gave, and the default beside it.
    `ratio`: tokens per second over the default's, the geometric mean over the speculative cells, paired by process.
    `low`, `high`: its interval, whose error all settings of the sweep share; None for fewer than three pairs.
    `why_not`: why it cannot win: it failed, or its tokens differ.
    `folder`: its raw samples, seen from the folder of the sweep.
    `made_by`: the setting of the engine that wrote the file which this one reads; empty if it reads none.
    """

    config: Setting
    pairs: Count = 0
    cells: Mapping[Text, CellSpeed] = field(default_factory=dict)
    default_cells: Mapping[Text, CellSpeed] = field(default_factory=dict)
    ratio: Positive | None = None
    low: Positive | None = None
    high: Positive | None = None
    why_not: Text | None = None
    folder: Text | None = None
    made_by: Setting = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Best:
    """The setting that came first, measured again beside the default.

    `ratio`, `low`, `high`: as in `Trial`, of the blocks of `comparison` alone, so that having been chosen does not
        flatter it.
    `error`: the error on each side of the interval.
    `faster`: whether the interval lies above 1.
    `ties`: other settings of the last halving that are not proven slower than this one.
    `comparison`: the folder of the comparison, which `specgate runs verify` checks.
    `bake`: what makes it the default: a shell command, or options of a command line.
    """

    config: Setting
    ratio: Positive
    low: Positive
    high: Positive
    error: Positive
    faster: bool
    ties: tuple[Setting, ...]
    comparison: Text
    bake: Text


@dataclass(frozen=True, slots=True)
class SweptPoint:
    """A point of the scenarios that were swept: its prompts have `context` tokens, and `batch` are decoded together."""

    scenario: Text
    context: Count
    batch: Count


@dataclass(frozen=True, slots=True)
class Sweep:
    """A whole sweep, as stored. `device`: None where no engine ran.

    `engine`: what the default's engine tells of itself. `options`: those that all settings and the default share.
    `pair_s`: mean seconds of a process pair; None where none was measured.
    `verdict`: the result in words. `best`: None where nothing was compared in the end.
    """

    measured: Text
    backend: Text
    device: Text | None
    pair: Text
    engine: Mapping[Text, str | bool | Integer | Finite]
    points: Annotated[tuple[SweptPoint, ...], Length(1)]
    options: Mapping[Text, Text]
    trials: tuple[Trial, ...]
    best: Best | None
    verdict: Text
    pair_s: Positive | None = None
