"""Load a pair into the engine, after checking that the engine can hold what the plan asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from specgate.api import OpenRequest
from specgate.backends.cupy_eagle3.device import first_gpu
from specgate.backends.cupy_eagle3.engine import limits, memory_plan, tree_option
from specgate.backends.cupy_eagle3.engine.engine import CupyEngine
from specgate.backends.cupy_eagle3.engine.facts import engine_facts
from specgate.backends.cupy_eagle3.engine.prefill import Way
from specgate.backends.cupy_eagle3.engine.prefill_attention import Library
from specgate.backends.cupy_eagle3.engine.retile import config_of
from specgate.backends.cupy_eagle3.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.cupy_eagle3.memory.buffers import Buffers
from specgate.backends.cupy_eagle3.memory.model import Draft, Target
from specgate.backends.cupy_eagle3.memory.sizes import DraftTree, Sizes
from specgate.backends.cupy_eagle3.step.cycle import Cycle
from specgate.backends.cupy_eagle3.tuned.lookup import Tuned
from specgate.backends.cupy_eagle3.tuned.required import describe, require
from specgate.backends.cupy_eagle3.tuned.shape_log import ShapeLog
from specgate.core.fmha import parse_config
from specgate.eagle3.auxiliary_layers import parse_boundaries
from specgate.eagle3.geometry import TargetGeometry
from specgate.eagle3.hf.target import target_geometry
from specgate.eagle3.hf_keys import read_config
from specgate.eagle3.memory import refusing_overflow
from specgate.eagle3.pair import DraftCheckpoint, TargetCheckpoint, load_draft, load_target
from specgate.eagle3.spec_config.launching import check_chain
from specgate.errors import BackendError, CheckpointError, UsageError

OPTIONS: Mapping[str, tuple[str, ...] | None] = {
    "capture": None,
    "fmha": None,
    "graphs": ("on", "off"),
    "log_shapes": None,
    "on_draft_error": ("fail", "baseline"),
    "prefill": ("fused", "torch"),
    "prefill_attention": ("best", "torch", "cudnn", "flash"),
    "spec_config": None,
    "tree": None,
    "tree_width": None,
    "tuned": None,
}
"""Option → its values, of which the first is the default. None: its value is a list, knobs, or a file."""
DTYPE = torch.bfloat16


def open_engine(request: OpenRequest) -> CupyEngine:
    """Load `request.pair`.

    Options: `capture` (boundaries such as 2,18,34), `fmha` (knobs of attention such as kv_tile:512,warps:4), `graphs`
    (on, off: every launch on its own, for profilers), `on_draft_error` (fail; baseline: decode spec roles plainly and
    say so), `prefill` (fused: what stands between products by one kernel each; torch: operation by operation),
    `prefill_attention` (best; torch: what torch takes; cudnn or flash: by that library alone, of a target with experts
    the layers without a window), `spec_config` (a speculative config that this one's must agree with), `tree` (a file
    of a draft tree, or dynamic:NODES) and `tree_width`, `tuned` (a file of tuned configurations, in place of those that
    are found by themselves), `log_shapes` (a file for the products that are run).

    Raises UsageError for options, draft lengths and contexts that cannot be meant, CheckpointError for a bad pair or
    sizes that no kernel is made for, EnvironmentRefused where the GPU is missing, too old or too small, or PERF_MODE
    asks for a product that is not tuned, BackendError for a missing draft.
    """
    check_options(request.options)
    limits.check_request(request)
    tree = tree_option.chosen_tree(request)
    fmha, device = chosen_fmha(request.options), first_gpu()
    if request.max_k:
        check_chain(request.max_k, f"spec-{request.max_k}", request.options)
        if request.pair.draft is None:
            raise BackendError(f"pair {request.pair.name!r} has no draft, but spec-{request.max_k} was asked for")
    tree_option.check_target(tree, check_target(request))
    tuned, shape_log = chosen_files(request.options)
    target = load_target(request.pair.target, DTYPE, device, request.pair.rope)
    draft, draft_error = usable_draft(request, target, device) if request.max_k else (None, None)
    if draft is not None:
        tree_option.check_draft(tree, request.options.get("tree", ""), draft.geometry)
    sizes = sizes_of(request, tree if draft else None)
    sizes = replace(sizes, fmha=fmha) if fmha else sizes.usual(target.geometry)
    tree_option.check_memory(sizes, target.geometry)
    way = chosen_way(request.options, target.geometry, device)
    memory = memory_plan.plan(target.geometry, draft.geometry if draft else None, sizes, fused=way.fused)
    graphs = request.options.get("graphs") != "off"
    with refusing_overflow(str(request.pair.target)):
        model = Target.of(target, sizes.positions)
        head = Draft.of(draft, model, sizes.positions) if draft else None
        gemms = Cycle(model, head, sizes, sizes.slots, sizes.most_drafts if head else 0, tuned).gemms
        require(tuned, gemms.lookups, request.pair, perf_mode=request.perf_mode)
        memory_plan.require(memory, torch.cuda.memory_allocated(device), sizes, device)
        buffers = Buffers.allocate(target.geometry, draft.geometry if draft else None, sizes, device)
    facts = engine_facts(
        *(target, draft, draft_error, memory, sizes),
        graphs=graphs,
        tuned_products=describe(tuned, gemms.lookups),
        tuned_sha256=tuned.sha256(gemms.shapes),
        way=way,
    )
    return CupyEngine(
        *(model, head, sizes, buffers, facts),
        graphs=graphs,
        plain_on_draft_error=plain_on_draft_error(request),
        tuned=tuned,
        shape_log=shape_log,
        way=way,
    )


def sizes_of(request: OpenRequest, tree: DraftTree | None) -> Sizes:
    """With positions for the rows of a tree that a chain of as many levels has not. No token ever stands there."""
    rows = tree.rows if tree else request.max_k + 1
    sizes = Sizes(request.max_batch, request.max_positions, rows, sampling=request.sampling, tree=tree)
    return replace(sizes, positions=request.max_positions + sizes.reserved_of(request.max_k) - (request.max_k + 1))


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
    """Raises UsageError for knobs and values that attention does not have."""
    text = options.get("fmha")
    return config_of(parse_config(text)) if text else None


def chosen_way(options: Mapping[str, str], geometry: TargetGeometry, device: torch.device) -> Way:
    """As the options say. By torch's operations, a target with experts has its attention from torch as well unless they
    say otherwise.
    """
    fused = options.get("prefill", "fused") == "fused"
    library = options.get("prefill_attention", "best" if fused or geometry.experts is None else "torch")
    return Way.on(device, fused=fused, attention=None if library == "best" else Library(library))


def check_target(request: OpenRequest) -> TargetGeometry:
    """Check what the target's config alone tells, before its weights are read; return its geometry."""
    config = read_config(request.pair.target)
    geometry = target_geometry(config, request.pair.rope)
    limits.check_geometry(geometry, config.file)
    limits.check_rows(request, geometry)
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
    request: OpenRequest, target: TargetCheckpoint, device: torch.device
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
    request: OpenRequest, target: TargetCheckpoint, device: torch.device, capture: Sequence[int] | None
) -> DraftCheckpoint:
    folder = request.pair.draft
    assert folder is not None
    draft = load_draft(folder, target.geometry, DTYPE, device, capture, target.sha256)
    positions = request.max_positions
    check_chain(request.max_k, str(folder), {}, target=target.geometry, draft=draft.geometry, positions=positions)
    limits.check_geometry(draft.geometry, folder / "config.json")
    limits.check_window(draft.geometry, folder / "config.json")
    return draft
