"""Penalties and bias as the kernels put them on logits are those of `specgate.sampling` and of transformers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from specgate.backends.eagle3.cupy.kernels.penalties.launchers import CountTokens, PenaliseRows
from specgate.backends.eagle3.cupy.memory.sampling import IN_PROMPT, SamplingBuffers
from specgate.backends.eagle3.cupy.step.token_draw import TokenDraw
from specgate.contract import Sampling
from specgate.sampling.history import History
from specgate.sampling.target import penalised
from tests.eagle3.cupy.kernels.sampling.drawing import Rows, greedy

VOCAB = 3000
REPEATED = Sampling(repetition_penalty=1.3)
ALL = Sampling(repetition_penalty=1.7, presence_penalty=0.5, frequency_penalty=0.25, seed=6)
ASKED = {
    "repetition": REPEATED,
    "presence": Sampling(presence_penalty=1.5),
    "frequency": Sampling(frequency_penalty=0.6),
    "all": ALL,
    "rewards": Sampling(repetition_penalty=0.6, presence_penalty=-1.0, frequency_penalty=-0.3),
    "bias": replace(ALL, logit_bias=((3, 8.0), (77, -100.0), (VOCAB - 1, 6.5))),
    "filters": replace(ALL, temperature=0.7, top_k=60, top_p=0.9, min_p=0.01),
    "greedy": replace(ALL, temperature=0.0),
}


def several(sampling: Sampling, per_slot: int = 4, vocab: int = VOCAB) -> Rows:
    """Four slots, of which three decode. Texts and drafts repeat tokens, and share some."""
    source = np.random.default_rng(per_slot)
    often = source.integers(0, vocab, 12)

    def text(length: int) -> list[int]:
        return [int(t) for t in np.concatenate((source.choice(often, length // 2), source.integers(0, vocab, length)))]

    drafts = [[int(t) for t in source.choice(often[:4], per_slot - 1)] for _ in range(4)]
    logits = 3 * torch.randn(3 * per_slot, vocab, generator=torch.Generator().manual_seed(per_slot))
    logits[:, torch.from_numpy(often)] += 6  # so that penalties decide
    return Rows(
        *(sampling, logits, [9, 10, 2**63, 2**64 - 1], [40, 7, 2000, 3]),
        active=[0, 2, 3],
        prompts=[text(30), text(5), text(200), text(1)],
        outputs=[text(9), text(3), text(60), text(2)],
        drafts=drafts,
    )


def left(rows: Rows, device: str) -> Tensor:
    """The logits as the kernel leaves them."""
    sampling, vocab = rows.asked, rows.logits.shape[-1]
    b, slots = rows.buffers(device)
    choices = greedy(rows.logits).to(device)
    logits = rows.logits.to(device).clone()
    kernel = TokenDraw(sampling, vocab, rows.per_slot).penalise
    assert kernel is not None
    at = slots.rows(len(rows.active), rows.per_slot)
    kernel(at, slots, b, logits=logits, choices=choices)
    assert torch.equal(choices.cpu(), greedy(logits))
    assert not b.best.any() and not b.finished.any()
    return logits.cpu()


@pytest.mark.parametrize("per_slot", [1, 2, 8])
@pytest.mark.parametrize("name", ASKED)
def test_logits_are_left_as_the_reference_has_them_rounded_once(device: str, name: str, per_slot: int) -> None:
    rows = several(ASKED[name], per_slot)
    before = rows.logits.double().numpy()
    wanted = [penalised(row.copy(), rows.asked, h) for row, h in zip(before, rows.histories(), strict=True)]
    assert torch.equal(left(rows, device), torch.from_numpy(np.stack(wanted)).float())


@pytest.mark.parametrize("name", ASKED)
def test_every_row_draws_the_token_that_the_reference_draws(device: str, name: str) -> None:
    rows = several(ASKED[name])
    assert rows.drawn(device) == rows.expected()


def test_the_repetition_penalty_is_that_of_transformers(device: str) -> None:
    rows = several(REPEATED, 1)
    processor = RepetitionPenaltyLogitsProcessor(1.3)
    for n, slot in enumerate(rows.active):
        text = torch.tensor([[*rows.prompts[slot], *rows.outputs[slot]]])
        wanted = processor(text, rows.logits[n : n + 1].double())
        assert torch.equal(left(rows, device)[n], wanted[0].float())


def test_a_row_counts_the_drafts_before_it_and_none_after(device: str) -> None:
    sampling, token = Sampling(frequency_penalty=1.0), 17
    rows = Rows(sampling, torch.zeros(4, 40), [1], [9], prompts=[[3]], outputs=[[token]], drafts=[[token, 5, token]])
    assert left(rows, device)[:, token].tolist() == [-1.0, -2.0, -2.0, -3.0]
    assert left(rows, device)[:, 5].tolist() == [0.0, 0.0, -1.0, -1.0]


def test_logits_that_are_not_finite_stay_so(device: str) -> None:
    rows = several(ASKED["all"], 1)
    rows.logits[1, rows.outputs[2][0]] = float("nan")
    assert left(rows, device)[1].isnan().sum() == 1


def test_tokens_are_counted_once_for_each_time_that_they_were_emitted(device: str) -> None:
    rows = several(ALL)
    b, slots = rows.buffers(device)
    for slot, (prompt, output) in enumerate(zip(rows.prompts, rows.outputs, strict=True)):
        known, history = History.of(prompt, output if slot in rows.active else (), VOCAB), b.history[slot].cpu().numpy()
        assert ((history < 0) == known.prompt).all()
        assert (history & 0x7FFFFFFF).tolist() == known.output.tolist()
    slots.counts.fill_(3)
    slots.pending[:, :3] = torch.tensor([8, 2999, 8])
    before = b.history.clone()
    CountTokens(VOCAB, rows.per_slot)(slots.rows(len(rows.active), 1), slots, b)
    more = (b.history - before).cpu()
    assert more[[0, 2, 3], 8].tolist() == [2, 2, 2] and more[[0, 2, 3], 2999].tolist() == [1, 1, 1]
    assert int(more.sum()) == 9  # the slot that does not decode counts nothing


def test_a_text_that_begins_again_keeps_its_prompt_alone(device: str) -> None:
    rows = several(ALL)
    b, _ = rows.buffers(device)
    b.forget_outputs()
    assert {*b.history.flatten().tolist()} == {0, IN_PROMPT}
    b.begin_texts([[5, 6, 5]])
    assert b.history.nonzero().tolist() == [[0, 5], [0, 6]]


def test_memory_is_taken_where_penalties_are_asked_for() -> None:
    with_them, without = (SamplingBuffers.allocate(sampling, VOCAB, 2, 8, "meta") for sampling in (ALL, Sampling()))
    assert tuple(with_them.history.shape) == (2, VOCAB) and not len(without.history)


def test_one_kernel_puts_bias_and_penalties() -> None:
    assert list(TokenDraw(ASKED["bias"], VOCAB, 4).kernels()) == ["penalise", "draw"]
    assert list(TokenDraw(ASKED["greedy"], VOCAB, 4).kernels()) == ["penalise"]
    assert list(TokenDraw(ASKED["filters"], VOCAB, 4).kernels()) == ["penalise", "weigh", "cut", "draw"]
    assert list(TokenDraw(ASKED["bias"], VOCAB, 4, draft=True).kernels()) == ["draw"]


def test_operands_that_the_launcher_was_not_made_for_are_refused(device: str) -> None:
    rows = several(ALL)
    b, slots = rows.buffers(device)
    groups, operands = (slots.rows(3, 4), slots, b), {"logits": rows.logits.to(device), "choices": b.best}
    settings: dict[str, Any] = {"repetition": 1.1, "presence": 0.0, "frequency": 0.0}
    with pytest.raises(ValueError, match="penalise_rows: bias is missing: the kernel is compiled for BIASED"):
        PenaliseRows(VOCAB, 4, **settings, biased=True)(*groups, **operands, bias=None)
    with pytest.raises(ValueError, match=r"logits: .* \[12, 3001\] is needed"):
        PenaliseRows(VOCAB + 1, 4, **settings, biased=False)(*groups, **operands)
