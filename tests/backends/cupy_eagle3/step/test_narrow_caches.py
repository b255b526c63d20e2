"""Whole steps over caches of codes on a CPU, each kernel run from its own source: speculation beside its baseline, and
the baseline beside the reference engine's of the same format.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specgate.backends.cupy_eagle3.engine.decode_run import StopRule, read
from specgate.backends.cupy_eagle3.engine.prefilled import Prefilled, first_tokens, prefill_prompts
from specgate.backends.cupy_eagle3.kernels.attention.fmha_config import FmhaConfig
from specgate.backends.cupy_eagle3.kernels.heads import BLOCK, OUTER_BYTES, SCALE_POSITIONS
from specgate.backends.cupy_eagle3.kernels.loader import Kernel
from specgate.backends.cupy_eagle3.kernels.state.kv_blocks import KVBlocks
from specgate.backends.cupy_eagle3.memory.buffers import Buffers, tensors_of
from specgate.backends.cupy_eagle3.memory.cache_layout import assign_blocks
from specgate.backends.cupy_eagle3.memory.model import Draft, Target
from specgate.backends.cupy_eagle3.memory.nvfp4_pages import block_scales, key_codes, outer_of, value_codes
from specgate.backends.cupy_eagle3.memory.sizes import Sizes
from specgate.backends.cupy_eagle3.step.cycle import Cycle
from specgate.backends.reference.engine import ReferenceEngine
from specgate.eagle3.kv.modes import KvMode, KvModes
from specgate.pair_tools.plant.calibrate import made_draft, made_target
from tests.backends.cupy_eagle3.engine.tracing import reference_logits, same_prefixes
from tests.backends.cupy_eagle3.gpu_pairs import RECIPE_A, random_prompts, shape
from tests.backends.cupy_eagle3.kernels.codes.caches import CODES
from tests.backends.cupy_eagle3.kernels.host import Host

pytestmark = pytest.mark.slow("runs whole steps from their source")

PAIR, RECIPE = shape(2, 1, 64, hidden=128), replace(RECIPE_A, signal=0.95)
LENGTHS = [5, BLOCK - 2, 2 * BLOCK - 4, 2 * BLOCK - 4]
"""Prompts that end within a scale's positions, before a block, and at the end of a chunk; the last two are equal."""
K = 3
FORMATS = {
    f"{name} {mode}": kv
    for mode in CODES
    for name, kv in (("target", KvModes(mode)), ("draft", KvModes(None, mode)), ("both", KvModes(mode, mode)))
}


