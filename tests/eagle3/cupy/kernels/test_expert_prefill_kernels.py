"""The kernels of a prefill of experts beside torch's operations: on a CPU as C++, and on a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.engine import prefill_mixture
from specgate.backends.eagle3.cupy.engine.prefill import PrefillMode, kernels
from specgate.backends.eagle3.cupy.engine.prefill_attention import Library, PrefillAttention
from specgate.backends.eagle3.cupy.engine.prefill_experts import prefill_expert_prompts
from specgate.backends.eagle3.cupy.engine.prefill_mixture import (
    Part,
    Placing,
    Routing,
    activate,
    finish,
    leave_sum,
    routed,
)
from specgate.backends.eagle3.cupy.kernels.experts import expert_config
from specgate.backends.eagle3.cupy.kernels.experts.packing import LARGEST_SCALE, Order, PackedExperts
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.prefill.launchers import (
    PrefillDecode,
    PrefillMixture,
    PrefillRoute,
    PrefillSwiglu,
)
from specgate.backends.eagle3.cupy.memory.buffers import Pages
from specgate.backends.eagle3.cupy.memory.model import ExpertLayerWeights, Target
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.lib.layout import target_tensors
from specgate.backends.eagle3.lib.weights import TargetWeights, decoded
from specgate.backends.eagle3.pair_tools.plant.geometries import EXPERT_GEOMETRIES
from specgate.checkpoints.geometry import ExpertGeometry, TargetGeometry
from tests.eagle3.cupy.kernels.crossed import on_device
from tests.eagle3.cupy.kernels.device import relative_error
from tests.eagle3.cupy.kernels.host import Host
from tests.eagle3.cupy.kernels.launches import Launch, check_arguments
from tests.eagle3.cupy.pairs import MIXTURE, random_weights, target_checkpoint

ROUNDED = 3e-3
"""Of results that are rounded to bfloat16 once."""
TORCH = PrefillAttention((Library.TORCH,))
FUSED, GROUPED, PLAIN = PrefillMode(True, TORCH), PrefillMode(True, TORCH, grouped=True), PrefillMode(False, TORCH)
PACKED = PrefillMode(True, TORCH, packed_rows=100)
LARGE = replace(MIXTURE, hidden=2880, intermediate=2880, experts=ExpertGeometry(128, 4, mxfp4=True))
SIZES = on_device("rows, g", cpu=[(21, MIXTURE)], gpu=[(300, MIXTURE), (300, LARGE)])
POISON = 7.0


@pytest.fixture
def on_host(host: Host, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every launch runs on the CPU, after a look at its arguments. Their names, in order."""
    seen = list[str]()

    def enqueue(kernel: Kernel, name: str, grid: Any, block: Any, arguments: Any, **keywords: Any) -> None:
        packed = kernel.operands_of(name).packed(arguments)
        check_arguments([Launch(kernel.spec, name, tuple(grid), tuple(block), arguments, 0, packed)])
        seen.append(name)
        host.enqueue(kernel, name, grid, block, arguments, **keywords)

    monkeypatch.setattr(Kernel, "enqueue", enqueue)
    return seen


