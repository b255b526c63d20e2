"""Drawing tokens at a temperature in place of the greedy choice.

The arithmetic is `specgate.sampling`, in float64 on the host. Here it meets the loop's tensors and slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specgate.backends.eagle3.lib.kv.modes import KvMode
from specgate.backends.eagle3.lib.pair import DraftCheckpoint
from specgate.backends.eagle3.lib.weights import Vocabulary
from specgate.backends.eagle3.reference.draft import EagleDrafter, draft_head
from specgate.backends.eagle3.reference.drafters import Drafter
from specgate.backends.eagle3.reference.ops import check_finite
from specgate.backends.eagle3.reference.state import Slots
from specgate.contract import Budget, Role, Sampling
from specgate.contract.draws import TokenLaw
from specgate.contract.protocols import Decoded
from specgate.errors import BackendError
from specgate.sampling.distributions import over_target
from specgate.sampling.history import History
from specgate.sampling.keys import Floats, Keys, requests_of
from specgate.sampling.rejection import draft_sample, sample, scores, verify_by_rejection, verify_coupled
from specgate.sampling.target import checked, log_softmax, point_mass, softmax, target_distribution


class Sampler:
    """Draws tokens by these settings. `begin` comes before any draw of new prompts."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.prompts: list[tuple[int, ...]] = []
        self.requests: NDArray[np.uint64] = np.empty(0, np.uint64)

    def begin(self, prompts: Sequence[Sequence[int]], requests: NDArray[np.uint64] | None = None) -> None:
        """These are the prompts of the slots. `requests` uint64 [B]: who they are, by default known by their text."""
        self.prompts = [tuple(map(int, prompt)) for prompt in prompts]
        self.requests = requests_of(self.prompts) if requests is None else requests

    def keys(self, positions: Sequence[int], slots: Sequence[int]) -> Keys:
        """Keys of `slots`, whose next tokens are at these positions of their texts."""
        return Keys(self.sampling.seed, self.requests[list(slots)], np.array(positions, np.int64))

    def first(self, logits: Tensor) -> Tensor:
        """The tokens [B] that follow the prompts, from the logits [B, V] of their last rows."""
        rows = rows_of(logits)
        slots = range(len(rows))
        target = np.stack([self.distribution(rows[s], self.history(s, (), rows.shape[-1])) for s in slots])
        tokens = sample(target, self.keys([len(p) for p in self.prompts], slots))
        return torch.from_numpy(tokens).to(logits.device)

    def verify(self, logits: Tensor, drafts: Tensor, slots: Slots, proposed: Floats | None) -> tuple[Tensor, Tensor]:
        """(tokens [B, K + 1], accepted [B]) of `drafts` [B, K] by the target's logits [B, K + 1, V].

        `proposed` [B, K, V]: the distributions that the drafts were drawn from; None where they were not drawn. Slots
        that have finished get tokens without a meaning.
        """
        batch, k = drafts.shape
        tokens, accepted = np.zeros((batch, k + 1), np.int64), np.zeros(batch, np.int64)
        if at := slots.active.nonzero().flatten().tolist():
            rows, active_drafts = rows_of(logits[at]), drafts[at].cpu().numpy()
            target = np.stack([self.row_distributions(rows[i], s, slots, active_drafts[i]) for i, s in enumerate(at)])
            keys = self.keys([int(slots.length[s]) + 1 for s in at], at)
            if self.sampling.method == "coupled":
                result = verify_coupled(target, active_drafts, keys)
            else:
                draft = point_masses(active_drafts, rows.shape[-1]) if proposed is None else proposed[at]
                result = verify_by_rejection(target, draft, active_drafts, keys)
            tokens[at], accepted[at] = result.tokens, result.accepted
        return torch.from_numpy(tokens).to(drafts.device), torch.from_numpy(accepted).to(drafts.device)

    def of_tree(self, logits: Tensor, drafts: Tensor, mask: Tensor, slots: Slots) -> Tensor:
        """Tokens [B, R] behind the rows of trees with `logits` [B, R, V], each drawn at the position of its depth.

        `drafts` [B, N] and `mask` [B, R, R]: see `tree.Choose`. Slots that have finished get tokens without a meaning.
        """
        tokens = torch.zeros_like(mask[:, 0], dtype=torch.long)
        for s in slots.active.nonzero().flatten().tolist():
            rows, above = rows_of(logits[s]), mask[s].cpu()
            paths = [drafts[s].cpu()[seen[1:]].tolist() for seen in above]
            output = slots.out[s, : int(slots.emitted[s])].tolist() if self.sampling.penalises else []
            histories = [self.history(s, [*output, *path], rows.shape[-1]) for path in paths]
            target = np.stack([self.distribution(row, h) for row, h in zip(rows, histories, strict=True)])
            keys = self.keys([int(slots.length[s]) + 1 + len(path) for path in paths], [s] * len(paths))
            tokens[s] = torch.from_numpy(sample(target, keys)).to(tokens.device)
        return tokens

    def row_distributions(self, rows: Floats, slot: int, slots: Slots, drafts: NDArray[np.int64]) -> Floats:
        """The target's distribution [K + 1, V] after the slot's text and each of its drafts."""
        output = slots.out[slot, : int(slots.emitted[slot])].tolist() if self.sampling.penalises else ()
        before = self.history(slot, output, rows.shape[-1])
        histories = [None] * len(rows) if before is None else list(before.rows(drafts.tolist()))
        return np.stack([self.distribution(row, h) for row, h in zip(rows, histories, strict=True)])

    def distribution(self, row: Floats, history: History | None) -> Floats:
        """The target's distribution [V] from a row of logits [V]."""
        return target_distribution(row, self.sampling, history)

    def history(self, slot: int, output: Sequence[int], vocabulary: int) -> History | None:
        """Return the tokens that penalties count in the slot's text; None without penalties."""
        return History.of(self.prompts[slot], output, vocabulary) if self.sampling.penalises else None

    def drawn_scores(self, logits: Tensor, slot: int, output: Sequence[int]) -> Tensor:
        """Scores [V] whose largest is the token drawn after the slot's prompt and `output`, from the logits [V] there.

        They are those of `coupling.scores`. At temperature 0 they are the logits.
        """
        if self.sampling.temperature == 0:
            return logits
        row = rows_of(logits)
        target = self.distribution(row, self.history(slot, output, len(row)))
        keys = self.keys([len(self.prompts[slot]) + len(output)], [slot])
        return torch.from_numpy(scores(target[None], keys)[0])