@dataclass(frozen=True, slots=True)
class Decoder:
    """A planted pair over prompts that are prefilled."""

    model: Target
    draft: Draft
    sizes: Sizes
    b: Buffers
    prefilled: Prefilled

    @classmethod
    def of(cls, kv: KvModes) -> Decoder:
        target = made_target(RECIPE, PAIR, torch.bfloat16, "cpu")
        draft = made_draft(RECIPE, PAIR, torch.bfloat16, "cpu")
        slots = len(LENGTHS)
        sizes = Sizes(slots, 200, K + 1, fmha=FmhaConfig(kv_tile=128, warps=2, stages=3), kv=kv)
        b = Buffers.allocate(target.geometry, draft.geometry, sizes, "cpu")
        model = Target.of(target, sizes.positions)
        head = Draft.of(draft, model, sizes.positions)
        layout = assign_blocks(prompts(), sizes)
        last = prefill_prompts(model, head, b, prompts(), layout)
        b.kv.copy_(layout.kv)
        first, fault = first_tokens(Cycle(model, head, sizes, slots, 0).verify, b, last, LENGTHS)
        assert not fault
        prefilled = Prefilled(
            prompts=tuple(map(tuple, prompts())),
            layout=layout,
            first=first,
            kv=KVBlocks(*(t.clone() for t in b.kv.tensors())),
            features=torch.stack([row.features for row in last if row.features is not None]),
        )
        return cls(model, head, sizes, b, prefilled)

    def decode(
        self, k: int, steps: int, known: Sequence[Sequence[int]] | None = None
    ) -> tuple[Any, dict[tuple[int, int], Tensor]]:
        """What is decoded, and the logits [V] of each (slot, position) whose context is the emitted text.

        With `known`, the text of every slot, some drafts at the beginning of each chain are made the text's, so that
        every number of them is accepted now and then.
        """
        cycle, slots, found = Cycle(self.model, self.draft, self.sizes, len(LENGTHS), k), self.b.slots, {}
        chain, dice = cycle.chain, random.Random(1)
        if known is not None and chain is not None:

            def helped(b: Buffers) -> None:
                chain(b)
                for slot, text in enumerate(known):
                    for n in range(dice.randrange(k + 1)):
                        slots.drafts[slot, n] = text[int(slots.emitted[slot]) + n]

            cycle.chain = helped  # type: ignore[assignment]
        self.prefilled.rewind(self.b, StopRule((), (), self.sizes.positions))
        for _ in range(steps):
            active, lengths = slots.active[: int(slots.active_count)].tolist(), slots.length.tolist()
            cycle(self.b)
            assert not slots.fault.any()
            for a, slot in enumerate(active):
                for t in range(int(slots.accepted[slot]) + 1):
                    found[slot, lengths[slot] + t] = self.b.target.layer.logits[a * cycle.rows + t].clone()
        return read(slots, len(LENGTHS), k, [1] * steps, [0] * steps)[0], found

    def cached(self, slot: int, end: int) -> list[Tensor]:
        """What the target's cache holds of the positions of a slot before `end`, layer by layer, in its own format."""
        blocks = self.b.kv.block_table[slot, : -(-end // BLOCK)].long()
        pages = self.b.target.pages
        if pages.kv == "nvfp4":
            assert pages.scales is not None
            codes = key_codes(pages.k[:, blocks]), value_codes(pages.v[:, blocks])
            scales = pages.scales[:, blocks]
            rows = [of.transpose(1, 2).flatten(2, 3)[:, :, :end] for of in (*codes, *block_scales(scales))]
            return [*rows, outer_of(scales[:, 0])]
        keys = pages.k[:, blocks].transpose(1, 2).flatten(2, 3)[:, :, :end]
        values = pages.v[:, blocks].permute(0, 2, 1, 4, 3).flatten(2, 3)[:, :, :end]
        if pages.scales is None:
            return [keys, values]
        return [keys, values, pages.scales[:, blocks].transpose(1, 2).flatten(2, 3)[:, :, : -(-end // SCALE_POSITIONS)]]


def prompts() -> list[list[int]]:
    made = random_prompts(LENGTHS)
    return [*made[:-1], made[-2]]


@pytest.fixture(scope="module", autouse=True)
def kernels_on_the_cpu(host: Host) -> Any:
    nvtx = SimpleNamespace(RangePush=lambda name: None, RangePop=lambda: None)
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(Kernel, "enqueue", lambda *arguments, **keywords: host.enqueue(*arguments, **keywords))
        patch.setitem(sys.modules, "cupy", SimpleNamespace())
        patch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(nvtx=nvtx))
        yield


@pytest.fixture(scope="module", params=FORMATS)
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return Decoder.of(FORMATS[request.param])


@pytest.fixture(scope="module")
def plain(decoder: Decoder) -> tuple[Any, Mapping[tuple[int, int], Tensor]]:
    return decoder.decode(0, 24)


def test_a_chain_emits_the_tokens_of_its_formats_baseline_from_its_logits_and_leaves_its_cache_bit_for_bit(
    decoder: Decoder, plain: tuple[Any, Mapping[tuple[int, int], Tensor]]
) -> None:
    text, wanted = plain
    decoder.decode(0, 20)
    after_plain = [decoder.cached(slot, length + 15) for slot, length in enumerate(LENGTHS)]
    block, logits = decoder.decode(K, 8, text.tokens)
    assert same_prefixes(block.tokens, text.tokens)
    common = [at for at in logits if at in wanted]
    assert len(common) > 8 * len(LENGTHS) + 20
    assert all(torch.equal(logits[at], wanted[at]) for at in common)
    accepted = [a for row in block.accepted for a in row]
    assert {*accepted} == {0, 1, 2, 3}
    for slot, length in enumerate(LENGTHS):
        end = min(length + 15, length + len(block.tokens[slot]) - 2)
        assert end > length + 8
        whole = end // SCALE_POSITIONS * SCALE_POSITIONS  # of the last scale's positions some were not reached by both
        for mine, theirs in zip(decoder.cached(slot, whole), after_plain[slot], strict=True):
            assert torch.equal(mine, theirs[:, :, : mine.shape[2]])


def test_equal_prompts_decode_alike(plain: tuple[Any, Mapping[tuple[int, int], Tensor]]) -> None:
    text, logits = plain
    assert text.tokens[2] == text.tokens[3]
    at = [position for slot, position in logits if slot == 2]
    assert at and all(torch.equal(logits[2, position], logits[3, position]) for position in at)


@pytest.mark.parametrize("format_", CODES)
def test_the_baseline_is_nearer_to_the_reference_engines_of_its_format_than_to_that_in_float32(
    format_: KvMode,
) -> None:
    """Codes of numbers that differ in their last bits of bfloat16 are one apart now and then, which is a sixteenth: so
    whole passes agree no better. `kernels/codes/` compares code by code.
    """
    made = Decoder.of(KvModes(format_, format_))
    text, logits = made.decode(0, 6)
    errors = []
    for mode in (format_, None):
        oracle = ReferenceEngine(
            made_target(RECIPE, PAIR, torch.float32, "cpu"),
            made_draft(RECIPE, PAIR, torch.float32, "cpu"),
            max_batch=len(LENGTHS),
            max_positions=200,
            device="cpu",
            kv=KvModes(mode),
        )
        oracle.prefill(prompts(), draft=False)
        rows = [
            (logits[slot, length + n], reference_logits(oracle, slot, [*text.tokens[slot][: n + 1]]))
            for slot, length in enumerate(LENGTHS)
            for n in range(6)
        ]
        found, want = (torch.stack([row[i] for row in rows]).double() for i in (0, 1))
        errors.append(float((found - want).norm() / want.norm()))
    assert errors[0] < {"fp8": 0.05, "nvfp4": 0.15}[format_] and errors[0] < 0.75 * errors[1]


@pytest.mark.parametrize("mode", CODES)
def test_a_cache_is_narrower_in_memory_as_the_format_says(mode: KvMode) -> None:
    narrow, plain = (
        Buffers.allocate(PAIR.target, PAIR.draft, Sizes(2, 100, 4, kv=kv), "meta")
        for kv in (KvModes(mode, mode), KvModes())
    )
    sizes = [[sum(t.nbytes for t in tensors_of(pages)) for pages in b.pages] for b in (narrow, plain)]
    assert [n / p for n, p in zip(*sizes, strict=True)] == [
        {"fp8": 64 + 4 / 16, "nvfp4": 32 + 4 + OUTER_BYTES / (2 * BLOCK)}[mode] / 128
    ] * 2
