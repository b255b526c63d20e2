"""Whole steps on a CPU, each kernel run from its own source, whose chains end where the draft is not sure enough.

Most drafts are of the baseline's own text, put in the place of the draft's, else nearly nothing would be accepted of so
small a pair. That goes beyond the end of a chain, too, where nothing may be accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.engine.decode_run import StopRule
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.step.cycle import Cycle
from specgate.backends.eagle3.lib.chains.lengths import ChainLengths
from specgate.backends.eagle3.reference.engine import ReferenceEngine
from specgate.contract import Budget, Role
from tests.eagle3.cupy.kernels.host import Host
from tests.eagle3.cupy.step.decoder import LENGTHS, Decoder, kernels_from_source, made_pair

pytestmark = pytest.mark.slow("runs whole steps from their source")

K = 4
STEPS = 4
NEVER, ALWAYS = 1e-30, 1 - 1e-7
"""Confidences below and above every product of probabilities."""


@pytest.fixture(scope="module", autouse=True)
def kernels_on_the_cpu(host: Host) -> Iterator[None]:
    with kernels_from_source(host):
        yield


@cache
def decoder(confidence: float | None) -> Decoder:
    return Decoder.of(None, K, confidence)


def first_step(made: Decoder) -> list[Tensor]:
    """Take the first step over the prompts. Returns the draft's logits [3, W] behind the slots' tokens, of each."""
    made.prefilled.rewind(made.b, StopRule((), (), made.sizes.positions))
    cycle, found = Cycle(made.model, made.draft, made.sizes, 3, K), list[Tensor]()
    assert cycle.chain is not None
    head, kept = cycle.chain.lm_head, found.append

    def watched(logits: Tensor, *arguments: Any, **keywords: Any) -> None:
        head(logits, *arguments, **keywords)
        kept(logits.clone())

    cycle.chain.lm_head = watched  # type: ignore[assignment]
    cycle(made.b)
    assert not made.b.slots.fault.any()
    return found


@cache
def products() -> Tensor:
    """float64 [K, 3]: of the probabilities of the tokens of whole chains in the first step, from the draft's logits."""
    logits = torch.stack(first_step(decoder(None)))
    found: Tensor = logits.double().softmax(-1).amax(-1).cumprod(0)
    return found


def confidences() -> dict[str, float]:
    """Each ends some chains of the first step and not others, behind the third, the second and the first token."""
    first, third = products()[0].sort().values, products()[2].sort().values
    return {
        "low": float((third[0] + third[1]) / 2),
        "middle": float((products()[1].max() + products()[1].median()) / 2),
        "high": float((first[1] + first[2]) / 2),
    }


@cache
def plain() -> tuple[Any, Mapping[tuple[int, int], Tensor]]:
    return decoder(None).decode(0, STEPS * (K + 1))


@pytest.mark.parametrize("name", ["low", "middle", "high"])
def test_chains_that_end_early_emit_the_baselines_tokens_from_its_logits_bit_for_bit(name: str) -> None:
    text, wanted = plain()
    block, logits = decoder(confidences()[name]).decode(K, STEPS, text.tokens)
    assert all(
        list(one)[: len(other)] == list(other)[: len(one)] for one, other in zip(block.tokens, text.tokens, strict=True)
    )
    common = [at for at in logits if at in wanted]
    assert len(common) >= STEPS * 3 and all(torch.equal(logits[at], wanted[at]) for at in common)
    counts = [pair for steps in zip(block.drafted, block.accepted, strict=True) for pair in zip(*steps, strict=True)]
    assert all(0 <= a <= d for d, a in counts) and any(a for _, a in counts)
    assert len({d for d, _ in counts}) > 1
    assert block.counters["rewound_tokens"] == sum(d - a for d, a in counts)


