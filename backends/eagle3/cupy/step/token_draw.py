"""Kernels that draw a row's token in place of its greedy choice, and those that verify drafts by rejection."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.penalties.launchers import PenaliseRows
from specgate.backends.eagle3.cupy.kernels.rejection.launchers import DraftedRows, SumRows, VerifyDrafts
from specgate.backends.eagle3.cupy.kernels.sampling.launchers import BiasRows, CutRows, DrawRows, Purpose, WeighRows
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows, Slots
from specgate.backends.eagle3.cupy.memory.sampling import (
    SamplingBuffers,
    biases,
    draws,
    filters,
    penalises,
    rejects,
    weighs,
)
from specgate.contract import Sampling


class TokenDraw:
    """Comes after an LM head, in whose place it leaves the choices. Whoever takes choices need not know of it.

    At the same position, target and draft draw with the same random numbers: each token has its own. So the target's
    draw at a row is plain sampling's, and a draft that has drawn it is accepted. Verifying by rejection needs a draft
    that draws with others. A row's draw depends on its logits,
    its request and, with penalties, its text alone, to the last bit.
    """

    def __init__(
        self,
        sampling: Sampling,
        vocab: int,
        max_rows: int,
        *,
        draft: bool = False,
        races: bool = True,
        tree: bool = False,
    ) -> None:
        """`max_rows`: of a slot, in an engine's widest step. `draft`: for a draft's head, whose columns are mapped to
        the target's tokens. The target's bias, penalties and filters do not apply to it. `races`: the token is drawn;
        otherwise choices are left greedy, after bias and penalties, and filters have said what may be drawn. `tree`:
        rows are nodes of a tree.
        """
        heat, own, nodes = sampling.temperature, not draft, max_rows if tree else 0
        self.seed = sampling.seed
        self.penalise = (
            PenaliseRows(
                *(vocab, max_rows),
                repetition=sampling.repetition_penalty,
                presence=sampling.presence_penalty,
                frequency=sampling.frequency_penalty,
                biased=biases(sampling),
                nodes=nodes,
            )
            if own and penalises(sampling)
            else None
        )
        self.bias = BiasRows(vocab) if own and biases(sampling) and not self.penalise else None
        self.weigh = (
            WeighRows(vocab, heat, top_k=sampling.top_k, top_p=sampling.top_p)
            if own and weighs(sampling, vocab)
            else None
        )
        self.cut = (
            CutRows(vocab, heat, top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p)
            if own and filters(sampling, vocab)
            else None
        )
        purpose = Purpose.DRAFT if draft and rejects(sampling) else Purpose.TARGET
        self.draw = (
            DrawRows(vocab, heat, filtered=self.cut is not None, mapped=draft, purpose=purpose, nodes=nodes)
            if races and draws(sampling)
            else None
        )

    def kernels(self) -> Mapping[str, Kernel]:
        """Name → launcher, in stream order; only those that run."""
        of = {
            "bias": self.bias,
            "penalise": self.penalise,
            "weigh": self.weigh,
            "cut": self.cut,
            "draw": self.draw,
        }
        return {name: kernel for name, kernel in of.items() if kernel is not None}

    def __call__(
        self,
        logits: Tensor,
        choices: Tensor,
        b: SamplingBuffers,
        slots: Slots,
        rows: Rows,
        *,
        offset: int = 0,
        target_ids: Tensor | None = None,
        masks: Tensor | None = None,
    ) -> None:
        """`choices` int64 [R]: the greedy ones of `logits` float32 [R, V] become the drawn ones.

        Row t of a slot is drawn for position `length` + 1 + `offset` + t of its text. `target_ids` int32 [V]: of a
        draft. `masks` int64 [S, T]: of a tree's nodes, each drawn for its own depth.
        """
        if self.bias:
            self.bias(logits, choices, b.best, b.finished, b.bias, rows)
        if self.penalise:
            bias = b.bias if self.penalise.biased else None
            self.penalise(logits, choices, b.best, b.finished, b.history, slots, rows, bias=bias, masks=masks)
        if self.weigh:
            self.weigh(b.edges, b.bucket_sums, b.finished, logits, choices, rows)
        if self.cut:
            self.cut(b.cuts, b.weighed if self.weigh else None, logits, choices, rows)
        if self.draw:
            self.draw(
                *(choices, b.best, b.finished, logits, b.requests, slots.length, rows),
                seed=self.seed,
                offset=offset,
                cuts=b.cuts if self.cut else None,
                target_ids=target_ids,
                masks=masks,
            )


class Rejection:
    """Leaves choices that `Accept` finds the accepted drafts in, and behind them the token that is drawn.

    What it emits depends on the slot's own rows, request and position alone, to the last bit.
    """

    def __init__(self, sampling: Sampling, drafted: DraftedRows) -> None:
        self.seed, self.filtered = sampling.seed, filters(sampling, drafted.vocab)
        self.sum = SumRows(drafted, sampling.temperature, filtered=self.filtered)
        self.verify = VerifyDrafts(drafted, sampling.temperature, filtered=self.filtered)

    def kernels(self) -> Mapping[str, Kernel]:
        """Name → launcher, in stream order."""
        return {"sum": self.sum, "verify": self.verify}

    def __call__(
        self, logits: Tensor, choices: Tensor, draft_columns: Tensor, b: SamplingBuffers, slots: Slots, rows: Rows
    ) -> None:
        """`choices` int64 [R]: the greedy ones of the target's `logits` float32 [R, V], after bias, penalties and
        filters. `draft_columns` int32 [V]: the draft's column of each token, −1 for none.
        """
        cuts = b.cuts if self.filtered else None
        self.sum(
            *(b.sums, b.partial, b.finished, logits, choices, cuts, b.draft_logits, draft_columns, slots, rows),
        )
        self.verify(
            *(choices, b.best, b.finished, logits, cuts, b.draft_logits, b.sums, draft_columns, b.requests),
            *(slots, rows),
            seed=self.seed,
        )
