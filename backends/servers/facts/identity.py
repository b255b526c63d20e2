"""Identity of a server: the engine's build and its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from specgate.backends.servers.facts.reported import commit_of
from specgate.contract import EngineIdentity, Role, ServedModel
from specgate.errors import BackendError


@dataclass(frozen=True, slots=True)
class ServerReport:
    """One server's report of itself. `served`: None for a server that was started here, which serves the pair.

    Of one that was started elsewhere: `listener`, the name of the process that listens, or None if it is not visible;
    and `on_cpu`, whether it says that it runs on the CPU.
    """

    role: Role
    version: str
    settings: Mapping[str, str]
    served: ServedModel | None = None
    listener: str | None = None
    on_cpu: bool = False


def identity_of(engine: str, servers: Sequence[ServerReport], build: str | None) -> EngineIdentity:
    """The identity of `servers`, which are the roles of one run. `build`: what the user says.

    Raises BackendError where two of them are of different versions: their times must not be paired.
    """
    first = servers[0]
    if other := next((s for s in servers if s.version != first.version), None):
        raise BackendError(
            f"{engine}: {first.role}'s server is version {first.version}, {other.role}'s is {other.version}",
            hint="a speed-up is one engine's against itself: start both from the same installation",
        )
    commit = commit_of(first.version)
    told_by: Literal["version", "option"] | None = "option" if build else "version" if commit else None
    differing = {s.role.name: differences(first.settings, s.settings) for s in servers[1:]}
    return EngineIdentity(
        engine=engine,
        version=first.version,
        build=build or commit,
        told_by=told_by,
        settings=dict(first.settings),
        differing={role: part for role, part in differing.items() if part},
        served={s.role.name: s.served for s in servers if s.served is not None},
    )


def differences(first: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of `other` that differ from those of `first`. Settings that only one reports are left out."""
    return {name: value for name, value in other.items() if name in first and first[name] != value}
