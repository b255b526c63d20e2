"""MXFP4 against transformers' reading of it, and against a search for the nearest number."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from specgate.backends.eagle3.lib.weights import decoded, encoded
from specgate.checkpoints.mxfp4 import BLOCK, VALUES

SHAPE = (3, 8, 2)
"""Experts, rows, blocks of a row."""


def random_packed(seed: int, low: int, high: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (*SHAPE, BLOCK // 2), generator=generator, dtype=torch.uint8)
    return blocks, torch.randint(low, high, SHAPE, generator=generator, dtype=torch.uint8)


def test_numbers_are_those_of_transformers() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks, scales = random_packed(1, 100, 140)
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)  # [E, columns, rows]
    assert torch.equal(decoded(blocks, scales, torch.bfloat16), expected.transpose(1, 2))


def test_every_number_with_every_usual_scale_is_exact_in_bfloat16() -> None:
    blocks, scales = random_packed(2, 8, 250)
    assert torch.equal(
        decoded(blocks, scales, torch.bfloat16).double(), decoded(blocks, scales, torch.float32).double()
    )


def test_packing_what_was_unpacked_gives_the_same_numbers() -> None:
    numbers = decoded(*random_packed(3, 60, 200), torch.float32)
    assert torch.equal(decoded(*encoded(numbers), torch.float32), numbers)


@given(st.lists(st.floats(-7, 7, width=32), min_size=BLOCK, max_size=BLOCK), st.integers(-20, 20))
def test_each_number_becomes_the_nearest_that_its_blocks_scale_has(block: list[float], exponent: int) -> None:
    numbers = torch.tensor(block) * 2.0**exponent
    packed, scale = encoded(numbers)
    result = decoded(packed, scale, torch.float32)
    step = 2.0 ** (int(scale) - 127)
    choices = sorted({value * step for value in VALUES})
    for number, got in zip(numbers.tolist(), result.tolist(), strict=True):
        assert abs(got - number) == min(abs(choice - number) for choice in choices)
    largest = numbers.abs().max().item()
    assert largest == 0 or largest < 8 * step, "the largest is at most rounded to six scales"


def test_a_tie_goes_to_the_even_number() -> None:
    halves = [(a + b) / 2 for a, b in itertools.pairwise(VALUES[:8])]
    numbers = torch.tensor([*halves, 6.0] + [0.0] * (BLOCK - len(halves) - 1))
    assert decoded(*encoded(numbers), torch.float32)[: len(halves)].tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
