"""Figures of cells, and comparisons of cells with their baselines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.scenarios.plan import Cell
from specgate.contract.token_check import ScoreCheck, TokenCheck


@dataclass(frozen=True, slots=True)
class Value:
    """One figure.

    `stat`: which statistic it is, such as `p50`, `mean` or `tok_weighted`.
    `n`: how many samples it rests on.
    `reason_code`: why there is no value, or no interval around it.

    `specgate.contract.metrics.METRICS` has the unit of each metric.
    """

    metric: str
    value: float | None
    stat: str = "value"
    n: int = 1
    ci_low: float | None = None
    ci_high: float | None = None
    reason_code: str | None = None


@dataclass(frozen=True, slots=True)
class Distribution:
    """Order statistics of `n` samples: `values` are at evenly spaced ranks, from the smallest sample to the largest."""

    n: int
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class AcceptanceDrift:
    """Drift of a spec cell's acceptance length while its engine answers more and more requests.

    The model is Lᵢ = m[prompt set of i] + slope · xᵢ + eᵢ over the cell's blocks: Lᵢ is the acceptance length of block
    i in tokens, xᵢ the requests of the cell's role that the engine's process had answered by the middle of the block,
    in thousands. `analysis.speculation.uptime` has the method.

    `slope`: tokens per 1,000 requests. `error`: its standard error; 0 where every block of a prompt set accepted the
        same. `freedom`: its degrees of freedom.
    `correlation`: how alike neighbouring blocks may be by `error`.
    `set_error`: its standard error by the spread over `sets` prompt sets; 0 where these cannot be told apart.
    `length`: the mean acceptance length of the blocks, in tokens.
    `requests`: of the cell's role, answered by one process from the beginning of the cell's first block in it to the
        end of its last, those of other points in between among them; the most of any process.
    `blocks`: per block, in running order: (requests answered by its middle, Lᵢ less the mean of its prompt set).
    """

    slope: float
    error: float
    freedom: int
    correlation: float
    set_error: float
    sets: int
    length: float
    requests: int
    blocks: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class CellResult:
    """Result of the blocks of one cell.

    `reason`: why `status` is not `ok`; None where it is.
    `reason_code`: which kind of contradiction its records hold; None where they hold none.
    """

    cell: Cell
    status: Literal["ok", "partial", "failed"]
    reason: str | None
    blocks: int
    acceptance: AcceptanceRecord | None
    values: Mapping[str, Value]
    series_ms: tuple[tuple[int, int, float], ...]
    """Per block: (round of the point in running order, position in round, decode milliseconds per emitted token)."""
    distributions: Mapping[str, Distribution] = field(default_factory=dict)
    """Quantity → times of single requests: `tpot_ms`; `ttft_ms` in full runs; `itl_ms`, of single output tokens."""
    rescored: ScoreCheck | None = None
    """What a second engine says of the tokens; None where none was asked."""
    reason_code: str | None = None
    set_aside: int = 0
    """Blocks whose times are left out, because the host was disturbed. Their tokens count like those of any other."""
    drift: AcceptanceDrift | None = None
    """Whether acceptance changes with uptime; None for a baseline, and where the blocks are too few to look at it."""

    @property
    def refused(self) -> bool:
        """True if a server under load refused requests: the times of the others are no fair sample."""
        count = self.values.get("refused_requests")
        return count is not None and bool(count.value)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A spec cell compared with the baseline cell of its point, over pairs of blocks.

    `log_ratios`: ln(spec / baseline) of the tokens per second, one entry per pair: of decoding alone in a micro run,
        of whole requests in a full run.
    """

    cell: Cell
    tokens: TokenCheck
    log_ratios: tuple[float, ...]
    orders: tuple[int, ...]
    """+1 where the baseline block of the pair ran first, -1 where the spec block did."""
    prompt_sets: tuple[int, ...]
    turns: tuple[int, ...]
    """The round of each pair, counted over the whole point in running order."""
    speedup: Value
    """What a speed rule judges: the geometric mean over the pairs."""
    beside: tuple[Value, ...] = ()
    """Other ratios over the same pairs: of sums, as the field has throughput, and of decoding alone in a full run."""


@dataclass(frozen=True, slots=True)
class BetweenRuns:
    """Spread of a cell's log-ratio between runs that each see one process on one machine.

    `process_sd`: standard deviation between processes on one machine.
    `process_freedom`: its degrees of freedom, one less than the processes that were measured; None where it is assumed
        and was not measured.
    `machine_sd`, `machine_freedom`: the same between machines; 0 and None where it is not known.
    `least_process_sd`: the standard deviation between processes that is allowed for however little was measured; it is
        taken as known, so it goes with the normal quantile. 0 where what was measured counts alone.
    `pair_sd`: standard deviation of a pair within a process, as measured; 0 where it was not.

    Raises ValueError for a standard deviation that is negative or not finite, and for no degree of freedom.
    """

    process_sd: float
    process_freedom: int | None
    machine_sd: float = 0.0
    machine_freedom: int | None = None
    least_process_sd: float = 0.0
    pair_sd: float = 0.0

    def __post_init__(self) -> None:
        sds = (self.process_sd, self.machine_sd, self.least_process_sd, self.pair_sd)
        if not all(0 <= sd < math.inf for sd in sds):
            raise ValueError("a standard deviation is a finite number, 0 or more")
        if any(freedom is not None and freedom < 1 for freedom in (self.process_freedom, self.machine_freedom)):
            raise ValueError("a measured standard deviation has one degree of freedom or more")