def rows_of(logits: Tensor) -> Floats:
    """Logits as float64 on the host; exact."""
    rows: Floats = logits.to("cpu", torch.float64).numpy()
    return rows


def point_masses(drafts: NDArray[np.int64], vocabulary: int) -> Floats:
    """The distributions [B, K, V] of drafts that were not drawn: each has all of it."""
    if (drafts < 0).any():
        raise BackendError("a draft that is no token cannot be verified by rejection", hint="sampling.method: coupled")
    masses = np.zeros((*drafts.shape, vocabulary))
    np.put_along_axis(masses, drafts[..., None], 1.0, axis=-1)
    return masses


class LogProbabilities:
    """Sees what each step is about to commit, as `eagle3.logit_watch.LogitWatch` does, and keeps the model's own
    log-probability of every token, by slot.
    """

    complete = False
    """It sees every step."""

    def __init__(self, slots: int) -> None:
        self.by_slot: list[list[tuple[int, float]]] = [[] for _ in range(slots)]

    def see(self, slot: int, first: int, tokens: Sequence[int], logits: Tensor) -> None:
        """As `loop.Watch.see`."""
        for token, row in zip(tokens, rows_of(logits), strict=False):
            self.by_slot[slot].append((token, float(log_softmax(checked(row))[token])))


class Loop(Protocol):
    """The part of `loop.SpeculativeLoop` that drawing uses."""

    sampler: Sampler | None
    drafter: Drafter | None
    max_batch: int
    last_rows: tuple[Tensor, tuple[Tensor | None, ...]]
    first_token: Tensor
    length: Tensor

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int: ...

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded: ...

    def _after(self, slot: int, continuation: Sequence[int]) -> Tensor: ...


