"""Measure the cost of the client itself: 64 streams at 200 tokens per second, from a stub server in another process.

    python -m bench.client_overhead [--streams 64] [--rate 200] [--tokens 1000]

Prints the time per token as the client measured it and as the stub sent it, and the client's share of a CPU core. Run
it on a quiet machine with at least two cores. On two shared cores with a load average of 6.5, 2026-11-29: the client's
time was 0.11 to 0.20 % below the stub's, the worst stream 0.39 % off, at 17 % of a core.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from specgate.backends.servers.answers import understand
from specgate.backends.servers.client import Client, StreamLimit
from specgate.backends.servers.engines import adapter_named
from specgate.backends.servers.exchange import Ask
from specgate.backends.servers.secrets import Secret
from tests.backends.servers.helpers import running_stub


def sent_ms(stamps: Sequence[float]) -> float:
    """Mean time between tokens of one stream, in milliseconds, as the stub sent it."""
    return (stamps[-1] - stamps[0]) / (len(stamps) - 1) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--tokens", type=int, default=1000)
    args = parser.parse_args()
    adapter = adapter_named("vllm")
    asks = [Ask("specgate", (1, 2, i), args.tokens, ignore_eos=True) for i in range(args.streams)]
    with running_stub("vllm", 0, "--rate", str(args.rate)) as url:
        client = Client(url, stall_s=60, secret=Secret())
        path, bodies = adapter.request(asks[0])[0], [adapter.request(ask)[1] for ask in asks]
        wall, cpu = time.perf_counter(), time.process_time()
        recordings = client.stream(path, bodies, StreamLimit.of(args.tokens, cumulative=False))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        sent = [sent_ms(stamps) for stamps in client.json("/stub/sent")]
        client.close()
    answers = [understand(r, ask, adapter.read, url, 3) for r, ask in zip(recordings, asks, strict=True)]
    measured = [(a.times.e2e_ns - a.times.ttft_ns) / (len(a.tokens) - 1) / 1e6 for a in answers]
    ours, theirs = statistics.fmean(measured), statistics.fmean(sent)
    worst = max(abs(a - b) / b for a, b in zip(sorted(measured), sorted(sent), strict=True))
    print(f"{args.streams} streams, {args.tokens} tokens each at {args.rate:g} tok/s: {wall:.1f} s")
    print(f"time per token: measured {ours:.4f} ms, sent {theirs:.4f} ms: {ours / theirs - 1:+.3%}, worst {worst:.3%}")
    print(f"client: {cpu / wall:.1%} of one core")


if __name__ == "__main__":
    main()
