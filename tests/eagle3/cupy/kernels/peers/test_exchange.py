"""Exchange between ranks by the kernels' own sources: sums and choices, on a CPU with a thread per rank."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import PreNormRows
from specgate.backends.eagle3.cupy.kernels.peers.launchers import (
    AllReduce,
    CombineChoices,
    Exchanges,
    Mailboxes,
    choices_shape,
    sums_shape,
)
from specgate.backends.eagle3.cupy.kernels.state.slots import Fault, Rows, Slots
from tests.eagle3.cupy.kernels.host import Host
from tests.eagle3.cupy.kernels.peers.ranks_on_host import Ranks, kernels_from_source

HIDDEN, MOST = 128, 24
PART = 1000


@dataclass
class Side:
    """State of one rank."""

    mailboxes: Mailboxes
    slots: Slots
    stream: Tensor
    pre_norm: PreNormRows
    choices: Tensor


def sides(ranks: int, slots: int = 6, slot_rows: int = 4) -> list[Side]:
    sums = tuple(torch.zeros(sums_shape(ranks, MOST, HIDDEN), dtype=torch.int64) for _ in range(ranks))
    choices = tuple(torch.zeros(choices_shape(ranks, MOST), dtype=torch.int64) for _ in range(ranks))
    made = []
    for rank in range(ranks):
        own = Slots.allocate(slots, slot_rows, 50, "cpu")
        of = Exchanges(torch.zeros(HIDDEN // 64).int(), *sums), Exchanges(torch.zeros(1).int(), *choices)
        boxes = Mailboxes(rank, *of, torch.zeros(MOST, HIDDEN), own.fault)
        normed = PreNormRows(torch.zeros(MOST, HIDDEN, dtype=torch.bfloat16), torch.zeros(MOST, HIDDEN // 8))
        made.append(Side(boxes, own, torch.zeros(MOST, HIDDEN), normed, torch.zeros(MOST, dtype=torch.int64)))
    return made


@pytest.fixture(scope="module")
def four(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    made = Ranks(4, tmp_path_factory.mktemp("ranks"), host)
    with kernels_from_source(host):
        yield made
    made.close()


def summed(kernel: AllReduce, own: Side, weight: Tensor, rows: Rows) -> None:
    kernel(rows, own.pre_norm, own.mailboxes, own.mailboxes.sums, stream=own.stream, norm_weight=weight)


def combined(kernel: CombineChoices, own: Side, rows: Rows) -> None:
    kernel(rows, own.mailboxes, own.mailboxes.choices, own.slots, choices=own.choices)


def rows_of(slots: Slots, active: int, per_slot: int) -> Rows:
    slots.active[:active] = torch.arange(active, dtype=torch.int32)
    slots.active_count[0] = active
    return slots.rows(len(slots.active), per_slot)


@pytest.mark.parametrize("ranks", [2, 4])
def test_all_ranks_get_the_sum_in_the_order_of_ranks_bit_for_bit_in_every_exchange(four: Ranks, ranks: int) -> None:
    generator = torch.Generator().manual_seed(ranks)
    weight = torch.randn(HIDDEN, generator=generator).bfloat16()
    made = sides(ranks)
    for active, per_slot in ((1, 1), (1, 4), (6, 4), (3, 1), (0, 4), (5, 4), (1, 1)):
        count = active * per_slot
        before = torch.randn(MOST, HIDDEN, generator=generator)
        parts = [torch.randn(MOST, HIDDEN, generator=generator) * 10**i for i in range(ranks)]
        for side, part in zip(made, parts, strict=True):
            side.mailboxes.partial.copy_(part)
            side.stream.copy_(before)
            side.pre_norm.normed.fill_(-1)
            side.pre_norm.squares.fill_(-1)
        kernel = AllReduce(HIDDEN, 6 * per_slot, ranks, MOST)

        def launch(rank: int, kernel: AllReduce = kernel, active: int = active, per_slot: int = per_slot) -> None:
            own = made[rank]
            summed(kernel, own, weight, rows_of(own.slots, active, per_slot))

        four.each(launch, range(ranks))
        total = parts[0].numpy().copy()
        for part in parts[1:]:
            total = np.float32(total + part.numpy())
        want = before.clone()
        want[:count] = torch.from_numpy(before.numpy() + total)[:count]
        for side in made:
            assert not side.slots.fault.any()
            assert torch.equal(side.stream, want)
            assert torch.equal(side.pre_norm.normed[:count], (want * weight.float()).bfloat16()[:count])
            squares = want[:count].double().square().view(count, HIDDEN // 8, 8).sum(-1)
            assert torch.allclose(side.pre_norm.squares[:count].double(), squares, rtol=1e-6)
            assert (side.pre_norm.normed[count:] == -1).all() and (side.pre_norm.squares[count:] == -1).all()
    assert all(side.mailboxes.sums.exchanges.tolist() == [6] * (HIDDEN // 64) for side in made)  # nothing, of no rows


def test_a_rows_sum_is_the_same_alone_and_among_others(four: Ranks) -> None:
    parts = [torch.randn(MOST, HIDDEN, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    weight, values = torch.ones(HIDDEN, dtype=torch.bfloat16), []
    for active, per_slot in ((1, 1), (6, 4)):
        made, kernel = sides(2), AllReduce(HIDDEN, 6 * per_slot, 2, MOST)
        for side, part in zip(made, parts, strict=True):
            side.mailboxes.partial.copy_(part)

        def launch(
            rank: int, made: list[Side] = made, kernel: AllReduce = kernel, of: tuple[int, int] = (active, per_slot)
        ) -> None:
            own = made[rank]
            summed(kernel, own, weight, rows_of(own.slots, *of))

        four.each(launch, range(2))
        values.append((made[0].stream[0].clone(), made[0].pre_norm.squares[0].clone()))
    assert all(torch.equal(a, b) for a, b in zip(*values, strict=True))


# On a CPU the lanes of a warp wait one after the other: those of a sum 32 times.
@pytest.mark.parametrize(("kind", "limit_ms"), [("sums", 20), ("choices", 300)])
def test_a_rank_that_sends_nothing_ends_the_run_in_time_with_its_reason(four: Ranks, kind: str, limit_ms: int) -> None:
    made, weight = sides(2), torch.ones(HIDDEN, dtype=torch.bfloat16)
    reduce, combine = AllReduce(HIDDEN, 24, 2, MOST, limit_ms), CombineChoices(PART, 4, 24, 4, 2, MOST, limit_ms)
    own = made[0]

    def launch(rank: int) -> float:
        began, rows = time.monotonic(), own.slots.rows(6, 4)
        if kind == "sums":
            summed(reduce, own, weight, rows)
        else:
            combined(combine, own, rows)
        return time.monotonic() - began

    rows_of(own.slots, 6, 4)
    own.choices[:24] = torch.tensor([choice_of(1.0, 3)] * 24)
    (waited,) = four.each(launch, [0])
    assert Fault(int(own.slots.fault)) is Fault.PEER_LATE and int(own.slots.active_count) == 0
    count = own.mailboxes.sums.exchanges.clone()
    (again,) = four.each(launch, [0])
    assert again < 0.3 < waited and torch.equal(own.mailboxes.sums.exchanges, count)  # no step does anything any more


def choice_of(logit: float, index: int) -> int:
    bits = int(np.float32(logit).view(np.uint32))
    ordered = ~bits & 0xFFFFFFFF if bits & 0x80000000 else bits | 0x80000000
    if not math.isfinite(logit):
        ordered = 0xFFFFFFFF
    word = ordered << 32 | (0xFFFFFFFF - index)
    return word - (1 << 64) if word >= 1 << 63 else word


def index_of(choice: int) -> int:
    return 0xFFFFFFFF - (choice & 0xFFFFFFFF)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_best_of_all_choices_wins_and_the_lowest_token_among_equal_ones(four: Ranks, ranks: int) -> None:
    made, kernel = sides(ranks), CombineChoices(PART, 4, 24, 4, ranks, MOST)
    generator = torch.Generator().manual_seed(ranks)
    for exchange in range(5):
        logits = torch.randint(-3, 4, (ranks, MOST), generator=generator).float()
        columns = torch.randint(PART, (ranks, MOST), generator=generator)
        if exchange == 4:
            logits[1, 5] = math.nan
        for rank, side in enumerate(made):
            side.choices.copy_(
                torch.tensor([choice_of(float(x), int(c)) for x, c in zip(logits[rank], columns[rank], strict=True)])
            )
            side.slots.last_token.copy_(torch.arange(6))
            side.slots.drafts.copy_(torch.arange(24).view(6, 4))
            side.slots.length.copy_(torch.arange(6) * 7)

        def launch(rank: int) -> None:
            combined(kernel, made[rank], rows_of(made[rank].slots, 5, 4))

        four.each(launch, range(ranks))
        for row in range(20):
            ids = [rank * PART + int(columns[rank, row]) for rank in range(ranks)]
            best = max(float("inf") if math.isnan(x) else float(x) for x in logits[:, row])
            tied = [i for i, x in zip(ids, logits[:, row], strict=True) if math.isnan(x) or float(x) == best]
            want = choice_of(math.nan if best == float("inf") else best, min(tied))
            assert {int(side.choices[row]) for side in made} == {want}, row
            assert index_of(want) == min(tied)
        assert not any(side.slots.fault.any() for side in made)
    assert all(int(side.mailboxes.choices.exchanges) == 5 for side in made)


@pytest.mark.parametrize("differs", ["last_token", "drafts", "length"])
def test_ranks_that_read_other_tokens_or_at_another_position_end_the_run(four: Ranks, differs: str) -> None:
    made, kernel = sides(2), CombineChoices(PART, 4, 24, 4, 2, MOST)
    changed: Tensor = getattr(made[1].slots, differs)
    changed.view(-1)[0] = 9
    for side in made:
        side.choices[:4] = torch.tensor([choice_of(1.0, 3)] * 4)

    def launch(rank: int) -> None:
        combined(kernel, made[rank], rows_of(made[rank].slots, 1, 4))

    four.each(launch, range(2))
    for side in made:
        assert Fault(int(side.slots.fault)) is Fault.PEERS_DIFFER and int(side.slots.active_count) == 0


def test_operands_of_other_sizes_are_refused() -> None:
    (own, _), weight = sides(2), torch.ones(HIDDEN, dtype=torch.bfloat16)
    few, rows = "launched with R = 24, MOST = 4, which is not what it is made for", own.slots.rows(6, 4)
    for kernel, match in (
        (AllReduce(HIDDEN, 4, 2, MOST), few),
        (AllReduce(HIDDEN, 24, 4, MOST), "all_reduce: mailbox_2 is missing: the kernel is compiled for RANKS > 2"),
    ):
        with pytest.raises(ValueError, match=match):
            summed(kernel, own, weight, rows)
    with pytest.raises(ValueError, match=few):
        combined(CombineChoices(PART, 4, 4, 4, 2, MOST), own, rows)
