"""Comparisons of a build with another one by `specgate ab`, as far as a run rests on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Revision:
    """Commit of a revision that a rule names, in the checkout that the run was started in.

    `commit`: its commit; None where there is no such revision, or no checkout.
    `branched_at`: the newest commit that it has in common with what is checked out; None where there is none.
    `name`: by which git knows it there: the rule's, or that of the branch of this name at `origin`.
    """

    commit: str | None
    branched_at: str | None
    name: str


@dataclass(frozen=True, slots=True)
class ComparedBuild:
    """One comparison of an old build with a new one.

    `comparison`: the name of its folder. `time`: when it ended, UTC, ISO 8601. `manifest_sha256`: of its
        MANIFEST.sha256, as the ledger has it.
    `base`: the commit of the old build; None where it was not made from one, or not from it alone.
    `word`: SLOWER, FASTER, SAME or CANNOT TELL; None where there is none. `reason`: why, in figures.
    `scenarios`: which were compared.
    `fingerprint`: software, weights and device of the new build; empty where its code is not what runs on this machine
        use.
    """

    comparison: str
    time: str
    manifest_sha256: str
    base: str | None
    word: str | None
    reason: str
    scenarios: tuple[str, ...]
    fingerprint: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Builds:
    """Comparisons and revisions that rules about builds rest on. It is settled when the run begins.

    `revisions`: revision that a rule names → what that is. `compared`: newest first.
    """

    revisions: Mapping[str, Revision] = field(default_factory=dict)
    compared: tuple[ComparedBuild, ...] = ()
