"""The samples that a run has stored so far. All its figures and verdicts follow from them.

Every field of `Journal` is a file of JSON lines below `samples/`, and its mark says how it is written and read. A new
journal is one field here, and the place that appends to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, get_type_hints

from specgate.contract import (
    BaselineText,
    Block,
    BlockTrace,
    EngineFacts,
    EngineStart,
    Followed,
    LogitSample,
    Margin,
    Rescoring,
    TimeEnd,
    TimeEnds,
)
from specgate.contract.conditions import Sample
from specgate.contract.draws import DrawnTexts
from specgate.contract.samples.answers import Answered


@dataclass(frozen=True, slots=True)
class PointEngine:
    """The engine that measures the point with key `point`."""

    point: str
    facts: EngineFacts


@dataclass(frozen=True, slots=True)
class Lines:
    """Mark of a field of `Journal`: `noun` is what a line of its file holds.

    `key`: the field of the noun by which lines replace each other; None where all of them count. The newest line of a
        key counts, or with `first` the first one.
    `value`: the field of the noun that the journal shows of a line; None for the whole noun.
    """

    file: str
    noun: type[Any]
    key: str | None = None
    first: bool = False
    value: str | None = None
    listed: bool = False
    """The journal shows a list of the lines that count, in place of a mapping."""

    def shown(self, nouns: Sequence[Any]) -> Any:
        """Return the journal's field for the nouns of all lines."""
        if self.key is None:
            return nouns
        if self.listed:
            return list({getattr(noun, self.key): noun for noun in nouns}.values())
        ordered = reversed(nouns) if self.first else nouns
        keyed = {getattr(noun, self.key): getattr(noun, self.value) if self.value else noun for noun in ordered}
        return dict(reversed(keyed.items())) if self.first else keyed


@dataclass(frozen=True, slots=True)
class Journal:
    """The samples of a run folder.

    `blocks`: one line per block, on disk as soon as it ends.
    `engines`: point key → the engine that measured it first.
    `traces`: cell key → its traced block.
    `samples`: what the machine did, in the order in which it was observed: one line per half second, the GPU's clock
        ten times a second, written by the monitor process.
    `texts`, `logits`: the untimed blocks that tokens and logits are compared with; `logits` by cell key.
    `rescorings`: point key → how its tokens were scored by a second engine.
    `draws`: point key → the texts that were drawn of it for their distribution.
    `followed`: how plain decoding went on from texts that had left the baseline's.
    `answers`: what was found in the texts of questions with a key.
    `starts`: the starts of engines' processes.
    `ends`: the points whose time was spent.
    """

    blocks: Annotated[Sequence[Block], Lines("blocks", Block)]
    margins: Annotated[Sequence[Margin], Lines("margins", Margin, "place", listed=True)]
    engines: Annotated[Mapping[str, EngineFacts], Lines("engines", PointEngine, "point", first=True, value="facts")]
    traces: Annotated[Mapping[str, BlockTrace], Lines("traces", BlockTrace, "cell")] = field(default_factory=dict)
    samples: Annotated[Sequence[Sample], Lines("environment", Sample)] = ()
    texts: Annotated[Sequence[BaselineText], Lines("texts", BaselineText)] = ()
    logits: Annotated[Mapping[str, LogitSample], Lines("logits", LogitSample, "cell")] = field(default_factory=dict)
    rescorings: Annotated[Mapping[str, Rescoring], Lines("rescored", Rescoring, "point")] = field(default_factory=dict)
    followed: Annotated[Sequence[Followed], Lines("followed", Followed, "place", listed=True)] = ()
    draws: Annotated[Mapping[str, DrawnTexts], Lines("draws", DrawnTexts, "point")] = field(default_factory=dict)
    answers: Annotated[Sequence[Answered], Lines("answers", Answered, "place", listed=True)] = ()
    starts: Annotated[Sequence[EngineStart], Lines("starts", EngineStart)] = ()
    ends: Annotated[Sequence[TimeEnd], Lines("ends", TimeEnd)] = ()

    @property
    def time_ends(self) -> TimeEnds:
        """The ends by time of every point that has one."""
        return {key: tuple(e for e in self.ends if e.point == key) for key in dict.fromkeys(e.point for e in self.ends)}

    @property
    def forced(self) -> bool:
        """True if an engine was told how many drafts to accept, so that its tokens are wrong by design."""
        return any(facts.acceptance == "forced" for facts in self.engines.values())


FIELDS: Final[Mapping[str, Lines]] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Journal, include_extras=True).items()
}
"""Field of `Journal` → its file."""
FILES: Final[Mapping[type[Any], Lines]] = {lines.noun: lines for lines in FIELDS.values()}
"""Noun → the file that has it on its lines."""
JOURNALS: Final = frozenset(f"samples/{lines.file}.jsonl" for lines in FIELDS.values())
"""The files below a run folder."""
