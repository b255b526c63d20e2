"""The formats of five engines, as their documentation and sources have them: routes over one stub."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.backends.servers.stub import web
from tests.backends.servers.stub.engine import DECODED, END, HALF, Counts, Step, Stub, ids_of, written

ESCAPES: Final = "\x1b[2J\x1b]0;owned\x07\u202e"
"""Clears the screen, sets the title, turns the direction of text."""

OWNERS: Final = {
    "vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt_llm", "lmdeploy": "lmdeploy", "llamacpp": "llamacpp",
    "openai": "acme",
}  # fmt: skip
"""What engines call the owner of their models."""


def prometheus(values: dict[str, object]) -> web.Response:
    lines = "".join(f"{name} {float(str(value))}\n" for name, value in values.items())
    return web.Response(text=lines, content_type="text/plain")


def spec_counters(stub: Stub, prefix: str, labels: str) -> dict[str, object]:
    """Missing, as in real engines, where nothing drafts."""
    if not stub.k:
        return {}
    counts, name = stub.counts, f"{prefix}spec_decode_num_"
    at_pos = counts.at_pos + [0] * (stub.k - len(counts.at_pos))
    return {
        f"{name}drafts_total{{{labels}}}": counts.steps,
        f"{name}drafts_created{{{labels}}}": 1.78e9,
        f"{name}draft_tokens_total{{{labels}}}": counts.drafted,
        f"{name}accepted_tokens_total{{{labels}}}": counts.accepted,
        **{f'{name}accepted_tokens_per_pos_total{{{labels},position="{i}"}}': n for i, n in enumerate(at_pos)},
    }


def common(stub: Stub, complete: str, handler: web.Handler, metrics: Callable[[], web.Response]) -> list[web.RouteDef]:
    async def health(request: web.Request) -> web.StreamResponse:
        return web.Response()

    async def models(request: web.Request) -> web.StreamResponse:
        owner = {} if stub.has("gateway") else {"owned_by": OWNERS[stub.dialect]}
        root = {"root": stub.source} if stub.source and stub.dialect != "llamacpp" else {}
        return web.json_response({"object": "list", "data": [{"id": stub.model, "object": "model", **owner, **root}]})

    async def read_metrics(request: web.Request) -> web.StreamResponse:
        return web.Response(status=404) if stub.has("no_metrics") else metrics()

    async def sent(request: web.Request) -> web.StreamResponse:
        return web.json_response(stub.sent_at)

    async def restart(request: web.Request) -> web.StreamResponse:
        stub.counts = Counts()
        return web.Response()

    async def faults(request: web.Request) -> web.StreamResponse:
        stub.faults = await request.json()
        return web.Response()

    completions = [] if stub.has("chat_only") else [web.post(complete, handler)]
    return [
        *completions,
        web.post("/v1/chat/completions", openai_handler(stub, chat=True)),
        web.post("/stub/restart", restart),
        web.post("/stub/faults", faults),
        web.get("/health", health),
        web.get("/v1/models", models),
        web.get("/metrics", read_metrics),
        web.get("/stub/sent", sent),
    ]


def answers(path: str, body: dict[str, object]) -> web.RouteDef:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(body)

    return web.RouteDef("*", path, answer)


def tokenizing(stub: Stub) -> web.RouteDef:
    """`/tokenize` of vLLM and SGLang: of a text, or of a chat whose template adds two tokens."""

    async def tokenize(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if stub.has("no_tokenizer"):
            return web.Response(status=404)
        if "prompt" in body:
            return web.json_response({"tokens": ids_of(body["prompt"])})
        if stub.has("no_template"):
            return web.json_response({"error": {"message": "the model has no chat template"}}, status=400)
        return web.json_response({"tokens": [3, *ids_of("".join(turn["content"] for turn in body["messages"])), 4]})

    return web.post("/tokenize", tokenize)


def usage(stub: Stub, prompt: Sequence[int], made: int, cached: int = 0) -> dict[str, Any]:
    counted = len(prompt) + (1 if stub.has("adds_bos") else 0)
    return {"prompt": counted, "completion": made + (1 if stub.has("miscounts") else 0), "cached": cached}


def top_values(stub: Stub, prompt: Sequence[int], tokens: Sequence[int], number: int) -> list[tuple[float, int]]:
    """Those at the last of `tokens`. `number`: of the event; from the second on they are decoded, and rounded so."""
    if stub.chain is not None:
        return stub.chain.candidates(prompt)
    return [(-0.25, tokens[-1]), (-1.75 - DECODED * (number > 0), tokens[-1] + 1)]


# ── OpenAI completions: vLLM, TensorRT-LLM ───────────────────────────────────────────────────────────────────────────


def rendered(stub: Stub, body: dict[str, Any]) -> list[int]:
    """The bytes of the messages in `helpers.TEMPLATE`, or of their contents alone: a server without a template."""
    if stub.has("no_template"):
        return [*"".join(message["content"] for message in body["messages"]).encode()]
    text = "".join(f"<{message['role']}>{message['content']}\n" for message in body["messages"]) + "<assistant>"
    thinks = body.get("chat_template_kwargs", {}).get("enable_thinking", True)
    return [*(text if thinks else text + "<no>").encode()]


def delta(stub: Stub, text: str) -> dict[str, object]:
    """With `calls` the text is the arguments of a tool's call."""
    if not stub.has("calls"):
        return {"content": text}
    return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}


