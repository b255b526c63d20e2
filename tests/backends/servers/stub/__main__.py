"""A server that speaks five engines' formats and decodes nothing: tokens, acceptance and rate are scripted.

    python -m tests.backends.servers.stub --dialect vllm --port 8000 --k 3 [--rate 200] [--draft-cost 1] [--fault NAME]…

The text is a function of prompt and position, so that every role emits the same tokens. Flags of the real engines that
it does not know are ignored; draft length and port are read from theirs where it is started in their place.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.backends.servers.stub import web
from tests.backends.servers.stub.dialects import DIALECTS
from tests.backends.servers.stub.engine import PrefixCache, Stub
from tests.backends.servers.stub.profiler import profiler_routes


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--dialect", choices=DIALECTS, required=True)
    parser.add_argument("--port", "--server-port", type=int, required=True)
    parser.add_argument("--k", type=int, default=0)
    parser.add_argument("--rate", type=float, default=2000.0)
    parser.add_argument("--draft-cost", type=float, default=0.0, help="of each draft token, in steps without drafts")
    parser.add_argument("--model-name", "--served-model-name", default="specgate")
    parser.add_argument("--lengths", default="", help="drafted:accepted tokens of its steps, repeated: 0:0,16:9")
    parser.add_argument("--source", help="what it says that it has loaded")
    parser.add_argument("--fault", action="append", default=[])
    for flag in ("--speculative-config", "--speculative-num-steps", "--spec-draft-n-max", "--config"):
        parser.add_argument(flag)
    parser.add_argument("--speculative-num-draft-tokens")
    parser.add_argument("--profiler-config", type=json.loads)
    parser.add_argument("--reuses", action="store_true", help="it has a prefix cache, which flags may switch off")
    parser.add_argument("--no-enable-prefix-caching", "--disable-radix-cache", dest="cold", action="store_true")
    parser.add_argument("--draws", action="store_true", help="it draws where it is asked for a temperature")
    known, _ = parser.parse_known_args(arguments)
    return known


def draft_length(known: argparse.Namespace) -> int:
    """As the real engine would read it from its own flags."""
    if known.speculative_config:
        return int(json.loads(known.speculative_config)["num_speculative_tokens"])
    if known.config:
        import yaml

        with open(known.config) as stream:
            return int(yaml.safe_load(stream).get("speculative_config", {}).get("max_draft_len", 0))
    tokens = known.speculative_num_draft_tokens if known.dialect == "lmdeploy" else None
    return int(known.speculative_num_steps or known.spec_draft_n_max or tokens or known.k)


def main(arguments: Sequence[str]) -> None:
    known = parse(arguments)
    faults = dict(fault.partition("=")[::2] for fault in known.fault)
    if "log" in faults:
        print(faults["log"], file=sys.stderr, flush=True)
    if "no_start" in faults:
        sys.exit(3)
    if known.dialect == "vllm":  # as a real one logs it
        tokens = 16 * (4096 - 512 * bool(draft_length(known)))
        print(f"(EngineCore pid=9) INFO [kv_cache_utils.py:2146] GPU KV cache size: {tokens:,} tokens", file=sys.stderr)
    k = draft_length(known)
    stub = Stub(known.dialect, k, known.rate / (1 + known.draft_cost * k), known.model_name, faults)
    stub.script = [tuple(map(int, step.split(":"))) for step in known.lengths.split(",") if step]
    stub.source = known.source
    if known.reuses and not known.cold:
        stub.cache = PrefixCache()
    if known.draws:
        from tests.backends.servers.stub.sampling import Chain

        stub.chain = Chain(always_greedy=stub.has("greedy_verify") and bool(stub.k))
    if known.profiler_config:
        stub.traces = Path(known.profiler_config["torch_profiler_dir"])
    routes = DIALECTS[known.dialect](stub)
    if known.dialect in ("vllm", "sglang"):
        routes += profiler_routes(stub)
    web.serve(routes, known.port)


if __name__ == "__main__":
    main(sys.argv[1:])
