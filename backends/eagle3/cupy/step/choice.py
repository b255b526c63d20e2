"""What comes after an LM head, and leaves one choice per row: the likeliest token, a drawn one, or by rejection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.peers.launchers import CombineChoices
from specgate.backends.eagle3.cupy.kernels.penalties.launchers import CountTokens
from specgate.backends.eagle3.cupy.kernels.rejection.launchers import DraftedRows
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows
from specgate.backends.eagle3.cupy.memory.buffers import Buffers, DraftBuffers, TargetBuffers
from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.cupy.memory.sampling import draws, penalises, rejects
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.token_draw import Rejection, TokenDraw


@dataclass(frozen=True, slots=True)
class Choice:
    """Without parts: the likeliest token, which the LM head has chosen. `combine`: GPUs that share the head join their
    choices. `draw`: a token is drawn, before which `count` counts what penalties apply to. `rejection`: drafts pass it.
    `keeps_logits`: a draft's are kept for it.
    """

    combine: CombineChoices | None = None
    count: CountTokens | None = None
    draw: TokenDraw | None = None
    rejection: Rejection | None = None
    keeps_logits: bool = False

    def opening(self) -> Mapping[str, Kernel]:
        """Name → launcher of what `begin` launches."""
        return {"draw.count": self.count} if self.count else {}

    def kernels(self) -> Mapping[str, Kernel]:
        """Name → launcher behind the head, in stream order."""
        drawing = (part.kernels() for part in (self.draw, self.rejection) if part)
        own = {f"draw.{name}": kernel for kernels in drawing for name, kernel in kernels.items()}
        return {**({"combine": self.combine} if self.combine else {}), **own}

    def begin(self, b: Buffers, rows: Rows) -> None:
        """Launch what comes before the first layer."""
        if self.count:
            self.count(rows, b.slots, b.sampling)

    def logits(self, b: Buffers, index: int) -> Tensor:
        """Return where a draft's head leaves the logits of draft `index`."""
        assert b.draft is not None
        return b.sampling.draft_logits[index] if self.keeps_logits and b.sampling else b.draft.layer.logits

    def __call__(
        self,
        logits: Tensor,
        of: TargetBuffers | DraftBuffers,
        b: Buffers,
        rows: Rows,
        draft: Draft | None,
        *,
        offset: int = 0,
    ) -> None:
        """`of.choices` int64 [R], packed: become those of all GPUs, or drawn ones. `offset`: as `TokenDraw` has it."""
        choices, boxes, mapped = of.choices, of.layer.mailboxes, of is b.draft
        if self.combine:
            assert boxes is not None
            self.combine(rows, boxes, boxes.choices, b.slots, choices=choices)
        if self.draw:
            assert b.sampling is not None
            ids = draft.target_ids if draft and mapped else None
            groups = rows, b.sampling, b.slots, b.tree
            self.draw(*groups, logits=logits, choices=choices, offset=offset, target_ids=ids)
        if self.rejection:
            assert draft is not None
            self.rejection(rows, b.slots, b.sampling, logits=logits, choices=choices, draft_columns=draft.columns)


def combining(vocab: int, rows_per_slot: int, slots: int, sizes: Sizes, ranks: int) -> CombineChoices | None:
    rows = slots * rows_per_slot
    return CombineChoices(vocab, rows_per_slot, rows, sizes.max_rows, ranks, sizes.rows) if ranks > 1 else None


def target_choice(
    target: Target, draft: Draft | None, sizes: Sizes, slots: int, rows_per_slot: int, *, tree: bool
) -> Choice:
    """Return the choice behind the target's head over `rows_per_slot` rows, the first of which is no draft's. Raises
    ValueError for rejection of a tree's tokens.
    """
    vocab, most, sampling = target.geometry.vocab, sizes.max_rows, sizes.sampling
    combine, rejection = combining(vocab, rows_per_slot, slots, sizes, target.shard.ranks), None
    if sampling is None:
        return Choice(combine)
    if rejects(sampling) and tree:
        raise ValueError("rejection of a tree: its tokens are not drawn")
    if rejects(sampling) and draft and rows_per_slot > 1:
        drafted = DraftedRows(vocab, draft.geometry.draft_vocab, rows_per_slot - 1, sizes.slots, most)
        rejection = Rejection(sampling, drafted)
    count = CountTokens(vocab, most) if penalises(sampling) else None
    draw = TokenDraw(sampling, vocab, most, races=rejection is None, tree=tree)
    return Choice(combine, count, draw, rejection)


def draft_choice(draft: Draft, sizes: Sizes, slots: int) -> Choice:
    """Return the choice behind the draft's head, one row per slot."""
    vocab, sampling = draft.geometry.draft_vocab, sizes.sampling
    combine = combining(vocab, 1, slots, sizes, draft.shard.ranks)
    if sampling is None or not draws(sampling):
        return Choice(combine)
    draw = TokenDraw(sampling, vocab, sizes.max_rows, draft=True)
    return Choice(combine, draw=draw, keeps_logits=rejects(sampling))
