"""Launchers of the kernels that make the rows that products and attention work on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor

from specgate.backends.eagle3.cupy.kernels.loader import Kernel


@dataclass(frozen=True, slots=True)
class Replay:
    """Rows that begin with earlier tokens, of chains of `drafts` tokens; a text has up to `capacity` tokens."""

    drafts: int
    capacity: int

    @property
    def constants(self) -> dict[str, int]:
        return {"replays": 1, "drafts": self.drafts, "capacity": self.capacity}


class EmbedRows(Kernel):
    """x[r] = the embedding of the last token or a draft of a slot, and the input of the first norm. Ends the draft
    phase.

    With `replay`, the rows of a slot begin with the tokens of its text from position `verified` on.
    """

    hidden: int
    rows: int
    max_rows: int
    replay: Replay | None = None
    threads: int = 512


class FeatureCapture(Kernel):
    """features[slot, t, chunk] = x[r]: float32 [R, H] → bfloat16 [S, T, n·H], for the draft's next extension.

    `replay`: rows before those of the last token and the drafts are left out: a slot's rows begin at position
    `verified`, and the last token stands at `length`.
    """

    hidden: int
    features: int
    rows: int
    max_rows: int
    replay: Replay | None = None
    threads: int = 1024


class FeatureNorm(IntEnum):
    """Norm of a draft's features before their projection (`fc`)."""

    NONE = 0
    EACH_STREAM = 1
    ALL_STREAMS = 2


class FeatureRows(Kernel):
    """Packs the features that the draft extends over: bfloat16 [S, T, n·H] → [R, n·H], normed with `weight` [n·H]."""

    hidden: int
    features: int
    norm: FeatureNorm
    rows: int
    max_rows: int
    threads: int = 1024


@dataclass(frozen=True, slots=True)
class InputWeights:
    """bfloat16: `embedding` [V, H], and the norms [H] of the embedded token and of the hidden state beside it."""

    embedding: Tensor
    embedding_norm: Tensor
    feature_norm: Tensor


class DraftInput(Kernel):
    """The draft's input [norm(embed(token)), norm(hidden)] for the rows to extend over, and the last row's stream.

    hidden float32 [R, H] → input bfloat16 [R, 2H] and stream float32 [S, H], whose row a is that of the a-th active
    slot.
    """

    hidden: int
    norm_before_residual: bool
    rows: int
    max_rows: int
    threads: int = 1024


class DraftToken(Kernel):
    """Draft token `index` of every active slot, as an id of the target; then the input of the draft's next step.

    `choices` are as the LM head leaves them, and cleared again. With `input` the input of the next draft step is
    written, too. Its hidden state is `stream`, or, in heads that feed their normed output back, what the rows of the
    norm become.
    """

    hidden: int
    draft_vocab: int
    norm_output: bool
    norm_before_residual: bool
    max_rows: int
    threads: int = 512
