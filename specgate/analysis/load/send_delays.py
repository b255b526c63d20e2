"""Delays with which the client of an open loop sent its requests, and the limit from which they are too large.

A request counts from when it was due, so a late client hides no queue. But its lateness is then part of every latency,
and what the server was offered is not the load that was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from specgate.contract import CellResult, Served, Value

MOST_LAG: Final = 0.05
"""The 99th percentile of the lag may be this share of the mean end-to-end latency of the same requests: beyond it, the
client has a part in the latencies that no longer is small beside the ratios that a sweep tells apart.
"""

FASTER_CLIENT: Final = "idle CPUs for the client, or a rate that it can keep"


def lag_values(served: Iterable[Served]) -> Iterator[Value]:
    """Percentiles of the time from when a request was due to its sending; nothing where none was due at a time."""
    import numpy as np

    lags = [(r.sent_ns - r.due_ns) / 1e6 for block in served for r in block.requests if r.due_ns is not None]
    if not lags:
        return
    for percent in (50, 99):
        yield Value(f"p{percent}_send_lag_ms", float(np.percentile(lags, percent)), f"p{percent}", len(lags))
    yield Value("send_lag_ms", max(lags), "max", len(lags))


def fell_behind(result: CellResult) -> str | None:
    """Return, with the figures, the reason that a cell's latencies are not the server's alone; None if they are."""
    if result.cell.point.rate is None:  # only in an open loop are requests due at a time
        return None
    lag, whole = (
        latency.value if (latency := result.values.get(name)) else None for name in ("p99_send_lag_ms", "mean_e2e_ms")
    )
    if lag is None or whole is None or lag <= MOST_LAG * whole:
        return None
    return (
        f"{result.cell.key}: the client fell behind: one request of a hundred was sent more than {lag:.3f} ms after it "
        f"was due, where requests take {whole:.3f} ms; at most {MOST_LAG:.0%} of that may be"
    )


def late_clients(results: Sequence[CellResult]) -> tuple[str, ...]:
    """A sentence for every cell whose client fell behind."""
    return tuple(why for result in results if (why := fell_behind(result)))
