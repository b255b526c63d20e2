"""Every kernel compiles to machine code for every architecture and geometry, on any machine: no GPU is needed.

PTX alone would prove little: it is the assembler that refuses instructions and counts registers.

Where no such GPU is, an architecture compiles every code of every kernel but one. Attention has half of the codes and
takes four fifths of the time, since what a launch has of rows and nodes is compiled into it, in every geometry. Of it

- codes that differ in such numbers alone are one kind as long as the source asks the same of them (`kind_of`), and that
  with most rows is compiled. With NVRTC 13.0 no other of its kind took over six registers more, and none that took
  more took over 212 of the 255 that there are; where all 255 are taken, all of the kind take them;
- of trees, which alone come near that limit, every architecture compiles every kind;
- of chains, which take at most 192, every architecture compiles every geometry with every format of the cache and with
  every kind of rows, every format with every kind of rows, and so on (`dealt`), and some architecture every kind.

`--every-code` compiles all of it for all architectures: for whoever changes attention, or the compiler.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

import specgate
from specgate.backends.cupy_eagle3.device import Multiprocessors
from specgate.backends.cupy_eagle3.engine.prefill import kernels as prefill_kernels
from specgate.backends.cupy_eagle3.kernels import loader
from specgate.backends.cupy_eagle3.kernels.attention import attention, fmha_config
from specgate.backends.cupy_eagle3.kernels.attention.attention import Attention
from specgate.backends.cupy_eagle3.kernels.attention.fmha_config import usual_config
from specgate.backends.cupy_eagle3.kernels.heads import Heads
from specgate.backends.cupy_eagle3.kernels.loader import ENTRY, FOLDER, Spec, entry_points, kernel_files, with_headers
from specgate.backends.cupy_eagle3.kernels.matmul import matmul_rows
from specgate.backends.cupy_eagle3.kernels.matmul.gemm_config import GemmConfig
from specgate.backends.cupy_eagle3.kernels.matmul.matmul_rows import Epilogue, MatmulRows
from specgate.backends.cupy_eagle3.kernels.prefill.prefill_heads import PrefillHeads
from specgate.backends.cupy_eagle3.kernels.read_memory import ReadMemory
from specgate.backends.cupy_eagle3.memory.sizes import DraftTree, Sizes
from specgate.backends.cupy_eagle3.step.cycle import Cycle
from specgate.backends.cupy_eagle3.step.partial import FULL, PARTIAL
from specgate.backends.cupy_eagle3.tuned.lookup import SHIPPED, Tuned
from specgate.core import Sampling
from specgate.core.gemms import GemmShape
from specgate.eagle3.hf.draft import draft_geometry
from specgate.eagle3.hf_keys import read_config
from specgate.eagle3.kv.modes import AS_COMPUTED, MODES, KvMode, KvModes
from specgate.eagle3.parallel.shard import Shard
from specgate.eagle3.specpv.asked import PartialPlan
from specgate.eagle3.trees.growing import DynamicGrowth
from specgate.eagle3.trees.shape import TreeShape
from specgate.files.writing import write_text
from specgate.pair_tools.plant.expert_geometries import EXPERT_GEOMETRIES
from specgate.pair_tools.plant.geometries import GEOMETRIES, PairGeometry
from tests.backends.cupy_eagle3.kernels.launches import compiled_text
from tests.backends.cupy_eagle3.pairs import without_weights

ARCHITECTURES = ("sm_80", "sm_90", "sm_120")
SLOTS = (1, 4, 8)
LENGTHS = (0, 3, 5)
"""Drafts per step: baseline, spec-3, spec-5."""
POSITIONS = 32768
SIZES = {
    "matmul_rows": ("N_OUT", "K_IN"),
    "matmul_many": ("N_OUT", "K_IN"),
    "attention": ("HEADS", "KV_HEADS", "MAX_BLOCKS", "MAX_CHUNKS"),
    "embed_rows": ("HIDDEN",),
    "feature_capture": ("HIDDEN",),
    "feature_rows": ("HIDDEN",),
    "draft_input": ("HIDDEN",),
    "draft_token": ("HIDDEN", "DRAFT_VOCAB"),
    "end_chains": ("COLUMNS", "PARTS", "DRAFTS", "SLOTS"),
    "all_reduce": ("HIDDEN", "MAX_ROWS"),
    "combine_choices": ("PART", "MAX_ROWS"),
    "kv_reserve": ("BLOCKS", "MAX_BLOCKS", "MAX_POSITIONS"),
    "route": ("EXPERTS", "ROWS"),
    "expert_gate_up": ("EXPERTS",),
    "expert_down": ("EXPERTS",),
    "bias_rows": ("VOCAB",),
    "penalise_rows": ("VOCAB",),
    "count_tokens": ("VOCAB",),
    "sum_rows": ("VOCAB", "DRAFT_VOCAB"),
    "verify_drafts": ("VOCAB", "DRAFT_VOCAB"),
    "weigh_rows": ("VOCAB",),
    "cut_rows": ("VOCAB",),
    "draw_rows": ("VOCAB",),
    "tree_top": ("COLUMNS", "PARTS"),
    "tree_token": ("HIDDEN", "DRAFT_VOCAB", "PARTS"),
    "tree_grow": ("HIDDEN", "DRAFT_VOCAB", "POOL", "FOREST"),
    "tree_choose": ("DRAFT_VOCAB", "POOL", "FOREST", "STRIDE", "MAX_ROWS"),
    "tree_settle": ("LAYERS", "BLOCKS", "MAX_BLOCKS", "WIDTH", "KV_HEADS"),
    "wide_attention": ("HEADS", "KV_HEADS", "MAX_BLOCKS", "MAX_CHUNKS"),
    "block_bounds": ("KV_HEADS", "MAX_BLOCKS", "BLOCKS"),
    "block_scores": ("HEADS", "KV_HEADS", "MAX_BLOCKS", "BLOCKS", "STRIDE"),
    "choose_blocks": ("KV_HEADS",),
    "prefill_gate": ("INTERMEDIATE",),
    "prefill_heads": ("HEADS", "KV_HEADS"),
    "prefill_stream": ("HIDDEN", "THREADS"),
    "prefill_draft": ("HIDDEN", "THREADS"),
    "prefill_route": ("EXPERTS",),
    "prefill_decode": ("N_OUT", "K_IN"),
    "prefill_swiglu": ("INTERMEDIATE",),
}
"""Kernel → the constants of it that are bounds of loops and widths of rows, and choose no code."""
SAMPLED = (
    Sampling(),
    Sampling(top_p=0.9),
    Sampling(temperature=0.6, top_k=50, top_p=0.95, min_p=0.05, logit_bias=((0, 1.0),)),
    Sampling(repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.2),
    Sampling(repetition_penalty=0.9, presence_penalty=-0.5, logit_bias=((0, 1.0),)),
    Sampling(method="rejection"),
    Sampling(temperature=0.6, top_p=0.95, method="rejection"),
)
TREES: tuple[DraftTree, ...] = (
    TreeShape.of([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 2), (1, 0, 0)]),
    # As many rows and levels as a step may have.
    TreeShape.of([(*(0,) * above, rank) for above in range(7) for rank in range(9)]),
    DynamicGrowth(4, 10, 31),
    # As many levels, and as many rows on which the draft runs, as a step may have.
    DynamicGrowth(7, 10, 63),
    DynamicGrowth(3, 32, 63),
    DynamicGrowth(2, 63, 63),
    DynamicGrowth(3, 1, 3),
)
CODES = (KvModes("fp8", "fp8"), KvModes("nvfp4", "nvfp4"))
"""Caches that hold codes."""
DEMO_DRAFT = Path(specgate.__file__).parent / "pairs" / "demo_draft"


def demo() -> PairGeometry:
    """The demo pair: SmolLM2-135M, and a draft whose attention has a window."""
    smollm2 = GEOMETRIES["smollm2-135m"]()
    draft, capture = draft_geometry(read_config(DEMO_DRAFT), smollm2.target, ("lm_head.weight",))
    low, middle, high = capture.boundaries
    return PairGeometry(smollm2.target, draft, (low, middle, high), context=0, written=True)


def specs_of(pair: PairGeometry) -> Iterator[Spec]:
    positions = min(pair.target.max_positions, POSITIONS)
    target, draft = without_weights(pair.target, pair.draft, pair.boundaries, positions)
    for slots in SLOTS:
        sizes = Sizes(slots, positions, max(LENGTHS) + 1)
        for k in LENGTHS:
            yield from (kernel.spec for kernel in Cycle(target, draft, sizes, slots, k).kernels().values())
    for refresh, slots, k in ((20, 1, 3), (60, 2, 1), (20, 4, 5)) if pair.target.experts is None else ():
        in_part = Sizes(slots, positions, k + 1, partial=PartialPlan(2, 256, 8, refresh))
        for kind in (FULL, PARTIAL):
            verifying = Cycle(target, draft, in_part, slots, k, kind=kind).kernels()
            own = (kernel.spec for path, kernel in verifying.items() if path.startswith("verify."))
            yield from (spec for spec in own if not spec.stem.startswith("matmul"))
    for kv in CODES:
        for k in LENGTHS:
            over_codes = Cycle(target, draft, Sizes(4, positions, 6, kv=kv), 4, k).kernels().values()
            yield from (kernel.spec for kernel in over_codes if kernel.spec.stem == "attention")
    if pair.target.experts is None:
        unsure = Cycle(target, draft, Sizes(4, positions, 6, confidence=0.3), 4, 5).kernels().values()
        yield from (kernel.spec for kernel in unsure if kernel.spec.stem in ("end_chains", "draft_token", "accept"))
    if pair.target.experts is not None:
        most = Cycle(target, draft, Sizes(8, positions, 8), 8, 7).kernels().values()  # as many rows as experts take
        yield from (kernel.spec for kernel in most if kernel.spec.stem.startswith("expert"))
    for tree in TREES if pair.target.experts is None else ():
        growing = Cycle(target, draft, Sizes(4, positions, tree.rows, tree=tree), 4, tree.depth).kernels().values()
        yield from (kernel.spec for kernel in growing if kernel.spec.stem.startswith(("attention", "commit", "tree")))
    for asked in SAMPLED:
        drawing = Cycle(target, draft, Sizes(1, positions, 4, sampling=asked), 1, 3).kernels()
        yield from (kernel.spec for path, kernel in drawing.items() if ".draw." in path)
    for kv in (AS_COMPUTED, *CODES):
        yield from (kernel.spec for kernel in prefill_kernels(pair.target, pair.draft, kv))
    yield from specs_of_ranks(pair, positions)


def specs_of_ranks(pair: PairGeometry, positions: int) -> Iterator[Spec]:
    """What only GPUs that share a target run, where it can be divided."""
    stems = {"all_reduce", "combine_choices"} | ({"expert_gate_up", "expert_down"} if pair.target.experts else set())
    for ranks in (2, 4):
        shard = Shard(0, ranks)
        if shard.unfit(pair.target) or shard.cuts_blocks(pair.target):
            continue
        part, draft = without_weights(shard.geometry(pair.target), pair.draft, pair.boundaries, positions)
        for slots, k in ((1, 0), (1, 3), (4, 3), (8, 5)):
            sizes = Sizes(slots, positions, max(LENGTHS) + 1)
            kernels = Cycle(replace(part, shard=shard), draft, sizes, slots, k).kernels()
            yield from (kernel.spec for kernel in kernels.values() if kernel.spec.stem in stems)
            if pair.target.biases:
                yield kernels["verify.layer.o"].spec  # partial sums with a bias are left by no other product
        if pair.target.experts:
            yield from (kernel.spec for kernel in prefill_kernels(shard.geometry(pair.target), None, ranks=ranks))


def with_constant(spec: Spec, name: str, value: int) -> Spec:
    return replace(spec, constants=tuple((n, str(value) if n == name else was) for n, was in spec.constants))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the compiler made of one source; `log` holds its messages and, of machine code, its use of registers."""

    compiled: bool
    log: str

    @property
    def registers(self) -> int:
        """Of a thread, in the function that takes most."""
        return max(int(count) for count in re.findall(r"Used (\d+) registers", self.log))

    @property
    def spilled(self) -> bool:
        return any(int(size) for size in re.findall(r"(\d+) bytes spill stores", self.log))


