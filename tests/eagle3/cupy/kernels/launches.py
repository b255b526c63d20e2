"""The launches of a step, recorded without a GPU, and what the source of each kernel says that it takes and touches."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels import operands
from specgate.backends.eagle3.cupy.kernels.loader import Kernel, Spec
from specgate.backends.eagle3.cupy.kernels.operands import ARGUMENT, Constants
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.peers import with_mailboxes
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree, Sizes
from specgate.backends.eagle3.cupy.step.cycle import Cycle
from specgate.backends.eagle3.cupy.step.partial import Kind
from specgate.backends.eagle3.cupy.tuned.gemms import Configurations
from specgate.backends.eagle3.cupy.tuned.lookup import NOTHING_TUNED
from specgate.backends.eagle3.lib.kv.modes import AS_COMPUTED, KvModes
from specgate.backends.eagle3.lib.shard import Shard
from specgate.backends.eagle3.lib.specpv import PartialPlan
from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth
from specgate.backends.eagle3.nouns.trees.shape import TreeShape
from specgate.backends.eagle3.pair_tools.plant.geometries import GEOMETRIES, PairGeometry
from specgate.contract import Sampling
from tests.eagle3.cupy.pairs import BOUNDARIES, DRAFT, MIXTURE, TARGET, parts_without_weights


def of_four_layers(pair: PairGeometry) -> PairGeometry:
    """Captured before, between and not behind the last: all others launch what one of these does."""
    return replace(pair, target=replace(pair.target, layers=4), boundaries=BOUNDARIES)


SMALL = PairGeometry(TARGET, DRAFT, BOUNDARIES, context=0, written=True)
EXPERTS = PairGeometry(MIXTURE, DRAFT, BOUNDARIES, context=0, written=True)
LARGE = {name: of_four_layers(GEOMETRIES[name]()) for name in ("smollm2-135m", "llama-3.1-8b")}
PAIRS = {"small": SMALL, "experts": EXPERTS, **LARGE}
POSITIONS = 500
EVERYTHING = Sampling(temperature=0.6, top_k=50, top_p=0.95, min_p=0.05, logit_bias=((0, 1.0),), seed=2**63)
PENALISED = replace(EVERYTHING, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.1)
REJECTED = replace(PENALISED, method="rejection")
SAMPLED = {
    "greedy": None,
    "drawn": Sampling(),
    "everything": EVERYTHING,
    "penalised": PENALISED,
    "rejection": Sampling(method="rejection"),
    "rejection of everything": REJECTED,
}
DRAWING = {
    *("bias_rows", "penalise_rows", "count_tokens", "weigh_rows", "cut_rows", "draw_rows"),
    *("sum_rows", "verify_drafts"),
}
TREE = TreeShape.of([(0,), (1,), (3,), (0, 0), (0, 1), (1, 2), (0, 0, 0), (0, 0, 2), (1, 2, 0)])
DYNAMIC = DynamicGrowth(3, 4, 14)
ELEMENTS = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "unsigned char": torch.uint8,
    "float": torch.float32,
    "float2": torch.float32,
    "uint2": torch.int32,
    "int": torch.int32,
    "unsigned": torch.int32,
    "long long": torch.int64,
    "double": torch.float64,
    "Choice": torch.int64,
    "Rank": torch.int64,
    "PeerWord": torch.int64,
}


@dataclass(frozen=True, slots=True)
class Launch:
    spec: Spec
    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: Mapping[str, ARGUMENT]
    shared_bytes: int
    packed: ctypes.Structure

    @property
    def stem(self) -> str:
        return self.spec.stem


@dataclass(frozen=True, slots=True)
class Field:
    """Of the struct that a kernel takes. `type` without const: `int`, `float`, or a pointer such as `bf16*`."""

    type: str
    name: str
    const: bool

    @property
    def bytes(self) -> int:
        return 128 if self.type == "TensorMap" else 8 if self.type.endswith("*") else 4

    def takes(self, argument: ARGUMENT) -> bool:
        if self.type == "TensorMap":
            return isinstance(argument, Tensor) and argument.dtype == torch.bfloat16
        if not self.type.endswith("*"):
            return type(argument).__name__ == self.type
        if argument is None or self.type == "void*":
            return argument is None or isinstance(argument, Tensor)
        return isinstance(argument, Tensor) and argument.dtype == ELEMENTS[self.type[:-1]]


@dataclass(frozen=True, slots=True)
class Source:
    """What a kernel's file says, without comments: the fields that the kernel takes, its body, and the file's text with
    all headers.
    """

    fields: tuple[Field, ...]
    body: str
    text: str


@dataclass(frozen=True, slots=True)
class Step:
    buffers: Buffers
    launches: list[Launch]
    ranges: list[str]
    cycle: Cycle


def without_cupy(patch: pytest.MonkeyPatch, pushed: Callable[[str], None] = lambda name: None) -> None:
    """Put nothing but ranges in CuPy's place; the name of each goes to `pushed`."""
    nvtx = SimpleNamespace(RangePush=pushed, RangePop=lambda: None)
    patch.setitem(sys.modules, "cupy", SimpleNamespace())
    patch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(nvtx=nvtx))


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Return a list that grows by each launch from now on; nothing runs."""
    launches = list[Launch]()

    def record(
        kernel: Kernel,
        name: str,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Mapping[str, ARGUMENT],
        shared_bytes: int | None = None,
    ) -> None:
        shared = kernel.shared_bytes if shared_bytes is None else shared_bytes
        packed = kernel.operands_of(name).packed(arguments)
        launches.append(Launch(kernel.spec, name, tuple(grid), tuple(block), arguments, shared, packed))

    monkeypatch.setattr(Kernel, "enqueue", record)
    return launches


def step(
    monkeypatch: pytest.MonkeyPatch,
    pair: PairGeometry,
    k: int,
    slots: int,
    times: int = 1,
    sampling: Sampling | None = None,
    tree: DraftTree | None = None,
    kv: KvModes = AS_COMPUTED,
    ranks: int = 1,
    draft_ranks: int = 1,
    partial: PartialPlan | None = None,
    kind: Kind = "plain",
    tuned: Configurations = NOTHING_TUNED,
    forced: bool = False,
) -> Step:
    """A step of spec-`k` over all slots but one, in an engine that has room for longer chains or for `tree`, so many
    times in a row; nothing runs. With `ranks`, of the first of so many GPUs, which
    have the draft in `draft_ranks` parts.
    """
    launches, ranges = recorded(monkeypatch), list[str]()
    monkeypatch.setattr(operands, "tensor_map", lambda matrix, box: operands.TENSOR_MAP())
    without_cupy(monkeypatch, ranges.append)
    rows = tree.rows if tree else k + 2
    sizes = Sizes(slots + 1, POSITIONS, rows, sampling=sampling, tree=tree, kv=kv, partial=partial, forced=forced)
    shard = Shard(0, ranks)
    target, draft = parts_without_weights(pair, POSITIONS, shard, Shard(0, draft_ranks))
    all_of = [Buffers.allocate(target.geometry, draft.geometry, sizes, "meta") for _ in range(ranks)]
    split_width = draft.geometry.hidden if draft_ranks > 1 else None
    buffers = (with_mailboxes(all_of, sizes, target.geometry.hidden, split_width) if ranks > 1 else all_of)[0]
    cycle = Cycle(target, draft, sizes, slots, k, tuned, kind)
    for _ in range(times):
        cycle(buffers)
    return Step(buffers, launches, ranges, cycle)


def compiled_text(spec: Spec) -> str:
    """The source without comments, and without what the preprocessor leaves out by the kernel's constants."""
    constants = Constants.of(spec.constants)
    kept, taken = list[str](), [True]
    for line in re.sub(r"//[^\n]*", "", spec.source).splitlines(keepends=True):
        if line.startswith("#if"):
            condition = line.removeprefix("#if ")
            taken.append(taken[-1] and (condition == line or "__CUDA" in line or constants.hold(condition)))
        elif line.startswith("#else"):
            taken[-1] = taken[-2] and not taken[-1]
        elif line.startswith("#endif"):
            taken.pop()
        elif taken[-1]:
            kept.append(line)
    return "".join(kept)