@torch.inference_mode()
def draw_texts(
    loop: Loop, role: Role, prompt: Sequence[int], tokens: int, first: int, count: int
) -> tuple[tuple[int, ...], ...]:
    """As `protocols.DrawsTexts.draw`: every slot gets the prompt, which is prefilled once."""
    sampler, drafter, slots = sampler_of(loop), loop.drafter if role.speculative else None, loop.max_batch
    loop.prefill([prompt] * slots, draft=role.speculative)
    logits, features = loop.last_rows
    texts = list[tuple[int, ...]]()
    for start in range(first, first + count, slots):
        sampler.begin([tuple(prompt)] * slots, np.arange(start, start + slots, dtype=np.uint64))
        loop.first_token = sampler.first(logits)
        if drafter:
            drafter.prefilled(features, loop.first_token, loop.length)
        texts += loop.decode(role, Budget(new_tokens=tokens), ()).tokens
    return tuple(texts[:count])


@torch.inference_mode()
def show_distribution(loop: Loop, prompt: Sequence[int], continuation: Sequence[int], least: float) -> TokenLaw:
    """As `protocols.ShowsDistribution.distribution`."""
    sampler = sampler_of(loop)
    loop.prefill([prompt], draft=False)
    row = rows_of(loop._after(0, continuation))
    probabilities = sampler.distribution(row, sampler.history(0, continuation, len(row)))
    support = np.flatnonzero((probabilities >= least) & (probabilities > 0))
    return TokenLaw(tuple(continuation), tuple(support.tolist()), tuple(probabilities[support].tolist()))


def sampler_of(loop: Loop) -> Sampler:
    """The loop's sampler. Raises BackendError where it decodes greedily."""
    if loop.sampler is None:
        raise BackendError("the engine was opened to decode greedily: it draws nothing")
    return loop.sampler


class SampledDrafter(EagleDrafter):
    """An EAGLE-3 draft that draws at the target's temperature. It applies none of the target's filters and penalties:
    tokens that these rule out are rejected.

    `proposed` [B, K, V]: the distributions that the last chain was drawn from, over the target's vocabulary.
    """

    def __init__(
        self,
        draft: DraftCheckpoint,
        target: Vocabulary,
        sampler: Sampler,
        *,
        max_batch: int,
        max_positions: int,
        device: str,
        kv: KvMode | None = None,
    ) -> None:
        super().__init__(draft, target, max_batch=max_batch, max_positions=max_positions, device=device, kv=kv)
        self.sampler, self.vocabulary = sampler, len(target.embed)
        self.target_ids = self.weights.target_ids.cpu().numpy()
        self.proposed: Floats = np.empty((0, 0, 0))

    def chain(self, slots: Slots, k: int) -> Tensor:
        assert self.pending is not None
        keys = self.sampler.keys((slots.length + 1).tolist(), range(len(slots.length)))
        token, hidden, distribution = self._draw(self._extend(self.pending), keys)
        tokens, proposed, position = [token], [distribution], self.pending.start + self.pending.count
        for i in range(1, k):
            stream = self.take_step(token[:, None], hidden[:, None], position[:, None])[:, 0]
            token, hidden, distribution = self._draw(stream, keys.after(i))
            tokens.append(token)
            proposed.append(distribution)
            position = position + 1
        self.proposed = np.stack(proposed, axis=1)
        return torch.stack(tokens, dim=1)

    def _draw(self, stream: Tensor, keys: Keys) -> tuple[Tensor, Tensor, Floats]:
        """(draft tokens [B], the hidden states [B, Hd] that feed the next step, their distributions [B, V])."""
        normed, logits = draft_head(self.weights, self.geometry, stream)
        check_finite(logits, "the draft's logits")
        rows, sampling = rows_of(logits.float()), self.sampler.sampling
        shares = np.stack([self._share(row) for row in rows])
        spread = over_target(shares, self.target_ids, self.vocabulary)
        tokens = draft_sample(spread, keys, coupled=sampling.method == "coupled")
        hidden = normed if self.geometry.norm_output else stream
        return torch.from_numpy(tokens).to(stream.device), hidden, spread

    def _share(self, logits: Floats) -> Floats:
        """The draft's probabilities [W] of its own tokens, from `logits` [W]."""
        temperature = self.sampler.sampling.temperature
        if not temperature:
            return point_mass(int(logits.argmax()), len(logits))
        return softmax((logits - logits.max()) / temperature)