def every_scale(experts: int, rows: int, columns: int, order: Order, device: str) -> tuple[PackedExperts, Tensor]:
    """(packed, as bfloat16 [E, N, K]), of random numbers with all scales that there are."""
    generator = torch.Generator().manual_seed(columns)
    blocks = torch.randint(256, (experts, rows, columns // 32, 16), dtype=torch.uint8, generator=generator)
    scales = (torch.arange(experts * rows * columns // 32) % (LARGEST_SCALE + 1)).view(experts, rows, -1)
    scales = scales.to(torch.uint8)
    made = PackedExperts.of(
        blocks.to(device), scales.to(device), torch.zeros(experts, rows, dtype=torch.bfloat16, device=device), order
    )
    # The coding rounds numbers of the smallest scales, which bfloat16 holds; float32 does not have to.
    return made, decoded(blocks, scales, torch.float32).bfloat16().to(device)


@on_device("rows, columns", cpu=[(16, 32), (48, 96), (32, 640)], gpu=[(16, 32), (48, 96), (5760, 2880), (2880, 2880)])
@pytest.mark.parametrize("order", Order)
def test_matrices_are_decoded_bit_by_bit(device: str, rows: int, columns: int, order: Order) -> None:
    """All experts but one that has no rows and the first, which is not asked for: bit by bit, signs of zeros too."""
    experts = 5
    made, want = every_scale(experts, rows, columns, order, device)
    sizes = torch.arange(experts, dtype=torch.int32, device=device) + 1
    sizes[2] = 0
    out = torch.full((experts - 1, rows, columns), POISON, dtype=torch.bfloat16, device=device)
    PrefillDecode.of(rows, columns, order)(out, made, 1, sizes)
    for at, expert in enumerate(range(1, experts)):
        if expert == 2:
            assert (out[at] == POISON).all()
            continue
        assert torch.equal(out[at].view(torch.int16), made.matrix(expert).view(torch.int16))
        assert torch.equal(out[at].view(torch.int16), want[expert].view(torch.int16))


@on_device("count, per_token", cpu=[(8, 2), (32, 4), (3, 3), (5, 1)], gpu=[(8, 2), (32, 4), (128, 4), (256, 8), (5, 1)])
def test_the_largest_logits_choose_and_the_lower_expert_goes_first(device: str, count: int, per_token: int) -> None:
    """Bit by bit torch's choice, and among equal logits the lower expert. What is no number comes to light."""
    rows = 150 if device == "cpu" else 1000
    generator = torch.Generator().manual_seed(count)
    logits = (3 * torch.randn(rows, count, generator=generator)).round(decimals=1).to(device)
    bias = torch.randn(count, generator=generator).round(decimals=0).bfloat16().to(device)
    chosen = torch.full((rows, per_token), -1, dtype=torch.int32, device=device)
    weights = torch.full(chosen.shape, torch.nan, device=device)
    PrefillRoute(count, per_token)(chosen=chosen, weights=weights, logits=logits, bias=bias)
    ordered, places = (logits + bias.float()).sort(dim=-1, descending=True, stable=True)
    assert torch.equal(chosen.long(), places[:, :per_token])
    assert torch.allclose(weights, ordered[:, :per_token].softmax(dim=-1), rtol=1e-5, atol=0)
    tied = ordered[:, :-1] == ordered[:, 1:]
    assert tied[:, :per_token].any()
    logits[0, count - 1], logits[1, 1], logits[2, 0] = torch.nan, torch.inf, -torch.nan
    PrefillRoute(count, per_token)(chosen=chosen, weights=weights, logits=logits, bias=bias)
    assert chosen[:3, 0].tolist() == [count - 1, 1, 0] and all(row.unique().numel() == per_token for row in chosen[:3])
    assert weights.isnan().any(dim=-1).nonzero().flatten().tolist() == [0, 1, 2]


@SIZES
def test_gates_and_ups_are_within_a_rounding_of_torchs(device: str, rows: int, g: TargetGeometry) -> None:
    """Over the whole range, both clamps and NaN included."""
    assert g.experts is not None
    generator = torch.Generator().manual_seed(rows)
    both = (8 * torch.randn(rows, 2 * g.intermediate, generator=generator)).bfloat16().to(device)
    both[0, :8] = torch.tensor([-3e38, 3e38, 3e38, -3e38, -100.0, 1.0, 0.0, -0.0])
    both[-1, 4] = torch.nan
    bias = torch.randn(g.experts.count, 2 * g.intermediate, generator=generator).bfloat16().to(device)
    experts = torch.randint(g.experts.count, (rows,), generator=generator).int().to(device)
    result, want = (torch.empty(rows, g.intermediate, dtype=torch.bfloat16, device=device) for _ in range(2))
    for act, mode in ((result, FUSED), (want, PLAIN)):
        activate(act, both, bias, experts, g, mode)
    assert result.isnan().nonzero().tolist() == want.isnan().nonzero().tolist() == [[rows - 1, 2]]
    assert relative_error(result.nan_to_num(), want.nan_to_num()) < ROUNDED


@SIZES
def test_experts_are_summed_in_the_order_of_a_row(device: str, rows: int, g: TargetGeometry) -> None:
    assert g.experts is not None
    k, generator = g.experts.per_token, torch.Generator().manual_seed(rows)
    out = torch.randn(rows * k, g.hidden, generator=generator).bfloat16().to(device)
    bias = torch.randn(g.experts.count, g.hidden, generator=generator).bfloat16().to(device)
    norm = torch.randn(g.hidden, generator=generator).bfloat16().to(device)
    x = torch.randn(rows, g.hidden, generator=generator).to(device)
    routing = Routing(
        chosen=torch.randint(g.experts.count, (rows, k), generator=generator).int().to(device),
        weights=torch.rand(rows, k, generator=generator).to(device),
        experts=torch.empty(0),
        rows=torch.empty(0),
        place=torch.randperm(rows * k, generator=generator).int().view(rows, k).to(device),
        ends=torch.empty(0),
    )
    parts = [Part(x.clone(), torch.empty_like(x, dtype=torch.bfloat16)) for _ in range(2)]
    for part, mode in zip(parts, (FUSED, PLAIN), strict=True):
        finish(part, out, bias, routing, g.experts, (norm, g.rms_eps), mode)
    assert torch.equal(parts[0].x, parts[1].x)
    assert relative_error(parts[0].normed, parts[1].normed) < ROUNDED
    some = slice(rows // 3, rows)  # one of several GPUs leaves the sums of a few rows
    sums = [torch.full((rows - rows // 3, g.hidden), POISON, dtype=torch.bfloat16, device=device) for _ in range(2)]
    for total, mode in zip(sums, (FUSED, PLAIN), strict=True):
        leave_sum(total, out, bias, routing.of(some), g.experts, mode)
    assert torch.equal(*sums) and relative_error(sums[0], parts[0].x[some] - x[some]) < ROUNDED


# ── without a GPU ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_operands_of_another_shape_are_refused_by_name() -> None:
    made, _ = every_scale(3, 32, 64, Order.PLAIN, "cpu")
    sizes, out = torch.ones(3, dtype=torch.int32), torch.empty(2, 32, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="launched with PAIRED_ROWS = 0, PAIRED = 1, which is not what it is made for"):
        PrefillDecode(32, 64, Order.PAIRED)(out, made, 0, sizes)
    with pytest.raises(ValueError, match=r"tiles: .* \[1, 2, 640\], but .* \[2, 2, 640\] is needed"):
        PrefillDecode(32, 64, Order.PLAIN)(out, made, 2, sizes)
    with pytest.raises(ValueError, match=r"out: .*is needed"):
        PrefillDecode(32, 128, Order.PLAIN)(out, made, 0, sizes)
    with pytest.raises(ValueError, match=r"sizes: .*is needed"):
        PrefillDecode(32, 64, Order.PLAIN)(out, made, 0, sizes.long())
    with pytest.raises(ValueError, match=r"experts: .*is needed"):
        wide, bias = torch.zeros(32, 192, dtype=torch.bfloat16), torch.zeros(8, 192, dtype=torch.bfloat16)
        PrefillSwiglu.of(96, 1.7, 7.0)(act=wide[:16].view(32, 96), both=wide, bias=bias, experts=sizes)
    with pytest.raises(ValueError, match=r"place: .*is needed"):
        x, pairs = torch.zeros(2, 64), Placing(*torch.zeros(3, 2, 2).unbind())
        out, bias = torch.zeros(4, 64).bfloat16(), torch.zeros(8, 64).bfloat16()
        operands = {"normed": x.bfloat16(), "x": x, "out": out, "bias": bias, "weight": bias[0], "eps": 1e-5}
        PrefillMixture.of(64, 2)(pairs, **operands)


@pytest.mark.parametrize("name", EXPERT_GEOMETRIES)
def test_a_prefill_of_experts_has_its_kernels_and_no_dense_gate(name: str) -> None:
    pair = EXPERT_GEOMETRIES[name]()
    decoded, packed = (
        [kernel.spec.stem for kernel in kernels(pair.target, None, packed=packed)] for packed in (False, True)
    )
    assert sorted(decoded) == sorted(
        [
            "prefill_stream",
            "prefill_heads",
            "prefill_route",
            *["prefill_decode"] * 2,
            "prefill_swiglu",
            "prefill_mixture",
        ]
    )
    assert sorted(packed) == sorted([*decoded, "prefill_row_groups", "prefill_gate_up", "prefill_down"])


@pytest.mark.parametrize("mode", [FUSED, GROUPED], ids=["one by one", "grouped"])
@torch.inference_mode()
def test_prompts_leave_what_they_leave_by_torch(
    on_host: list[str], monkeypatch: pytest.MonkeyPatch, mode: PrefillMode
) -> None:
    monkeypatch.setattr(prefill_mixture, "DECODED", 5 * 4 * MIXTURE.intermediate * MIXTURE.hidden)
    target = Target.of(target_checkpoint(MIXTURE, random_weights(target_tensors(MIXTURE), 1)), 512)
    generator, values = torch.Generator().manual_seed(0), []
    prompts = [
        (torch.randint(MIXTURE.vocab, (n,), generator=generator), torch.tensor(rows))
        for n, rows in ((BLOCK + 5, [5, 0]), (1, [2]))
    ]
    for one in (mode, PLAIN):
        pages = Pages.allocate(3, 6, Sizes(1, 512, 1).heads(MIXTURE), "cpu")
        results = prefill_expert_prompts(target, pages, prompts, (0, 2, 3), replace(one, chunk=50))
        values.append([*(t for stream, features in results for t in (stream, features)), pages.k, pages.v])
    for mine, theirs in zip(*values, strict=True):
        assert mine is not None and theirs is not None
        # A norm may differ in its last bit, and so, rarely, in a rounding.
        assert relative_error(mine, theirs) < ROUNDED
    names = {name: on_host.count(name) for name in sorted({*on_host})}
    # Two layers and both rows of the last one; behind the last layer a boundary lies as well. Gates and ups come in two
    # pieces of 5 and 3 experts, downs in one.
    assert (names["prefill_decode"], names["prefill_heads"]) == (4 * 3, 2 * 3)
    assert (names["prefill_mixture"], names["prefill_route"]) == (4 * 2, 4 * 2)


@pytest.mark.parametrize("packed", [PACKED, replace(PACKED, wgmma=True)], ids=["mma", "wgmma"])
@torch.inference_mode()
def test_prompts_of_few_rows_leave_what_they_leave_by_torch_and_what_they_leave_alone(
    on_host: list[str], monkeypatch: pytest.MonkeyPatch, packed: PrefillMode
) -> None:
    """Two prompts are of few rows; between them is one that is not, whose experts are decoded."""
    monkeypatch.setattr(expert_config, "PROCESSORS", 3)
    target = Target.of(target_checkpoint(MIXTURE, random_weights(target_tensors(MIXTURE), 1)), 512)
    generator = torch.Generator().manual_seed(0)
    prompts = [
        (torch.randint(MIXTURE.vocab, (n,), generator=generator), torch.tensor(prompt))
        for n, prompt in ((BLOCK + 5, [5, 0]), (101, [1, 4]), (33, [2]))
    ]

    def filled(some: slice, mode: PrefillMode) -> tuple[list[tuple[Tensor, Tensor | None]], Pages]:
        pages = Pages.allocate(3, 6, Sizes(1, 512, 1).heads(MIXTURE), "cpu")
        return prefill_expert_prompts(target, pages, prompts[some], (0, 2, 3), replace(mode, chunk=50)), pages

    mine, pages = filled(slice(3), packed)
    names = {name: on_host.count(name) for name in sorted({*on_host})}
    theirs, expected = filled(slice(3), PLAIN)
    for (stream, features), (wanted, of_torch) in zip(mine, theirs, strict=True):
        assert features is not None and of_torch is not None
        # Rounding alone sends a row to another expert where two logits are nearly equal.
        for values, want in ((stream, wanted), (features, of_torch)):
            each = (values.float() - want.float()).norm(dim=-1) / want.float().norm(dim=-1)
            assert each.quantile(0.9) < 0.02
    assert relative_error(pages.k[0], expected.k[0]) < 0.02
    # Two layers and all rows of the last one, of both together; its last rows are few of all three prompts.
    assert names["prefill_row_groups"] == names["prefill_gate_up"] == names["prefill_down"] == 4
    assert names["prefill_decode"] == 3 * 2 and names["prefill_mixture"] == 4 * 3
    for n, (_, prompt) in enumerate(prompts):
        ((alone, features),), its = filled(slice(n, n + 1), packed)
        of_all = mine[n]
        assert features is not None and of_all[1] is not None
        assert torch.equal(alone, of_all[0]) and torch.equal(features, of_all[1])
        assert all(torch.equal(a[:, prompt], b[:, prompt]) for a, b in ((its.k, pages.k), (its.v, pages.v)))


# ── on a GPU ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def layer_on_gpu() -> ExpertLayerWeights:
    target = Target.of(target_checkpoint(MIXTURE, random_weights(target_tensors(MIXTURE), 1)), 512)
    assert not isinstance(target.weights, TargetWeights)
    layer = target.weights.layers[0]
    return replace(layer, router=layer.router.cuda(), router_bias=layer.router_bias.cuda())


@pytest.mark.gpu
@torch.inference_mode()
def test_router_logits_on_a_gpu_are_sums_in_float32() -> None:
    layer, experts = layer_on_gpu(), MIXTURE.experts
    assert experts is not None
    x = torch.randn(300, MIXTURE.hidden, device="cuda").bfloat16()
    logits = prefill_mixture.router_logits(x, layer.router)
    assert logits.dtype == torch.float32
    assert relative_error(logits, x.double() @ layer.router.double().t()) < 1e-5
    ours, torchs = routed(x, layer, experts, FUSED), routed(x, layer, experts, PLAIN)
    assert (ours[0] == torchs[0]).double().mean() > 0.99  # but for near ties
    assert torch.allclose(ours[1], torchs[1], atol=1e-4)
