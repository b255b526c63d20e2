"""The facts of a server for the fingerprint and the report, and checks before one is started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from specgate.analysis.speculation.drafting import TREE
from specgate.backends.servers.adapter import OWN_LENGTHS_OF, Adapter, check_method
from specgate.backends.servers.drawing import details_of
from specgate.backends.servers.facts.reported import ServerReport, identity_of
from specgate.backends.servers.facts.served import check_served, served_warnings, warning, window_warning
from specgate.backends.servers.options import Options
from specgate.backends.servers.sampling import check_sampling
from specgate.checkpoints.arrays import check_converted
from specgate.checkpoints.auxiliary_layers import AuxiliaryLayers, resolve_boundaries
from specgate.checkpoints.files import checkpoint_sha256
from specgate.checkpoints.hf.any_target import AnyTarget, read_any_target, read_served_target
from specgate.checkpoints.hf.draft import DraftKeys, window_of
from specgate.checkpoints.planted import from_seed
from specgate.checkpoints.turbomind import converted_weights, is_draft, read_either
from specgate.contract import (
    FORCED_LENGTH,
    MAY_NOT_DRAFT,
    OWN_LENGTHS,
    PREFIX_CACHE,
    AcceptanceSource,
    EngineFacts,
    PairRef,
    Role,
)
from specgate.contract.protocols import OpenRequest
from specgate.errors import UsageError

TURBOMIND: Final = "turbomind"
"""The value of LMDeploy's option `engine` whose engine reads converted pairs."""


def check_request(adapter: Adapter, request: OpenRequest, options: Options) -> None:
    """Raise UsageError or BackendError for requests that no server of this engine can fulfil."""
    if request.pair.rope is not None:
        raise UsageError(
            f"back end {adapter.name}: the scenario overrides the target's RoPE scaling",
            hint="write the scaling into config.json of a copy of the target, and give that as --target",
        )
    if request.sampling is not None:
        check_sampling(adapter.name, adapter.expresses, request.sampling, "sampling")
    for folder in (request.pair.target, request.pair.draft):
        if folder is None or options.url:
            continue
        config = read_either(folder)
        if from_seed(config):
            raise UsageError(
                f"{folder}: its weights are made from a seed when specgate's own engines load it",
                hint="other engines need weights in files: `specgate engine export` writes them",
            )
        if converted_weights(folder) is not None:
            if options.own.get("engine") != TURBOMIND:
                raise UsageError(
                    f"{folder}: converted for TurboMind, which back end {adapter.name} does not run so",
                    hint="lmdeploy or lmdeploy-pipeline with -o engine=turbomind, or the Hugging Face folder",
                )
            check_converted(folder, config)
    elsewhere = request.pair.weights == "server"
    drafter = options.drafter_of(Role(request.max_k))
    if request.max_k and request.pair.draft is None and drafter == "eagle3" and not elsewhere:
        raise UsageError(
            f"pair {request.pair.name!r} has no draft, but spec-{request.max_k} was asked for",
            hint="--draft DIR, an EAGLE-3 draft; or a method that needs none: -o drafter=ngram, or "
            f"-o args.spec-{request.max_k}='--speculative-config …'",
        )
    check_method(adapter, options, drafter)


def sizes_of(pair: PairRef) -> AnyTarget:
    """The sizes of the pair's target, as far as this machine knows it."""
    return read_served_target(pair.tokenizer) if pair.weights == "server" else read_any_target(pair.target)