@pytest.mark.parametrize("name", ["low", "middle", "high"])
def test_a_chain_ends_where_the_product_of_probabilities_of_the_drafts_own_logits_falls_below_the_confidence(
    name: str,
) -> None:
    confidence = confidences()[name]
    ends = [next((t + 1 for t in range(K - 1) if products()[t, slot] < confidence), K) for slot in range(3)]
    made, whole = decoder(confidence), decoder(None)
    first_step(whole)
    first_step(made)
    assert made.b.chains is not None and made.b.chains.length.tolist() == ends and {*ends} != {K}
    for slot, end in enumerate(ends):
        drafts, own = whole.b.slots.drafts[slot, :K].tolist(), made.b.slots.drafts[slot, :K].tolist()
        assert own == [*drafts[:end], *[drafts[end - 1]] * (K - end)]
        accepted = int(whole.b.slots.accepted[slot])
        assert int(made.b.slots.accepted[slot]) == min(accepted, end)


@pytest.mark.parametrize("name", ["low", "middle", "high"])
def test_the_first_chains_have_the_reference_engines_lengths(name: str) -> None:
    """Of the same weights in bfloat16, with products of probabilities that are further apart than roundings go."""
    confidence, made = confidences()[name], decoder(confidences()[name])
    target, draft = made_pair(torch.bfloat16)
    oracle = ReferenceEngine(
        *(target, draft), max_batch=3, max_positions=230, device="cpu", lengths=ChainLengths(confidence)
    )
    oracle.prefill(made.prefilled.prompts, draft=True)
    want = oracle.decode(Role(K), Budget(steps=1), ())
    block, _ = made.decode(K, 1)
    assert (block.drafted, block.accepted) == (want.drafted, want.accepted)


@pytest.mark.parametrize("name", ["low", "middle", "high"])
def test_of_a_slot_whose_chain_has_ended_no_draft_step_runs(name: str) -> None:
    """Each writes a key to the draft's cache: the extension that of the newest token, at its position minus one."""
    made = Decoder.of(None, K, confidences()[name])
    first_step(made)
    assert made.b.draft is not None and made.b.chains is not None
    for slot, length in enumerate(LENGTHS):
        blocks = made.b.kv.block_table[slot, : -(-(length + K) // BLOCK)].long()
        keys = made.b.draft.pages.k[0, blocks].transpose(1, 2).flatten(0, 1)
        written = keys.flatten(1).any(1).nonzero().flatten().tolist()
        assert written == [*range(length + int(made.b.chains.length[slot]) - 1)]


def test_a_confidence_below_every_product_gives_the_whole_chains_of_an_engine_without_one() -> None:
    (block, logits), (want, wanted) = (decoder(p).decode(K, STEPS, plain()[0].tokens) for p in (NEVER, None))
    assert (block.tokens, block.accepted, block.drafted) == (want.tokens, want.accepted, want.drafted)
    assert block.counters == want.counters
    assert logits.keys() == wanted.keys() and all(torch.equal(logits[at], wanted[at]) for at in logits)


def test_a_confidence_above_every_product_gives_the_drafts_of_chains_of_one_token() -> None:
    made = decoder(ALWAYS)
    block, logits = made.decode(K, STEPS)
    want, wanted = decoder(None).decode(1, STEPS)
    assert (block.tokens, block.accepted, block.drafted) == (want.tokens, want.accepted, want.drafted)
    assert logits.keys() == wanted.keys() and all(torch.equal(logits[at], wanted[at]) for at in logits)
    assert made.b.chains is not None and not made.b.chains.live_count.any()


def test_a_shorter_role_of_the_engine_ends_its_chains_too_and_one_of_a_single_token_has_none_to_end() -> None:
    made, text = decoder(confidences()["high"]), plain()[0]
    block, _ = made.decode(2, STEPS, text.tokens)
    assert {d for row in block.drafted for d in row} <= {1, 2}
    assert all(d >= 1 for row in block.drafted for d in row)
    one, _ = made.decode(1, STEPS)
    assert {d for row in one.drafted for d in row} == {1}
