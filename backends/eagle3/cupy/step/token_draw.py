"""Kernels that draw a row's token in place of its greedy choice, and those that verify drafts by rejection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.penalties.launchers import PenaliseRows
from specgate.backends.eagle3.cupy.kernels.rejection.launchers import DraftedRows, SumRows, VerifyDrafts
from specgate.backends.eagle3.cupy.kernels.sampling.launchers import (
    BiasRows,
    CutRows,
    DrawRows,
    Purpose,
    Seed,
    WeighRows,
)
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows
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
        heat, own, nodes = sampling.temperature, not draft, max_rows if tree else None
        self.seed = Seed.of(sampling.seed)
        self.penalise = (
            PenaliseRows(
                *(vocab, max_rows, sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty),
                biased=biases(sampling),
                tree_rows=nodes,
            )
            if own and penalises(sampling)
            else None
        )
        self.bias = BiasRows(vocab) if own and biases(sampling) and not self.penalise else None
        weighed = vocab, heat, sampling.top_k, sampling.top_p
        self.weigh = WeighRows(*weighed) if own and weighs(sampling, vocab) else None
        self.cut = CutRows(*weighed, sampling.min_p) if own and filters(sampling, vocab) else None
        purpose = Purpose.DRAFT if draft and rejects(sampling) else Purpose.TARGET
        self.draw = (
            DrawRows(vocab, heat, filtered=self.cut is not None, mapped=draft, purpose=purpose, tree_rows=nodes)
            if races and draws(sampling)
            else None
        )

    def kernels(self) -> Mapping[str, Kernel]:
        """Name → launcher, in stream order; only those that run."""
        of = {"bias": self.bias, "penalise": self.penalise, "weigh": self.weigh, "cut": self.cut, "draw": self.draw}
        return {name: kernel for name, kernel in of.items() if kernel is not None}

    def __call__(self, rows: Rows, b: SamplingBuffers, *groups: object, **operands: Any) -> None:
        """`choices` int64 [R]: the greedy ones of `logits` float32 [R, V] become the drawn ones. `groups`: the slots,
        and a tree's nodes.

        Row t of a slot is drawn for position `length` + 1 + `offset` + t of its text, a node for its own depth.
        `target_ids` int32 [V]: of a draft.
        """
        groups, made = (rows, b, *groups), {name: operands[name] for name in ("logits", "choices")}
        if self.bias:
            self.bias(*groups, **made)
        if self.penalise:
            self.penalise(*groups, **made)
        if self.weigh:
            self.weigh(*groups, sums=b.bucket_sums, **made)
        if self.cut:
            self.cut(*groups, **made)
        if self.draw:
            self.draw(*groups, self.seed, **operands)


class Rejection:
    """Leaves choices that `Accept` finds the accepted drafts in, and behind them the token that is drawn.

    What it emits depends on the slot's own rows, request and position alone, to the last bit.
    """

    def __init__(self, sampling: Sampling, drafted: DraftedRows) -> None:
        of = drafted, sampling.temperature, filters(sampling, drafted.vocab)
        self.seed, self.sum, self.verify = Seed.of(sampling.seed), SumRows(*of), VerifyDrafts(*of)

    def kernels(self) -> Mapping[str, Kernel]:
        """Name → launcher, in stream order."""
        return {"sum": self.sum, "verify": self.verify}

    def __call__(self, *groups: object, **operands: Any) -> None:
        """`groups`: rows, slots and `SamplingBuffers`. `choices` int64 [R]: the greedy ones of the target's `logits`
        float32 [R, V], after bias, penalties and filters. `draft_columns` int32 [V]: the draft's column of each token,
        −1 for none.
        """
        self.sum(*groups, **operands)
        self.verify(*groups, self.seed, **operands)
