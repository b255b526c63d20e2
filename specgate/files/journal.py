"""The samples that a run has stored so far. All its figures and verdicts follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specgate.contract import BaselineText, Block, BlockTrace, EngineFacts, Followed, LogitSample, Margin, Rescoring
from specgate.contract.conditions import Sample
from specgate.contract.draws import DrawnTexts


@dataclass(frozen=True, slots=True)
class Journal:
    """The samples of a run folder.

    `engines`: point key → the engine that measured it first.
    `traces`: cell key → its traced block.
    `samples`: what the machine did, in the order in which it was observed.
    `texts`, `logits`: the untimed blocks that tokens and logits are compared with.
    `rescorings`: point key → how its tokens were scored by a second engine.
    `draws`: point key → the texts that were drawn of it for their distribution.
    `followed`: how plain decoding went on from texts that had left the baseline's.
    """

    blocks: Sequence[Block]
    margins: Sequence[Margin]
    engines: Mapping[str, EngineFacts]
    traces: Mapping[str, BlockTrace] = field(default_factory=dict)
    samples: Sequence[Sample] = ()
    texts: Sequence[BaselineText] = ()
    logits: Sequence[LogitSample] = ()
    rescorings: Mapping[str, Rescoring] = field(default_factory=dict)
    followed: Sequence[Followed] = ()
    draws: Mapping[str, DrawnTexts] = field(default_factory=dict)

    @property
    def forced(self) -> bool:
        """Whether an engine was told how many drafts to accept, so that its tokens are wrong by design."""
        return any(facts.acceptance == "forced" for facts in self.engines.values())