@cache
def source_of(spec: Spec, name: str) -> Source:
    stem, text = spec.stem, compiled_text(spec)
    head = (
        rf'extern "C" __global__ [^{{;]*?void {name}\(\s*const (?:__grid_constant__ )?(\w+) (?:args|all)\) \{{(.*?)^\}}'
    )
    kernel = re.search(head, text, re.DOTALL | re.M)
    assert kernel, (
        f"{stem}.cu declares no kernel {name} that takes one struct, args, or all where args are its own part"
    )
    struct = re.search(rf"^struct {kernel[1]} \{{\s*\n(.*?)^\}};", text, re.DOTALL | re.M)
    assert struct, f"{stem}.cu declares no struct {kernel[1]}"
    declared = [field.strip() + ";" for field in struct[1].split(";") if field.strip()]
    result = [re.fullmatch(r"(const )?([\w ]+\*|int|float|TensorMap) ?(\w+);", line) for line in declared]
    assert all(result), f"{kernel[1]}: {declared}"
    return Source(
        tuple(Field(f[2], f[3], f[1] is not None or f[2] == "TensorMap") for f in result if f), kernel[2], text
    )


def source(launch: Launch) -> Source:
    return source_of(launch.spec, launch.name)


def check_arguments(launches: Sequence[Launch]) -> None:
    """Each argument is what its field declares, by name, type and place in the struct (natural alignment), and the grid
    is one that CUDA allows.
    """
    for launch in launches:
        assert 0 < torch.Size(launch.block).numel() <= 1024, launch.name
        assert all(0 < blocks <= 65535 for blocks in launch.grid), launch.name
        declared, made, end = source(launch).fields, launch.packed, 0
        assert [field.name for field in declared] == list(launch.arguments), launch.name
        for field, argument in zip(declared, launch.arguments.values(), strict=True):
            assert field.takes(argument), f"{launch.name}: {field}"
            at = -(-end // field.bytes) * field.bytes
            end = at + field.bytes
            placed = getattr(type(made), field.name)
            assert (placed.offset, placed.size) == (at, field.bytes), f"{launch.name}: {field}"


def written(launch: Launch) -> list[tuple[str, Tensor]]:
    """Return the pointers that a kernel may write: those that are not const."""
    writable = [field.name for field in source(launch).fields if not field.const]
    return [(name, a) for name, a in launch.arguments.items() if name in writable and isinstance(a, Tensor)]


@cache
def functions(text: str) -> dict[str, str]:
    """Body of every device function in `text`, those of one name together."""
    results = dict[str, str]()
    for head in re.finditer(r"__device__ [^;{]*?\b(\w+)\([^{;]*\{", text):
        depth, end = 1, head.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        results[head[1]] = results.get(head[1], "") + text[head.end() : end]
    return results


def reached(code: str, text: str) -> str:
    """`code`, and the body of every function that it names, and so on."""
    known, parts, names = functions(text), [code], set[str]()
    while new := (set(re.findall(r"\w+", parts[-1])) & set(known)) - names:
        names |= new
        parts.append("".join(known[name] for name in sorted(new)))
    return "".join(parts)


@cache
def early_fields(kernel: Source) -> set[str]:
    """Fields that it names before it waits for the kernel before it, itself or in a function that it names."""
    code = reached(kernel.body[: kernel.body.rindex("await_previous();")], kernel.text)
    return set(re.findall(r"\bargs\.(\w+)", code))


def touched_early(launch: Launch) -> list[tuple[str, Tensor]]:
    early = early_fields(source(launch))
    return [(name, a) for name, a in launch.arguments.items() if name in early and isinstance(a, Tensor)]


def lets_go_early(launch: Launch) -> bool:
    """True if the next kernel may start before this one has waited."""
    body = source(launch).body
    return body.index("let_next_start();") < body.index("await_previous();")


def mixed_up(
    launches: Sequence[Launch], early_of: Callable[[Launch], list[tuple[str, Tensor]]] = touched_early
) -> set[str]:
    """What a kernel touches before it waits while one that may still run may write it, in words."""
    running, results = list[Launch](), set[str]()
    for before, launch in pairwise(launches):
        running = [before, *(running if lets_go_early(before) else [])]
        for own, early in early_of(launch):
            for other in running:
                mixed = [theirs for theirs, late in written(other) if overlap(early, late)]
                results |= {f"{launch.name}.{own} while {other.name} may write {theirs}" for theirs in mixed}
    return results


def overlap(one: Tensor, other: Tensor) -> bool:
    if one.untyped_storage()._cdata != other.untyped_storage()._cdata:
        return False
    (a, b), (c, d) = ((t.storage_offset() * t.element_size(), t.nbytes) for t in (one, other))
    return a < c + d and c < a + b


def state(buffers: Buffers) -> Iterator[tuple[Tensor, str]]:
    """The arrays that kernels know by name."""
    for group in (buffers.slots, buffers.kv):
        yield from ((getattr(group, field.name), field.name) for field in fields(group))
