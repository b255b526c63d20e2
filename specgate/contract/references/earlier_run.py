"""Green runs of the same subject on the same machine, as far as a later run is compared with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from specgate.contract.scenarios.scenario import Scenario


class StepUnit(StrEnum):
    """What a step time is the time of. A server shows arrivals (chunks of its streams) in the place of steps.

    Only where each arrival is known to hold one step does it count as one (`analysis.requests.arrivals`).
    """

    STEP = "step"
    JOINT_ARRIVAL = "arrival while all requests decode"
    ARRIVAL = "arrival"
    JOINT_TOKEN = "output token while all requests decode"
    TOKEN = "output token"

    @property
    def of_tokens(self) -> bool:
        """True if nothing tells which arrivals are steps."""
        return self in (StepUnit.JOINT_TOKEN, StepUnit.TOKEN)

    @property
    def words(self) -> str:
        """What follows "step time" in a sentence; empty of an engine's own steps."""
        if self is StepUnit.STEP:
            return ""
        return f" per {self}" + (", since its arrivals are not its steps" if self.of_tokens else "")


@dataclass(frozen=True, slots=True)
class PromptText:
    """Text of one prompt of a spec cell, over all blocks of the cell.

    `slot`: its place in the batch. Where a server's arrivals do not tell its requests apart, all of them are slot 0.
    `blocks`: how many blocks decoded it. `steps`: request-steps that the acceptance length is over, of all of them.
        `accepted`: draft tokens accepted in these steps.
    `length`: tokens of the text.
    `digests`: the beginning of the SHA-256 of the text's first 1, 2, 4, … 64, 128, 192, … tokens, and of the whole text
        last. () where blocks of the cell repeat another text.
    """

    prompt_set: int
    slot: int
    blocks: int
    steps: int
    accepted: int
    length: int
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CellTimes:
    """Times and texts of one cell, which a later run is compared with. One entry per timed block, in running order.

    `turns`: the round of the block, counted over the whole point.
    `prompt_sets`, `rounds`: which round that is. `positions`: the block's place in it.
    `step_ns`: nanoseconds per `unit`.
    `prefill_ns`: the block's own prefill; () in a micro run, whose blocks share one per prompt set.
    `texts`: of the prompts of a spec cell.
    """

    turns: tuple[int, ...]
    prompt_sets: tuple[int, ...]
    rounds: tuple[int, ...]
    positions: tuple[int, ...]
    step_ns: tuple[int, ...]
    prefill_ns: tuple[int, ...] = ()
    texts: tuple[PromptText, ...] = ()
    unit: StepUnit = StepUnit.STEP


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """One scenario of an earlier green run.

    `time`: when the run ended, UTC, ISO 8601. `manifest_sha256`: of its MANIFEST.sha256, as the ledger has it.
    `commit`: the git commit of its source tree; None where it was not in a checkout.
    `prompts`: point key → SHA-256 of its prompts. `cells`: cell key → its times.
    `clocks`: cell key → field of `CellTimes` → the mean SM clock meanwhile, in MHz, as far as the watch saw it.
    `pinned`: true if somebody has pinned it (`specgate runs pin`).
    """

    run: str
    time: str
    manifest_sha256: str
    commit: str | None
    scenario: Scenario
    target_sha256: str | None
    draft_sha256: str | None
    device: str | None
    prompts: Mapping[str, str]
    cells: Mapping[str, CellTimes]
    clocks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Earlier:
    """Earlier runs that the scenarios of a run are compared with. It is settled when the run begins.

    `runs`: scenario → the last green run of it. `missing`: scenario → why there is none.
    `anchors`: scenario → further runs, which losses that add up are found against: the pinned one, or else the best
        ones. Each has the cells that it is the anchor of. A cell in none of them has the last green run as its anchor.
    """

    runs: Mapping[str, EarlierRun] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    anchors: Mapping[str, tuple[EarlierRun, ...]] = field(default_factory=dict)
