"""The stub's profiler: the endpoints of vLLM and SGLang, and a trace of what the stub has streamed meanwhile."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.backends.servers.stub import web
from tests.backends.servers.stub.engine import Stub
from tests.support.traces import FLASH, sglang_loop, vllm_loop


def profiler_routes(stub: Stub) -> list[web.RouteDef]:
    """As vLLM has them, only where a folder was named at the start; SGLang names it when a profile begins."""

    async def start(request: web.Request) -> web.StreamResponse:
        text = await request.text()
        if stub.dialect == "sglang":
            body = json.loads(text)
            assert body["activities"] == ["CPU", "GPU"] and not body["with_stack"], body
            stub.traces = Path(body["output_dir"])
        stub.streamed.clear()
        return web.Response()

    async def stop(request: web.Request) -> web.StreamResponse:
        assert stub.traces is not None
        if stub.has("no_stop"):
            return web.Response(status=500, text="the profiler has failed")
        if not stub.has("no_trace"):
            write_trace(stub, stub.traces)
        return web.Response()

    if stub.dialect == "vllm" and stub.traces is None:
        return []
    return [web.post("/start_profile", start), web.post("/stop_profile", stop)]


def write_trace(stub: Stub, folder: Path) -> None:
    """One file per rank, as the engines name them. `streamed` has the steps of every request, prefill included."""
    requests, steps = len(stub.streamed), max(stub.streamed) - 1
    folder.mkdir(exist_ok=True)
    stamp = len(list(folder.iterdir()))
    if stub.dialect == "vllm":
        made = vllm_loop(steps, requests, stub.k + 1, stub.faults.get("attention", FLASH))
        file = folder / f"dp0_pp0_tp0_dcp0_ep0_rank0.{stamp}.pt.trace.json.gz"
    else:
        made = sglang_loop(steps, requests, drafts=stub.k > 0)
        file = folder / f"1795398352.{stamp}-TP-0.trace.json.gz"
    made.base_ns = time.time_ns()
    if stub.has("bad_trace"):
        file.write_bytes(b"\x1f\x8bnonsense")
    else:
        made.write_chrome(file)