@dataclass(frozen=True, slots=True)
class Compiler:
    """Compiles as the loader does, and what it has compiled before it reads from `cache`, where there is one."""

    cache: Path | None

    def compile_all(self, architecture: str, specs: Sequence[Spec]) -> list[Outcome]:
        options = [f"--gpu-architecture={architecture}", "--ptxas-options=-v"]
        sources = [{"name": f"{s.stem}.cu", "text": s.source, "options": [*s.options, *options]} for s in specs]
        files = [self.file_of(source) for source in sources]
        known = {n: json.loads(file.read_text()) for n, file in enumerate(files) if file is not None and file.exists()}
        new = [n for n in range(len(sources)) if n not in known]
        for n, outcome in zip(new, compiled(architecture, [sources[n] for n in new]), strict=True):
            known[n] = outcome
            if (file := files[n]) is not None:
                write_text(file, json.dumps(outcome))
        return [Outcome(**known[n]) for n in range(len(sources))]

    def file_of(self, source: Mapping[str, object]) -> Path | None:
        """Everything that the outcome depends on gives its name."""
        asked = json.dumps([version("nvidia-cuda-nvrtc"), source], sort_keys=True)
        return self.cache and self.cache / f"{hashlib.sha256(asked.encode()).hexdigest()}.json"