def named(stub: Stub, body: dict[str, Any], prompt: Sequence[int], step: Step, number: int) -> list[dict[str, object]]:
    """Log-probabilities of a chat: tokens by their ids where these are asked for, else by their bytes."""
    by_id = body.get("return_tokens_as_token_ids") and not stub.has("no_ids")

    def entry(token: int, p: float) -> dict[str, object]:
        text = f"token_id:{token}" if by_id else written([token])
        return {"token": text, "logprob": p, "bytes": [*text.encode()]}

    top = [entry(token, p) for p, token in top_values(stub, prompt, step.tokens, number)][: body["top_logprobs"]]
    return [{**entry(token, -0.25), "top_logprobs": top} for token in step.tokens]


def openai_handler(stub: Stub, *, chat: bool = False) -> web.Handler:
    async def complete(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if not body:
            return web.json_response({"error": {"message": "model: field required"}}, status=400)
        if body["model"] != stub.model:
            return web.json_response({"error": {"message": f"no model {body['model']}"}}, status=404)
        prompt = rendered(stub, body) if chat else ids_of(body["prompt"])
        salt = body.get("cache_salt")
        cached = stub.reused(prompt, salt)
        planned = stub.plan(prompt, body["max_tokens"], cached, body)
        stub.remember(prompt, salt, planned)

        def write(number: int, events: int, step: Step) -> list[dict[str, object]]:
            last = number == events - 1
            content = {"delta": delta(stub, written(step.tokens))} if chat else {"text": written(step.tokens)}
            choice: dict[str, object] = {"index": 0, **content, "logprobs": None}
            if body.get("return_token_ids", not chat) and not stub.has("no_ids"):
                choice["token_ids"] = step.tokens
            choice["finish_reason"] = ("length" if not stub.has("short") else "stop") if last else None
            if body.get("logprobs") and chat:
                choice["logprobs"] = {"content": named(stub, body, prompt, step, number)}
            elif body.get("logprobs"):
                top = {f"token_id:{i}": p for p, i in top_values(stub, prompt, step.tokens, number)}
                choice["logprobs"] = {"top_logprobs": [top], "token_logprobs": [-0.25]}
            chunk: dict[str, object] = {
                "object": "text_completion",
                "model": stub.model,
                "choices": [choice],
                "usage": None,
            }
            if number == 0 and chat and body.get("return_token_ids") and not stub.has("no_ids"):
                chunk["prompt_token_ids"] = [*prompt, 1] if stub.has("odd_prompt_ids") else prompt
            details = {"sglext": {"spec_tokens_details": sglang_counts(stub, planned)}}
            chunk |= details if last and stub.k and body.get("return_spec_tokens_details") else {}
            own = own_drafts(stub, planned) if last else {}
            if stub.dialect == "trtllm":
                choice |= own
            if not last or stub.has("no_usage"):
                return [chunk]
            used = usage(stub, prompt, sum(len(s.tokens) for s in planned), cached)
            final = {
                "prompt_tokens": used["prompt"],
                "completion_tokens": used["completion"],
                "total_tokens": used["prompt"] + used["completion"],
                "prompt_tokens_details": {"cached_tokens": used["cached"]},
            }
            end = {"object": "text_completion", "choices": [], "usage": final}
            return [chunk, {**end, **({"metrics": own} if stub.dialect == "vllm" else {})}]

        return await stub.stream(request, planned, write)

    return complete


def own_drafts(stub: Stub, planned: Sequence[Step]) -> dict[str, object]:
    """With `per_request=summary` or `detailed`: what vLLM 0.29 and TensorRT-LLM tell of one request's drafts."""
    if not stub.has("per_request"):
        return {}
    drafting, total = [s for s in planned if s.drafted], "total" if stub.dialect == "trtllm" else "num"
    counts = {
        "acceptance_histogram": [sum(s.accepted == i for s in drafting) for i in range(stub.k + 1)],
        "num_spec_steps": len(drafting),
        f"{total}_accepted_draft_tokens": sum(s.accepted for s in drafting),
        f"{total}_draft_tokens": sum(s.drafted for s in drafting),
        "num_spec_tokens": stub.k,
    }
    if stub.faults["per_request"] == "detailed":
        counts |= {"per_step_drafted": [s.drafted for s in drafting]}
    return {"speculative_decoding": counts if stub.k else None}


def hits(stub: Stub) -> int:
    return stub.counts.requests * int(stub.faults.get("hits", 0)) + (stub.cache.hits if stub.cache else 0)


def own_clock(stub: Stub, labels: str) -> dict[str, object]:
    """With `own_clock=FACTOR`: seconds of decoding, as if the engine decoded so many times as long as it streams."""
    if not stub.has("own_clock"):
        return {}
    seconds = stub.decode_s * float(stub.faults["own_clock"])
    return {f"vllm:request_decode_time_seconds_sum{{{labels}}}": seconds}


def vllm(stub: Stub) -> list[web.RouteDef]:
    labels = 'engine="0",model_name="specgate"'

    def metrics() -> web.Response:
        return prometheus(
            {
                f"vllm:num_requests_running{{{labels}}}": stub.counts.running,
                f"vllm:num_requests_waiting{{{labels}}}": 0,
                f"vllm:generation_tokens_total{{{labels}}}": stub.counts.generated,
                f"vllm:prefix_cache_hits_total{{{labels}}}": hits(stub),
                f'vllm:request_success_total{{{labels},finished_reason="length"}}': stub.counts.requests,
                f'vllm:cache_config_info{{{labels},block_size="16",num_gpu_blocks="{4096 - 512 * bool(stub.k)}"}}': 1,
                **spec_counters(stub, "vllm:", labels),
                **own_clock(stub, labels),
            }
        )

    async def version(request: web.Request) -> web.StreamResponse:
        """With the fault `echoes` it repeats the key, as some servers do in what they say about themselves."""
        heard = f" for {request.headers.get('Authorization')} {ESCAPES}" if stub.has("echoes") else ""
        return web.json_response({"version": f"0.33.0{heard}"})

    # Without /reset_prefix_cache: only servers in development mode have it.
    extra = [web.get("/version", version), tokenizing(stub)]
    return [*common(stub, "/v1/completions", openai_handler(stub), metrics), *extra]


def trtllm(stub: Stub) -> list[web.RouteDef]:
    def iterations() -> web.Response:
        """Who reads them consumes them."""
        result, stub.counts.iterations = stub.counts.iterations, []
        return web.json_response(result)

    async def requests(request: web.Request) -> web.StreamResponse:
        return prometheus({'trtllm_request_success_total{finished_reason="length"}': stub.counts.requests})

    extra = [web.get("/prometheus/metrics", requests), answers("/version", {"version": "1.2.1"})]
    return [*common(stub, "/v1/completions", openai_handler(stub), iterations), *extra]


def compatible(stub: Stub) -> list[web.RouteDef]:
    """A server of the OpenAI format that nobody knows: it has a tokenizer, and no counters."""
    return [*common(stub, "/v1/completions", openai_handler(stub), lambda: web.Response(status=404)), tokenizing(stub)]


# ── formats of their own ─────────────────────────────────────────────────────────────────────────────────────────────


def generate_handler(
    stub: Stub, meta_of: Callable[[Sequence[Step], int], dict[str, object]], cumulative: bool
) -> web.Handler:
    """`/generate` of SGLang and LMDeploy: ids and a `meta_info` that grows."""

    async def complete(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        sampling = body.get("sampling_params", body)
        limit = sampling.get("max_new_tokens") or sampling["max_tokens"]
        prompt = body.get("input_ids") or ids_of(body.get("text") or body["prompt"])
        key = body.get("extra_key")
        cached = stub.reused(prompt, key)
        planned = stub.plan(prompt, limit, cached, sampling)
        stub.remember(prompt, key, planned)

        so_far: list[int] = []

        def write(number: int, events: int, step: Step) -> list[dict[str, object]]:
            so_far.extend(step.tokens)
            used = usage(stub, prompt, len(so_far), cached)
            last = number == events - 1
            meta: dict[str, object] = {"prompt_tokens": used["prompt"], "completion_tokens": used["completion"]}
            meta["finish_reason"] = {"type": "stop" if stub.has("short") else "length"} if last else None
            if stub.has("no_usage"):
                meta["finish_reason"] = None
            if body.get("return_logprob"):
                meta["output_top_logprobs"] = [[[p, i, None] for p, i in top_values(stub, prompt, step.tokens, number)]]
            meta |= {"cached_tokens": used["cached"]} | (meta_of(planned, number) if last else {})
            return [
                {"text": "x", "output_ids": [*so_far] if cumulative else step.tokens, "meta_info": meta, "index": 0}
            ]

        return await stub.stream(request, planned, write)

    return complete


def sglang_counts(stub: Stub, planned: Sequence[Step]) -> dict[str, object]:
    drafting = [step for step in planned if step.drafted]
    if not stub.k:
        return {}
    deepest = max((s.accepted for s in drafting), default=0)
    return {
        "spec_verify_ct": len(drafting),
        "spec_num_correct_drafts": sum(s.accepted for s in drafting),
        "spec_num_proposed_drafts": sum(s.drafted for s in drafting),
        "spec_correct_drafts_histogram": [sum(s.accepted == i for s in drafting) for i in range(deepest + 1)],
    }


def sglang(stub: Stub) -> list[web.RouteDef]:
    def meta_of(planned: Sequence[Step], number: int) -> dict[str, object]:
        return sglang_counts(stub, planned)

    def metrics() -> web.Response:
        labels = 'model_name="specgate"'
        return prometheus(
            {
                f"sglang:num_running_reqs{{{labels}}}": stub.counts.running,
                f"sglang:num_queue_reqs{{{labels}}}": 0,
                f"sglang:num_requests_total{{{labels}}}": stub.counts.requests,
                f"sglang:spec_accept_length{{{labels}}}": 2.5,
            }
        )

    drafts = {"speculative_algorithm": "EAGLE3", "speculative_num_steps": stub.k} if stub.k else {}
    info = {
        "version": "0.5.23",
        "max_total_num_tokens": 65536 - 8192 * bool(stub.k),
        "max_running_requests": 8,
        **({"model_path": stub.source} if stub.source else {}),
        **(drafts or {"speculative_algorithm": None}),
    }
    extra = [answers("/server_info", info), answers("/flush_cache", {}), tokenizing(stub)]
    return [*common(stub, "/generate", generate_handler(stub, meta_of, cumulative=True), metrics), *extra]


def lmdeploy(stub: Stub) -> list[web.RouteDef]:
    def metrics() -> web.Response:
        labels = 'engine="0",model_name="specgate"'
        return prometheus(
            {
                # Brought up to date every 10 s only: one was running at that moment.
                f"lmdeploy:num_requests_running{{{labels}}}": min(1, stub.counts.requests),
                f"lmdeploy:num_requests_waiting{{{labels}}}": 0,
                f"lmdeploy:e2e_request_latency_seconds_count{{{labels}}}": stub.counts.requests,
                **spec_counters(stub, "lmdeploy:", labels),
            }
        )

    handler = generate_handler(stub, lambda planned, number: {}, cumulative=False)
    return common(stub, "/generate", handler, metrics)


def listed(stub: Stub, prompt: Sequence[int], step: Step, number: int) -> dict[str, object]:
    candidates = [{"id": i, "token": "x", "logprob": p} for p, i in top_values(stub, prompt, step.tokens, number)]
    return {"id": step.tokens[-1], "top_logprobs": candidates}


def llamacpp(stub: Stub) -> list[web.RouteDef]:
    async def complete(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = ids_of(body["prompt"])
        cached = stub.reused(prompt, None, may=body["cache_prompt"])
        forbidden = [END] if stub.chain is not None and body["ignore_eos"] else []
        planned = stub.plan(prompt, body["n_predict"], cached, body, forbidden)
        stub.remember(prompt, None, planned)

        def write(number: int, events: int, step: Step) -> list[dict[str, object]]:
            named = [token for token in step.tokens if stub.chain is None or token != HALF]
            event: dict[str, object] = {"index": 0, "content": "x", "tokens": named, "stop": False}
            if body.get("n_probs"):
                event["completion_probabilities"] = [listed(stub, prompt, step, number)]
            streamed = [event] if named else []
            if number < events - 1 or stub.has("no_usage"):
                return streamed
            used = usage(stub, prompt, sum(len(s.tokens) for s in planned), cached)
            timings: dict[str, object] = {
                "cache_n": used["cached"],
                "prompt_n": used["prompt"],
                "predicted_n": used["completion"],
            }
            if stub.k:
                timings["draft_n"] = sum(s.drafted for s in planned)
                timings["draft_n_accepted"] = sum(s.accepted for s in planned)
            final = {
                "index": 0,
                "content": "",
                "tokens": [],
                "stop": True,
                "stop_type": "eos" if stub.has("short") else "limit",
                "tokens_predicted": used["completion"],
                "tokens_evaluated": used["prompt"],
                "timings": timings,
                "generation_settings": {"logit_bias": [{"token": token, "bias": None} for token in forbidden]},
            }
            return [*streamed, final]

        if not body["stream"]:
            *_, final = write(0, 1, Step([HALF], 0, 0))
            stub.count(planned)
            final["tokens"] = [token for step in planned for token in step.tokens]
            if body.get("n_probs"):
                final["completion_probabilities"] = [listed(stub, prompt, step, i) for i, step in enumerate(planned)]
            return web.json_response(final)
        return await stub.stream(request, planned, write)

    def metrics() -> web.Response:
        return prometheus(
            {
                "llamacpp:requests_processing": stub.counts.running,
                "llamacpp:requests_deferred": 0,
                "llamacpp:tokens_predicted_total": stub.counts.generated,
                **spec_counters(stub, "llamacpp:", 'model="specgate"'),
            }
        )

    async def tokenize(request: web.Request) -> web.StreamResponse:
        return web.json_response({"tokens": ids_of((await request.json())["content"])})

    async def apply_template(request: web.Request) -> web.StreamResponse:
        turns = (await request.json())["messages"]
        return web.json_response({"prompt": "".join(f"<{turn['role']}>{turn['content']}" for turn in turns)})

    props = {"build_info": "b11434-2f3a1c", "total_slots": 4, **({"model_path": stub.source} if stub.source else {})}
    own = [web.post("/tokenize", tokenize), web.post("/apply-template", apply_template), answers("/props", props)]
    return [*common(stub, "/completion", complete, metrics), *own]


DIALECTS: Final[dict[str, Callable[[Stub], list[web.RouteDef]]]] = {
    "vllm": vllm,
    "sglang": sglang,
    "trtllm": trtllm,
    "openai": compatible,
    "lmdeploy": lmdeploy,
    "llamacpp": llamacpp,
}
