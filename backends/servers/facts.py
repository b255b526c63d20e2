"""The facts of a server for the fingerprint and the report, and checks before one is started."""

from __future__ import annotations

from collections.abc import Iterator

from specgate.api import OpenRequest
from specgate.backends.servers.adapter import Adapter
from specgate.backends.servers.conventions import warning, window_warning
from specgate.backends.servers.options import Options
from specgate.core import AcceptanceSource, EngineFacts
from specgate.eagle3.auxiliary_layers import AuxiliaryLayers, resolve_boundaries
from specgate.eagle3.files import checkpoint_sha256
from specgate.eagle3.hf.draft import DraftKeys, window_of
from specgate.eagle3.hf.target import target_geometry, with_generation_eos
from specgate.eagle3.hf_keys import read_config, read_json
from specgate.eagle3.planted.recipe import from_seed
from specgate.errors import BackendError, UsageError


def check_request(adapter: Adapter, request: OpenRequest, options: Options) -> None:
    """Raise UsageError or BackendError for requests that no server of this engine can fulfil."""
    if request.pair.rope is not None:
        raise UsageError(
            f"back end {adapter.name}: the scenario overrides the target's RoPE scaling",
            hint="write the scaling into config.json of a copy of the target, and give that as --target",
        )
    for folder in (request.pair.target, request.pair.draft):
        if folder is not None and not options.url and from_seed(read_config(folder)):
            raise UsageError(
                f"{folder}: its weights are made from a seed when specgate's own engines load it",
                hint="other engines need weights in files: `specgate pairs export` writes them",
            )
    if request.max_k and request.pair.draft is None and options.drafter == "eagle3":
        raise BackendError(f"pair {request.pair.name!r} has no draft, but spec-{request.max_k} was asked for")
    if options.force_al is not None and not adapter.forces_acceptance:
        raise UsageError(f"option force_al: {adapter.name} has no way to force acceptance")
    if options.drafter not in adapter.drafters:
        raise UsageError(f"option drafter = {options.drafter}: {adapter.name} has {', '.join(adapter.drafters)}")


def server_facts(adapter: Adapter, request: OpenRequest, options: Options, version: str) -> EngineFacts:
    """Facts from the checkpoints on this machine. What a server really loaded cannot be checked."""
    target, draft = request.pair.target, request.pair.draft if request.max_k else None
    config = read_config(target)
    geometry = target_geometry(config)
    hashed = [config.file]
    if (generation := target / "generation_config.json").is_file():
        geometry = with_generation_eos(geometry, read_json(generation))
        hashed.append(generation)
    eagle = draft is not None and options.drafter == "eagle3"
    meant = engines = window = None
    if eagle and draft is not None:
        config = read_config(draft)
        meant, engines = resolve_boundaries(config, geometry.layers), adapter.capture(config, geometry.layers)
        window = window_of(DraftKeys.of(config).layer)
    gguf = "target_gguf" in options.own
    return EngineFacts(
        backend=adapter.name,
        device=f"{adapter.name} server",
        dtype="as in the GGUF files" if gguf else request.dtype,
        vocab=geometry.vocab,
        max_positions=request.max_positions,
        eos_token_ids=geometry.eos_token_ids,
        target_sha256=checkpoint_sha256(target, hashed),
        draft_sha256=checkpoint_sha256(draft, [draft / "config.json"]) if eagle and draft is not None else None,
        capture_rule=engines.rule if engines else None,
        has_draft=request.max_k > 0,
        details={
            f"{adapter.name} version": version,
            "servers": "attached" if options.url else options.servers,
            "drafter": options.drafter,
            **({"forced acceptance length": options.force_al} if options.force_al is not None else {}),
            **options.own,
        },
        acceptance=source_of(options),
        engine_version=version,
        warnings=tuple(warnings_of(adapter, options, meant, engines, window)),
    )


def source_of(options: Options) -> AcceptanceSource | None:
    """Where acceptance comes from, unless it is the pair's own."""
    if options.force_al is not None:
        return "forced"
    return "stand-in" if options.drafter == "ngram" else None


def warnings_of(
    adapter: Adapter,
    options: Options,
    meant: AuxiliaryLayers | None,
    engines: AuxiliaryLayers | None,
    window: int | None,
) -> Iterator[str]:
    """Warnings for readers of the results."""
    if options.url:
        yield f"{adapter.name} was started by someone else: that it serves this pair, with these roles, is its own word"
    if meant is not None and engines is not None and (text := warning(adapter.name, engines, meant)):
        yield text
    if text := window_warning(adapter.name, window, adapter.reads_window):
        yield text
    if options.drafter == "ngram":
        yield "n-grams of the prompt stand in for the pair's draft: acceptance says nothing of the pair"
    if options.force_al is not None:
        yield "acceptance is forced by the engine: its tokens are wrong by design, only speed means anything"
