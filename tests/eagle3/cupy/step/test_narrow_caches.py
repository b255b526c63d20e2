"""Whole steps over caches of codes on a CPU, each kernel run from its own source: speculation beside its baseline, and
the baseline beside the reference engine's of the same format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.heads import BLOCK, SCALE_POSITIONS
from specgate.backends.eagle3.lib.kv.modes import KvMode, KvModes
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from tests.eagle3.cupy.engine.tracing import check_common_rows, reference_logits, same_prefixes
from tests.eagle3.cupy.gpu_pairs import random_prompts
from tests.eagle3.cupy.kernels.codes.caches import CODES
from tests.eagle3.cupy.step.decoder import Decoder, cached, made_pair

pytestmark = pytest.mark.usefixtures("whole_steps")

LENGTHS = [5, BLOCK - 2, 2 * BLOCK - 4, 2 * BLOCK - 4]
"""Prompts that end within a scale's positions, before a block, and at the end of a chunk; the last two are equal."""
K = 3
FORMATS = {"target fp8": KvModes("fp8"), "both nvfp4": KvModes("nvfp4", "nvfp4"), "draft fp8": KvModes(None, "fp8")}
"""Every format in either cache, and each cache alone."""


def prompts() -> list[list[int]]:
    made = random_prompts(LENGTHS)
    return [*made[:-1], made[-2]]


@pytest.fixture(scope="module", params=FORMATS)
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return Decoder.of(None, K, prompts=prompts(), kv=FORMATS[request.param])


Plain = tuple[Any, Mapping[tuple[int, int], Tensor], list[list[Tensor]]]
"""A baseline's text, its logits, and what its cache holds of the first 15 tokens of each slot's text."""


@pytest.fixture(scope="module")
def plain(decoder: Decoder) -> Plain:
    text, logits = decoder.decode(0, 24)
    return text, logits, [cached(decoder, slot, length + 15) for slot, length in enumerate(LENGTHS)]


def test_a_chain_emits_the_tokens_of_its_formats_baseline_from_its_logits_and_leaves_its_cache_bit_for_bit(
    decoder: Decoder, plain: Plain
) -> None:
    text, wanted, after_plain = plain
    block, logits = decoder.decode(K, 8, text.tokens)
    assert same_prefixes(block.tokens, text.tokens)
    check_common_rows(logits, wanted, 8 * len(LENGTHS) + 21)
    accepted = [a for row in block.accepted for a in row]
    assert {*accepted} == {0, 1, 2, 3}
    for slot, length in enumerate(LENGTHS):
        end = min(length + 15, length + len(block.tokens[slot]) - 2)
        assert end > length + 8
        whole = end // SCALE_POSITIONS * SCALE_POSITIONS  # of the last scale's positions some were not reached by both
        for mine, theirs in zip(cached(decoder, slot, whole), after_plain[slot], strict=True):
            assert torch.equal(mine, theirs[:, :, : mine.shape[2]])


def test_equal_prompts_decode_alike(plain: Plain) -> None:
    text, logits, _ = plain
    assert text.tokens[2] == text.tokens[3]
    at = [position for slot, position in logits if slot == 2]
    assert at and all(torch.equal(logits[2, position], logits[3, position]) for position in at)


@pytest.mark.parametrize("format_", CODES)
def test_the_baseline_is_nearer_to_the_reference_engines_of_its_format_than_to_that_in_float32(format_: KvMode) -> None:
    """Codes of numbers that differ in their last bits of bfloat16 are one apart now and then, which is a sixteenth: so
    whole passes agree no better. `kernels/codes/` compares code by code.
    """
    made = Decoder.of(None, K, prompts=prompts(), kv=KvModes(format_, format_))
    text, logits = made.decode(0, 6)
    errors = []
    for mode in (format_, None):
        oracle = ReferenceEngine(
            *made_pair(torch.float32), max_batch=len(LENGTHS), max_positions=200, device="cpu", kv=KvModes(mode)
        )
        oracle.prefill(prompts(), draft=False)
        rows = [
            (logits[slot, length + n], reference_logits(oracle, slot, [*text.tokens[slot][: n + 1]]))
            for slot, length in enumerate(LENGTHS)
            for n in range(6)
        ]
        result, want = (torch.stack([row[i] for row in rows]).double() for i in (0, 1))
        errors.append(float((result - want).norm() / want.norm()))
    assert errors[0] < {"fp8": 0.05, "nvfp4": 0.15}[format_] and errors[0] < 0.75 * errors[1]
