"""Reserve, accept, commit: many steps with random drafts and targets, against the same rules written out in Python."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch

from specgate.backends.eagle3.cupy.engine.decode_run import StartState, StopRule
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.kernels.state.launchers import Accept, AcceptForced, Commit, KVReserve
from specgate.backends.eagle3.cupy.kernels.state.slots import FREE, Fault, KVBlocks, Slots
from specgate.backends.eagle3.cupy.memory.sizes import Sizes, assign_blocks
from tests.eagle3.cupy import oracles

VOCAB = 12
SIZES = Sizes(slots=5, positions=400, max_rows=6)


@dataclass
class Request:
    """One slot, as the rules have it."""

    length: int
    out: list[int]
    finish: int = 0
    truncated: int = 0
    counts: list[int] = field(default_factory=list)

    def advance(self, targets: list[int], accepted: int, rule: StopRule) -> None:
        emitted = list[int]()
        for token in targets[: accepted + 1]:
            if len(self.out) + len(emitted) == rule.limit:
                break
            emitted.append(token)
            if token in (*rule.eos, *rule.stop):
                self.finish = 1 if token in rule.eos else 2
                break
        self.out += emitted
        self.length += len(emitted)
        self.truncated += accepted + 1 - len(emitted)
        if not self.finish and len(self.out) == rule.limit:
            self.finish = 3


class Machine:
    """The three kernels over device state that begins with prompts of `lengths`."""

    def __init__(self, device: str, lengths: list[int], k: int, rule: StopRule) -> None:
        self.k, self.rule, self.lengths = k, rule, lengths
        prompts = [[slot] * length for slot, length in enumerate(lengths)]
        self.layout = assign_blocks(prompts, SIZES)
        self.slots = Slots.allocate(SIZES.slots, SIZES.max_rows, SIZES.positions, device)
        self.kv = KVBlocks.allocate(SIZES.slots, SIZES.max_blocks, SIZES.blocks, device)
        self.kv.copy_(self.layout.kv)
        StartState(tuple(lengths), (VOCAB,) * len(lengths)).rewind(self.slots, rule)
        self.choices = torch.zeros(SIZES.rows, dtype=torch.int64, device=device)
        self.reserve = KVReserve(SIZES.slots, k + 1, SIZES.positions, SIZES.max_blocks, SIZES.blocks)
        self.accept = Accept(k + 1, SIZES.max_rows)
        self.commit = Commit(SIZES.slots, SIZES.max_rows, SIZES.positions, SIZES.max_blocks)

    def step(self, drafts: dict[int, list[int]], targets: dict[int, list[int]]) -> None:
        self.reserve(self.kv, self.slots)
        active = self.slots.active[: int(self.slots.active_count)].tolist()
        for a, slot in enumerate(active):
            for i, token in enumerate(drafts[slot]):
                self.slots.drafts[slot, i] = token
            for t, token in enumerate(targets[slot]):
                self.choices[a * (self.k + 1) + t] = (0xC0000000 - (1 << 32)) << 32 | (0xFFFFFFFF - token)
        self.accept(self.slots.rows(len(self.lengths), self.k + 1), self.slots, choices=self.choices)
        self.commit(self.kv, self.slots)

    def check_blocks(self, requests: list[Request]) -> None:
        """Every block is free or held by one slot, and each slot holds what its positions need."""
        blocks, table = self.kv.held.tolist(), self.kv.block_table.tolist()
        free = self.kv.free_blocks[: int(self.kv.free_count)].tolist()
        owned = [block for slot in range(len(requests)) for block in table[slot][: blocks[slot]]]
        assert sorted(owned + free) == list(range(SIZES.blocks))
        owners = self.kv.owner.tolist()
        assert all(owners[block] == FREE for block in free)
        for slot, request in enumerate(requests):
            positions = self.lengths[slot] if request.finish else request.length
            assert blocks[slot] == -(-positions // BLOCK)
            assert all(owners[block] == slot for block in table[slot][: blocks[slot]])


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("k", [0, 1, 3, 5])
def test_many_steps_emit_rewind_and_end_as_the_rules_say(device: str, seed: int, k: int) -> None:
    dice = random.Random(1000 * k + seed)
    lengths = [dice.choice([1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 3]) for _ in range(dice.randint(1, 5))]
    ends = dice.choice([((), ()), ((3,), ()), ((3, 7), (5,)), ((), (2,))])
    rule = StopRule(*ends, limit=dice.choice([2, 9, 40, 200]))
    machine = Machine(device, lengths, k, rule)
    requests = [Request(length, [VOCAB]) for length in lengths]
    steps = 0
    while any(not r.finish for r in requests) and steps < 30:
        active = [slot for slot, r in enumerate(requests) if not r.finish]
        targets = {slot: [dice.randrange(VOCAB) for _ in range(k + 1)] for slot in active}
        drafts = {slot: [t if dice.random() < 0.7 else VOCAB for t in targets[slot][:k]] for slot in active}
        machine.step(drafts, targets)
        accepted = {slot: oracles.accept(drafts[slot], targets[slot]) for slot in active}
        before = {slot: len(requests[slot].out) for slot in active}
        for slot in active:
            requests[slot].advance(targets[slot], accepted[slot], rule)
        s = machine.slots
        assert s.accepted_log[steps, : len(lengths)].tolist() == [
            accepted.get(slot, -1) for slot in range(len(lengths))
        ]
        steps += 1
        assert int(s.step) == steps and not s.fault.any()
        assert s.active[: int(s.active_count)].tolist() == [i for i, r in enumerate(requests) if not r.finish]
        for slot, request in enumerate(requests):
            emitted = int(s.emitted[slot])
            assert s.out[slot, :emitted].tolist() == request.out
            assert int(s.length[slot]) == request.length and int(s.truncated[slot]) == request.truncated
            assert int(s.finish[slot]) == request.finish and int(s.last_token[slot]) == request.out[-1]
            if slot in before:
                gained = emitted - before[slot]
                assert int(s.counts[slot]) == gained
                assert s.pending[slot, :gained].tolist() == request.out[-gained:]
        machine.check_blocks(requests)
    assert not machine.choices.any()
    assert bool((s.stamps[:steps, 2] <= s.stamps[:steps, 4]).all())


@pytest.mark.parametrize("k", [1, 4])
def test_forced_counts_make_drafts_the_targets_tokens_and_ends_hold_as_ever(device: str, k: int) -> None:
    dice, rule = random.Random(k), StopRule((3,), (), 18)
    machine = Machine(device, [5, BLOCK - 1, 2], k, rule)
    counts = [[dice.randrange(k + 1) for _ in range(SIZES.slots)] for _ in range(20)]
    kernel = AcceptForced(SIZES.slots, k + 1, SIZES.max_rows)
    recorded = torch.tensor(counts, dtype=torch.int32, device=device)
    machine.accept = partial(kernel, forced=recorded)  # type: ignore[assignment]
    requests = [Request(length, [VOCAB]) for length in machine.lengths]
    for taken in counts:
        if not (active := [slot for slot, r in enumerate(requests) if not r.finish]):
            break
        drafts, targets = ({slot: [dice.randrange(VOCAB) for _ in range(n)] for slot in active} for n in (k, k + 1))
        machine.step(drafts, targets)
        for slot in active:
            n = taken[slot]
            requests[slot].advance(drafts[slot][:n] + targets[slot][n:], n, rule)
    s = machine.slots
    assert not s.fault.any() and not machine.choices.any() and {r.finish for r in requests} <= {1, 3}
    for slot, request in enumerate(requests):
        assert s.out[slot, : int(s.emitted[slot])].tolist() == request.out
        assert (int(s.finish[slot]), int(s.truncated[slot])) == (request.finish, request.truncated)
    machine.check_blocks(requests)
    s.active_count[0], machine.choices[k] = 1, -1
    machine.accept(s.rows(1, k + 1), s, choices=machine.choices)
    assert Fault(int(s.fault)) is Fault.TARGET_NOT_FINITE


def test_steps_after_the_last_slot_has_ended_change_nothing(device: str) -> None:
    machine = Machine(device, [5, 70], 3, StopRule((), (), 2))
    machine.step({0: [1, 1, 1], 1: [1, 1, 1]}, {0: [2, 2, 2, 2], 1: [2, 2, 2, 2]})
    assert int(machine.slots.active_count) == 0
    before = [t.clone() for t in (*machine.kv.tensors(), machine.slots.out, machine.slots.step, machine.slots.length)]
    machine.step({}, {})
    after = (*machine.kv.tensors(), machine.slots.out, machine.slots.step, machine.slots.length)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def fault_of(machine: Machine) -> Fault:
    targets = {slot: [1] * 4 for slot in range(2)}
    machine.step({slot: [1] * 3 for slot in range(2)}, targets)
    return Fault(int(machine.slots.fault))


def test_a_block_of_another_slot_that_would_be_written_is_a_fault(device: str) -> None:
    machine = Machine(device, [5, 70], 3, StopRule((), (), 200))
    machine.kv.block_table[1, 1] = int(machine.kv.block_table[0, 0])
    assert Fault.KV_INTEGRITY in fault_of(machine)


def test_a_block_that_is_both_free_and_held_is_a_fault(device: str) -> None:
    machine = Machine(device, [5, BLOCK - 1], 3, StopRule((), (), 200))
    machine.kv.free_blocks[int(machine.kv.free_count) - 1] = int(machine.kv.block_table[0, 0])
    assert Fault.KV_INTEGRITY in fault_of(machine)


def test_no_block_left_stops_all_slots_before_anything_is_written(device: str) -> None:
    machine = Machine(device, [5, BLOCK - 1], 3, StopRule((), (), 200))
    machine.kv.free_count.zero_()
    assert fault_of(machine) is Fault.KV_EXHAUSTED
    assert int(machine.slots.active_count) == 0 and int(machine.slots.step) == 0


def test_a_logit_that_is_not_finite_is_a_fault(device: str) -> None:
    machine = Machine(device, [5, 70], 0, StopRule((), (), 200))
    machine.choices[1] = -1
    machine.accept(machine.slots.rows(2, 1), machine.slots, choices=machine.choices)
    assert Fault(int(machine.slots.fault)) is Fault.TARGET_NOT_FINITE


def test_a_slot_that_outgrows_its_positions_stops_all_and_takes_no_block(device: str) -> None:
    machine = Machine(device, [5, SIZES.positions - 2], 3, StopRule((), (), 200))
    before = [t.clone() for t in machine.kv.tensors()]
    assert fault_of(machine) is Fault.KV_EXHAUSTED
    assert int(machine.slots.active_count) == 0 and int(machine.slots.step) == 0
    assert torch.equal(machine.kv.block_table[1], before[0][1])
