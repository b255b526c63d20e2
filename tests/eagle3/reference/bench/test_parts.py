"""The parts of a step on a CPU: right, complete, and counted as the traffic model counts them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specgate.backends.eagle3.lib.tiny import write_random_pair
from specgate.backends.eagle3.lib.traffic import pair_traffic
from specgate.backends.eagle3.nouns.kernel_bench import KernelBenchRequest
from specgate.backends.eagle3.reference import ops
from specgate.backends.eagle3.reference.bench import run
from specgate.backends.eagle3.reference.bench.memory_reads import read_memory
from specgate.backends.eagle3.reference.bench.parts import Part, Sizes, parts_of
from specgate.backends.eagle3.reference.bench.run import bench_kernels, geometries, operand_sets, relative_error, timing
from specgate.checkpoints.geometry import DraftGeometry, TargetGeometry
from specgate.contract import PairRef, Role
from specgate.errors import BackendError, UsageError


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the times are steady is not asked here."""
    monkeypatch.setattr(run, "ENOUGH_NS", 0)
    monkeypatch.setattr(run, "read_memory", lambda repeats: read_memory(repeats, size=1 << 22))
    monkeypatch.setattr(run, "cache_bytes", lambda: 1 << 16)


@pytest.fixture(scope="module")
def sizes_of_a_pair(pair: tuple[Path, Path]) -> tuple[TargetGeometry, DraftGeometry]:
    target, draft = geometries(PairRef("p", *pair), drafts=True)
    assert draft is not None
    return target, draft


@pytest.mark.parametrize(("batch", "context", "k"), [(1, 24, 0), (1, 600, 3), (3, 70, 1), (8, 9, 7)])
@pytest.mark.parametrize("window", [None, 16])
def test_every_part_gives_what_a_float64_oracle_does(
    sizes_of_a_pair: tuple[TargetGeometry, DraftGeometry], batch: int, context: int, k: int, window: int | None
) -> None:
    target, draft = sizes_of_a_pair
    found = list(parts_of(target, replace(draft, window=window), Sizes(batch, context, k)))
    for part in found:
        call, expected = part.make()
        for _ in range(2):  # a second call on the same operands gives the same
            error = relative_error(call(), expected())
            assert error <= part.tolerance, (part.tag, part.shape, error)
    tags = {part.tag for part in found}
    assert ("ACCEPT" in tags) is (k > 0) is any(tag.startswith("EAGLE3") for tag in tags)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_matrices_of_all_products_are_what_the_traffic_model_reads(
    sizes_of_a_pair: tuple[TargetGeometry, DraftGeometry], k: int
) -> None:
    target, draft = sizes_of_a_pair
    traffic = pair_traffic(target, draft, torch.float32)
    assert traffic.draft is not None
    parts = list(parts_of(target, draft, Sizes(2, 40, k)))

    def read(whose: str) -> int:
        matrices = sum(weights(part) for part in parts if part.tag.startswith(whose) and part.function == "matmul_rows")
        widths = (int(p.shape.split("×")[1]) * p.per_step for p in parts if p.tag == f"{whose}_NORM")
        return 4 * (matrices + sum(widths))

    assert read("TARGET") == traffic.target.weight_bytes
    assert read("EAGLE3") == traffic.draft.extension.weight_bytes + (k - 1) * traffic.draft.step.weight_bytes


def weights(part: Part) -> int:
    _, n, width = map(int, part.shape.split("×"))
    return n * width * part.per_step


def test_a_part_that_gives_something_else_is_not_right(
    sizes_of_a_pair: tuple[TargetGeometry, DraftGeometry], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, _ = sizes_of_a_pair
    right = ops.silu_mul
    monkeypatch.setattr(ops, "silu_mul", lambda gate_up: right(gate_up) * (1 + 1e-4))
    monkeypatch.setattr(ops, "target_argmax", lambda logits: logits.argmin(dim=-1))
    wrong = {
        part.tag for part in parts_of(target, None, Sizes(1, 20, 0)) if not timing(Role(0), part, cache=1 << 16).right
    }
    assert wrong == {"TARGET_FFN_SILU", "TARGET_ARGMAX"}


def test_operands_together_outgrow_the_caches_but_small_ones_do_not_have_to() -> None:
    assert operand_sets(100, cache=1 << 30) == 2
    assert operand_sets(10 << 20, cache=32 << 20) * (10 << 20) >= 3 * (32 << 20)
    assert operand_sets(1 << 30, cache=32 << 20) == 2


def test_a_bench_has_every_role_and_the_bandwidth_of_the_same_run(pair: tuple[Path, Path]) -> None:
    roles = (Role(0), Role(2))
    found = bench_kernels(KernelBenchRequest(PairRef("p", *pair), context=64, batch=2, roles=roles))
    assert [role for role, _ in found.roles()] == ["baseline", "spec-2"]
    assert all(kernel.right and kernel.us > 0 for kernel in found.kernels) and found.bytes_per_s > 0


def test_what_cannot_be_benched_is_named(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--context 4: spec-3"):
        bench_kernels(KernelBenchRequest(PairRef("p", *pair), context=4, batch=1, roles=(Role(3),)))
    with pytest.raises(BackendError, match="has no draft"):
        bench_kernels(KernelBenchRequest(PairRef("p", pair[0], None), context=40, batch=1, roles=(Role(3),)))
    target, _ = write_random_pair(tmp_path, seed=1)
    (target / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(BackendError, match=r"config\.json"):
        bench_kernels(KernelBenchRequest(PairRef("p", target, None), context=40, batch=1, roles=(Role(0),)))
