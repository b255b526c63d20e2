"""Read a server's counters, from Prometheus' text format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from specgate.backends.servers.exchange import Reading, SpecCounts
from specgate.errors import BackendError

if TYPE_CHECKING:
    from specgate.backends.servers.client import Client


class Meter(Protocol):
    """Reads the counters of one server."""

    def read(self, client: Client) -> Reading:
        """The counters now. Raises BackendError where they are not available."""


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of one scrape: full name → [(labels, value)]."""

    values: Mapping[str, list[tuple[Mapping[str, str], float]]]
    where: str

    @classmethod
    def scrape(cls, client: Client, path: str, flag: str) -> Samples:
        """Read the metrics at `path`. Raises BackendError; `flag` names what the server must be started with."""
        from prometheus_client.parser import text_string_to_metric_families

        where = f"{client.url}{path}"
        try:
            text = client.text(path)
        except BackendError as error:
            raise BackendError(f"no counters: {error.message}", hint=f"the server needs {flag}") from error
        values: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    values.setdefault(sample.name, []).append((sample.labels, sample.value))
        except (ValueError, KeyError, IndexError) as error:
            raise BackendError(f"{where}: not Prometheus' text format: {error}: {text[:80]!r}") from error
        return cls(values, where)

    def total(self, name: str) -> int | None:
        """The sum over all labels. None where there is no such sample."""
        found = self.values.get(name)
        return None if found is None else round(sum(value for _, value in found))

    def needed(self, name: str, flag: str) -> int:
        """The sum over all labels. Raises BackendError where there is no such sample."""
        found = self.total(name)
        if found is None:
            raise BackendError(f"{self.where}: no counter {name}", hint=f"the server needs {flag}")
        return found

    def by_position(self, name: str) -> tuple[int, ...]:
        """A counter by its label `position`, from 0 on."""
        found: dict[int, float] = {}
        for labels, value in self.values.get(name, []):
            position = int(labels["position"])
            found[position] = found.get(position, 0) + value
        return tuple(round(found.get(i, 0)) for i in range(max(found, default=-1) + 1))


@dataclass(frozen=True, slots=True)
class PrometheusMeter:
    """The names of an engine's counters. `flag` is what switches them on.

    Counters `requests`, `generated` and `cached` may be missing until the first request has ended. The names of the
    counters on speculation start with `prefix`; they are missing in a server that does not speculate.
    """

    path: str
    flag: str
    busy: tuple[str, ...]
    prefix: str
    requests: str | None = None
    generated: str | None = None
    cached: str | None = None

    def read(self, client: Client) -> Reading:
        samples = Samples.scrape(client, self.path, self.flag)
        return Reading(
            requests=(samples.total(self.requests) or 0) if self.requests else None,
            generated=samples.needed(self.generated, self.flag) if self.generated else None,
            busy=sum(samples.needed(name, self.flag) for name in self.busy) if self.busy else None,
            cached=(samples.total(self.cached) or 0) if self.cached else None,
            spec=self.speculation(samples),
        )

    def speculation(self, samples: Samples) -> SpecCounts:
        name = f"{self.prefix}spec_decode_num_"
        return SpecCounts.of_survivals(
            steps=samples.total(f"{name}drafts_total") or 0,
            drafted=samples.total(f"{name}draft_tokens_total") or 0,
            accepted=samples.total(f"{name}accepted_tokens_total") or 0,
            at_pos=samples.by_position(f"{name}accepted_tokens_per_pos_total"),
        )
