"""Drafts that the kernels verify by rejection: what they accept and draw is what `specgate.sampling` does, and fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.rejection.launchers import DraftedRows, SumRows
from specgate.backends.eagle3.cupy.kernels.state.launchers import Accept
from specgate.backends.eagle3.cupy.kernels.state.slots import Fault
from specgate.backends.eagle3.cupy.memory.model import columns_of
from specgate.backends.eagle3.cupy.memory.sampling import SamplingBuffers
from specgate.backends.eagle3.cupy.step.token_draw import Rejection, TokenDraw
from specgate.contract import Sampling
from specgate.sampling.distributions import over_target
from specgate.sampling.keys import Floats, Integers
from specgate.sampling.rejection import draft_sample, verify_by_rejection
from specgate.sampling.target import softmax, target_distribution
from tests.eagle3.cupy.kernels.faults import REJECTION
from tests.eagle3.cupy.kernels.sampling.drawing import Rows, greedy

VOCAB, COLUMNS = 3000, 900
"""Two blocks of the target's row, one of the draft's."""
ASKED = {
    "as it is": Sampling(method="rejection"),
    "cool": Sampling(temperature=0.37, seed=2**64 - 3, method="rejection"),
    "hot": Sampling(temperature=4.0, seed=17, method="rejection"),
    "nearly greedy": Sampling(temperature=1e-3, method="rejection"),
    "top-k": Sampling(top_k=40, method="rejection"),
    "top-p": Sampling(top_p=0.8, temperature=1.3, method="rejection"),
    "min-p": Sampling(min_p=0.02, temperature=1.5, method="rejection"),
    "all filters and a bias": Sampling(
        *(0.8, 0.9, 60, 0.01), logit_bias=((3, 4.0), (77, -100.0)), seed=5, method="rejection"
    ),
    "penalties": Sampling(
        repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.25, seed=9, method="rejection"
    ),
}


@dataclass
class Verified:
    """A step of `slots` requests, of which `active` decode, with K drafts each. `target` float32 [A · (K + 1), V] and
    `draft` float32 [A, K, W] are the logits of its rows, `ids` int64 [W] the tokens of the draft's columns.
    """

    asked: Sampling
    rows: Rows
    draft: Tensor
    ids: Tensor
    found: tuple[list[int], list[list[int]]] = field(init=False)

    @property
    def k(self) -> int:
        return self.draft.shape[1]

    def drawn_from(self) -> Floats:
        """The draft's distributions over the target's vocabulary [A, K, V]."""
        shares = np.stack(
            [[softmax(row / self.asked.temperature) for row in text] for text in self.draft.double().numpy()]
        )
        return over_target(shares, self.ids.numpy(), self.rows.logits.shape[-1])

    def drafts(self) -> Integers:
        """[A, K], as the reference draws them."""
        law, keys = self.drawn_from(), self.rows.keys().of(np.arange(len(self.draft)) * (self.k + 1))
        return np.stack([draft_sample(law[:, i], keys.after(i), coupled=False) for i in range(self.k)], axis=1)

    def expected(self) -> tuple[list[int], list[list[int]]]:
        """(accepted [A], the tokens that each slot emits), by the reference."""
        k, active = self.k, len(self.draft)
        histories = list(self.rows.histories()) if self.asked.penalises else [None] * active * (k + 1)
        law = np.stack(
            [
                target_distribution(row, self.asked, history)
                for row, history in zip(self.rows.logits.numpy(), histories, strict=True)
            ]
        ).reshape(active, k + 1, -1)
        keys = self.rows.keys().of(np.arange(active) * (k + 1))
        accepted, tokens = verify_by_rejection(law, self.drawn_from(), self.drafts(), keys)
        return accepted.tolist(), [text[: n + 1] for n, text in zip(accepted, tokens.tolist(), strict=True)]

    def run(
        self, device: str, change: Callable[[Rejection], None] = lambda _: None
    ) -> tuple[list[int], list[list[int]], SamplingBuffers]:
        """The same by the kernels, and what they have left. All that shall be zero afterwards is."""
        vocab, width, active, count = (
            self.rows.logits.shape[-1],
            len(self.ids),
            self.rows.active,
            len(self.rows.requests),
        )
        b, slots = self.rows.buffers(device)
        own = SamplingBuffers.allocate(self.asked, vocab, count, count * (self.k + 1), device, draft_vocab=width)
        b = replace(b, **{name: getattr(own, name) for name in ("draft_logits", "sums", "partial", "finished")})
        b.draft_logits.fill_(float("nan"))
        b.draft_logits[:, : len(active)] = self.draft.transpose(0, 1).to(device)
        slots.drafts[list(active), : self.k] = torch.from_numpy(self.drafts()).int().to(device)
        logits = torch.full((count * (self.k + 1), vocab), float("nan"), device=device)
        logits[: len(self.rows.logits)] = self.rows.logits
        choices = torch.zeros(len(logits), dtype=torch.int64, device=device)
        choices[: len(self.rows.logits)] = greedy(self.rows.logits).to(device)
        rows = slots.rows(count, self.k + 1)
        made = {"logits": logits, "choices": choices}
        TokenDraw(self.asked, vocab, self.k + 1, races=False)(rows, b, slots, **made)
        rejection = Rejection(self.asked, DraftedRows(vocab, width, self.k, count, self.k + 1))
        change(rejection)
        rejection(rows, slots, b, **made, draft_columns=columns_of(self.ids, vocab).to(device))
        for name in ("best", "finished", "bucket_sums", "list_sizes"):
            assert not getattr(b, name).any(), name
        Accept(self.k + 1, self.k + 1)(rows, slots, choices=choices)
        self.fault = Fault(int(slots.fault))
        accepted = slots.accepted[list(active)].tolist()
        tokens = slots.target_tokens[list(active)].tolist()
        return accepted, [text[: n + 1] for n, text in zip(accepted, tokens, strict=True)], b


def several(sampling: Sampling, k: int = 3, texts: int = 4, noise: float = 1.0, seed: int = 0) -> Verified:
    """Steps of `texts` slots and one that does not decode, whose draft is the target's logits and noise, in part."""
    source = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(texts * (k + 1), VOCAB, generator=source)
    ids = torch.randperm(VOCAB, generator=source)[:COLUMNS]
    judged = logits.view(texts, k + 1, VOCAB)[:, :k]
    draft = judged[..., ids] + noise * torch.randn(texts, k, COLUMNS, generator=source)
    slots, numbers = texts + 1, np.random.default_rng(seed)
    rows = Rows(
        *(sampling, logits, [int(n) for n in numbers.integers(0, 2**64, slots, np.uint64)]),
        [int(n) for n in numbers.integers(1, 2**29, slots)],
        active=[n for n in range(slots) if n != 1],
        prompts=[numbers.integers(0, VOCAB, 40).tolist() for _ in range(slots)],
        outputs=[numbers.integers(0, VOCAB, 9).tolist() for _ in range(slots)],
    )
    made = Verified(sampling, rows, draft, ids)
    drafts = iter(made.drafts().tolist())
    rows.drafts = [next(drafts) if n in rows.active else [0] * k for n in range(slots)]
    return made


