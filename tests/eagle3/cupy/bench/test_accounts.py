"""Traffic that launches state, against tensors counted one by one and against the floor of a whole step."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specgate.backends.eagle3.cupy.bench.accounts import ACCOUNTS, VisibleCache, account
from specgate.backends.eagle3.cupy.bench.run import groups_of
from specgate.backends.eagle3.cupy.bench.synthetic import Geometry
from specgate.backends.eagle3.cupy.kernels.attention.attention import Attention
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import MatmulRows, PreNormRows
from specgate.backends.eagle3.lib.kv.modes import AS_COMPUTED, KvModes
from specgate.backends.eagle3.lib.traffic import pair_traffic
from specgate.backends.eagle3.pair_tools.plant.geometries import GEOMETRIES
from specgate.contract.traffic import Slot, draft_bytes, pass_bytes
from tests.eagle3.cupy.bench.staged import KINDS, SMALL, no_launches, staged
from tests.eagle3.cupy.kernels.codes.caches import CODES
from tests.eagle3.cupy.pairs import MIXTURE


def of(name: str) -> Geometry:
    if name == "small":
        return SMALL
    pair = GEOMETRIES[name]()
    return Geometry(pair.target, pair.draft, pair.boundaries)


@pytest.mark.parametrize("name", ["small", "smollm2-135m", "llama-3.1-8b"])
@pytest.mark.parametrize(("k", "slots"), [(0, 1), (3, 1), (3, 4), (5, 2)])
def test_the_groups_of_a_step_hold_each_of_its_launches_once(
    monkeypatch: pytest.MonkeyPatch, name: str, k: int, slots: int
) -> None:
    launched = no_launches(monkeypatch)
    stage = staged(k, slots, geometry=of(name))
    groups = groups_of(stage.calls, stage.context)
    counted = Counter[str]()
    for group in groups:
        counted[group.name] += len(group.launches)
        assert group.account.size > 0 and group.account.shape
    # The stage itself reserves blocks once, before the step.
    assert counted + Counter(["kv_reserve"]) == Counter(launched)
    assert len({(g.tag, g.name, g.account.shape) for g in groups}) == len(groups)


def test_every_launcher_of_a_step_has_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    no_launches(monkeypatch)
    stages = [staged(3, geometry=geometry, tree=tree) for geometry, tree in KINDS.values()]
    used = {type(call.kernel) for stage in stages for call in stage.calls}
    assert used == set(ACCOUNTS)
    for stage in stages:
        groups = groups_of(stage.calls, stage.context)
        assert all(group.account.size > 0 for group in groups) and not [g.tag for g in groups if "." in g.tag]
        assert sum(len(group.launches) for group in groups) == sum(len(call.launches) for call in stage.calls)


def held(x: Tensor | PreNormRows, rows: int) -> int:
    parts = (x.normed, x.squares) if isinstance(x, PreNormRows) else (x,)
    return sum(part[:rows].nbytes for part in parts)


@pytest.mark.parametrize("k", [0, 3])
def test_a_product_moves_its_weight_its_rows_its_sums_and_a_norms_input(
    monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    no_launches(monkeypatch)
    stage = staged(k, slots=3, max_k=5)
    for call in stage.calls:
        if isinstance(call.kernel, MatmulRows):
            rows = call.named["rows"].most
            out = call.named["out"][:rows].nbytes
            times = 2 if call.kernel.epilogue.name == "RESIDUAL" else 1
            want = call.named["weight"].nbytes + held(call.named["x"], rows) + times * out
            if call.named.get("norm"):
                left, weight = call.named["norm"]
                want += held(left, rows) + weight.nbytes
            if call.kernel.chooses:
                want += call.named["choices"][:rows].nbytes
            assert account(call, stage.context)[call.kernel.name].size == want


@pytest.mark.parametrize(
    ("name", "kv"),
    [
        *(("small", AS_COMPUTED), ("llama-3.1-8b", AS_COMPUTED)),
        *(("llama-3.1-8b", kv) for of in CODES for kv in (KvModes(of, of), KvModes(of), KvModes(None, of))),
    ],
    ids=str,
)
@pytest.mark.parametrize("k", [0, 1, 4])
def test_weights_and_cache_of_a_step_are_its_floor(
    monkeypatch: pytest.MonkeyPatch, name: str, kv: KvModes, k: int
) -> None:
    """Against `specgate.contract.traffic`, which counts from the geometry: the rest is activations and words."""
    no_launches(monkeypatch)
    geometry, slots, context = of(name), 2, 4096
    stage = staged(k, slots, context, geometry, kv=kv)
    traffic = pair_traffic(geometry.target, geometry.draft, torch.bfloat16, kv)
    floor = pass_bytes(traffic.target, [Slot(context, k + 1)] * slots)
    if k:
        assert traffic.draft is not None
        floor += draft_bytes(traffic.draft, [Slot(context - k - 1, k + 1)] * slots, [k] * slots)
    moved = sum(
        launch.size for group in groups_of(stage.calls, context) for launch in [group.account] * len(group.launches)
    )
    activations = moved - floor.total
    assert 0 < activations < (0.02 if name == "llama-3.1-8b" else 0.5) * floor.total


@given(
    rows=st.integers(1, 8), last=st.integers(8, 3000), window=st.one_of(st.none(), st.integers(1, 900)),
)  # fmt: skip
def test_rows_see_together_what_any_of_them_sees(rows: int, last: int, window: int | None) -> None:
    seen = {
        position
        for row in range(last - rows + 1, last + 1)
        for position in range(row + 1)
        if window is None or position > row - window
    }
    visible = VisibleCache(rows, last, window)
    assert visible.seen == len(seen) and visible.first == min(seen)


def test_products_of_experts_move_the_matrices_that_rows_choose_and_rotate_through_the_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_launches(monkeypatch)
    stage = staged(0, slots=1, geometry=KINDS["experts"][0], device="cpu")
    mixture, experts = stage.b.target.layer.mixture, MIXTURE.experts
    assert mixture is not None and experts is not None
    mixture.logits.copy_(torch.arange(experts.count).expand_as(mixture.logits))  # all rows choose the same two
    (group,) = (g for g in groups_of(stage.calls, stage.context) if g.name == "expert_down")
    matrix = group.calls[0].named["groups"][2].read_bytes
    assert 0 < group.account.size - experts.per_token * matrix < matrix
    assert group.account.shape == f"1 to 2 of {experts.count}" and len(group.launches) == MIXTURE.layers


@pytest.mark.parametrize("k", [0, 3])
def test_attention_moves_each_cached_position_once_for_all_heads_of_a_group(
    monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    no_launches(monkeypatch)
    slots, context = 3, 700
    stage = staged(k, slots, context)
    calls = [call for call in stage.calls if isinstance(call.kernel, Attention)]
    target = calls[-1]
    pages = target.operands["k_pages"][0], target.operands["v_pages"][0]
    position = sum(page.nbytes // 64 for page in pages)
    new = slots * (k + 1)
    projections = target.operands["qkv"][:new].nbytes
    result = account(target, context)["attention"]
    assert result.size == (slots * context + new) * position + projections
    assert result.shape == f"{slots}×{k + 1} over {context + k + 1}"
