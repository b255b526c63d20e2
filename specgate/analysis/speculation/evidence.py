"""Evidence of a short run, and the finding of a check for one cause."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from specgate.analysis.speculation.drafting import Drafting
from specgate.contract import MAY_NOT_DRAFT, Block, Budget, EngineFacts, LogCause, Role

HeadState = Literal["fits", "misfit", "other target", "unsupported", "unread"]
Found = Literal["found", "ruled out", "not checked"]


@dataclass(frozen=True, slots=True)
class HeadReading:
    """Result of reading the draft's tensors against its config.

    `state`: `unsupported` by the built-in engines, others may run it; `unread`: the weights are not here, or only torch
    reads their format. `text`: why, `todo`: what would be right; "" where it fits. `warnings`: contradictions that
    do no harm.
    """

    state: HeadState
    text: str = ""
    todo: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PairConfigs:
    """Contents of the files of a pair on this machine. None where they do not say it, or are not here.

    `target_hidden`, `target_vocab`, `target_layers`, `target_positions`: the target's sizes.
    `made_for_hidden`, `made_for_vocab`, `made_for_layers`, `made_for_sha256`: what the draft says of its target.
    `draft_vocab`: rows of the draft's LM head. `draft_positions`, `window`: positions that the draft knows, and that
        its attention sees.
    `boundaries`: the auxiliary hidden-state layers that the draft was made for.
    `head`: what the draft's tensors say, above its config.
    `vocabulary_map`: what is wrong with d2t; "" where it fits. `map_todo`: what would be right.
    `tokenizers`: what differs between the two tokenizer files; "" where they agree.
    `weights`: what is wrong with the values of the draft's weights; "" where nothing is.
    `unreadable`: why files could not be read.
    """

    target_hidden: int | None = None
    target_vocab: int | None = None
    target_layers: int | None = None
    target_positions: int | None = None
    made_for_hidden: int | None = None
    made_for_vocab: int | None = None
    made_for_layers: int | None = None
    made_for_sha256: str | None = None
    draft_vocab: int | None = None
    draft_positions: int | None = None
    window: int | None = None
    boundaries: tuple[int, ...] | None = None
    head: HeadReading | None = None
    vocabulary_map: str | None = None
    map_todo: str = ""
    tokenizers: str | None = None
    weights: str | None = None
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of a short run of `role` on one prompt of `prompt_tokens` tokens.

    `facts`: None where the engine did not open. `block` and `drafting`: None where it did not decode. `baseline`: a
    block of the baseline on the same prompt, where one was asked for.
    `error`: what the engine failed with. `log`: lines of its logs with a known cause; None where it has no log here.
    `options`: those of the back end. `stated`: the speculative config that they state, as key → value.
    """

    backend: str
    role: Role
    budget: Budget
    prompt_tokens: int
    pair: PairConfigs
    options: Mapping[str, str] = field(default_factory=dict)
    stated: Mapping[str, object] = field(default_factory=dict)
    facts: EngineFacts | None = None
    block: Block | None = None
    drafting: Drafting | None = None
    baseline: Block | None = None
    error: str | None = None
    log: tuple[LogCause, ...] | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the engine and of the draft's files, each once. That of the vocabulary map is a cause itself, and
        that nothing may be drafted is no warning once something was.
        """
        drafted = self.drafting is not None and self.drafting.num_drafts > 0
        engine = self.facts.warnings if self.facts else ()
        engine = tuple(w for w in engine if not (drafted and w.startswith(MAY_NOT_DRAFT)))
        every = dict.fromkeys((*engine, *(self.pair.head.warnings if self.pair.head else ())))
        return tuple(warning for warning in every if warning not in (self.pair.vocabulary_map or ""))


@dataclass(frozen=True, slots=True)
class Finding:
    """One known cause, checked.

    `checked`: what was looked at. `seen`: what was there. `todo`: what would be right; "" where the cause was not
    found.
    """

    cause: str
    state: Found
    seen: str
    todo: str
    checked: str


Seen = tuple[Found, str, str]
"""The state of a check, what was there, and what would be right."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A known cause of speculation that is off or of no use.

    `title`: what it is, in a few words. `checked`: what is looked at. `harmless`: it does not turn speculation off, but
    says how its figures are to be taken.
    """

    title: str
    checked: str
    harmless: bool
    check: Callable[[Evidence], Seen]


CAUSES: Final[dict[str, Cause]] = {}
"""Name of a cause → the cause. All are checked, in this order, whether or not another one was found."""


def cause(title: str, checked: str, *, harmless: bool = False) -> Callable[[Callable[[Evidence], Seen]], None]:
    """Return what enters a check into `CAUSES` under its own name."""

    def enter(check: Callable[[Evidence], Seen]) -> None:
        CAUSES[check.__name__] = Cause(title, checked, harmless, check)

    return enter


def found(observation: str, todo: str) -> Seen:
    return "found", observation, todo


def ruled_out(observation: str) -> Seen:
    return "ruled out", observation, ""


def unchecked(observation: str) -> Seen:
    return "not checked", observation, ""


def line_about(e: Evidence, *words: str) -> str:
    """The first line of the log whose known cause, or the error's line that, has one of `words`; "" where none has.

    Words of a path do not count: a folder may be called `d2t-missing`.
    """
    sought = re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})(?!\w)", re.IGNORECASE)
    for line in e.log or ():
        if sought.search(line.cause):
            return f"{line.cause} ({line.line})"
    for text in (e.error or "").splitlines():
        if sought.search(re.sub(r"\S*/\S*", "", text)):
            return text.strip()
    return ""
