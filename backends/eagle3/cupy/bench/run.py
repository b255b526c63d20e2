"""The benchmark itself: record a step, and time each of its kernels beside a library's."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import torch

from specgate.backends.eagle3.cupy.bench.accounts import Account, account
from specgate.backends.eagle3.cupy.bench.peers import peers_of, timed
from specgate.backends.eagle3.cupy.bench.stage import Stage, stages_at
from specgate.backends.eagle3.cupy.bench.synthetic import Geometry
from specgate.backends.eagle3.cupy.bench.timing import LAUNCHES, inputs_to_rotate, read_bandwidth, time_launches
from specgate.backends.eagle3.cupy.device import first_gpu, l2_bytes
from specgate.backends.eagle3.cupy.engine import tree_option
from specgate.backends.eagle3.cupy.engine.limits import check_rows
from specgate.backends.eagle3.cupy.kernels.compiling import compiler
from specgate.backends.eagle3.cupy.kernels.experts.launchers import ExpertDown, ExpertGateUp
from specgate.backends.eagle3.cupy.kernels.loader import Launch
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import MatmulRows
from specgate.backends.eagle3.cupy.kernels.state.launchers import Commit
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree
from specgate.backends.eagle3.cupy.step.recording import Call
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.backends.eagle3.cupy.tuned.lookup import Tuned
from specgate.backends.eagle3.lib.kv.modes import DRAFT_KV, KV, KvModes, kv_modes
from specgate.backends.eagle3.lib.memory import refusing_overflow
from specgate.backends.eagle3.lib.refusals import refuse_pairs
from specgate.backends.eagle3.lib.trees.options import TREE, WIDTH
from specgate.backends.eagle3.nouns.kernel_bench import KernelBench, KernelBenchRequest, KernelTiming
from specgate.contract import Role
from specgate.contract.protocols import OpenRequest
from specgate.errors import BackendError, UsageError

SMALL: Final = 256 << 10
"""Bytes below which a launch takes as long as any: its operands come from the L2 cache, as they do in a step."""
TABLE: Final = 4
"""A tensor that is so many times larger than what a launch moves is a table, of which the launch reads a few rows."""

KNOWN: Final = (KV, DRAFT_KV, TREE, WIDTH)
"""Options of an engine that a benchmark of its kernels takes."""

TAGS: Final = {
    "chain.fc": "EAGLE3_FC",
    "chain.feature_rows": "EAGLE3_FEATURES",
    "chain.input": "EAGLE3_INPUT",
    "chain.lm_head": "EAGLE3_LM_HEAD_SMALLVOC",
    "chain.token": "EAGLE3_TOKEN",
    "chain.top": "EAGLE3_TREE_TOP",
    "chain.grow": "EAGLE3_TREE_GROW",
    "chain.choose": "EAGLE3_TREE_CHOOSE",
    "verify.embed": "TARGET_EMBED",
    "verify.capture": "TARGET_CAPTURE",
    "verify.lm_head": "TARGET_LM_HEAD",
    "verify.accept": "ACCEPT",
    "reserve": "KV_RESERVE",
    "commit": "COMMIT_REWIND",
}
LAYERS: Final = {**dict.fromkeys(("chain.extension", "chain.step", "chain.layer"), "EAGLE3"), "verify.layer": "TARGET"}
OF_TREES: Final = re.compile(r"^tree\.(level\d+\.)?")
PARTS: Final = {"gate_up": "FFN_GATE_UP", "down": "FFN_DOWN"}


def tag_of(path: str) -> str:
    """Of the launcher at `path` of a step; its path where it has no name of its own. A tree's parts have a chain's."""
    path = OF_TREES.sub("chain.", path)
    layer, _, part = path.rpartition(".")
    if layer in LAYERS:
        return f"{LAYERS[layer]}_{PARTS.get(part, part.upper())}"
    return TAGS.get(path, path)


@dataclass(frozen=True, slots=True)
class Group:
    """Launches of a step by one kernel on operands of one shape, and the calls that they belong to."""

    tag: str
    name: str
    account: Account
    calls: tuple[Call, ...]
    launches: tuple[Launch, ...]


def groups_of(calls: Sequence[Call], context: int) -> list[Group]:
    """The groups of a step's launches, in the order in which the step first makes them."""
    by_shape: dict[tuple[str, str, str], tuple[Account, list[Call], list[Launch]]] = {}
    for call in calls:
        accounts = account(call, context)
        for launch in call.launches:
            key = tag_of(call.path), launch.name, accounts[launch.name].shape
            _, made, launches = by_shape.setdefault(key, (accounts[launch.name], [], []))
            made.append(call)
            launches.append(launch)
    return [
        Group(tag, name, of, tuple(made), tuple(launches)) for (tag, name, _), (of, made, launches) in by_shape.items()
    ]


