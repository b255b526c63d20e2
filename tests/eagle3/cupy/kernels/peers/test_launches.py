"""The launches of a step of a target that several GPUs share, without a GPU."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from torch import Tensor

from specgate.backends.eagle3.cupy.engine.prefill import kernels as prefill_kernels
from specgate.backends.eagle3.cupy.kernels.peers.launchers import Exchanges
from specgate.backends.eagle3.lib.shard import Shard
from specgate.backends.eagle3.pair_tools.plant.geometries import PairGeometry
from tests.eagle3.cupy.kernels.launches import PAIRS, check_arguments, lets_go_early, mixed_up, step, touched_early
from tests.eagle3.cupy.pairs import BOUNDARIES, DRAFT, MIXTURE, TARGET

DIVISIBLE = replace(DRAFT, heads=4, kv_heads=4, intermediate=128)
SHARED = PairGeometry(
    replace(TARGET, heads=8, kv_heads=4, intermediate=128), DIVISIBLE, BOUNDARIES, context=0, written=True
)
EXPERTS = PairGeometry(
    replace(MIXTURE, heads=8, kv_heads=4, intermediate=128), DIVISIBLE, BOUNDARIES, context=0, written=True
)


@pytest.mark.parametrize("name", ["shared", "experts", "llama-3.1-8b"])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("k", "slots"), [(0, 1), (3, 2), (5, 7)])
def test_each_argument_is_what_its_field_declares(
    monkeypatch: pytest.MonkeyPatch, name: str, ranks: int, k: int, slots: int
) -> None:
    pairs = {**PAIRS, "shared": SHARED, "experts": EXPERTS}
    check_arguments(step(monkeypatch, pairs[name], k, slots, ranks=ranks).launches)
    if not Shard(0, ranks).unfit(pairs[name].draft):
        check_arguments(step(monkeypatch, pairs[name], k, slots, ranks=ranks, draft_ranks=ranks).launches)


def test_products_that_divide_k_leave_partial_sums_which_are_added_up_right_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launches = step(monkeypatch, SHARED, 0, 2, ranks=2).launches
    names = [launch.name for launch in launches]
    product, attention = "matmul_rows", ["attention", "attention_combine"]
    layer = [product, *attention, product, "all_reduce", product, product, "all_reduce"]
    end = [product, "combine_choices", "accept", "commit"]
    assert names == ["kv_reserve", "embed_rows", *(TARGET.layers * layer), *end]
    for before, launch in pairwise(launches):
        if launch.name == "all_reduce":
            assert before.arguments["out"] is launch.arguments["partial"]
            assert before.arguments["normed"] is None


def test_the_products_of_experts_leave_partial_sums_too(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = step(monkeypatch, EXPERTS, 0, 2, ranks=2).launches
    names = [launch.name for launch in launches]
    product, layers = "matmul_rows", list[str]()
    for index in range(MIXTURE.layers):
        attention = ["attention"] if MIXTURE.window(index) else ["attention", "attention_combine"]
        layers += [product, *attention, product, "all_reduce", "route", "expert_gate_up", "expert_down", "all_reduce"]
    end = [product, "combine_choices", "accept", "commit"]
    assert names == ["kv_reserve", "embed_rows", *layers, *end]
    for before, launch in pairwise(launches):
        if launch.name == "all_reduce":
            left = before.arguments["stream" if before.name == "expert_down" else "out"]
            assert left is launch.arguments["partial"] and before.arguments["normed"] is None
            assert before.name == "expert_down" or before.arguments["bias"] is not None


def test_a_prefill_of_experts_leaves_partial_sums_on_several_gpus_alone() -> None:
    for ranks, stems in ((1, []), (2, ["prefill_mixture"])):
        kernels = prefill_kernels(MIXTURE, DRAFT, ranks=ranks)
        assert [kernel.spec.stem for kernel in kernels if "PARTIAL" in dict(kernel.spec.constants)] == stems


def test_the_draft_runs_on_every_rank_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [launch.name for launch in step(monkeypatch, SHARED, 3, 2, ranks=2).launches]
    drafting = names[: names.index("embed_rows")]
    assert drafting.count("draft_token") == 3 and not {"all_reduce", "combine_choices"} & {*drafting}


def test_a_draft_in_parts_sums_and_chooses_over_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    made = step(monkeypatch, SHARED, 3, 2, ranks=2, draft_ranks=2)
    names = [launch.name for launch in made.launches]
    drafting, verifying = names[: names.index("embed_rows")], names[names.index("embed_rows") :]
    assert drafting.count("all_reduce") == 2 * 3 and drafting.count("combine_choices") == 3
    assert verifying == [launch.name for launch in step(monkeypatch, SHARED, 3, 2, ranks=2).launches][-len(verifying) :]
    for before, launch in pairwise(drafting):
        assert launch != "draft_token" or before == "combine_choices"
    assert made.buffers.draft is not None
    own, targets = made.buffers.draft.layer.mailboxes, made.buffers.target.layer.mailboxes
    assert own is not None and targets is not None and made.buffers.mailboxes == (targets, own)
    counted = [launch.arguments["exchanges"] for launch in made.launches if launch.name == "combine_choices"]
    assert [count is own.choices.exchanges for count in counted] == [True] * 3 + [False]


@pytest.mark.parametrize(("k", "draft_ranks"), [(0, 1), (1, 1), (3, 1), (1, 2), (3, 2)])
@pytest.mark.parametrize("pair", [SHARED, EXPERTS], ids=["dense", "experts"])
def test_what_a_kernel_touches_before_it_waits_nothing_that_may_still_run_writes(
    monkeypatch: pytest.MonkeyPatch, k: int, draft_ranks: int, pair: PairGeometry
) -> None:
    problem = mixed_up(step(monkeypatch, pair, k, 3, times=3, ranks=2, draft_ranks=draft_ranks).launches)
    # Only for a fault, and then nobody reads what comes of it: a GPU is lost, or the cache's blocks are mixed up.
    assert {one.partition(" may write ")[2] for one in problem} == {"active_count"}
    assert {one.partition(" while ")[2].split()[0] for one in problem} == {
        "all_reduce",
        "combine_choices",
        "kv_reserve",
    }


def test_a_sum_is_awaited_while_the_next_products_weights_stream_in(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = step(monkeypatch, SHARED, 0, 2, ranks=2).launches
    reduce = next(launch for launch in launches if launch.name == "all_reduce")
    assert lets_go_early(reduce) and {name for name, _ in touched_early(reduce)} == {"norm_weight"}


def test_mailboxes_are_those_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    made = step(monkeypatch, SHARED, 0, 2, ranks=2)
    boxes = made.buffers.target.layer.mailboxes
    assert boxes is not None and boxes.rank == 0
    for launch in made.launches:
        if launch.name in ("all_reduce", "combine_choices"):
            given = [launch.arguments[name] for name in Exchanges._fields]
            own = boxes.sums if launch.name == "all_reduce" else boxes.choices
            assert all(a is b for a, b in zip(given, own, strict=True)) and given[3:] == [None, None]
            assert (
                isinstance(launch.arguments["fault"], Tensor) and launch.arguments["fault"] is made.buffers.slots.fault
            )