@pytest.mark.parametrize(
    ("name", "k"), [*((name, 3) for name in ASKED), ("as it is", 7), ("all filters and a bias", 1), ("penalties", 7)]
)
def test_what_is_accepted_and_drawn_is_what_the_reference_accepts_and_draws(device: str, name: str, k: int) -> None:
    taken = list[int]()
    for seed in range(2):
        step = several(ASKED[name], k, noise=0.7, seed=seed)
        accepted, tokens, _ = step.run(device)
        assert (accepted, tokens) == step.expected()
        assert not step.fault
        taken += accepted
    assert min(taken) < k  # some are rejected


@pytest.mark.parametrize("noise", [0.0, 0.05, 3.0])
def test_so_it_is_for_drafts_of_any_quality(device: str, noise: float) -> None:
    step = several(ASKED["as it is"], 3, texts=30, noise=noise)
    accepted, tokens, _ = step.run(device)
    assert (accepted, tokens) == step.expected()
    assert len({*accepted}) > 1


def test_a_draft_that_is_the_target_is_always_accepted(device: str) -> None:
    step = several(ASKED["hot"], 3)
    step.ids = torch.arange(VOCAB)
    step.draft = step.rows.logits.view(4, 4, VOCAB)[:, :3].contiguous()
    accepted, tokens, _ = step.run(device)
    assert accepted == [3] * 4
    assert (accepted, tokens) == step.expected()


def test_what_a_filter_removes_is_rejected_whatever_the_draft_says(device: str) -> None:
    step = several(replace(ASKED["top-k"], top_k=1), 3, noise=8.0)
    accepted, tokens, _ = step.run(device)
    assert (accepted, tokens) == step.expected()
    best = step.rows.logits.argmax(dim=1).view(4, 4)
    assert all(text == best[n, : len(text)].tolist() for n, text in enumerate(tokens))


def test_a_step_does_not_depend_on_the_slots_beside_it(device: str) -> None:
    step = several(ASKED["all filters and a bias"], 3)
    _, together, _ = step.run(device)
    for n, slot in enumerate(step.rows.active):
        rows = Rows(
            *(step.asked, step.rows.logits[4 * n : 4 * n + 4], [step.rows.requests[slot]]), [step.rows.positions[slot]]
        )
        assert Verified(step.asked, rows, step.draft[n : n + 1], step.ids).run(device)[1] == [together[n]]


def test_sums_are_those_of_the_two_distributions(device: str) -> None:
    step = several(ASKED["top-p"], 2)
    *_, b = step.run(device)
    heat, drafts = step.asked.temperature, step.drafts()
    at = {int(token): column for column, token in enumerate(step.ids)}
    for n in range(4):
        sums = b.sums[4 * n : 4 * n + 4].tolist()
        for t in range(2):
            row = step.rows.logits[3 * n + t].double().numpy()
            kept = target_distribution(row, step.asked) > 0
            assert sums[t] == pytest.approx(np.exp((row[kept] - row.max()) / heat).sum(), rel=1e-13)
            row = step.draft[n, t].double().numpy()
            assert sums[2 + t] == pytest.approx(np.exp((row - row[at[drafts[n, t]]]) / heat).sum(), rel=1e-13)


