"""What a run has written down so far: everything that its figures and verdicts follow from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specgate.core import Block, BlockTrace, EngineFacts, Margin
from specgate.core.conditions import Sample


@dataclass(frozen=True, slots=True)
class Journal:
    """The samples of a run folder, read. `engines`: point key → the engine that measured it first; `traces`: cell key →
    its traced block; `samples`: what the machine did, in the order in which it was seen.
    """

    blocks: Sequence[Block]
    margins: Sequence[Margin]
    engines: Mapping[str, EngineFacts]
    traces: Mapping[str, BlockTrace] = field(default_factory=dict)
    samples: Sequence[Sample] = ()

    @property
    def forced(self) -> bool:
        """Whether an engine accepted what it was told to, so that its tokens are wrong by design."""
        return any(facts.acceptance == "forced" for facts in self.engines.values())
