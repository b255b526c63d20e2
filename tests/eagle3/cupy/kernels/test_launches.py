"""Every launch of a step passes what its kernel declares, without a GPU: shapes on the `meta` device, and signatures.

A kernel takes a struct of plain pointers and numbers: a tensor of another dtype, or in another place, would be read as
something else.
"""

from __future__ import annotations

import re
import struct
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.attention.attention import Attention, TreeNodes
from specgate.backends.eagle3.cupy.kernels.heads import Heads
from specgate.backends.eagle3.cupy.kernels.loader import kernel_files
from specgate.backends.eagle3.cupy.kernels.operands import Operands, with_fields
from specgate.backends.eagle3.cupy.kernels.trees.launchers import TreeSettle
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree, Sizes
from specgate.backends.eagle3.cupy.step.cycle import Cycle
from specgate.backends.eagle3.cupy.step.partial import FULL, PARTIAL, PLAIN, Kind
from specgate.backends.eagle3.lib.kv.modes import KvModes
from specgate.backends.eagle3.lib.specpv import PartialPlan
from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth
from specgate.backends.eagle3.nouns.trees.shape import TreeShape
from specgate.backends.eagle3.pair_tools.plant.geometries import PairGeometry
from specgate.contract import Sampling
from tests.eagle3.cupy.kernels.launches import (
    DRAWING,
    DYNAMIC,
    EVERYTHING,
    EXPERTS,
    PAIRS,
    PENALISED,
    POSITIONS,
    REJECTED,
    SAMPLED,
    SMALL,
    TREE,
    Launch,
    check_arguments,
    lets_go_early,
    mixed_up,
    overlap,
    reached,
    source_of,
    state,
    step,
    touched_early,
)
from tests.eagle3.cupy.pairs import BOUNDARIES, DRAFT, MIXTURE, TARGET, WINDOW, without_weights

IN_PART = PartialPlan(1, 3, 2, 6)
FORMATS = [
    *(KvModes("fp8"), KvModes(None, "fp8"), KvModes("fp8", "fp8")),
    *(KvModes("nvfp4"), KvModes(None, "nvfp4"), KvModes("nvfp4", "nvfp4"), KvModes("fp8", "nvfp4")),
]


