"""The draft's chain of K tokens: one extension over what was accepted, then K − 1 steps on its own output.

Where a chain may end early, each of these steps is over the slots whose chains have gone on, and its rows are packed
anew. What a slot drafts does not depend on who shares its step, as all products and attention have it. Of a chain that
has ended, no later position of the draft's cache is written; none is read before the next step's extension, or the
steps behind that, have written it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel
from specgate.backends.eagle3.cupy.kernels.peers.combine_choices import CombineChoices
from specgate.backends.eagle3.cupy.kernels.rows.draft_token import DraftToken
from specgate.backends.eagle3.cupy.kernels.state.end_chains import EndChains
from specgate.backends.eagle3.cupy.kernels.state.slots import Rows
from specgate.backends.eagle3.cupy.memory.buffers import Buffers, LayerBuffers
from specgate.backends.eagle3.cupy.memory.model import Draft
from specgate.backends.eagle3.cupy.memory.sampling import draws, rejects
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.nvtx import mark
from specgate.backends.eagle3.cupy.step.extension import Extension, draft_layer
from specgate.backends.eagle3.cupy.step.layer import RowPositions
from specgate.backends.eagle3.cupy.step.token_draw import TokenDraw
from specgate.backends.eagle3.cupy.tuned.gemms import Gemms


class Chain(Extension):
    """The draft's forward passes as a page of kernel calls."""

    def __init__(self, draft: Draft, sizes: Sizes, slots: int, k: int, gemms: Gemms) -> None:
        super().__init__(draft, sizes, slots, k + 1, gemms)
        g, self.k = draft.geometry, k
        ranks = draft.shard.ranks
        self.step = draft_layer(g, sizes, slots, gemms, rows=1, query_rows=1, ranks=ranks)
        self.lm_head = gemms("EAGLE3_LM_HEAD_SMALLVOC", g.draft_vocab, g.hidden, slots, scaled=True, chooses=True)
        self.combine = CombineChoices(g.draft_vocab, 1, slots, sizes.max_rows, ranks, sizes.rows) if ranks > 1 else None
        asked = sizes.sampling if draws(sizes.sampling) else None
        self.keeps_logits = rejects(asked)
        self.draw = TokenDraw(asked, g.draft_vocab, sizes.max_rows, draft=True) if asked else None
        sure = sizes.confidence_of(k)
        self.end = EndChains(g.draft_vocab, k, sizes.slots, sure) if sure is not None else None
        self.token = DraftToken(
            g.hidden,
            len(draft.target_ids),
            norm_output=g.norm_output,
            norm_before_residual=g.norm_before_residual,
            max_rows=sizes.max_rows,
            ends_early=self.end is not None,
        )

    def kernels(self) -> Mapping[str, Kernel]:
        """Path → launcher, in stream order. Those of `step` are there for K = 1, too, which never runs them."""
        return {
            **self.kernels_of_extension(),
            "lm_head": self.lm_head,
            **({"combine": self.combine} if self.combine else {}),
            **{f"draw.{name}": kernel for name, kernel in (self.draw.kernels() if self.draw else {}).items()},
            **({"end": self.end} if self.end else {}),
            "token": self.token,
            **{f"step.{name}": kernel for name, kernel in self.step.kernels().items()},
        }

    def __call__(self, b: Buffers) -> None:
        """Leave K drafts per active slot in `b.slots.drafts`; of a chain that ends early, its last one to the end."""
        assert b.draft is not None
        d, w, slots = b.draft, self.draft.weights, b.slots
        rows, here = slots.rows(self.slots, 1), d.layer
        self.extend(b)
        for j in range(self.k):
            if j:
                at = RowPositions(self.draft.rope, b.kv, slots.length, offset=j - 1)
                self.step(here, w.layer, w.norm, d.pages, 0, d.input, rows, rows, at)
            onward = None
            if self.end:
                assert b.chains is not None
                # A row's stream moves to another row, which may not have been read yet: so it goes elsewhere.
                stream = b.chains.stream if here.stream is d.layer.stream else d.layer.stream
                onward = stream, b.chains.onward
            self._choose(b, here, rows, j, onward)
            if onward is not None and b.chains is not None and j + 1 < self.k:
                rows, here = b.chains.rows(j + 1, rows), replace(here, stream=onward[0])

    def _choose(
        self, b: Buffers, here: LayerBuffers, rows: Rows, index: int, onward: tuple[Tensor, Tensor] | None
    ) -> None:
        """Draft token `index` behind `rows`, whose streams are in `here`, and the input of the step after it."""
        assert b.draft is not None
        d, w, eps, logits = b.draft, self.draft.weights, self.draft.geometry.rms_eps, here.logits
        if self.keeps_logits:
            assert b.sampling is not None
            logits = b.sampling.draft_logits[index]
        with mark("EAGLE_DRAFT_LM_HEAD"):
            self.lm_head(logits, here.pre_norm, w.lm_head, rows, eps=eps, choices=d.choices)
            if self.combine:
                assert here.mailboxes is not None
                self.combine(d.choices, here.mailboxes, b.slots, rows)
            if self.draw:
                assert b.sampling is not None
                self.draw(
                    *(logits, d.choices, b.sampling, b.slots, rows),
                    offset=index,
                    target_ids=self.draft.target_ids,
                )
            if self.end and index + 1 < self.k:
                assert b.chains is not None
                self.end(b.chains, logits, d.choices, rows, index=index)
            self.token(
                d.input if index + 1 < self.k else None,
                *(here.stream, d.choices, self.draft.target_ids, here.pre_norm, self.draft.input, b.slots),
                rows,
                index=index,
                eps=eps,
                onward=onward,
            )
