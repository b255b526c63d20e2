"""Load a pair into the engine, after checking that the engine can hold what the plan asks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from specgate.backends.eagle3.cupy.device import first_gpu, shared_gpus
from specgate.backends.eagle3.cupy.engine import limits, tree_option
from specgate.backends.eagle3.cupy.engine.facts import engine_facts
from specgate.backends.eagle3.cupy.engine.forensics import ForensicEngine
from specgate.backends.eagle3.cupy.engine.partial import asked_plan, used_plan
from specgate.backends.eagle3.cupy.engine.phase_trace import PhaseTrace
from specgate.backends.eagle3.cupy.engine.prefill import CHUNK, PrefillMode
from specgate.backends.eagle3.cupy.engine.prefill_attention import Library
from specgate.backends.eagle3.cupy.engine.ranks import option
from specgate.backends.eagle3.cupy.engine.ranks.prefill_experts import scores_bytes
from specgate.backends.eagle3.cupy.engine.ranks.rank import Rank, models_of, with_exchange
from specgate.backends.eagle3.cupy.engine.ranks.sums import sums_bytes
from specgate.backends.eagle3.cupy.engine.run_parts import parts_of
from specgate.backends.eagle3.cupy.engine.tiles import config_of
from specgate.backends.eagle3.cupy.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.peers import mailbox_bytes, with_mailboxes
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree, Sizes
from specgate.backends.eagle3.cupy.step.cycle import Cycle
from specgate.backends.eagle3.cupy.step.partial import FULL, PLAIN
from specgate.backends.eagle3.cupy.tuned.lookup import Tuned
from specgate.backends.eagle3.cupy.tuned.required import ShapeLog, describe, never_tuned, require
from specgate.backends.eagle3.lib.chains import BY_BATCH, lengths_of
from specgate.backends.eagle3.lib.kv.modes import DRAFT_KV, KV, KvModes, calibration_warnings, kv_modes
from specgate.backends.eagle3.lib.layout import target_tensors
from specgate.backends.eagle3.lib.memory import free_bytes, refusing_overflow, split_no_large_blocks, weight_bytes
from specgate.backends.eagle3.lib.pair import (
    DraftCheckpoint,
    TargetCheckpoint,
    load_draft,
    load_target_parts,
    target_warnings,
)
from specgate.backends.eagle3.lib.playback import TAPE, Playback
from specgate.backends.eagle3.lib.refusals import refuse_pairs
from specgate.backends.eagle3.lib.shard import Shard
from specgate.backends.eagle3.lib.specpv import NAMES, PartialPlan
from specgate.backends.eagle3.nouns.fmha import Wanted, chosen_in, heads_in_words, kept_config, parse_config
from specgate.checkpoints.auxiliary_layers import parse_boundaries
from specgate.checkpoints.geometry import TargetGeometry
from specgate.checkpoints.hf.target import target_geometry
from specgate.checkpoints.hf_keys import read_config
from specgate.checkpoints.spec_config.launch_checks import check_chain
from specgate.contract import EngineFacts
from specgate.contract.protocols import OpenRequest
from specgate.errors import BackendError, CheckpointError, UsageError


class CupyEngine(ForensicEngine):
    """EAGLE-3 on one GPU. What it is made of: `DecodingEngine`."""

    def facts(self) -> EngineFacts:
        return self._facts

    def close(self) -> None:
        """Nothing to release before the process ends."""


OPTIONS: Mapping[str, tuple[str, ...] | None] = {
    "capture": None,
    "draft_kv": None,
    "draft_tp": ("1", "2", "4"),
    "fmha": None,
    "graphs": ("on", "off"),
    BY_BATCH: None,
    "kv": None,
    "log_shapes": None,
    "on_draft_error": ("fail", "baseline"),
    "phase_trace": None,
    "prefill": ("fused", "torch"),
    "prefill_attention": ("best", "torch", "cudnn", "flash"),
    "prefill_experts": ("packed", "decoded"),
    "prefix_cache": ("off", "on"),
    "spec_config": None,
    **dict.fromkeys(NAMES),
    TAPE: None,
    "tile_stats": ("off", "on"),
    "tp": ("1", "2", "4"),
    "tree": None,
    "tree_width": None,
    "tuned": None,
}
"""Option → its values, of which the first is the default, but of `draft_tp`, which is as `tp` where that is possible.
None: its value is a list, knobs, or a file.
"""
DTYPE = torch.bfloat16


def open_engine(request: OpenRequest) -> CupyEngine:
    """Load `request.pair`.

    Options: `capture` (boundaries such as 2,18,34), `draft_tp` (among how many of the target's GPUs the draft is
    divided), `k_by_batch` (the most draft tokens by how many requests a decode run begins with), `fmha` (knobs of
    attention such as kv_tile:512,warps:4, or the file of a sweep; without it the kept sweep of such an engine counts),
    `graphs` (on, off: every launch on its own, for profilers), `kv` and `draft_kv` (the formats of the caches of target
    and draft: bf16, fp8, nvfp4), `on_draft_error` (fail; baseline: decode spec roles plainly and say so), `phase_trace`
    (a file for the phases of every step), `prefill` (fused: what stands between products by one kernel each; torch:
    operation by operation), `prefill_attention` (best; torch: what torch takes; cudnn or flash: by that library alone,
    of a target with experts the layers without a window), `prefill_experts` (packed: those of short prompts multiply as
    they lie in memory; decoded: each is decoded first; wgmma: as packed, by warpgroups), `prefix_cache` (on: prompts of
    one length take the chunks that they begin with alike from each other, and from the prompts before), `spec_config`
    (a speculative config that this one's must agree with), `specpv` (lossy: most verifications look at a part of the
    cache) and what `lib.specpv` has beside it, `tape` (a file of accept counts to replay), `tile_stats` (on: each
    decode run is followed by a step that counts how attention uses its tiles), `tp` (how many GPUs share the target),
    `tree` (a file of a draft tree, or dynamic:NODES) and `tree_width`, `tuned` (a file of tuned configurations, in
    place of those that are found by themselves), `log_shapes` (a file for the products that are run).

    Raises UsageError for options, draft lengths and contexts that cannot be meant, CheckpointError for a bad pair or
    sizes that no kernel is made for, EnvironmentRefused where a GPU is missing, too old, too small or out of reach of
    the others, or PERF_MODE asks for a product that is not tuned, BackendError for a missing draft.
    """
    check_options(request.options)
    refuse_pairs(request.options, "cupy", request.sampling)
    limits.check_request(request)
    kv, lengths = kv_modes(request.options), lengths_of(request.options)
    tree, partial_plan = tree_option.chosen_tree(request), asked_plan(request)
    plan, playback = used_plan(request, partial_plan), Playback.of(request)
    ranks, fmha = option.chosen_ranks(request), chosen_fmha(request.options)
    asked_draft_ranks, draft_ranks = option.asked_draft_ranks(request, ranks), 1
    devices = shared_gpus(ranks) if ranks > 1 else (first_gpu(),)
    device = devices[0]
    if request.max_k:
        most = max(option.RANKS)
        check_chain(request.max_k, f"spec-{request.max_k}", request.options, tp=ranks, most_tp=most)
        if request.pair.draft is None:
            raise BackendError(f"pair {request.pair.name!r} has no draft, but spec-{request.max_k} was asked for")
    geometry = check_target(request, tree, plan)
    refuse_pairs(request.options, "cupy", request.sampling, experts=geometry.experts is not None)
    option.check_target(ranks, geometry, request.pair.target / "config.json")
    tuned, shape_log = chosen_files(request.options)
    phases = PhaseTrace(Path(text), tuned.device) if (text := request.options.get("phase_trace")) else None
    part = Shard(0, ranks).geometry(geometry)
    draft, draft_error = usable_draft(request, geometry, device) if request.max_k else (None, None)
    if draft is not None:
        tree_option.check_draft(tree, request.options.get("tree", ""), draft.geometry)
        where = (request.pair.draft or Path()) / "config.json"
        draft_ranks = option.chosen_draft_ranks(ranks, asked_draft_ranks, draft.geometry, where, tree=tree is not None)
    draft_part = Shard(0, draft_ranks).of_draft(draft.geometry) if draft else None
    split_width = draft_part.hidden if draft_part and draft_ranks > 1 else None
    sizes = sizes_of(request, tree if draft else None, plan if draft else None)
    sizes = replace(sizes, kv=kv, forced=playback is not None)
    swept = None if fmha else kept_fmha(request, geometry, sizes)
    tiling = fmha or swept
    sizes = replace(sizes, fmha=tiling) if tiling else sizes.usual(part)
    tree_option.check_memory(sizes, part)
    modes = [chosen_prefill_mode(request.options, part, device) for device in devices]
    mode = modes[0]
    memory = limits.plan(part, draft_part, sizes, fused=mode.fused, packed_rows=mode.packed_rows)
    if ranks > 1:
        exchanged = sums_bytes(part.hidden) + scores_bytes(part)
        memory = with_exchange(memory, mailbox_bytes(ranks, sizes, part.hidden, split_width), exchanged)
    wanted = Shard(0, ranks).wanted(target_tensors(geometry))
    limits.require({"weights": weight_bytes(wanted, DTYPE), **memory}, sizes, min(devices, key=free_bytes))
    graphs, reuses = request.options.get("graphs") != "off", request.options.get("prefix_cache") == "on"
    split_no_large_blocks()
    with refusing_overflow(str(request.pair.target)):
        targets = load_target_parts(request.pair.target, DTYPE, devices, request.pair.rope)
        target = targets[0]
        models = models_of(targets, draft, sizes.positions, devices, draft_ranks=draft_ranks)
        model, head = models[0]
        kind = FULL if sizes.partial else PLAIN
        gemms = Cycle(model, head, sizes, sizes.slots, sizes.most_drafts if head else 0, tuned, kind).gemms
        require(tuned, gemms.lookups, request.pair, perf_mode=request.perf_mode, ranks=ranks)
        allocated = [Buffers.allocate(part, draft_part, sizes, device) for device in devices]
        buffers = with_mailboxes(allocated, sizes, part.hidden, split_width) if ranks > 1 else tuple(allocated)
    sides = [
        Rank(own, its_draft, sizes, b, tuned=tuned, mode=its_mode)
        for (own, its_draft), b, its_mode in zip(models, buffers, modes, strict=True)
    ]
    facts = engine_facts(
        *(target, draft, draft_error, memory, sizes),
        draft_ranks=draft_ranks,
        graphs=graphs,
        tuned_products=describe(tuned, gemms.lookups),
        tuned_sha256=with_swept(tuned.sha256(gemms.shapes, gemms.largest_step), swept),
        mode=mode,
        warnings=(
            *other_target(request, draft, target),
            *kv_warnings(request, kv, drafts=draft is not None),
            *never_tuned(tuned, request.pair, ranks),
        ),
        lengths=lengths,
        tape=playback.tape if playback else None,
        plan=partial_plan if draft else None,
        positions=request.max_positions,
        reuses=reuses,
    )
    engine = CupyEngine(
        *(sides, facts, parts_of(sizes, partial_plan if head else None, lengths if head else None, playback, phases)),
        graphs=graphs,
        plain_on_draft_error=plain_on_draft_error(request),
        shape_log=shape_log,
    )
    engine.counts_tiles = request.options.get("tile_stats") == "on"
    engine.shared_chunk = CHUNK if reuses else 0
    return engine


def sizes_of(request: OpenRequest, tree: DraftTree | None, partial: PartialPlan | None = None) -> Sizes:
    """With positions for the rows of a tree that a chain of as many levels has not, and for those that a full
    verification runs again. No token ever stands there.
    """
    rows = tree.rows if tree else request.max_k + 1
    sizes = Sizes(request.max_batch, request.max_positions, rows, sampling=request.sampling, tree=tree, partial=partial)
    reserved = sizes.most_rows if partial else sizes.reserved_of(request.max_k)
    return replace(sizes, positions=request.max_positions + reserved - (request.max_k + 1))


def kv_warnings(request: OpenRequest, kv: KvModes, *, drafts: bool) -> tuple[str, ...]:
    """Return a warning for each checkpoint that was calibrated for a cache of another format than it gets."""
    messages = list(calibration_warnings(request.pair.target, kv.target, "the target", KV))
    if drafts and request.pair.draft is not None:
        messages += calibration_warnings(request.pair.draft, kv.draft, "the draft", DRAFT_KV)
    return tuple(messages)


def check_options(options: Mapping[str, str]) -> None:
    for name, value in options.items():
        if name not in OPTIONS:
            raise UsageError(f"option {name}: not known", hint=f"back end cupy knows: {', '.join(OPTIONS)}")
        values = OPTIONS[name]
        if values is not None and value not in values:
            raise UsageError(f"option {name} = {value!r}", hint=f"known: {', '.join(values)}")


def chosen_files(options: Mapping[str, str]) -> tuple[Tuned, ShapeLog | None]:
    """Raises UsageError for a file that holds something else."""
    tuned, log = (Path(text) if (text := options.get(name)) else None for name in ("tuned", "log_shapes"))
    return Tuned.on(torch.cuda.get_device_name(), tuned), ShapeLog(log) if log else None


def chosen_fmha(options: Mapping[str, str]) -> FmhaConfig | None:
    """Raises UsageError for knobs and values that attention does not have, and for a file that is no sweep of them."""
    text = options.get("fmha")
    if not text:
        return None
    in_file = text.endswith(".json")
    return config_of(chosen_in(Path(text), torch.cuda.get_device_name()) if in_file else parse_config(text))


def kept_fmha(request: OpenRequest, g: TargetGeometry, sizes: Sizes) -> FmhaConfig | None:
    """The configuration that a kept sweep proved faster for such an engine; None without one."""
    device, heads = torch.cuda.get_device_name(), heads_in_words(g.layers, g.heads, g.kv_heads, g.head_dim)
    config = kept_config(Wanted(device, heads, sizes.slots, request.max_positions, request.options))
    return config_of(config) if config is not None else None


def with_swept(tuned_sha256: str | None, swept: FmhaConfig | None) -> str | None:
    """The hash of what was tuned, a swept configuration of attention with it: no option names that one."""
    return hashlib.sha256(f"{tuned_sha256} {swept}".encode()).hexdigest() if swept else tuned_sha256


def chosen_prefill_mode(options: Mapping[str, str], geometry: TargetGeometry, device: torch.device) -> PrefillMode:
    """As the options say. By torch's operations, a target with experts has its attention from torch as well unless they
    say otherwise.
    """
    fused = options.get("prefill", "fused") == "fused"
    library = options.get("prefill_attention", "best" if fused or geometry.experts is None else "torch")
    option = options.get("prefill_experts")
    if option and geometry.experts is None:
        raise UsageError(f"option prefill_experts = {option}: the target has no experts", hint="leave it out")
    if option == "packed" and not fused:
        raise UsageError("option prefill_experts = packed with prefill = torch", hint="leave one of them out")
    attention = None if library == "best" else Library(library)
    return PrefillMode.on(device, fused=fused, attention=attention, packed=option != "decoded")


def check_target(
    request: OpenRequest, tree: DraftTree | None = None, plan: PartialPlan | None = None
) -> TargetGeometry:
    """Check the target's config before its weights are read; return its geometry."""
    config = read_config(request.pair.target)
    geometry = target_geometry(config, request.pair.rope)
    limits.check_geometry(geometry, config.file)
    limits.check_rows(request, geometry, tree, plan)
    limits.check_vocabulary(request.sampling, geometry, config.file)
    if request.max_positions > geometry.max_positions:
        raise UsageError(
            f"{config.file}: max_position_embeddings = {geometry.max_positions}, but the plan needs "
            f"{request.max_positions} positions",
            hint="choose a shorter context, or give the scenario a rope scaling whose factor covers it",
        )
    return geometry