@pytest.mark.parametrize("name", PAIRS)
def test_what_joins_attention_takes_no_shared_memory_of_its_ring(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    launches = step(monkeypatch, PAIRS[name], 3, 2).launches
    assert {launch.shared_bytes for launch in launches if launch.name == "attention_combine"} == {0}
    assert all(launch.shared_bytes > 0 for launch in launches if launch.name in ("attention", "matmul_rows"))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize(("k", "slots"), [(0, 1), (0, 7), (1, 3), (3, 1), (5, 7)])
@pytest.mark.parametrize("sampled", SAMPLED)
def test_each_argument_is_what_its_field_declares_and_lies_where_the_compiler_lays_it(
    monkeypatch: pytest.MonkeyPatch, name: str, k: int, slots: int, sampled: str
) -> None:
    check_arguments(step(monkeypatch, PAIRS[name], k, slots, sampling=SAMPLED[sampled]).launches)


@pytest.mark.parametrize("name", ["small", "smollm2-135m", "llama-3.1-8b"])
@pytest.mark.parametrize(("k", "slots"), [(0, 2), (1, 3), (2, 1), (3, 4)])
@pytest.mark.parametrize("tree", [TREE, DYNAMIC], ids=["file", "dynamic"])
def test_each_argument_of_a_trees_step_is_what_its_field_declares(
    monkeypatch: pytest.MonkeyPatch, name: str, k: int, slots: int, tree: DraftTree
) -> None:
    check_arguments(step(monkeypatch, PAIRS[name], k, slots, tree=tree).launches)


def test_a_tree_is_drafted_level_by_level_and_verified_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = step(monkeypatch, SMALL, 3, 2, tree=TREE).launches
    names = [launch.name for launch in launches]
    assert names[0] == "kv_reserve" and names[-2:] == ["tree_settle", "commit"]
    assert names.count("tree_token") == 3
    assert not {"draft_token", "accept", "tree_top"} & {*names}
    heads = [before.stem for before, launch in pairwise(launches) if launch.name == "tree_token"]
    assert heads == ["maxima_rows"] * 3
    assert names.count("attention") == TARGET.layers + 3
    grids = [launch.grid for launch in launches if launch.name == "tree_token"]
    assert grids == [(2 * nodes,) for nodes in TREE.level_sizes]
    assert next(launch.grid for launch in launches if launch.name == "embed_rows") == (2 * TREE.rows,)
    shorter = [launch.name for launch in step(monkeypatch, SMALL, 2, 2, tree=TREE).launches]
    assert shorter.count("tree_token") == 2


def test_a_dynamic_tree_is_drafted_level_by_level_and_chosen_behind_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = step(monkeypatch, SMALL, 3, 2, tree=DYNAMIC).launches
    names = [launch.name for launch in launches]
    assert [name for name in names if name in ("tree_top", "tree_grow", "tree_choose")] == [
        *(2 * ["tree_top", "tree_grow"]),
        *("tree_top", "tree_choose"),
    ]
    assert not {"draft_token", "accept", "tree_token"} & {*names}
    assert names[-2:] == ["tree_settle", "commit"]
    grids = [launch.grid for launch in launches if launch.name in ("tree_grow", "tree_choose")]
    assert grids == [(2 * DYNAMIC.width,), (2 * DYNAMIC.width,), (2,)]
    assert next(launch.grid for launch in launches if launch.name == "embed_rows") == (2 * DYNAMIC.rows,)
    shorter = [launch.name for launch in step(monkeypatch, SMALL, 1, 2, tree=DYNAMIC).launches]
    assert [name for name in shorter if name.startswith("tree")][:2] == ["tree_top", "tree_choose"]


def test_a_step_reserves_positions_for_the_rows_that_the_draft_runs_on_too() -> None:
    wide = DynamicGrowth(4, 10, 12)
    sizes = Sizes(2, POSITIONS, wide.rows, tree=wide)
    assert [sizes.reserved_of(k) for k in range(5)] == [1, 11, 13, 20, 30]
    assert [sizes.rows_of(k) for k in range(5)] == [1, 11, 13, 13, 13]
    target, draft = without_weights(SMALL.target, SMALL.draft, SMALL.boundaries, POSITIONS)
    assert dict(Cycle(target, draft, sizes, 2, 4).reserve.spec.constants)["ROWS"] == "30"
    assert Sizes(2, POSITIONS, TREE.rows, tree=TREE).reserved_of(3) == TREE.rows


def test_a_role_whose_part_of_a_tree_is_a_chain_drafts_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    one_way = TreeShape.of([(0,), (0, 0), (0, 1), (0, 0, 0)])
    names = [launch.name for launch in step(monkeypatch, SMALL, 1, 2, tree=one_way).launches]
    assert "draft_token" in names and "accept" in names and not [n for n in names if n.startswith("tree")]


@pytest.mark.parametrize("name", ["small", "smollm2-135m", "llama-3.1-8b"])
@pytest.mark.parametrize(("k", "slots"), [(1, 3), (3, 1), (5, 4)])
@pytest.mark.parametrize("kind", [FULL, PARTIAL])
def test_each_argument_of_a_step_that_verifies_in_part_or_behind_such_is_what_its_field_declares(
    monkeypatch: pytest.MonkeyPatch, name: str, k: int, slots: int, kind: Kind
) -> None:
    check_arguments(step(monkeypatch, PAIRS[name], k, slots, partial=IN_PART, kind=kind).launches)


def test_a_full_verification_runs_more_rows_and_chooses_and_a_partial_one_launches_what_a_plain_one_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = {kind: step(monkeypatch, SMALL, 3, 2, partial=IN_PART, kind=kind).launches for kind in (PLAIN, FULL, PARTIAL)}
    names = {kind: [launch.name for launch in launches] for kind, launches in of.items()}
    assert names[PARTIAL] == names[PLAIN]
    mine = ["block_bounds", "block_scores", "choose_blocks"]
    at = names[FULL].index("block_bounds")
    assert names[FULL][at : at + 3] == mine and names[FULL][-2:] == ["accept_replayed", "commit"]
    assert names[FULL].count("wide_attention") == TARGET.layers and "accept" not in names[FULL]
    rows = [next(launch.grid for launch in of[kind] if launch.name == "embed_rows") for kind in (PARTIAL, FULL)]
    assert rows == [(2 * 4,), (2 * 12,)]
    assert names[FULL][: names[FULL].index("embed_rows")] == names[PLAIN][: names[PLAIN].index("embed_rows")]


@pytest.mark.parametrize("name", ["small", "smollm2-135m"])
@pytest.mark.parametrize("kind", [FULL, PARTIAL])
def test_of_a_step_that_verifies_in_part_nothing_is_touched_early_that_may_still_be_written(
    monkeypatch: pytest.MonkeyPatch, name: str, kind: Kind
) -> None:
    problem = mixed_up(step(monkeypatch, PAIRS[name], 3, 3, times=3, partial=IN_PART, kind=kind).launches)
    assert problem == {"feature_rows.active_count while kv_reserve may write active_count"}


@pytest.mark.parametrize("k", [0, 1, 3, 5])
def test_an_engine_of_chains_on_one_gpu_launches_what_it_launched_before_there_were_trees_parts_and_ranks(
    monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    """No kernel of it has a constant or an argument of those; and so it is in the plain steps of one that has parts."""
    foreign = {"masks", "kept", "dropped", "verified", "bounded", "mailbox_0"}
    for pair, plan in ((SMALL, None), (SMALL, IN_PART), (EXPERTS, None)):
        made = step(monkeypatch, pair, k, 3, partial=plan)
        assert (made.buffers.partial is None) == (plan is None)
        assert not [launch.name for launch in made.launches if foreign & {*launch.arguments}]
        assert not [la.name for la in made.launches if la.name.startswith(("tree", "all_reduce", "combine_choices"))]
        names = {name for kernel in made.cycle.kernels().values() for name, _ in kernel.spec.constants}
        assert not [n for n in names if n.startswith(("TREE", "MOST_EMITTED", "KEPT_BLOCKS", "REPLAYS", "PARTIAL"))]


@pytest.mark.parametrize("pair", [SMALL, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize("k", [0, 3])
def test_a_tape_changes_one_kernel_of_a_step_with_drafts_and_no_other_constant(
    monkeypatch: pytest.MonkeyPatch, k: int, pair: PairGeometry
) -> None:
    plain, forced = (step(monkeypatch, pair, k, 3, times=3, forced=forced) for forced in (False, True))
    check_arguments(forced.launches)
    specs, own = ({path: kernel.spec for path, kernel in of.cycle.kernels().items()} for of in (plain, forced))
    assert [path for path in specs if specs[path] != own[path]] == (["verify.accept"] if k else [])
    assert plain.buffers.forced is None and not [launch for launch in plain.launches if "forced" in launch.arguments]
    names = [launch.name for launch in plain.launches]
    assert [launch.name for launch in forced.launches] == [
        "accept_forced" if k and name == "accept" else name for name in names
    ]
    assert mixed_up(forced.launches) == mixed_up(plain.launches)


def test_a_struct_holds_addresses_and_numbers() -> None:
    tensor = torch.arange(3, dtype=torch.int32)
    declared = "struct Given {\n    int* values;\n    int* missing;  // or null\n    int count;\n    float eps;\n};\n"
    operands = Operands.of("sum", f"{declared}__global__ void sum(const Given args) {{}}", ())
    made = operands.packed(operands.arguments((), {"values": tensor, "count": -3, "eps": 0.5})[0])
    assert bytes(made) == struct.pack("@PPif", tensor.data_ptr(), 0, -3, 0.5)


def test_a_line_declares_several_fields_and_the_head_what_the_kernel_is_launched_on() -> None:
    head = (
        "struct SumArguments {  // launched on [(count - 1) / 2 + 1, S] with 32 * S threads for ROWS + 1 rows of a slot"
    )
    kernel = "__global__ void sum(const SumArguments args) {}"

    def declared(shapes: str) -> Operands:
        source = f"{head}\n    const int *values, *others;  // {shapes}\n    int count;\n}};\n{kernel}"
        return Operands.of("sum", with_fields(source, ()), (("ROWS", "1"),))

    values, others, operands = torch.arange(3).int(), torch.arange(2).int(), declared("[count], [2]")
    given: dict[str, torch.Tensor | int] = {"values": values, "others": others, "S": 3, "R": 6}
    arguments, sizes = operands.arguments((), given)
    assert arguments == {"values": values, "others": others, "count": 3}
    assert operands.blocks(sizes) == ((2, 3), 96)
    with pytest.raises(ValueError, match="sum: 3 rows per slot for a launcher of 2"):
        operands.arguments((), {**given, "R": 9})
    with pytest.raises(ValueError, match=r"sum: others: .* \[3\] is needed: \[count\]"):
        declared("[count]").arguments((), given)
    with pytest.raises(ValueError, match="not fields of a kernel's struct: const int"):
        declared("[count], [2], [1]")


def test_a_head_names_what_its_kernel_defines_and_what_must_hold_of_a_launch() -> None:
    defined = "const int WARPS = WIDE ? 4 : 2, THREADS = 32 * WARPS;\nconst int UNASKED = size_of(Choice);"
    head = "struct SumArguments {  // launched on [BLOCKS * WARPS] where R <= MOST && !WIDE"
    source = f"{defined}\n{head}\n    int* out;  // [R]\n}};\n__global__ void sum(const SumArguments args) {{}}"
    operands = Operands.of("sum", source, (("WIDE", "0"),))
    out = torch.zeros(5).int()
    _, sizes = operands.arguments((), {"out": out, "R": 4, "MOST": 4, "BLOCKS": 3})
    assert operands.blocks(sizes) == ((6,), 64)
    with pytest.raises(ValueError, match="sum: launched with R = 5, MOST = 4, WIDE = 0, which is not what it is made"):
        operands.arguments((), {"out": out, "R": 5, "MOST": 4})
    with pytest.raises(ValueError, match="sum: launched with R = 4, MOST = 4, WIDE = 1, which is not what it is made"):
        Operands.of("sum", source, (("WIDE", "1"),)).arguments((), {"out": out, "R": 4, "MOST": 4})


def test_every_function_that_takes_a_kernels_struct_calls_it_args() -> None:
    """So that what a kernel touches before it waits is found by the name. A kernel itself may get `all` and make its
    `args` of that.
    """
    for file in kernel_files().values():
        text = re.sub(r"//[^\n]*", "", file.read_text(encoding="utf-8"))
        assert set(re.findall(r"\bconst \w+Arguments& (\w+)", text)) <= {"args"}, file.name


@pytest.mark.parametrize("k", [0, 3])
def test_the_arrays_of_slots_and_cache_go_to_the_fields_of_their_names(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    made = step(monkeypatch, SMALL, k, 3, sampling=REJECTED)
    for launch in made.launches:
        for field, argument in launch.arguments.items():
            assert {n for tensor, n in state(made.buffers) if tensor is argument} <= {field}, launch.name


@pytest.mark.parametrize(("k", "slots"), [(0, 1), (7, 7), (0, 63)])
def test_every_launch_is_one_that_cuda_allows(monkeypatch: pytest.MonkeyPatch, k: int, slots: int) -> None:
    check_arguments(step(monkeypatch, SMALL, k, slots, sampling=REJECTED).launches)


@pytest.mark.parametrize("k", [1, 4])
def test_a_step_drafts_k_tokens_and_verifies_them_in_one_pass(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    names = [launch.name for launch in step(monkeypatch, SMALL, k, 2).launches]
    assert names[0] == "kv_reserve"
    assert names[-2:] == ["accept", "commit"]
    assert names.count("draft_token") == k
    assert names.count("embed_rows") == 1
    assert names.count("attention") == TARGET.layers + k
    assert names.count("feature_capture") == len(BOUNDARIES)
    assert names.index("embed_rows") > max(i for i, name in enumerate(names) if name == "draft_token")


def test_a_baseline_step_runs_nothing_of_the_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    made = step(monkeypatch, SMALL, 0, 2)
    names = {launch.name for launch in made.launches}
    assert not names & {"draft_token", "draft_input", "feature_rows", "feature_capture"}
    assert not [name for name in made.ranges if name.startswith("EAGLE_DRAFT")]


def test_the_ranges_of_a_step_name_its_phases_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = ["EAGLE_DRAFT_ATTENTION_FMHA", "EAGLE_DRAFT_FFN", "EAGLE_DRAFT_LM_HEAD"]
    target = ["TARGET_ATTENTION_FMHA", "TARGET_FFN"]
    assert step(monkeypatch, SMALL, 2, 2).ranges == [
        "EAGLE_CYCLE_SPEC_2",
        "EAGLE_KV_RESERVE",
        "EAGLE_DRAFT_FEATURES",
        *(2 * draft),
        *(TARGET.layers * target),
        "EAGLE_ACCEPT",
        "EAGLE_TAIL_COMMIT",
    ]


@pytest.mark.parametrize(("tree", "built"), [(TREE, 0), (DYNAMIC, DYNAMIC.levels)], ids=["file", "dynamic"])
def test_a_trees_masks_have_a_range_where_a_step_builds_them(
    monkeypatch: pytest.MonkeyPatch, tree: DraftTree, built: int
) -> None:
    """Those of a file's tree are there before any step."""
    assert step(monkeypatch, SMALL, tree.depth, 2, tree=tree).ranges.count("EAGLE_TREE_MASKS") == built


@pytest.mark.parametrize("kv", FORMATS)
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("k", [0, 3])
def test_each_argument_of_a_step_over_narrower_caches_is_what_its_field_declares(
    monkeypatch: pytest.MonkeyPatch, name: str, k: int, kv: KvModes
) -> None:
    made = step(monkeypatch, PAIRS[name], k, 3, kv=kv)
    check_arguments(made.launches)
    attentions = [launch for launch in made.launches if launch.name == "attention"]
    narrow = sum("scales" in launch.arguments for launch in attentions)
    layers = PAIRS[name].target.layers
    assert narrow == layers * (kv.target is not None) + (len(attentions) - layers) * (kv.draft is not None)


@pytest.mark.parametrize("kv", FORMATS)
@pytest.mark.parametrize("k", [0, 3])
def test_over_narrower_caches_nothing_is_touched_early_that_may_still_be_written(
    monkeypatch: pytest.MonkeyPatch, k: int, kv: KvModes
) -> None:
    problem = mixed_up(step(monkeypatch, SMALL, k, 3, times=3, kv=kv).launches)
    first = "feature_rows" if k else "embed_rows"
    assert problem == {f"{first}.active_count while kv_reserve may write active_count"}


@pytest.mark.parametrize("pair", [SMALL, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize("k", [0, 1, 2, 5])
@pytest.mark.parametrize("sampled", SAMPLED)
def test_what_a_kernel_touches_before_it_waits_nothing_that_may_still_run_writes(
    monkeypatch: pytest.MonkeyPatch, k: int, pair: PairGeometry, sampled: str
) -> None:
    made = step(monkeypatch, pair, k, 3, times=3, sampling=SAMPLED[sampled])
    launches = made.launches
    problem = mixed_up(launches)
    # Only for a fault, and then nobody reads what comes of it. What counts tokens stands between the two.
    first = "feature_rows" if k else "embed_rows"
    apart = launches[1].name == "count_tokens"
    assert problem == (set() if apart else {f"{first}.active_count while kv_reserve may write active_count"})


@pytest.mark.parametrize("name", ["small", "smollm2-135m"])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("tree", [TREE, DYNAMIC], ids=["file", "dynamic"])
def test_what_a_trees_kernel_touches_before_it_waits_nothing_that_may_still_run_writes(
    monkeypatch: pytest.MonkeyPatch, name: str, k: int, tree: DraftTree
) -> None:
    def early_of(launch: Launch) -> list[tuple[str, Tensor]]:
        """Of the last layer's values a settling kernel reads nothing: the next test but one holds that."""
        last = {"v_pages"} if launch.name == "tree_settle" else set[str]()
        return [(name, early[:-1] if name in last else early) for name, early in touched_early(launch)]

    results = mixed_up(step(monkeypatch, PAIRS[name], k, 3, times=3, tree=tree).launches, early_of)
    # Attention only finds where masks are before it waits: the next test holds that.
    address = {"attention.masks while tree_grow may write masks"} if tree is DYNAMIC and k > 1 else set[str]()
    assert results == {"feature_rows.active_count while kv_reserve may write active_count"} | address


def test_attention_reads_no_mask_before_it_waits() -> None:
    result = source_of(Attention(Heads(8, 2, 64, 500), 4, tree=TreeNodes(0, 4, 3)).spec, "attention")
    early = reached(result.body[: result.body.rindex("await_previous();")], result.text)
    assert "t.masks = masks_of(args" in early and not re.search(r"masks\[|depth_of|DEPTH_OF", early)


def test_what_settles_a_tree_reads_no_value_of_the_last_layer_before_it_waits() -> None:
    body = source_of(TreeSettle(Heads(8, 2, 64, 500), 2, 9, 192, 4, 3, 4).spec, "tree_settle").body
    early = body[: body.index("await_previous();")]
    assert "early = cached && part.layer < LAYERS - 1;" in early
    assert re.findall(r".*args\.[kv]_pages.*", early) == [
        "    if (active && early) request_values<0>(args.v_pages, part);"
    ]
    assert "args.features" not in early and "args.choices" not in early


def test_what_draws_stands_between_a_head_and_who_takes_its_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [launch.name for launch in step(monkeypatch, SMALL, 2, 2, sampling=EVERYTHING).launches]
    own = ["bias_rows", "weigh_rows", "cut_rows", "draw_rows"]
    assert names[-7:] == ["matmul_rows", *own, "accept", "commit"]
    assert [names[i - 2 : i] for i, name in enumerate(names) if name == "draft_token"] == 2 * [
        ["matmul_rows", "draw_rows"]
    ]


def test_a_target_counts_what_was_emitted_before_it_penalises(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [launch.name for launch in step(monkeypatch, SMALL, 2, 2, sampling=PENALISED).launches]
    assert names[names.index("embed_rows") - 1] == "count_tokens"
    assert names[-7:-2] == ["matmul_rows", "penalise_rows", "weigh_rows", "cut_rows", "draw_rows"]
    assert [names.count(name) for name in ("count_tokens", "penalise_rows", "bias_rows")] == [1, 1, 0]


def test_rejection_takes_the_place_of_the_targets_draw_where_there_are_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [launch.name for launch in step(monkeypatch, SMALL, 2, 2, sampling=REJECTED).launches]
    own = ["penalise_rows", "weigh_rows", "cut_rows", "sum_rows", "verify_drafts"]
    assert names[-8:] == ["matmul_rows", *own, "accept", "commit"]
    assert names.count("draw_rows") == 2  # the drafts'
    names = [launch.name for launch in step(monkeypatch, SMALL, 0, 2, sampling=REJECTED).launches]
    assert names[-3:] == ["draw_rows", "accept", "commit"]


def test_each_draft_step_keeps_the_logits_that_its_token_is_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    made = step(monkeypatch, SMALL, 3, 2, sampling=REJECTED)
    assert made.buffers.sampling is not None
    kept = made.buffers.sampling.draft_logits
    drawn = [launch for launch in made.launches if launch.name == "draw_rows"]
    heads = [before for before, launch in pairwise(made.launches) if launch.name == "draw_rows"]
    for i in range(3):
        for tensor in (drawn[i].arguments["logits"], heads[i].arguments["out"]):
            assert isinstance(tensor, Tensor) and overlap(tensor, kept[i]) and not overlap(tensor, kept[(i + 1) % 3])


@pytest.mark.parametrize("sampling", [sampling for sampling in SAMPLED.values() if sampling], ids=[*SAMPLED][1:])
def test_a_step_that_draws_is_a_greedy_step_but_for_what_draws(
    monkeypatch: pytest.MonkeyPatch, sampling: Sampling
) -> None:
    """The same kernels, compiled with the same constants: nothing is slower where nothing is drawn."""
    greedy, drawn = (step(monkeypatch, SMALL, 3, 2, sampling=how).launches for how in (None, sampling))
    beside = [launch for launch in drawn if launch.stem not in DRAWING]
    assert len(drawn) > len(beside)
    assert [(la.name, la.grid, la.block, [*la.arguments]) for la in beside] == [
        (la.name, la.grid, la.block, [*la.arguments]) for la in greedy
    ]
    target, draft = without_weights(SMALL.target, SMALL.draft, SMALL.boundaries, POSITIONS)
    specs = [
        {
            path: kernel.spec
            for path, kernel in Cycle(target, draft, sizes, 2, 3).kernels().items()
            if ".draw." not in path
        }
        for sizes in (Sizes(3, POSITIONS, 5, sampling=how) for how in (None, sampling))
    ]
    assert specs[0] == specs[1]


def test_a_layer_with_experts_has_seven_kernels_in_this_order_and_one_less_where_it_slides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launches = step(monkeypatch, EXPERTS, 0, 2).launches
    names, product = [launch.name for launch in launches], "matmul_rows"
    layers = list[str]()
    for index in range(MIXTURE.layers):
        attention = ["attention"] if MIXTURE.window(index) else ["attention", "attention_combine"]
        layers += [product, *attention, product, "route", "expert_gate_up", "expert_down"]
    assert names == ["kv_reserve", "embed_rows", *layers, product, "accept", "commit"]
    assert {MIXTURE.window(index) is None for index in range(MIXTURE.layers)} == {True, False}


def test_a_sliding_layer_has_blocks_for_the_chunks_of_its_window_alone() -> None:
    model, _ = without_weights(MIXTURE, DRAFT, BOUNDARIES, 5000)
    kernels = Cycle(model, None, Sizes(1, 5000, 1), 1, 0).kernels()
    everything, sliding = kernels["verify.layer.attention"], kernels[f"verify.layer.attention_{WINDOW}"]
    assert isinstance(everything, Attention) and isinstance(sliding, Attention)
    assert (everything.window, sliding.window) == (None, WINDOW)
    assert everything.max_chunks == -(-5000 // everything.config.kv_tile) > sliding.max_chunks == 2


def test_the_second_product_of_experts_routes_and_reads_weights_while_the_first_still_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launches = step(monkeypatch, EXPERTS, 1, 2).launches
    early = {name for name, _ in touched_early(next(la for la in launches if la.name == "expert_down"))}
    assert early == {"logits", "weight", "active_count", "norm_weight"}
    early = {name for name, _ in touched_early(next(la for la in launches if la.name == "expert_gate_up"))}
    assert early == {"active_count"}


def test_which_kernels_let_the_next_start_before_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = step(monkeypatch, SMALL, 2, 2).launches
    assert {launch.name for launch in launches if lets_go_early(launch)} == {"matmul_rows", "attention_combine"}