def rotation(group: Group, cache: int) -> list[Launch]:
    """Launches that take turns: more than `cache` bytes between two on the same operands, where these are not small.

    A commit moves its slots on, so each launch gets a state of its own that a few steps cannot exhaust.
    """
    size, own = group.account.size, list(group.launches)
    if isinstance(group.calls[0].kernel, Commit):
        return [own[0].copied(largest=1 << 30) for _ in range(LAUNCHES)]
    if size < SMALL:
        return own
    if isinstance(group.calls[0].kernel, ExpertGateUp | ExpertDown):
        return own[: inputs_to_rotate(size, cache)]  # each layer's matrices are its own, and most of them are not read
    own = list({heaviest(launch, TABLE * size): launch for launch in own}.values())
    count = inputs_to_rotate(size, cache)
    more = (own[i % len(own)].copied(TABLE * size) for i in range(count - len(own)))
    return [*own[:count], *more]


def heaviest(launch: Launch, largest: int) -> int:
    """Address of its largest tensor of at most `largest` bytes: the draft's launches of a step share their weights."""
    return max((t for t in launch.tensors if t.nbytes <= largest), key=lambda t: t.nbytes).data_ptr()


def bench_kernels(request: KernelBenchRequest) -> KernelBench:
    """Every kernel of the steps that `request` names, at its geometry, on the GPU that CUDA shows first.

    Raises UsageError for options that it has not, EnvironmentRefused where there is no GPU or too little memory,
    CheckpointError for a bad pair.
    """
    kv, tree = chosen_kv(request), chosen_tree(request)
    import cupy

    began = time.perf_counter()
    device = first_gpu()
    bandwidth, stream = read_bandwidth(), Stream()
    torch.cuda.empty_cache()  # what was read to measure the bandwidth
    with refusing_overflow(f"kernels of pair {request.pair.name}"), torch.inference_mode(), stream.current():
        tuned = Tuned.on(torch.cuda.get_device_name(), None)
        point = request.context, request.batch
        (stages,) = stages_at(request.pair, [point], request.roles, tuned, device, kv, tree)
        with compiler() as compiling:
            specs = (kernel.spec for stage in stages.values() for kernel in stage.cycle.kernels().values())
            if complaints := [f"{spec.stem}.cu: {why}" for spec, why in compiling.compile(specs).items() if why]:
                raise BackendError(complaints[0], hint="the kernel does not compile for this GPU")
        kernels = list[KernelTiming]()
        for role, stage in stages.items():
            stage.run()
            kernels += timings(role, stage, stream)
    return KernelBench(
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        device=torch.cuda.get_device_name(),
        pair=request.pair.name,
        context=request.context,
        batch=request.batch,
        bytes_per_s=bandwidth,
        l2_bytes=l2_bytes(),
        seconds=time.perf_counter() - began,
        kernels=tuple(kernels),
        versions={"torch": torch.__version__, "cupy": cupy.__version__},
        options=request.options,
    )


def chosen_kv(request: KernelBenchRequest) -> KvModes:
    """The formats of the caches. Raises UsageError for unknown names and for other options: weights are random."""
    if other := [name for name in request.options if name not in KNOWN]:
        raise UsageError(f"option {other[0]}: not of the benchmark of kernels", hint=f"known: {', '.join(KNOWN)}")
    refuse_pairs(request.options, "cupy")
    return kv_modes(request.options)


def chosen_tree(request: KernelBenchRequest) -> DraftTree | None:
    """What the longest role drafts, if no chain. Raises UsageError for a tree that no kernel or pair is made for, and
    CheckpointError for a bad pair.
    """
    most = max(role.k for role in request.roles)
    opening = OpenRequest(
        *(request.pair, "bfloat16", request.batch, request.context, most), perf_mode=True, options=request.options
    )
    shape = tree_option.chosen_tree(opening)
    if shape is not None:
        geometry = Geometry.of(request.pair, drafts=True)
        assert geometry.draft is not None
        check_rows(opening, geometry.target, shape)
        tree_option.check_draft(shape, request.options[TREE], geometry.draft)
    return shape


def timings(role: Role, stage: Stage, stream: Stream) -> Iterator[KernelTiming]:
    for group in groups_of(stage.calls, stage.context):
        first = group.calls[0]
        stage.reset()
        launches = rotation(group, l2_bytes())
        timing = time_launches(in_turn(launches), len(launches), stream)
        products = [call for call in group.calls if isinstance(call.kernel, MatmulRows)]
        weights = list({w.data_ptr(): w for w in (call.named["weight"] for call in products)}.values())
        whole = first.launches[0].name == group.name
        yield KernelTiming(
            role=role.name,
            tag=group.tag,
            function=group.name,
            shape=group.account.shape,
            per_step=len(group.launches),
            us=timing.latency_us,
            spread=timing.spread,
            size=group.account.size,
            peers=tuple(timed(peer) for peer in peers_of(first, weights, stage.context)) if whole else (),
        )


def in_turn(launches: Sequence[Launch]) -> Callable[[int], None]:
    return lambda i: launches[i]()