def plain_on_draft_error(request: OpenRequest) -> bool:
    return request.options.get("on_draft_error") == "baseline"


def usable_draft(
    request: OpenRequest, target: TargetGeometry, device: torch.device
) -> tuple[DraftCheckpoint | None, str | None]:
    """The draft; or, where the request would go on without one, None and why it cannot be used."""
    capture = parse_boundaries(text) if (text := request.options.get("capture")) else None
    try:
        return own_draft(request, target, device, capture), None
    except (CheckpointError, UsageError) as error:
        if not plain_on_draft_error(request):
            raise
        return None, str(error)


def own_draft(
    request: OpenRequest, target: TargetGeometry, device: torch.device, capture: Sequence[int] | None
) -> DraftCheckpoint:
    folder = request.pair.draft
    assert folder is not None
    draft = load_draft(folder, target, DTYPE, device, capture)
    positions = request.max_positions
    check_chain(request.max_k, str(folder), {}, target=target, draft=draft.geometry, positions=positions)
    limits.check_geometry(draft.geometry, folder / "config.json")
    limits.check_window(draft.geometry, folder / "config.json")
    return draft


def other_target(request: OpenRequest, draft: DraftCheckpoint | None, target: TargetCheckpoint) -> tuple[str, ...]:
    """Return a warning where the draft's config names another target."""
    if draft is None or request.pair.draft is None:
        return ()
    return target_warnings(read_config(request.pair.draft), target.sha256)
