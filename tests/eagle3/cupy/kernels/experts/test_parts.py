"""Parts of a mixture that GPUs share: what their kernels leave adds up to what the whole one gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.experts.launchers import ExpertDown, ExpertGateUp
from specgate.backends.eagle3.cupy.kernels.experts.packing import Order, PackedExperts
from specgate.backends.eagle3.lib.shard import Shard, shards
from specgate.checkpoints.geometry import ExpertGeometry
from tests.eagle3.cupy import oracles
from tests.eagle3.cupy.kernels.device import poisoned, relative_error
from tests.eagle3.cupy.kernels.experts.mixtures import Mixture

LAYER, STEPS = 2, 3


def part_of(stored: tuple[Tensor, Tensor, Tensor], name: str, shard: Shard, order: Order) -> PackedExperts:
    blocks, scales, bias = (
        shard.part(f"model.layers.0.mlp.experts.{name}_{what}", tensor)
        for what, tensor in zip(("blocks", "scales", "bias"), stored, strict=True)
    )
    return PackedExperts.of(blocks, scales, bias, order)


def left_by(made: Mixture, shard: Shard, x16: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """The partial sums of one rank, float32 [R, H], and how many experts it touched."""
    count, k, own = len(x16), made.experts.per_token, made.intermediate // shard.ranks
    gate_up = part_of(made.gate_up_stored, "gate_up_proj", shard, Order.PAIRED)
    down = part_of(made.down_stored, "down_proj", shard, Order.PLAIN)
    act = poisoned(count * k, own, dtype=torch.float16, device=made.device)
    parts = poisoned(count * k, made.hidden, dtype=torch.float32, device=made.device)
    total = poisoned(count + 1, made.hidden, dtype=torch.float32, device=made.device)
    finished = torch.zeros(made.hidden // 16, dtype=torch.int32, device=made.device)
    touched = torch.zeros(STEPS, LAYER + 1, dtype=torch.int32, device=made.device)
    rows, step = made.listed(range(count)), torch.ones(1, dtype=torch.int32, device=made.device)
    ExpertGateUp(own, made.hidden, made.experts, count)(rows, gate_up, act=act, x=x16, logits=logits)
    log = {"touched": touched, "step": step, "layer": LAYER, "layers": LAYER + 1}
    of = {"stream": total, "parts": parts, "finished": finished, "act": act, "logits": logits, **log}
    ExpertDown(made.hidden, own, made.experts, count, partial=True)(rows, down, **of)
    assert not finished.any() and total[count].isnan().all()
    return total[:count], touched[1, LAYER]


# Of 160 and of 96 columns each: an odd number of blocks, of which the last half slab of a tile is empty.
# Of 40 rows, experts have more than one product takes.
@pytest.mark.parametrize(("ranks", "intermediate", "rows"), [(2, 320, 9), (4, 384, 9), (2, 64, 40)])
def test_what_all_ranks_leave_adds_up_to_the_whole_mixture(
    device: str, ranks: int, intermediate: int, rows: int
) -> None:
    made = Mixture(ExpertGeometry(7, 2, mxfp4=True), 96, intermediate, device=device)
    stream = made.rows(rows)
    whole = made.run(stream, made.listed(range(rows)))
    left = [left_by(made, shard, whole.x16, whole.logits) for shard in shards(ranks)]
    total, want = left[0][0], made.oracle(stream, whole.logits)[2] - stream
    for own, _ in left[1:]:
        total = total + own
    assert relative_error(total, want) < 2e-3
    assert relative_error(total, whole.stream - stream) < 2e-3
    assert {int(touched) for _, touched in left} == {int(whole.touched[1, LAYER])}
    # The bias is in the sum once: without it, or with it twice, this would be far from right.
    chosen, weights = oracles.chosen_experts(whole.logits, made.experts.per_token)
    nothing = torch.zeros_like(whole.act)
    bias = oracles.expert_down(nothing, made.down_numbers, made.down.bias, chosen, weights)
    assert relative_error(total - bias, want) > 0.1


def test_a_rows_part_does_not_depend_on_the_rows_beside_it(device: str) -> None:
    made = Mixture(ExpertGeometry(7, 2, mxfp4=True), 96, 320, device=device)
    whole = made.run(made.rows(9), made.listed(range(9)))
    for shard in shards(2):
        together, _ = left_by(made, shard, whole.x16, whole.logits)
        for row in (0, 8):
            alone, _ = left_by(made, shard, whole.x16[row : row + 1], whole.logits[row : row + 1])
            assert torch.equal(alone[0], together[row])


def test_a_launcher_of_parts_prepares_no_norm(device: str) -> None:
    made = Mixture(ExpertGeometry(7, 2, mxfp4=True), 96, 64, device=device)
    left = made.run(made.rows(1), made.listed(range(1)))
    launcher = ExpertDown(96, 64, made.experts, 1)
    with pytest.raises(ValueError, match="expert_down: normed is missing: the kernel is compiled for !PARTIAL"):
        of = {"act": left.act, "logits": left.logits, "touched": left.touched, "step": left.finished[:1]}
        stream = {"stream": left.stream, "parts": left.stream, "finished": left.finished}
        launcher(made.listed(range(1)), made.down, **stream, **of, layer=0, layers=3)