def test_a_row_that_is_not_finite_is_a_fault(device: str) -> None:
    step = several(ASKED["as it is"], 3)
    step.rows.logits[9, 5] = float("nan")
    step.run(device)
    assert step.fault == Fault.TARGET_NOT_FINITE


def fit(device: str, draws: int, change: Callable[[Rejection], None] = lambda _: None) -> float:
    """p of the chi-square test of the first two tokens that steps of two drafts emit, against the target's own."""
    vocab, sampling, k = 12, Sampling(temperature=1.2, top_k=10, seed=4, method="rejection"), 1
    source = torch.Generator().manual_seed(5)
    row = 1.5 * torch.randn(vocab, generator=source)
    ids = torch.tensor([7, 2, 9, 4, 0, 11, 5])
    draft = row[ids] + 1.0 * torch.randn(len(ids), generator=source)
    counts, batch = np.zeros(vocab), 1_000
    for first in range(0, draws, batch):
        rows = Rows(sampling, row.expand(batch * (k + 1), -1).contiguous(), range(first, first + batch), [9] * batch)
        _, tokens, _ = Verified(sampling, rows, draft.expand(batch, k, -1).contiguous(), ids).run(device, change)
        counts += np.bincount([text[0] for text in tokens], minlength=vocab)
    law = target_distribution(row.numpy(), sampling)
    if counts[law == 0].any():
        return 0.0
    kept = law > 0
    return float(stats.chisquare(counts[kept], draws * law[kept]).pvalue)


def test_what_is_emitted_has_the_targets_distribution(device: str) -> None:
    assert fit(device, 1_000 if device == "cpu" else 200_000) > 1e-4


@pytest.mark.parametrize("name", REJECTION)
def test_no_fault_of_a_verify_has_it(device: str, name: str) -> None:
    assert fit(device, 1_000 if device == "cpu" else 200_000, REJECTION[name]) < 1e-6


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [128_256, 201_088])
def test_whole_vocabularies_are_verified_as_by_the_reference(vocab: int) -> None:
    with torch.inference_mode():
        source = torch.Generator().manual_seed(1)
        logits, ids = 3 * torch.randn(16, vocab, generator=source), torch.randperm(vocab, generator=source)[:32_000]
        draft = logits.view(4, 4, vocab)[:, :3, ids] + 0.7 * torch.randn(4, 3, 32_000, generator=source)
        for name in ("as it is", "all filters and a bias"):
            rows = Rows(ASKED[name], logits, [1, 2, 2**63, 2**64 - 1], [7, 70, 700, 7000])
            step = Verified(ASKED[name], rows, draft, ids)
            accepted, tokens, _ = step.run("cuda")
            assert (accepted, tokens) == step.expected()


def test_what_a_launcher_was_not_made_for_is_refused() -> None:
    step = several(ASKED["as it is"], 3)
    b, slots = step.rows.buffers("cpu")
    rows, d = slots.rows(5, 4), DraftedRows(VOCAB, COLUMNS, 3, 5, 4)
    columns, choices = columns_of(step.ids, VOCAB), torch.zeros(20, dtype=torch.int64)
    logits = torch.zeros(20, VOCAB)
    groups, operands = (rows, slots, b), {"logits": logits, "choices": choices, "draft_columns": columns}
    with pytest.raises(ValueError, match="sum_rows: cuts is missing: the kernel is compiled for FILTERED"):
        SumRows(d, 1.0, filtered=True)(*groups, **operands, cuts=None)
    with pytest.raises(ValueError, match="4 rows per slot for a launcher of 3"):
        SumRows(replace(d, drafts=2), 1.0, filtered=False)(*groups, **operands)


def test_memory_is_taken_where_drafts_are_rejected() -> None:
    drawn = ASKED["as it is"]
    sampling = {
        "rejection": drawn,
        "coupled": replace(drawn, method="coupled"),
        "greedy": replace(drawn, temperature=0.0),
    }
    kept = {
        name: SamplingBuffers.allocate(how, VOCAB, 2, 8, "meta", draft_vocab=COLUMNS) for name, how in sampling.items()
    }
    assert tuple(kept["rejection"].draft_logits.shape) == (3, 2, COLUMNS)
    assert tuple(kept["rejection"].partial.shape) == (12, 2) and len(kept["rejection"].finished) == 12
    for name in ("coupled", "greedy"):
        assert not kept[name].draft_logits.numel() and not kept[name].sums.numel() and len(kept[name].finished) == 8
    assert not SamplingBuffers.allocate(drawn, VOCAB, 2, 8, "meta").draft_logits.numel()  # there is no draft


def test_columns_lead_back_from_tokens_to_the_draft() -> None:
    assert columns_of(torch.tensor([4, 0, 2]), 6).tolist() == [1, -1, 2, -1, 0, -1]
