"""The OpenAI completions format, as used by vLLM and TensorRT-LLM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from specgate.backends.servers.adapter import Adapter, integer, integers, part
from specgate.backends.servers.exchange import Ask, Chunk, Json, OtherForm, SpecCounts, Usage
from specgate.backends.servers.facts.reported import text_of
from specgate.backends.servers.sampling import sampling_fields
from specgate.contract import ServedModel
from specgate.contract.protocols import TextOrChat, masked
from specgate.errors import BackendError

if TYPE_CHECKING:
    from specgate.backends.servers.client import Client

PATH = "/v1/completions"


def body(ask: Ask, *settings: str, **extra: object) -> Json:
    """A streamed completion, of a chat if there is one. `settings`: those of its `sampling` that are sent, beside the
    temperature. `extra`: the engine's own fields.
    """
    sampling = (
        sampling_fields(ask.sampling, "temperature", *settings, seed=ask.seed) if ask.sampling else {"temperature": 0}
    )
    logprobs = {"logprobs": ask.top} if ask.chat is None else {"logprobs": True, "top_logprobs": ask.top}
    return {
        "model": ask.model,
        **(ask.chat or {"prompt": list(ask.prompt) if isinstance(ask.prompt, tuple) else ask.prompt}),
        "max_tokens": ask.new_tokens,
        **sampling,
        "ignore_eos": ask.ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"stop_token_ids": list(ask.stop)} if ask.stop else {}),
        **(logprobs if ask.top or ask.named else {}),
        **extra,
    }


def read(event: Json, tokens_so_far: int) -> Chunk:
    """One event of the stream: a choice with `token_ids`, a usage record, or both. An event with neither is empty."""
    choices = event.get("choices") or []
    if not isinstance(choices, list) or len(choices) > 1:
        raise TypeError("choices must be a list of one")
    usage, choice = usage_of(part(event, "usage")) if event.get("usage") else None, choices[0] if choices else {}
    spec = drafts_of(event, choice)
    if not choices:
        return Chunk(usage=usage, spec=spec)
    finish = choice.get("finish_reason") or None
    if not isinstance(finish, str | None):
        raise TypeError(f"finish_reason = {finish!r} is no text")
    top = ranking(choice.get("logprobs"))
    return replace(top, tokens=integers(choice, "token_ids"), finish=finish, usage=usage, spec=spec)


class Format(Adapter):
    """An engine whose streams have this format."""

    def read(self, event: Json, tokens_so_far: int) -> Chunk:
        return read(event, tokens_so_far)


DRAFTS: Final = (
    ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens", "acceptance_histogram"),
    ("num_spec_steps", "total_draft_tokens", "total_accepted_draft_tokens", "acceptance_histogram"),
    ("spec_verify_ct", "spec_num_proposed_drafts", "spec_num_correct_drafts", "spec_correct_drafts_histogram"),
)
"""Keys of steps with drafts, of proposed and accepted draft tokens, and of steps by accepted ones, bonus tokens not
included: of vLLM 0.29 (`--per-request-spec-decode-metrics`), TensorRT-LLM (`per_request_spec_decode_stats`) and SGLang
0.5.19 (`return_spec_tokens_details`).
"""


def drafts_of(event: Json, choice: Mapping[str, object]) -> SpecCounts | None:
    """The counts of an answer's drafts, which come with its end; None where there are none."""
    places = (event.get("metrics"), choice.get("speculative_decoding"), event.get("sglext"))
    for place in places:
        inner = place if isinstance(place, Mapping) else {}
        counts = inner.get("speculative_decoding") or inner.get("spec_tokens_details") or inner
        for steps, drafted, accepted, hist in DRAFTS if isinstance(counts, Mapping) else ():
            if steps in counts and drafted in counts and accepted in counts:
                lengths = Counter(integers(counts, "per_step_drafted"))
                return SpecCounts(
                    integer(counts, steps),
                    integer(counts, drafted),
                    integer(counts, accepted),
                    integers(counts, hist),
                    tuple(lengths[i] for i in range(max(lengths) + 1)) if lengths else (),
                )
    return None


def usage_of(usage: Mapping[str, object]) -> Usage:
    details, cached = usage.get("prompt_tokens_details"), None
    if isinstance(details, Mapping) and details.get("cached_tokens") is not None:
        cached = integer(details, "cached_tokens")
    return Usage(integer(usage, "prompt_tokens"), integer(usage, "completion_tokens"), cached)


TOKEN_ID = "token_id:"
"""Begins the name of a token, where the server was asked to name them by their ids."""


def ranking(logprobs: object) -> Chunk:
    """The candidates for the last token, from {name: log-probability} per token; with ids, where all names are ids."""
    if not isinstance(logprobs, Mapping) or not logprobs.get("top_logprobs"):
        return Chunk()
    candidates = logprobs["top_logprobs"][-1]
    if not all(name.startswith(TOKEN_ID) for name in candidates):
        return Chunk(top=tuple(sorted((float(p) for p in candidates.values()), reverse=True)))
    return Chunk.ranking((float(p), int(name.removeprefix(TOKEN_ID))) for name, p in candidates.items())


def served_model(client: Client, requested: str | None) -> ServedModel:
    """Return the server's model, from the list that all of these engines provide.

    Raises BackendError if `requested` is not served, or if nothing is requested and several models are served.
    """
    answer = client.json("/v1/models")
    try:
        cards = {str(model["id"]): model for model in answer["data"]}
    except (LookupError, TypeError) as error:
        raise BackendError(f"{client.url}/v1/models: not a list of models: {masked(str(answer))[:120]}") from error
    served = f"{client.url} serves {masked(', '.join(cards))[:300] or 'no model'}"
    if requested is not None and requested not in cards:
        raise BackendError(f"{served}, not {requested!r}: another model")
    if requested is None and len(cards) != 1:
        raise BackendError(served, hint="which of them is measured? -o model=NAME")
    name = requested or next(iter(cards))
    return model_of(name, cards[name])


def model_of(name: str, card: Mapping[str, object]) -> ServedModel:
    """Read a model's card: `root` and `max_model_len` of vLLM and SGLang, `meta` of llama.cpp. Other keys differ
    between servers and are ignored.
    """
    meta = card.get("meta")
    root = text_of(card, "root")
    return ServedModel(
        name=name,
        path=root if root != name else None,
        max_positions=positive(card.get("max_model_len")),
        vocab=positive(meta.get("n_vocab")) if isinstance(meta, Mapping) else None,
    )


def token_ids(client: Client, model: str, content: TextOrChat, *, special: bool) -> tuple[int, ...] | None:
    """The tokens of a text, or of a chat in its template, by `/tokenize` of vLLM and SGLang; None if it is missing."""
    body = {"prompt": content, "add_special_tokens": special} if isinstance(content, str) else {**content}
    answer = client.json("/tokenize", body={"model": model, **body}, may_be_missing=True)
    return None if answer is None else listed_tokens(client, answer)


def listed_tokens(client: Client, answer: object) -> tuple[int, ...]:
    """The `tokens` of an answer of `/tokenize`. Raises OtherForm where there are none."""
    try:
        return integers(answer if isinstance(answer, Mapping) else {}, "tokens")
    except TypeError as error:
        raise OtherForm(f"{client.url}/tokenize: {error}: {masked(str(answer))[:80]!r}") from error


def positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 40 else None
