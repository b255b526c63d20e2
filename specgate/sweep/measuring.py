"""One setting beside the default: measured as `ab` measures two builds, the default as the old one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from specgate.ab.folder import AbFolder, Asked, Processes
from specgate.ab.judging import find, samples_of
from specgate.ab.request import AbRequest, builds
from specgate.ab.resuming import without_unfinished
from specgate.ab.session import asked_of, measure, refuse_credentials
from specgate.analysis.two_builds.outcomes import log_margin
from specgate.analysis.two_builds.reduce import Found
from specgate.analysis.two_builds.speeds import Speeds, speeds_of
from specgate.contract import EngineFacts
from specgate.contract.sweeps import Setting, Trial
from specgate.contract.two_builds import STEP
from specgate.errors import SpecgateError, UsageError
from specgate.machine import inventory


@dataclass(slots=True)
class Candidate:
    """A setting with what was measured of it so far.

    `folder`: its samples; None before the first. `why_not`: why it cannot win. `failure`: what its engine failed with.
    `made_by`: the setting that wrote the file which this one reads, with `--through`.
    """

    setting: Setting
    folder: AbFolder | None = None
    asked: Asked | None = None
    found: Found | None = None
    speeds: Speeds | None = None
    pairs: int = 0
    why_not: str | None = None
    failure: SpecgateError | None = None
    made_by: Setting = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """ln of its speed over the default's; −∞ where nothing was measured, or where it cannot win."""
        return self.speeds.mean if self.speeds and self.why_not is None else -math.inf

    @property
    def facts(self) -> EngineFacts | None:
        """The facts of the default's engine, as its samples have them."""
        return next(iter(self.folder.sides["old"].engines().values()), None) if self.folder else None

    @property
    def unchanged(self) -> bool:
        """True if it differs in nothing from the default: speed within the margin, the same texts, acceptance lengths
        and tiles.
        """
        if self.speeds is None or self.found is None or any(text.changed for text in self.found.texts):
            return False
        same = all(
            (a.accept_len, a.tile_stats) == (b.accept_len, b.tile_stats)
            for a, b in ((self.speeds.old[cell], self.speeds.new[cell]) for cell in self.speeds.new)
        )
        return same and abs(self.speeds.mean) < log_margin(self.found.margins.percent(STEP))

    def trial(self, error: float) -> Trial:
        """The setting as it is stored, with an interval whose error on each side is `error`."""
        folder = self.folder.path.name if self.folder else None
        if self.speeds is None:
            return Trial(self.setting, why_not=self.why_not, folder=folder, made_by=self.made_by)
        low, high = interval(self.speeds, error)
        return Trial(
            self.setting,
            self.pairs,
            self.speeds.new,
            self.speeds.old,
            math.exp(self.speeds.mean),
            low,
            high,
            self.why_not,
            folder,
            self.made_by,
        )


def interval(speeds: Speeds, error: float) -> tuple[float, float] | tuple[None, None]:
    """The interval of the ratio of tokens per second, with `error` on each side; (None, None) for few samples."""
    if speeds.difference is None:
        return None, None
    half = speeds.difference.half_width(error)
    return math.exp(speeds.difference.mean - half), math.exp(speeds.difference.mean + half)


def measure_beside(candidate: Candidate, request: AbRequest, parent: Path) -> KeyboardInterrupt | None:
    """Measure a candidate until it has had the process pairs of all of `request.looks`, and reduce all of its samples.

    A setting whose engine fails has a `failure`. Raises the error of the default's engine. Returns what interrupted it.
    """
    with TemporaryDirectory(prefix="specgate-sweep-") as logs, builds(request, Path(logs)) as sides:
        settings, prompts = asked_of(request, sides)
        refuse_credentials(settings)
        if candidate.folder is None:
            names, tree = tuple(settings.scenarios), inventory.source_tree_sha256()
            candidate.folder = AbFolder.create(parent, names, tree)
        folder, before = candidate.folder, candidate.folder.processes()
        with folder.top.lock():
            processes = replace(before, beside=not request.apart) if not before.found else before
            processes = replace(without_unfinished(folder, processes), failure=None, code=None)
            folder.write_asked(settings)
            failure = measure(request.run.plain, sides, settings, prompts, folder, processes, until_decided=False)
    candidate.asked = settings
    reduce(candidate)
    if isinstance(failure, SpecgateError):
        if not failure.message.startswith("new: ") and not isinstance(failure, UsageError):
            raise type(failure)(failure.message.replace("old: ", "the default: ", 1), hint=failure.hint)
        candidate.failure, candidate.why_not = failure, failure.message.removeprefix("new: ")
    return failure if isinstance(failure, KeyboardInterrupt) else None


def reduce(candidate: Candidate) -> None:
    """Compute what the samples of a candidate say."""
    assert candidate.folder is not None and candidate.asked is not None
    processes: Processes = candidate.folder.processes()
    candidate.pairs = len(processes.whole())
    if not candidate.pairs:
        return
    settings, journals = candidate.asked, candidate.folder.journals()
    candidate.found = find(settings, journals, processes.found, settings.margins.error, settings.margins.error)
    candidate.speeds = speeds_of(*samples_of(settings, journals), processes.found)
    dtype = candidate.facts.dtype if candidate.facts else ""
    candidate.why_not = next(wrong_tokens(candidate.found, dtype), None)


NEAR: Final = 3 * math.sqrt(2) * 0.15
"""Largest gap of two logits that another order of additions may turn round: three standard deviations of a difference
whose two logits have the most rounding that policies allow in 16 bits (`max_sigma`).
"""
NEAR_IN_FLOAT32: Final = 0.001
"""The same in float32, as `gates/policies/cpu.yaml` has it."""


def wrong_tokens(result: Found, dtype: str) -> Iterator[str]:
    """Yield what keeps a setting from winning: records that contradict themselves, texts that are not those of its own
    baseline, and texts that part from the default's elsewhere than at near ties.
    """
    for check in result.tokens:
        if check.side == "new" and (check.why or check.mismatches):
            yield f"{check.cell}: {check.why or f'{check.mismatches} texts are not those of its own baseline'}"
    near = NEAR_IN_FLOAT32 if dtype == "float32" else NEAR
    for text in result.texts:
        apart = [p for p in text.changed if p.gap is None or not 0 <= p.gap <= near]
        if apart:
            first, gap = apart[0], apart[0].gap
            logits = "their logits are not shown" if gap is None else f"logits {gap:.2g} apart, near ties {near:.2g}"
            yield (
                f"{text.cell}: {len(apart)} of {text.prompts} texts differ from the default's, such as prompt set "
                f"{first.prompt_set}, slot {first.slot}, token {first.position}: {first.new} instead of {first.old} "
                f"({logits})"
            )
