"""The draft's chain of K tokens: one extension over what was accepted, then K − 1 steps on its own output."""

from __future__ import annotations

from collections.abc import Mapping

from specgate.backends.cupy_eagle3.kernels.loader import Kernel
from specgate.backends.cupy_eagle3.kernels.rows.draft_token import DraftToken
from specgate.backends.cupy_eagle3.kernels.state.slots import Rows
from specgate.backends.cupy_eagle3.memory.buffers import Buffers, DraftBuffers
from specgate.backends.cupy_eagle3.memory.model import Draft
from specgate.backends.cupy_eagle3.memory.sampling import draws, rejects
from specgate.backends.cupy_eagle3.memory.sizes import Sizes
from specgate.backends.cupy_eagle3.nvtx import mark
from specgate.backends.cupy_eagle3.step.extension import Extension, draft_layer
from specgate.backends.cupy_eagle3.step.layer import RowPositions
from specgate.backends.cupy_eagle3.step.token_draw import TokenDraw
from specgate.backends.cupy_eagle3.tuned.gemms import Gemms


class Chain(Extension):
    """The draft's forward passes as a page of kernel calls."""

    def __init__(self, draft: Draft, sizes: Sizes, slots: int, k: int, gemms: Gemms) -> None:
        super().__init__(draft, sizes, slots, k + 1, gemms)
        g, self.k = draft.geometry, k
        self.step = draft_layer(g, sizes, slots, gemms, rows=1, query_rows=1)
        self.lm_head = gemms("EAGLE3_LM_HEAD_SMALLVOC", g.draft_vocab, g.hidden, slots, scaled=True, chooses=True)
        asked = sizes.sampling if draws(sizes.sampling) else None
        self.keeps_logits = rejects(asked)
        self.draw = TokenDraw(asked, g.draft_vocab, sizes.max_rows, draft=True) if asked else None
        self.token = DraftToken(
            g.hidden,
            g.draft_vocab,
            norm_output=g.norm_output,
            norm_before_residual=g.norm_before_residual,
            max_rows=sizes.max_rows,
        )

    def kernels(self) -> Mapping[str, Kernel]:
        """Path → launcher, in stream order. Those of `step` are there for K = 1, too, which never runs them."""
        return {
            **self.kernels_of_extension(),
            "lm_head": self.lm_head,
            **{f"draw.{name}": kernel for name, kernel in (self.draw.kernels() if self.draw else {}).items()},
            "token": self.token,
            **{f"step.{name}": kernel for name, kernel in self.step.kernels().items()},
        }

    def __call__(self, b: Buffers) -> None:
        """Leave K drafts per active slot in `b.slots.drafts`."""
        assert b.draft is not None
        d, w, slots = b.draft, self.draft.weights, b.slots
        newest = slots.rows(self.slots, 1)
        self.extend(b)
        self._choose(d, b, newest, 0)
        for j in range(1, self.k):
            at = RowPositions(self.draft.rope, b.kv, slots.length, offset=j - 1)
            self.step(d.layer, w.layer, w.norm, d.pages, 0, d.input, newest, newest, at)
            self._choose(d, b, newest, j)

    def _choose(self, d: DraftBuffers, b: Buffers, newest: Rows, index: int) -> None:
        """Draft token `index`, and the input of the step after it."""
        w, eps = self.draft.weights, self.draft.geometry.rms_eps
        logits = d.layer.logits
        if self.keeps_logits:
            assert b.sampling is not None
            logits = b.sampling.draft_logits[index]
        with mark("EAGLE_DRAFT_LM_HEAD"):
            self.lm_head(logits, d.layer.pre_norm, w.lm_head, newest, eps=eps, choices=d.choices)
            if self.draw:
                assert b.sampling is not None
                self.draw(
                    *(logits, d.choices, b.sampling, b.slots, newest),
                    offset=index,
                    target_ids=self.draft.target_ids,
                )
            self.token(
                d.input if index + 1 < self.k else None,
                *(d.layer.stream, d.choices, self.draft.target_ids, d.layer.pre_norm, self.draft.input, b.slots),
                newest,
                index=index,
                eps=eps,
            )
