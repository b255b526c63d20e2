"""Steps of reserve, draw, accept and commit over Markov chains: coupled speculation emits plain sampling's tokens, and
speculation by rejection those of the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.engine.decode_run import StartState, StopRule
from specgate.backends.eagle3.cupy.engine.sampled import name_requests
from specgate.backends.eagle3.cupy.kernels.heads import BLOCK
from specgate.backends.eagle3.cupy.kernels.penalties.launchers import CountTokens
from specgate.backends.eagle3.cupy.kernels.rejection.launchers import DraftedRows
from specgate.backends.eagle3.cupy.kernels.state.launchers import Accept, Commit, KVReserve
from specgate.backends.eagle3.cupy.kernels.state.slots import KVBlocks, Slots
from specgate.backends.eagle3.cupy.memory.model import columns_of
from specgate.backends.eagle3.cupy.memory.sampling import SamplingBuffers, rejects
from specgate.backends.eagle3.cupy.memory.sizes import Sizes, assign_blocks
from specgate.backends.eagle3.cupy.step.token_draw import Rejection, TokenDraw
from specgate.contract import Sampling
from specgate.sampling.distributions import over_target
from specgate.sampling.history import History
from specgate.sampling.keys import Floats, Keys, requests_of
from specgate.sampling.rejection import draft_sample, sample, verify_by_rejection
from specgate.sampling.target import softmax, target_distribution
from tests.eagle3.cupy.kernels.device import index_of
from tests.eagle3.cupy.kernels.sampling.drawing import greedy

VOCAB, COLUMNS, LIMIT, ENDS = 120, 70, 32, (7, 20, 50)
"""Tokens of `ENDS` end a text, so that slots end at different steps."""
TEXTS = [[int(t) for t in np.random.default_rng(n).integers(0, VOCAB, n)] for n in (3, BLOCK, 1, 17, 66, 9, 64, 30)]
PLAIN = Sampling(temperature=1.1, seed=3)
FILTERED = Sampling(temperature=0.9, top_k=30, top_p=0.93, min_p=0.002, logit_bias=((5, 1.5), (11, -100.0)), seed=4)
PENALISED = Sampling(repetition_penalty=1.5, presence_penalty=1.0, frequency_penalty=0.5, seed=5)
FREQUENT = replace(FILTERED, frequency_penalty=-0.25)
"""What was emitted comes more often. So a draft that was counted, or counted twice, would show."""
COLD = replace(PENALISED, temperature=0.0, repetition_penalty=0.75)


class Chains:
    """A target and a draft whose logits depend on the last token alone: rows of two tables. The draft has COLUMNS of
    the target's tokens, and nearly its logits.
    """

    def __init__(self, device: str) -> None:
        generator = torch.Generator().manual_seed(0)
        self.target = 2 * torch.randn(VOCAB, VOCAB, generator=generator).to(device)
        self.ids = torch.randperm(VOCAB, generator=generator)[:COLUMNS].int().to(device)
        self.columns = columns_of(self.ids.long(), VOCAB)
        noise = 0.3 * torch.randn(VOCAB, COLUMNS, generator=generator).to(device)
        self.draft = self.target[:, self.ids.long()] + noise


class Machine:
    """The kernels over state that begins with `prompts`. What two models would compute are rows of `chains`."""

    def __init__(self, chains: Chains, prompts: Sequence[list[int]], k: int, sampling: Sampling, device: str) -> None:
        self.chains, self.prompts, self.k, self.asked = chains, prompts, k, sampling
        sizes = Sizes(slots=8, positions=160, max_rows=8, sampling=sampling)
        layout = assign_blocks([[slot] * len(prompt) for slot, prompt in enumerate(prompts)], sizes)
        self.slots = Slots.allocate(sizes.slots, sizes.max_rows, sizes.positions, device)
        self.kv = KVBlocks.allocate(sizes.slots, sizes.max_blocks, sizes.blocks, device)
        self.kv.copy_(layout.kv)
        self.b = SamplingBuffers.allocate(sampling, VOCAB, sizes.slots, sizes.rows, device, draft_vocab=COLUMNS)
        name_requests(self.b, prompts)
        self.reserve = KVReserve(sizes.slots, k + 1, sizes.positions, sizes.max_blocks, sizes.blocks)
        self.draw, self.draw_draft = (
            TokenDraw(sampling, VOCAB, sizes.max_rows),
            TokenDraw(sampling, COLUMNS, sizes.max_rows, draft=True),
        )
        drafted = DraftedRows(VOCAB, COLUMNS, k, sizes.slots, sizes.max_rows)
        self.rejection = Rejection(sampling, drafted) if k and rejects(sampling) else None
        self.judge = TokenDraw(sampling, VOCAB, sizes.max_rows, races=self.rejection is None)
        self.count = CountTokens(VOCAB, sizes.max_rows) if sampling.penalises else None
        self.accept = Accept(k + 1, sizes.max_rows)
        self.commit = Commit(sizes.slots, sizes.max_rows, sizes.positions, sizes.max_blocks)

    def text(self) -> tuple[list[list[int]], float]:
        """What every slot emits, and how many drafts of a cycle are accepted, the mean."""
        count, rule = len(self.prompts), StopRule(ENDS, (), LIMIT)
        lengths = [len(prompt) for prompt in self.prompts]
        StartState(tuple(n - 1 for n in lengths), (0,) * count).rewind(self.slots, rule)
        last = torch.tensor([prompt[-1] for prompt in self.prompts], device=self.slots.length.device)
        first = self.drawn(self.chains.target[last], 1)
        StartState(tuple(lengths), tuple(first.tolist())).rewind(self.slots, rule)
        while int(self.slots.active_count):
            self.step()
            assert not self.slots.fault.any()
        log = self.slots.accepted_log[: int(self.slots.step), :count]
        out = [row[:n] for row, n in zip(self.slots.out.tolist(), self.slots.emitted.tolist(), strict=True)]
        return out[:count], float(log[log >= 0].double().mean())

    def drawn(self, logits: Tensor, per_slot: int) -> Tensor:
        """The target's draws of these rows, as choices' columns."""
        logits, choices = logits.clone(), greedy(logits).to(logits.device)
        rows = self.slots.rows(len(logits) // per_slot, per_slot)
        self.draw(rows, self.b, self.slots, logits=logits, choices=choices, offset=0)
        return index_of(choices)

    def step(self) -> None:
        self.reserve(self.kv, self.slots)
        listed, slots = self.slots.active[: int(self.slots.active_count)].long(), self.slots
        if self.count:
            self.count(slots.rows(len(listed), 1), slots, self.b)
        token, one = slots.last_token[listed].long(), slots.rows(len(listed), 1)
        for j in range(self.k):
            logits = self.chains.draft[token]
            choices = greedy(logits).to(logits.device)
            if self.rejection:
                self.b.draft_logits[j, : len(listed)] = logits
            drawn = {"logits": logits, "choices": choices, "target_ids": self.chains.ids}
            self.draw_draft(one, self.b, slots, **drawn, offset=j)
            token = self.chains.ids[index_of(choices)].long()
            slots.drafts[listed, j] = token.int()
        tokens = torch.cat((slots.last_token[listed, None], slots.drafts[listed, : self.k]), dim=1).long()
        logits = self.chains.target[tokens.flatten()]
        choices, rows = greedy(logits).to(logits.device), slots.rows(len(listed), self.k + 1)
        made = {"logits": logits, "choices": choices}
        self.judge(rows, self.b, slots, **made, offset=0)
        if self.rejection:
            self.rejection(rows, slots, self.b, **made, draft_columns=self.chains.columns)
        self.accept(rows, slots, choices=choices)
        self.commit(self.kv, slots)


def by_reference(chains: Chains, prompt: list[int], sampling: Sampling, limit: int = LIMIT) -> list[int]:
    """What `specgate.sampling` draws after `prompt`, token by token."""
    table, text = chains.target.double().cpu().numpy(), list[int]()
    while len(text) < limit and not {*text[-1:]} & {*ENDS}:
        history = History.of(prompt, text, VOCAB) if sampling.penalises else None
        law = target_distribution(table[(prompt + text)[-1]], sampling, history)
        keys = Keys(sampling.seed, requests_of([prompt]), np.array([len(prompt) + len(text)]))
        text.append(int(sample(law[None], keys)[0]))
    return text


@pytest.mark.parametrize(
    ("sampling", "steps"),
    [
        (PLAIN, [(8, 0), (8, 3), (1, 3), (4, 7), (2, 1)]),
        (FILTERED, [(8, 3), (3, 0)]),
        (PENALISED, [(8, 0), (8, 3), (1, 7)]),
        (FREQUENT, [(8, 3)]),
        (COLD, [(8, 2), (3, 0)]),
    ],
    ids=["temperature", "filters", "penalties", "penalties, filters and bias", "penalties at 0"],
)
def test_texts_are_plain_samplings_and_the_references_whatever_is_drafted(
    device: str, sampling: Sampling, steps: list[tuple[int, int]]
) -> None:
    """`steps`: (slots, drafts) of each run."""
    chains = Chains(device)
    wanted = [by_reference(chains, prompt, sampling) for prompt in TEXTS]
    assert len({len(text) for text in wanted}) > 2
    for batch, k in steps:
        result, accepted = Machine(chains, TEXTS[:batch], k, sampling, device).text()
        assert result == wanted[:batch], (batch, k)
        assert k < 3 or accepted > 0.4


def rejecting(chains: Chains, prompt: list[int], sampling: Sampling, k: int) -> list[int]:
    """What `specgate.sampling` emits after `prompt` with chains of `k` drafts that are verified by rejection."""
    target, draft = (table.double().cpu().numpy() for table in (chains.target, chains.draft))
    ids, text = chains.ids.long().cpu().numpy(), by_reference(chains, prompt, sampling, 1)
    while len(text) < LIMIT and not {*text[-1:]} & {*ENDS}:
        keys = Keys(sampling.seed, requests_of([prompt]), np.array([len(prompt) + len(text)]))
        shares, tokens = list[Floats](), [text[-1]]
        for j in range(k):
            shares.append(over_target(softmax(draft[tokens[-1]] / sampling.temperature), ids, VOCAB))
            tokens.append(int(draft_sample(shares[-1][None], keys.after(j), coupled=False)[0]))
        histories = History.of(prompt, text, VOCAB).rows(tokens[1:])
        law = [target_distribution(target[t], sampling, h) for t, h in zip(tokens, histories, strict=True)]
        verified = verify_by_rejection(np.stack(law)[None], np.stack(shares)[None], np.array([tokens[1:]]), keys)
        for token in verified.tokens[0, : verified.accepted[0] + 1].tolist():
            text.append(token)
            if token in ENDS:
                break
    return text[:LIMIT]


@pytest.mark.parametrize("sampling", [PLAIN, FREQUENT], ids=["temperature", "penalties, filters and bias"])
def test_by_rejection_texts_are_the_references_whatever_shares_a_step(device: str, sampling: Sampling) -> None:
    chains, by_rejection = Chains(device), replace(sampling, method="rejection")
    for k, batches in ((3, (8, 2)), (1, (5,))):
        wanted = [rejecting(chains, prompt, by_rejection, k) for prompt in TEXTS]
        for batch in batches:
            result, accepted = Machine(chains, TEXTS[:batch], k, by_rejection, device).text()
            assert result == wanted[:batch], (batch, k)
            assert k < 3 or accepted > 0.4
        assert wanted != [by_reference(chains, prompt, sampling) for prompt in TEXTS]


def test_a_step_without_drafts_draws_by_either_method_what_plain_sampling_draws(device: str) -> None:
    chains = Chains(device)
    texts = [
        Machine(chains, TEXTS, 0, replace(PLAIN, method=way), device).text()[0] for way in ("coupled", "rejection")
    ]
    assert texts[0] == texts[1]


def test_at_temperature_0_rejection_is_the_greedy_comparison(device: str) -> None:
    chains, cold = Chains(device), replace(COLD, method="rejection")
    result, _ = Machine(chains, TEXTS, 3, cold, device).text()
    assert result == [by_reference(chains, prompt, COLD) for prompt in TEXTS]


def test_a_draft_with_other_numbers_changes_no_token_but_is_accepted_less(device: str) -> None:
    chains = Chains(device)
    machine = Machine(chains, TEXTS, 3, PLAIN, device)
    result, coupled = machine.text()
    machine.draw_draft = TokenDraw(replace(PLAIN, seed=99), COLUMNS, 8, draft=True)
    again, apart = machine.text()
    assert result == again and apart < coupled - 0.3


def test_another_seed_draws_other_texts_and_equal_prompts_draw_equal_ones(device: str) -> None:
    chains, prompts = Chains(device), [TEXTS[0], TEXTS[3], TEXTS[0]]
    result, _ = Machine(chains, prompts, 2, PLAIN, device).text()
    assert result[0] == result[2] != result[1]
    assert Machine(chains, prompts, 2, replace(PLAIN, seed=5), device).text()[0][0] != result[0]
