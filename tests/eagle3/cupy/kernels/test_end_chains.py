"""The kernels of chains that end early, on the CPU from their own sources and on a GPU: where a chain ends, the rows of
those that go on, the tokens behind an end, and acceptance that does not reach there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.bench import oracles
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import NORM_GROUP, PreNormRows
from specgate.backends.eagle3.cupy.kernels.rows.draft_input import InputWeights
from specgate.backends.eagle3.cupy.kernels.rows.draft_token import DraftToken
from specgate.backends.eagle3.cupy.kernels.state.accept import Accept
from specgate.backends.eagle3.cupy.kernels.state.chains import Chains
from specgate.backends.eagle3.cupy.kernels.state.end_chains import EndChains, parts_of
from specgate.backends.eagle3.cupy.kernels.state.slots import Fault, Rows, Slots
from tests.eagle3.cupy.kernels.device import counted, normal, poisoned, relative_error

pytestmark = pytest.mark.slow("compiles kernels as C++")

SLOTS, ACTIVE, DRAFTS = 6, (0, 2, 3, 5), 4
HIDDEN, VOCAB, MAX_ROWS, EPS = 64, 90, DRAFTS + 1, 1e-5


def choices_of(logits: Tensor) -> Tensor:
    """The greedy choice of each row [R, V] as an LM head leaves it: `argmax.cuh`."""
    bits = logits.amax(-1).view(torch.int32).long() & 0xFFFFFFFF
    ordered = torch.where(bits >= 1 << 31, bits ^ 0xFFFFFFFF, bits | 1 << 31)
    ordered = torch.where(logits.amax(-1) == 0, 1 << 31, ordered)
    high = torch.where(ordered >= 1 << 31, ordered - (1 << 32), ordered)
    found: Tensor = (high << 32) | (0xFFFFFFFF - logits.argmax(-1))
    return found


def slots_on(device: str, active: Sequence[int] = ACTIVE) -> Slots:
    slots = Slots.allocate(SLOTS, MAX_ROWS, 8, device)
    slots.active[: len(active)] = counted(active, device)
    slots.active_count[0] = len(active)
    return slots


class Drafting:
    """The kernel behind each draft token of chains of four, over given logits; nothing else of the draft runs."""

    def __init__(self, columns: int, confidence: float, device: str, active: Sequence[int] = ACTIVE) -> None:
        self.columns, self.slots, self.device = columns, slots_on(device, active), device
        self.chains = Chains.allocate(SLOTS, DRAFTS, 8, parts_of(columns), HIDDEN, device)
        self.end = EndChains(columns, DRAFTS, SLOTS, confidence)
        self.rows = self.slots.rows(SLOTS, 1)

    def listed(self, rows: Rows) -> list[int]:
        found: list[int] = rows.active[: int(rows.active_count)].tolist()
        return found

    def token(self, index: int, of_slot: Tensor) -> None:
        """Behind token `index`, whose logits are `of_slot` [S, W]; those of other rows are NaN."""
        listed, logits = self.listed(self.rows), torch.full((SLOTS, self.columns), math.nan)
        logits[: len(listed)] = of_slot[listed]
        choices = choices_of(logits).to(self.device)
        kept = choices.clone()
        self.end(self.chains, logits.to(self.device), choices, self.rows, index=index)
        onto = self.chains.rows(index + 1, self.rows)
        going, onward = self.listed(onto), self.chains.onward[: len(listed)].tolist()
        assert going == [slot for slot, to in zip(listed, onward, strict=True) if to >= 0]
        assert [to for to in onward if to >= 0] == [*range(len(going))] and {*onward} - {*range(len(going))} <= {-1}
        assert torch.equal(choices, kept) and not self.chains.finished.any()
        self.rows = onto

    @property
    def lengths(self) -> list[int]:
        found: list[int] = self.chains.length.tolist()
        return found


def probabilities(logits: Sequence[Tensor]) -> Tensor:
    """float64 [K, S]: of the greedy token of each slot and draft token."""
    return torch.stack([of.double().softmax(-1).amax(-1) for of in logits])


@pytest.mark.parametrize("columns", [90, 300, 2049, 9001])
def test_a_chain_ends_behind_the_token_at_which_the_product_of_probabilities_falls_below_the_confidence(
    device: str, columns: int
) -> None:
    """One part or several, in loads of one column or of four, and parts that are not whole."""
    seen = set[int]()
    for seed in range(6):
        logits = [6 * normal(SLOTS, columns, dtype=torch.float32, seed=9 * seed + t, device="cpu") for t in range(3)]
        product = probabilities(logits).cumprod(0)
        # Between the products of two slots, so that no sum's order decides.
        middle = product[1, list(ACTIVE)].sort().values
        confidence = float((middle[1] + middle[2]) / 2)
        drafting = Drafting(columns, confidence, device)
        for index in range(DRAFTS - 1):
            drafting.token(index, logits[index])
        ended = [next((t + 1 for t in range(3) if product[t, slot] < confidence), DRAFTS) for slot in ACTIVE]
        assert [drafting.lengths[slot] for slot in ACTIVE] == ended
        for slot, length in zip(ACTIVE, ended, strict=True):
            assert float(drafting.chains.sure[slot]) == pytest.approx(
                float(product[min(length, 3) - 1, slot]), rel=1e-5
            )
        assert not any(drafting.lengths[slot] for slot in {*range(SLOTS)} - {*ACTIVE})
        seen |= {*ended}
    assert len(seen) > 2


@pytest.mark.parametrize(("equal", "index"), [(4, 0), (4, 1), (2, 2), (16, 0)])
def test_a_product_that_is_the_confidence_lets_a_chain_go_on_and_one_below_it_does_not(
    device: str, equal: int, index: int
) -> None:
    """Of so many equal logits, whose powers and probabilities float32 holds as they are."""
    logits = torch.full((SLOTS, 300), -1000.0)
    logits[:, 7 : 7 + equal] = 2.5
    product = np.float32(equal ** -(index + 1))
    for confidence, going in ((product, True), (np.nextafter(product, np.float32(1)), False)):
        drafting = Drafting(300, float(confidence), device)
        for t in range(index + 1):
            drafting.token(t, logits)
        assert drafting.lengths[2] == (DRAFTS if going else index + 1)
        assert drafting.listed(drafting.rows) == ([*ACTIVE] if going else [])


def test_what_a_slot_drafts_does_not_depend_on_who_shares_its_step(device: str) -> None:
    logits = [6 * normal(SLOTS, 2049, dtype=torch.float32, seed=t, device="cpu") for t in range(3)]
    together = Drafting(2049, 0.2, device)
    for index in range(3):
        together.token(index, logits[index])
    for slot in ACTIVE:
        alone = Drafting(2049, 0.2, device, [slot])
        for index in range(3):
            alone.token(index, logits[index])
        assert alone.lengths[slot] == together.lengths[slot]
        assert torch.equal(alone.chains.sure[slot], together.chains.sure[slot])


def test_without_a_row_the_steps_behind_have_none_either_and_nothing_else_is_written(device: str) -> None:
    drafting = Drafting(300, 0.5, device, [])
    drafting.chains.live_count.fill_(3)
    drafting.token(0, torch.zeros(SLOTS, 300))
    assert drafting.chains.live_count.flatten().tolist() == [0, 3, 3]
    assert not drafting.chains.length.any() and not drafting.chains.sure.any() and not drafting.chains.partial.any()


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_logits_that_are_not_finite_end_a_chain(device: str, broken: float) -> None:
    """The kernel behind this one says that they are not."""
    logits = torch.zeros(SLOTS, 300)
    logits[:, 5] = 40.0
    logits[3, 299] = broken
    drafting = Drafting(300, 1e-30, device)
    drafting.token(0, logits)
    assert [drafting.lengths[slot] for slot in ACTIVE] == [DRAFTS, DRAFTS, 1, DRAFTS]


@pytest.mark.parametrize("norm_output", [False, True])
@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_rows_of_chains_that_go_on_are_packed_and_an_ended_one_repeats_its_last_token(
    device: str, norm_output: bool, norm_before_residual: bool
) -> None:
    slots, chains = slots_on(device), Chains.allocate(SLOTS, DRAFTS, 8, 1, HIDDEN, device)
    chains.onward[:4] = counted([0, -1, 1, -1], device)
    chains.stream.fill_(math.nan)
    ids = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(0)).int().to(device)
    norms = [normal(HIDDEN, seed=i, device=device) for i in (1, 2)]
    weights = InputWeights(normal(VOCAB, HIDDEN, device=device), *norms)
    stream, normed = normal(SLOTS, HIDDEN, dtype=torch.float32, device=device), normal(SLOTS, HIDDEN, device=device)
    squares = stream.square().view(SLOTS, -1, NORM_GROUP).sum(-1)
    before, out = stream.clone(), poisoned(SLOTS, 2 * HIDDEN, device=device)
    logits = normal(SLOTS, VOCAB, dtype=torch.float32, seed=5, device="cpu")
    choices, rows = choices_of(logits).to(device), slots.rows(SLOTS, 1)
    kernel = DraftToken(
        *(HIDDEN, VOCAB),
        norm_output=norm_output,
        norm_before_residual=norm_before_residual,
        max_rows=MAX_ROWS,
        ends_early=True,
    )
    kernel(
        *(out, stream, choices, ids, PreNormRows(normed, squares), weights, slots, rows),
        index=1,
        eps=EPS,
        onward=(chains.stream, chains.onward),
    )
    tokens = ids[logits.argmax(-1).to(device)].tolist()
    assert slots.drafts[0].tolist() == [0, tokens[0], 0, 0, 0] and slots.drafts[3].tolist() == [0, tokens[2], 0, 0, 0]
    assert slots.drafts[2].tolist() == [0, *[tokens[1]] * 3, 0] and slots.drafts[5].tolist() == [0, *[tokens[3]] * 3, 0]
    assert not choices[:4].any() and choices[4:].all() and torch.equal(stream, before) and not slots.fault.any()
    hidden = before.double()
    if norm_output:
        hidden = (normed.double() * (squares.double().sum(-1, keepdim=True) / HIDDEN + EPS).rsqrt()).bfloat16().double()
    for row, onto in ((0, 0), (2, 1)):
        embedded = weights.embedding[tokens[row]]
        want = oracles.draft_input(embedded, hidden[row], weights.embedding_norm, weights.feature_norm, EPS)
        assert relative_error(out[onto], want) < 5e-3
        kept = want[HIDDEN:] if norm_before_residual else hidden[row]
        assert relative_error(chains.stream[onto], kept) < 5e-3
    assert out[2:].isnan().all() and chains.stream[2:].isnan().all()

    choices = choices_of(logits).to(device)
    kernel(
        *(None, stream, choices, ids, PreNormRows(normed, squares), weights, slots, rows),
        index=3,
        eps=EPS,
        onward=(chains.stream, chains.onward),
    )
    assert [int(slots.drafts[slot, 3]) for slot in ACTIVE] == tokens[:4] and torch.equal(stream, before)
    choices[1] = -1  # of index 0 by NaN or infinity
    kernel(
        *(None, stream, choices, ids, PreNormRows(normed, squares), weights, slots, rows),
        index=3,
        eps=EPS,
        onward=(chains.stream, chains.onward),
    )
    assert Fault(int(slots.fault)) is Fault.DRAFT_NOT_FINITE


def test_no_draft_behind_the_end_of_a_chain_is_accepted_and_the_lengths_are_logged(device: str) -> None:
    slots, chains = slots_on(device), Chains.allocate(SLOTS, DRAFTS, 8, 1, HIDDEN, device)
    lengths = {0: 4, 2: 1, 3: 2, 5: 3}
    for slot, length in lengths.items():
        chains.length[slot] = length
    slots.step[0] = 3
    drafts = torch.arange(1, DRAFTS + 1).repeat(SLOTS, 1)
    slots.drafts[:, :DRAFTS] = drafts.int().to(device)
    chosen = torch.full((SLOTS, MAX_ROWS, 10), -5.0)
    for a in range(len(ACTIVE)):
        for t in range(MAX_ROWS):  # the target agrees with every draft
            chosen[a, t, t + 1] = 3.0
    chosen[3, 1, 9] = 8.0  # but with one of the last slot's
    choices = choices_of(chosen.view(SLOTS * MAX_ROWS, 10)).to(device)
    Accept(MAX_ROWS, MAX_ROWS, ends_early=SLOTS)(choices, slots, slots.rows(SLOTS, MAX_ROWS), chains)
    assert [int(slots.accepted[slot]) for slot in ACTIVE] == [4, 1, 2, 1]
    assert chains.length_log[3].tolist() == [4, 0, 1, 2, 0, 3] and not chains.length_log[:3].any()
    assert [int(slots.target_tokens[slot, t]) for slot in (2, 3) for t in (1, 2)] == [2, 3, 2, 3]
    assert not slots.fault.any()


def test_launchers_of_whole_chains_and_of_others_are_not_mistaken_for_each_other(device: str) -> None:
    slots, chains = slots_on(device), Chains.allocate(SLOTS, DRAFTS, 8, 1, HIDDEN, device)
    choices = torch.zeros(SLOTS * MAX_ROWS, dtype=torch.int64, device=device)
    with pytest.raises(ValueError, match="made for chains that end early: False"):
        Accept(MAX_ROWS, MAX_ROWS)(choices, slots, slots.rows(SLOTS, MAX_ROWS), chains)
    with pytest.raises(ValueError, match="made for chains that end early: True"):
        Accept(MAX_ROWS, MAX_ROWS, ends_early=SLOTS)(choices, slots, slots.rows(SLOTS, MAX_ROWS))