def compiled(architecture: str, sources: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    if not sources:
        return []
    command = [sys.executable, str(Path(__file__).with_name("nvrtc.py"))]
    done = subprocess.run(command, input=json.dumps(sources), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{architecture}: the compiler ended with {done.returncode}: {done.stderr[-2000:]}"
    outcomes: list[dict[str, Any]] = json.loads(done.stdout)
    return outcomes


@pytest.fixture(scope="module")
def compiler(request: pytest.FixtureRequest) -> Compiler:
    """Its cache is pytest's: `--cache-clear` empties it, `-p no:cacheprovider` does without."""
    cache = getattr(request.config, "cache", None)
    return Compiler(cache and cache.mkdir("compiled-kernels"))


@pytest.fixture(scope="module")
def specs() -> list[Spec]:
    """Every kernel of every geometry, role and batch, equal ones once."""
    pairs = [demo(), *(geometry() for geometry in (*GEOMETRIES.values(), *EXPERT_GEOMETRIES.values()))]
    beside = ReadMemory().spec
    return [*dict.fromkeys(spec for pair in pairs for spec in specs_of(pair)), beside]


def code_of(spec: Spec) -> tuple[object, ...]:
    """What is the same in kernels that differ in their `SIZES` alone.

    Which loads, tiles and epilogues a kernel has is in its other constants, and of attention in how many query heads
    share a key/value head.
    """
    constants, sizes = dict(spec.constants), SIZES.get(spec.stem, ())
    by_head = spec.stem in ("attention", "wide_attention", "block_scores")
    shared = int(constants["HEADS"]) // int(constants["KV_HEADS"]) if by_head else None
    return spec.stem, shared, *((name, value) for name, value in spec.constants if name not in sizes)


def architecture_here() -> str | None:
    """That of this machine's GPU; None without one."""
    return "sm_{}{}".format(*torch.cuda.get_device_capability()) if torch.cuda.is_available() else None


def without_twins(specs: Sequence[Spec]) -> list[Spec]:
    """Of the kernels that differ in their sizes alone, the largest: what it keeps in registers is the most."""

    def size(spec: Spec) -> int:
        constants = dict(spec.constants)
        return math.prod(int(constants[name]) for name in SIZES.get(spec.stem, ()))

    return list({code_of(spec): spec for spec in sorted(specs, key=size)}.values())


Kind = tuple[tuple[str, Hashable], ...]
"""Of an attention what its code depends on, by name: see `kind_of`."""
PARTS = {
    "format": ("KV_FP8", "KV_NVFP4", "KEPT_BLOCKS", "SINK_BLOCKS", "RETRIEVED_BLOCKS"),
    "ring": ("STAGES", "CHUNK"),
    "sight": ("WINDOW", "SINKS", "JOINS"),
}
"""Part of a kind → the constants in it: how the cache is kept and which of it is read; stages and chunks; what a row
sees, and where its chunks are joined.
"""
ROWS = ("QUERY_ROWS", "APPENDED_ROWS", "TREE_ROWS", "TREE_STRIDE", "TREE_LEVELS", "FIRST_NODE")
"""Of attention: the numbers of rows and nodes of a launch."""


def is_tree(spec: Spec) -> bool:
    return "TREE_ROWS" in dict(spec.constants)


def kind_of(spec: Spec) -> Kind:
    """Of rows and nodes it has what `attention.cu` and its headers ask of them: whether a tile has both its halves;
    whether there are several tiles, and whether numbers are divided by theirs with more than a shift; whether all rows
    are query rows, of a chain a single one; of a tree, whether nodes came before, and stand at several positions.
    """
    constants = dict(spec.constants)
    shared, rows = int(constants["HEADS"]) // int(constants["KV_HEADS"]), int(constants["QUERY_ROWS"])
    tiles = -(-shared * rows // 16)
    asked = (shared * rows > 8, tiles > 1, tiles.bit_count() > 1, constants["APPENDED_ROWS"] == constants["QUERY_ROWS"])
    of_tree = (constants["FIRST_NODE"] != "0", constants["TREE_LEVELS"] != "0") if is_tree(spec) else (rows == 1,)
    elsewhere = {*SIZES["attention"], *ROWS, *(name for names in PARTS.values() for name in names)}
    return (
        ("geometry", (shared, *((name, value) for name, value in spec.constants if name not in elsewhere))),
        ("rows", (*asked, *of_tree)),
        *((part, tuple(constants.get(name) for name in names)) for part, names in PARTS.items()),
    )


def pairs_of(kind: Kind) -> set[tuple[tuple[str, Hashable], ...]]:
    return {*combinations(kind, 2)}


def most_useful(kinds: Sequence[Kind], missing: Set[Hashable], preferred: Container[Kind]) -> Kind:
    """That with most of the missing pairs."""
    return max(kinds, key=lambda kind: (len(pairs_of(kind) & missing), kind in preferred))


def dealt(kinds: Sequence[Kind]) -> Mapping[str, set[Kind]]:
    """Architecture → the kinds that it compiles: those of each have every pair of parts, those of all are all kinds."""
    every, hands = {pair for kind in kinds for pair in pairs_of(kind)}, {name: set[Kind]() for name in ARCHITECTURES}
    left = dict.fromkeys(kinds)
    for hand in hands.values():
        missing = set(every)
        while missing:
            best = most_useful(kinds, missing, left)
            missing -= pairs_of(best)
            hand.add(best)
            left.pop(best, None)
    for kind in left:
        min(hands.values(), key=len).add(kind)
    return hands


def largest_of_kind(codes: Sequence[Spec]) -> Mapping[Kind, Spec]:
    """Of attentions whose code is of one kind, that with most rows and nodes."""

    def size(spec: Spec) -> int:
        return math.prod(max(1, int(value)) for name, value in spec.constants if name in ROWS)

    return {kind_of(spec): spec for spec in sorted(codes, key=size)}


def covering(specs: Sequence[Spec]) -> Mapping[str, list[Spec]]:
    """Architecture → what it compiles where there is no such GPU, as the head of this file says."""
    codes = without_twins(specs)
    others = [spec for spec in codes if spec.stem != "attention"]
    trees = largest_of_kind([spec for spec in codes if spec.stem == "attention" and is_tree(spec)])
    chains = largest_of_kind([spec for spec in codes if spec.stem == "attention" and not is_tree(spec)])
    hands = dealt([*chains])
    return {
        name: [*others, *trees.values(), *(spec for kind, spec in chains.items() if kind in hand)]
        for name, hand in hands.items()
    }


def chosen(specs: Sequence[Spec], *, every_code: bool) -> Mapping[str, list[Spec]]:
    """Architecture → what it compiles: everything where such a GPU is."""
    elsewhere = dict.fromkeys(ARCHITECTURES, without_twins(specs)) if every_code else covering(specs)
    return {name: [*specs] if name == architecture_here() else elsewhere[name] for name in ARCHITECTURES}


@pytest.fixture(scope="module")
def swept(specs: list[Spec], request: pytest.FixtureRequest) -> Mapping[str, list[Spec]]:
    return chosen(specs, every_code=request.config.getoption("every_code"))


@pytest.fixture(scope="module")
def outcomes(swept: Mapping[str, list[Spec]], compiler: Compiler) -> Iterator[Mapping[str, Future[list[Outcome]]]]:
    """By architecture, compiled side by side."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {name: pool.submit(compiler.compile_all, name, specs) for name, specs in swept.items()}


def test_every_file_takes_part_in_a_step_or_a_prefill_or_measures_the_device(specs: list[Spec]) -> None:
    assert {f"{spec.stem}.cu" for spec in specs} == {name for name in kernel_files() if name.endswith(".cu")}
    assert "read_memory" not in entry_points() and "matmul_rows" in entry_points()
    assert not [name for name in entry_points() if name.startswith("prefill")]
    text = "".join(spec.source for spec in specs)
    assert all(f'#line 1 "{name}"' in text for name in kernel_files() if name.endswith(".cuh"))


def test_what_is_compiled_for_a_chain_has_nothing_of_trees() -> None:
    chain, tree = (compiled_text(Attention(Heads(8, 2, 64, 500), 4).spec.source, tree=kind) for kind in (False, True))
    assert "multiply_node_keys" in tree and "multiply_node_keys" not in chain
    assert not re.search("masks|nodes|TREE_", re.sub(r"//[^\n]*|#define TREE_ROWS 0\n", "", chain))


def test_what_is_compiled_for_a_whole_cache_has_nothing_of_parts() -> None:
    source = Attention(Heads(8, 2, 64, 500), 4).spec.source
    whole, part = (compiled_text(source, part=asked) for asked in (False, True))
    assert "copy_kept" in part and not re.search(
        "kept|dropped|KEPT", re.sub(r"//[^\n]*|#define KEPT_BLOCKS 0\n", "", whole)
    )
    for stem in ("embed_rows", "feature_capture"):
        once, again = (compiled_text(with_headers(f"{stem}.cu"), replays=asked) for asked in (False, True))
        assert "args.verified" in again and "verified" not in re.sub(r"//[^\n]*", "", once)


def test_what_is_compiled_for_a_cache_in_bfloat16_has_nothing_of_codes() -> None:
    for kernel in (Attention(Heads(8, 2, 64, 500), 4), PrefillHeads(8, 2, 64)):
        plain, *narrow = (compiled_text(kernel.spec.source, kv=kv) for kv in MODES)
        assert all("fp8_code" in text for text in narrow) and "fp8_code" not in plain
        assert "BlockScale" in narrow[1] and "BlockScale" not in narrow[0]
        assert not re.search("scale_of|dequantised|E4M3|BlockScale", re.sub(r"//[^\n]*", "", plain))
        assert not any(name.startswith("KV_") and name != "KV_HEADS" for name, _ in kernel.spec.constants)


def test_no_two_kernel_files_have_the_same_name() -> None:
    assert len(kernel_files()) == sum(file.suffix in (".cu", ".cuh") for file in FOLDER.rglob("*")) > 0


def test_every_kernel_waits_for_the_one_before_it_since_it_may_be_started_early() -> None:
    early = set()
    for file in (file for file in kernel_files().values() if file.suffix == ".cu"):
        _, *parts = ENTRY.split(file.read_text(encoding="utf-8"))
        for name, kernel in zip(parts[::2], parts[1::2], strict=True):
            before, waits, _ = kernel.partition("\n    await_previous();\n")  # whatever else holds
            assert waits, f"{file.name}: a kernel that does not wait may run before its input is written"
            if "let_next_start" in before:
                early.add(name)
    assert early == {"matmul_rows", "matmul_many", "attention_combine", "all_reduce"}, (
        "what dependent.cuh says of products holds for no other kernel"
    )


@pytest.mark.slow("compiles hundreds of kernels")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles_and_spills_no_register(
    architecture: str, swept: Mapping[str, list[Spec]], outcomes: Mapping[str, Future[list[Outcome]]]
) -> None:
    found = list(zip(swept[architecture], outcomes[architecture].result(), strict=True))
    refused = [(spec, o.log) for spec, o in found if not o.compiled]
    assert not refused
    spilled = [(spec, o.log) for spec, o in found if o.spilled]
    assert not spilled


def test_no_code_but_of_attention_is_left_out_on_any_architecture(specs: list[Spec]) -> None:
    def codes(of: Sequence[Spec]) -> set[tuple[object, ...]]:
        return {code_of(spec) for spec in of if spec.stem != "attention"}

    usual, everything = chosen(specs, every_code=False), chosen(specs, every_code=True)
    assert all(codes(kept) == codes(specs) for kept in usual.values())
    assert all({*map(code_of, kept)} == {*map(code_of, specs)} for kept in everything.values())
    assert all(swept[name] == specs for swept in (usual, everything) for name in swept if name == architecture_here())
    left_out = {spec.stem for spec in {*specs} - {*without_twins(specs)}}
    assert left_out == SIZES.keys()  # each has something that it spares


def test_of_attention_no_kind_of_a_trees_and_no_pair_of_a_chains_parts_is_left_out_on_any_architecture(
    specs: list[Spec],
) -> None:
    def kinds(of: Sequence[Spec], *, tree: bool) -> set[Kind]:
        return {kind_of(spec) for spec in of if spec.stem == "attention" and is_tree(spec) == tree}

    def pairs(of: Set[Kind]) -> set[tuple[tuple[str, Hashable], ...]]:
        return {pair for kind in of for pair in pairs_of(kind)}

    covered, chains = covering(specs), kinds(specs, tree=False)
    assert all(kinds(kept, tree=True) == kinds(specs, tree=True) for kept in covered.values())
    hands = [kinds(kept, tree=False) for kept in covered.values()]
    assert all(pairs(hand) == pairs(chains) and 2 * len(hand) < len(chains) for hand in hands)
    assert set[Kind]().union(*hands) == chains


def test_of_attentions_of_one_kind_that_with_most_rows_is_compiled(specs: list[Spec]) -> None:
    attentions = [spec for spec in without_twins(specs) if spec.stem == "attention" and is_tree(spec)]
    for kind, kept in largest_of_kind(attentions).items():
        rows = [int(dict(spec.constants)["TREE_ROWS"]) for spec in attentions if kind_of(spec) == kind]
        assert int(dict(kept.constants)["TREE_ROWS"]) == max(rows)


def test_what_was_compiled_once_is_not_compiled_again_and_an_edit_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, spec = Compiler(tmp_path), ReadMemory().spec
    (first,) = compiler.compile_all("sm_90", [spec])
    assert first.compiled and first.registers > 0
    here = "tests.backends.cupy_eagle3.kernels.test_compile.compiled"
    asked: list[str] = []

    def nothing(architecture: str, sources: Sequence[object]) -> list[dict[str, Any]]:
        asked.extend([architecture] * len(sources))
        return []

    monkeypatch.setattr(here, nothing)
    assert compiler.compile_all("sm_90", [spec]) == [first] and not asked
    for architecture, other in (("sm_80", spec), ("sm_90", with_constant(spec, "LOADS", 4))):
        with pytest.raises(ValueError, match="shorter"):
            compiler.compile_all(architecture, [other])
    assert asked == ["sm_80", "sm_90"]


SHIPPED_FOR = [json.loads(file.read_text())["device"] for file in sorted(SHIPPED.glob("*.json"))]


@pytest.mark.slow("compiles hundreds of kernels")
@pytest.mark.parametrize("device", SHIPPED_FOR)
def test_an_lm_head_has_registers_for_its_choices_as_its_work_is_cut_on_a_gpu_that_ships_tuned(
    device: str, monkeypatch: pytest.MonkeyPatch, compiler: Compiler
) -> None:
    monkeypatch.setattr(matmul_rows, "shared_memory_limit", lambda: 226 * 1024)
    (file,) = (f for f in SHIPPED.glob("*.json") if json.loads(f.read_text())["device"] == device)
    tuned = Tuned.on(device, file)
    heads = []
    for tag, n, k in (("TARGET_LM_HEAD", 128256, 4096), ("EAGLE3_LM_HEAD_SMALLVOC", 32000, 4096)):
        for rows in (1, 4, 16, 64):
            config = tuned.find(GemmShape(tag, n, k, rows))
            assert config is not None
            heads.append(MatmulRows(n, k, Epilogue.PLAIN, rows, config, scaled=True, chooses=True))
    several = GemmConfig(16, 2, 3, 1, passes=31)
    heads.append(MatmulRows(128256, 4096, Epilogue.PLAIN, 4, several, scaled=True, chooses=True))
    assert all(
        outcome.compiled and not outcome.spilled for outcome in compiler.compile_all("sm_90", [h.spec for h in heads])
    )


@pytest.mark.slow("compiles hundreds of kernels")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_products_of_more_rows_than_a_block_takes_have_registers(architecture: str, compiler: Compiler) -> None:
    specs = []
    for rows in (65, 256):
        for n, k, epilogue in ((128256, 4096, Epilogue.PLAIN), (4096, 14336, Epilogue.RESIDUAL)):
            adds = epilogue is Epilogue.RESIDUAL
            config = GemmConfig().at(rows)
            kernel = MatmulRows(n, k, epilogue, rows, config, scaled=not adds, feeds_norm=adds, chooses=not adds)
            specs.append(kernel.spec)
        specs.append(MatmulRows(14336, 4096, Epilogue.SWIGLU, rows, GemmConfig().at(rows), scaled=True).spec)
    groups = [dict(spec.constants)["ROW_GROUPS"] for spec in specs]
    assert groups == ["2"] * 3 + ["4"] * 3
    assert all(outcome.compiled and not outcome.spilled for outcome in compiler.compile_all(architecture, specs))


@pytest.mark.slow("compiles hundreds of kernels")
@pytest.mark.parametrize(("architecture", "capability"), [("sm_90", (9, 0)), ("sm_120", (12, 0))])
def test_products_of_many_rows_have_registers_as_clusters_divide_them(
    architecture: str, capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch, compiler: Compiler
) -> None:
    monkeypatch.setattr(matmul_rows, "shared_memory_limit", lambda: 226 * 1024)
    monkeypatch.setattr(matmul_rows, "multiprocessors", lambda: Multiprocessors(132, 228 * 1024, capability))
    specs = []
    for rows in (17, 32, 64, 128):
        for n, k, epilogue, split in (
            (128256, 4096, Epilogue.PLAIN, GemmConfig(16, 2)),
            (6144, 4096, Epilogue.PLAIN, GemmConfig(16, 2)),
            (4096, 14336, Epilogue.RESIDUAL, GemmConfig(8, 4)),
            (14336, 4096, Epilogue.SWIGLU, GemmConfig(16, 2)),
        ):
            adds, head = epilogue is Epilogue.RESIDUAL, n == 128256
            kernel = MatmulRows(n, k, epilogue, rows, split, scaled=not adds, feeds_norm=adds, chooses=head)
            specs.append(kernel.spec)
    assert {spec.stem for spec in specs} == {"matmul_many"}
    assert {dict(spec.constants)["CLUSTER"] for spec in specs} == {"1", "2", "4"}
    assert all(outcome.compiled and not outcome.spilled for outcome in compiler.compile_all(architecture, specs))


@pytest.mark.slow("compiles hundreds of kernels")
@pytest.mark.parametrize("device", SHIPPED_FOR)
def test_large_products_have_registers_as_their_work_is_cut_on_a_gpu_that_ships_tuned(
    device: str, monkeypatch: pytest.MonkeyPatch, compiler: Compiler
) -> None:
    monkeypatch.setattr(matmul_rows, "shared_memory_limit", lambda: 226 * 1024)
    (file,) = (f for f in SHIPPED.glob("*.json") if json.loads(f.read_text())["device"] == device)
    tuned = Tuned.on(device, file)
    specs = []
    for rows in (1, 4, 16):
        for tag, n, k, epilogue in (
            ("TARGET_QKV", 6144, 4096, Epilogue.PLAIN),
            ("TARGET_O", 4096, 4096, Epilogue.RESIDUAL),
            ("TARGET_FFN_GATE_UP", 28672, 4096, Epilogue.SWIGLU),
            ("TARGET_FFN_DOWN", 4096, 14336, Epilogue.RESIDUAL),
        ):
            config = tuned.find(GemmShape(tag, n, k, rows))
            assert config is not None
            adds = epilogue is Epilogue.RESIDUAL
            n_out = n // 2 if epilogue is Epilogue.SWIGLU else n
            specs.append(MatmulRows(n_out, k, epilogue, rows, config, scaled=not adds, feeds_norm=adds).spec)
    assert any(("X_IN_REGISTERS", "1") in spec.constants for spec in specs)
    assert all(outcome.compiled and not outcome.spilled for outcome in compiler.compile_all("sm_90", specs))


@pytest.mark.slow("compiles hundreds of kernels")
@pytest.mark.parametrize("kv", MODES)
@pytest.mark.parametrize("heads", [Heads(9, 3, 64, POSITIONS), Heads(32, 8, 128, POSITIONS)], ids=["64", "128"])
def test_attention_has_registers_for_all_blocks_that_an_sm_of_an_h200_is_counted_on_for(
    monkeypatch: pytest.MonkeyPatch, heads: Heads, kv: KvMode, compiler: Compiler
) -> None:
    heads = replace(heads, kv=kv)
    monkeypatch.setattr(attention, "shared_memory_limit", lambda: 226 * 1024)
    monkeypatch.setattr(fmha_config, "shared_memory_limit", lambda: 226 * 1024)
    monkeypatch.setattr(fmha_config, "multiprocessors", lambda: Multiprocessors(132, 228 * 1024))
    tiled = [(usual_config(heads, slots), rows) for slots in (1, 4) for rows in (1, 4, 8)]
    outcomes = compiler.compile_all("sm_90", [Attention(heads, rows, config=config).spec for config, rows in tiled])
    for (config, _), outcome in zip(tiled, outcomes, strict=True):
        assert outcome.compiled and not outcome.spilled
        blocks = config.blocks_per_sm(heads.head_dim, 228 * 1024, kv=kv)
        assert blocks * 32 * config.warps * outcome.registers <= 65536


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            Spec.of("embed_rows", {"hidden": 100, "rows": 1, "max_rows": 1, "threads": 128}),
            r"HIDDEN must be a multiple of 8",
        ),
        (
            Attention(Heads(3, 1, 96, 128), 1).spec,
            r"HEAD_DIM must be 64 or 128",
        ),
        (MatmulRows(64, 48, Epilogue.PLAIN, 1).spec, r"K_IN must be a multiple of 32"),
        (
            Spec.of("feature_rows", {"hidden": 64, "features": 3, "norm": 3, "rows": 4, "max_rows": 6, "threads": 256}),
            r"NORM: 0 none, 1 each stream, 2 all streams",
        ),
        (
            with_constant(MatmulRows(64, 64, Epilogue.SWIGLU, 1).spec, "TAKES_ARGMAX", 1),
            r"TAKES_ARGMAX needs results as they are: EPILOGUE PLAIN",
        ),
        (
            with_constant(MatmulRows(64, 64, Epilogue.SWIGLU, 1).spec, "HAS_BIAS", 1),
            r"HAS_BIAS needs one sum per result: EPILOGUE PLAIN or RESIDUAL",
        ),
    ],
)
def test_a_size_that_no_kernel_is_made_for_is_refused_with_a_sentence(
    spec: Spec, said: str, compiler: Compiler
) -> None:
    (outcome,) = compiler.compile_all("sm_80", [spec])
    assert not outcome.compiled
    assert re.search(rf"^{spec.stem}\.cu\(\d+\): .*{said}", outcome.log, re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the kernels, to edit."""
    copy = tmp_path / "kernels"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    monkeypatch.setattr(loader, "FOLDER", copy)
    with_headers.cache_clear()
    yield copy
    with_headers.cache_clear()


def test_an_edit_to_a_header_changes_the_source_and_so_the_cached_binarys_key(folder: Path) -> None:
    before = with_headers("draft_input.cu")
    block = kernel_files()["block.cuh"]
    block.write_text(block.read_text() + "// another line\n")
    with_headers.cache_clear()
    assert with_headers("draft_input.cu") != before


def test_a_header_comes_once_however_often_it_is_included(folder: Path) -> None:
    (folder / "a.cuh").write_text('#pragma once\n#include "b.cuh"\nint a;\n')
    (folder / "b.cuh").write_text("#pragma once\nint b;\n")
    (folder / "main.cu").write_text('#include "a.cuh"\n#include "b.cuh"\n#include "a.cuh"\nint c;\n')
    lines = with_headers("main.cu").splitlines()
    assert [line for line in lines if line.startswith("int")] == ["int b;", "int a;", "int c;"]
    assert not any(line.startswith(("#include", "#pragma")) for line in lines)


@pytest.mark.parametrize(
    "file", ["bf16.cuh", "block.cuh", "norm.cuh", "argmax.cuh", "draft_row.cuh", "slots.cuh", "draft_token.cu"]
)
def test_an_error_is_reported_in_its_own_file_and_line(folder: Path, file: str, compiler: Compiler) -> None:
    main, edited = kernel_files()["draft_token.cu"], kernel_files()[file]
    assert edited.is_relative_to(folder)
    # Twice: an include that is left out must not shift what follows it.
    main.write_text(main.read_text().replace('#include "slots.cuh"', '#include "slots.cuh"\n#include "norm.cuh"'))
    text = edited.read_text()
    edited.write_text(f"{text}typedef unknown planted;\n")
    constants = {"hidden": 64, "draft_vocab": 96, "max_rows": 4, "threads": 256}
    switches = {"norm_output": 0, "norm_before_residual": 0}
    (outcome,) = compiler.compile_all("sm_80", [Spec.of("draft_token", {**constants, **switches})])
    errors = re.findall(r"^(\S+)\((\d+)\): error", outcome.log, re.MULTILINE)
    assert errors == [(file, str(text.count("\n") + 1))]
