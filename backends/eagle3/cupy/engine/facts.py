"""Description of a loaded engine, for the fingerprint and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import torch

from specgate import __version__
from specgate.backends.eagle3.cupy.engine.limits import in_gb
from specgate.backends.eagle3.cupy.engine.prefill import PrefillMode
from specgate.backends.eagle3.cupy.engine.prefill_attention import TRIAL, said_of
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, Heads
from specgate.backends.eagle3.cupy.kernels.loader import entry_points
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.lib.chains import ChainLengths
from specgate.backends.eagle3.lib.kv.modes import mode_in_words
from specgate.backends.eagle3.lib.layout import describe_rope, draft_details
from specgate.backends.eagle3.lib.pair import DraftCheckpoint, TargetCheckpoint
from specgate.backends.eagle3.lib.playback import WARNING, details_of
from specgate.backends.eagle3.lib.shard import Shard
from specgate.backends.eagle3.lib.specpv import PartialPlan
from specgate.backends.eagle3.lib.traffic import pair_traffic
from specgate.backends.eagle3.lib.trees.options import described, warning
from specgate.backends.eagle3.nouns.fmha import HEADS, heads_in_words
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry
from specgate.contract import PREFIX_CACHE, EngineFacts, Sampling
from specgate.contract.tape import Tape
from specgate.contract.traffic import LinkTraffic

SHAPES = ("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
"""Settings of sampling that are told where they are not the default."""


def engine_facts(
    target: TargetCheckpoint,
    draft: DraftCheckpoint | None,
    draft_error: str | None,
    memory: Mapping[str, int],
    sizes: Sizes,
    *,
    graphs: bool,
    tuned_products: str = "none looked for",
    tuned_sha256: str | None = None,
    mode: PrefillMode | None = None,
    warnings: Sequence[str] = (),
    lengths: ChainLengths | None = None,
    tape: Tape | None = None,
    plan: PartialPlan | None = None,
    positions: int = 0,
    draft_ranks: int = 1,
    reuses: bool = False,
) -> EngineFacts:
    """Facts of the opened engine.

    `draft_ranks`: the number of GPUs that the draft is divided among. `mode`: the prefill mode; None for the GPU's
    usual one. `warnings`: more warnings. `lengths`: rules that end chains early. `tape`: what forces accept counts.
    `plan`: partial verification, for requests of at most `positions`. `reuses`: prompts may come from the cache.

    Raises BackendError for a mode that this GPU cannot run.
    """
    import cupy

    geometry, part, ranks = target.geometry, target.shard.geometry(target.geometry), target.shard.ranks
    draft_part = Shard(0, draft_ranks).of_draft(draft.geometry) if draft else None
    device = torch.device("cuda", torch.cuda.current_device())
    mode = mode or PrefillMode.on(device)
    attention = prefill_attention(mode, part, device)
    major, minor = torch.cuda.get_device_capability()
    details: dict[str, str | int | float] = {
        "cupy": cupy.__version__,
        "torch": torch.__version__,
        "compute capability": f"{major}.{minor}",
        "CUDA graphs": "on" if graphs else "off",
        "tuned products": tuned_products,
        "cache block": f"{BLOCK} positions",
        "attention": ", ".join(f"{knob} {value}" for knob, value in asdict(sizes.fmha).items()),
        "prefill attention": attention,
        "prefill between products": "fused kernels" if mode.fused else "torch",
        "target layers x hidden": f"{geometry.layers} x {geometry.hidden}",
        HEADS: heads_in_words(geometry.layers, geometry.heads, geometry.kv_heads, geometry.head_dim),
        "target rope": describe_rope(geometry.rope),
    }
    if (experts := geometry.experts) is not None:
        details["target experts"] = f"{experts.count} in MXFP4, {experts.per_token} of a token"
        decoded = "grouped products" if mode.grouped else "cuBLAS, expert by expert"
        as_packed = f"as packed, of more than {mode.packed_rows:,} rows "
        details["prefill of experts"] = f"{as_packed if mode.packed_rows else ''}{decoded}"
    if ranks > 1:
        of_draft = "the draft on each" if draft_ranks == 1 else "a part of the draft on each"
        details["tensor parallel"] = f"{ranks} GPUs, sums of all over peer memory, {of_draft}"
    if draft is not None:
        details |= draft_details(draft.geometry)
    if sizes.kv.target is not None:
        details["KV cache"] = mode_in_words(sizes.kv.target, "bfloat16")
    if draft is not None and sizes.kv.draft is not None:
        details["draft's KV cache"] = mode_in_words(sizes.kv.draft, "bfloat16")
    if sizes.tree is not None:
        details["draft tree"] = described(sizes.tree)
    if lengths is not None and draft is not None:
        details["chains go on"] = lengths.words
    details |= details_of(tape) | ({PREFIX_CACHE: "on"} if reuses else {})
    if plan is not None:
        details |= plan.details(positions)
        if most := sizes.partial_passes_of(sizes.most_drafts):
            details["SpecPV cycles"] = f"{most} partial verifications of spec-{sizes.most_drafts} behind each full one"
    if sizes.sampling is not None:
        details["sampling"] = describe_sampling(sizes.sampling)
    details |= {f"memory: {name}": in_gb(size) for name, size in memory.items()}
    return EngineFacts(
        backend="cupy",
        device=torch.cuda.get_device_name(),
        dtype="bfloat16",
        vocab=geometry.vocab,
        max_positions=geometry.max_positions,
        eos_token_ids=geometry.eos_token_ids,
        target_sha256=target.sha256,
        draft_sha256=draft.sha256 if draft else None,
        capture_rule=draft.capture.rule if draft else None,
        has_draft=draft is not None,
        details=details,
        warnings=(
            *(draft.warnings if draft else ()),
            *warnings,
            *([WARNING] if tape else ()),
            *([warning(described(sizes.tree))] if sizes.tree else ()),
            *([lengths.warning] if lengths is not None and draft is not None else ()),
            *(plan.warnings(positions) if plan is not None else ()),
        ),
        kernels=tuple(sorted(entry_points())),
        draft_error=draft_error,
        acceptance="forced" if tape else None,
        tape_sha256=tape.sha256 if tape else None,
        # Another library, or another version of it, may give other bits: the count of green runs then begins anew.
        engine_version=f"specgate {__version__}, prefill attention by {attention}",
        tuned_sha256=tuned_sha256,
        traffic=pair_traffic(
            *(part, draft_part, torch.bfloat16, sizes.kv),
            link=link_traffic(part, ranks, draft_part if draft_ranks > 1 else None),
        ),
    )


def link_traffic(g: TargetGeometry, ranks: int, draft: DraftGeometry | None = None) -> LinkTraffic | None:
    """Of each row, two sums per layer go to every other GPU, eight bytes per column, and a choice with its token; of
    each token of a `draft` that is split, too, the same of its one layer.
    """
    if ranks == 1:
        return None
    layers = [g.layers * g.hidden, *([draft.hidden] if draft else [])]
    return LinkTraffic(ranks, *((ranks - 1) * (2 * columns * 8 + 32) for columns in layers))


def prefill_attention(mode: PrefillMode, g: TargetGeometry, device: torch.device) -> str:
    """The libraries that compute the attention of a prefill. Raises BackendError where none does."""
    heads = Heads.of(g, TRIAL)
    if g.experts is None:
        return said_of(mode.attention.library(TRIAL, heads, device))
    windows = dict.fromkeys(g.window(layer) for layer in range(g.layers))
    libraries = dict.fromkeys(mode.attention.library_with_sinks(TRIAL, heads, window, device) for window in windows)
    return " and ".join(said_of(library) for library in libraries)


def describe_sampling(sampling: Sampling) -> str:
    """Return the sampling settings in words: `temperature 0.6, top_p 0.9, coupled, seed 0, on the device`."""
    parts = [f"temperature {sampling.temperature:g}"]
    shapes = {name: getattr(sampling, name) for name in SHAPES}
    parts += [f"{name} {value:g}" for name, value in shapes.items() if value != getattr(Sampling(), name)]
    parts += [f"{len(sampling.logit_bias)} biased tokens"] if sampling.logit_bias else []
    return ", ".join((*parts, sampling.method, f"seed {sampling.seed}", "on the device"))