def server_facts(
    adapter: Adapter,
    request: OpenRequest,
    options: Options,
    servers: Sequence[ServerReport],
    tree: str | None = None,
    method: tuple[str | None, str | None] = (None, None),
) -> EngineFacts:
    """Collect facts from this machine and from the reports of the `servers`. The weights that a server really loaded
    cannot be checked. `tree`: the shape of the trees that are drafted; None for chains. `method`: its name and
    the place of its draft, where they are known of a server's own.

    Raises BackendError if servers differ in version, or if one serves something else than the pair.
    """
    pair, sizes = request.pair, sizes_of(request.pair)
    identity = identity_of(adapter.name, servers, options.build)
    check_served(adapter.name, servers, sizes, request)
    here = pair.weights == "here"
    role = Role(request.max_k)
    drafter = options.drafter_of(role)
    of_pair = drafter == "eagle3" or (drafter == "given" and options.url_of(role) is not None)
    draft = pair.draft if request.max_k and of_pair else None
    hashed = Path(method[1]) if method[1] is not None and Path(method[1], "config.json").is_file() else draft
    meant = engines = window = None
    if draft is not None and sizes.layers is not None:
        config = read_either(draft)
        meant, engines = resolve_boundaries(config, sizes.layers), adapter.capture(config, sizes.layers)
        window = window_of(DraftKeys.of(config).layer)
    gguf = "target_gguf" in options.own
    version = servers[0].version
    return EngineFacts(
        backend=adapter.name,
        device=f"{adapter.name} server",
        dtype="as in the GGUF files" if gguf else request.dtype if here else "as the server has it",
        vocab=sizes.vocab,
        max_positions=request.max_positions,
        eos_token_ids=sizes.eos_token_ids,
        target_sha256=checkpoint_sha256(pair.target, sizes.files) if here else None,
        draft_sha256=draft_sha256(hashed) if hashed is not None else None,
        capture_rule=engines.rule if engines else None,
        has_draft=request.max_k > 0,
        details={
            f"{adapter.name} version": version,
            "servers": "attached" if options.url else options.servers,
            **{f"{one.role} listens as": one.listener for one in servers if one.listener},
            **({"servers run on": "cpu"} if all(one.on_cpu for one in servers) else {}),
            **({TREE: tree} if tree is not None else {}),
            "drafter": method[0] or drafter,
            **({OWN_LENGTHS: own} if request.max_k and (own := OWN_LENGTHS_OF.get(drafter)) else {}),
            **({FORCED_LENGTH: options.force_al} if options.force_al is not None else {}),
            **({PREFIX_CACHE: "on"} if options.prefix_cache == "on" else {}),
            **options.own,
            **dict(details_of(adapter, request.sampling)),
        },
        acceptance=source_of(options, pair),
        engine_version=version,
        warnings=(
            *served_warnings(adapter.name, servers, sizes, request),
            *warnings_of(adapter, options, pair, meant, engines, window),
        ),
        identity=identity,
    )


def draft_sha256(draft: Path) -> str:
    """SHA-256 (hexadecimal) of a draft's config and weights. Of a converted draft the config is one of the weight
    files.
    """
    return checkpoint_sha256(draft, [] if is_draft(draft) else [draft / "config.json"])


def source_of(options: Options, pair: PairRef) -> AcceptanceSource | None:
    """Return the source of the acceptance lengths; None if they are the pair's own, or of a method without a draft."""
    if options.force_al is not None:
        return "forced"
    return "stand-in" if options.drafter == "ngram" and pair.draft is not None else None


def warnings_of(
    adapter: Adapter,
    options: Options,
    pair: PairRef,
    meant: AuxiliaryLayers | None,
    engines: AuxiliaryLayers | None,
    window: int | None,
) -> Iterator[str]:
    """Warnings for readers of the results."""
    if meant is not None and engines is not None and (text := warning(adapter.name, engines, meant)):
        yield text
    if meant is not None and options.own.get("engine") == TURBOMIND:
        yield f"{MAY_NOT_DRAFT}TurboMind takes no draft in LMDeploy's releases, only in builds that add EAGLE-3 to it"
    if adapter.counts_events:
        yield (
            "nothing of this server is known but its streams: an event is taken for a step with K draft tokens, and "
            "acceptance and steps are wrong if it sends several steps together"
        )
    if text := window_warning(adapter.name, window, adapter.reads_window):
        yield text
    if options.drafter == "ngram" and pair.draft is not None:
        yield "n-grams of the prompt stand in for the pair's draft: acceptance says nothing of the pair"
    if options.prefix_cache == "on":
        yield "its prefix cache is on: prompts that were sent before are not prefilled anew"
    if options.force_al is not None:
        yield "acceptance is forced by the engine: its tokens are wrong by design, only speed means anything"
