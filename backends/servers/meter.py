"""Read a server's counters, from Prometheus' text format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from specgate.backends.servers.exchange import Reading, SpecCounts
from specgate.contract.protocols import masked
from specgate.errors import BackendError

if TYPE_CHECKING:
    from specgate.backends.servers.client import Client

MOST_COUNTED: Final = 2.0**53
"""Up to here each whole number has a floating-point number of its own."""
MOST_POSITIONS: Final = 1024
"""Drafts are a chain of far fewer tokens."""


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
        except (ValueError, LookupError, AttributeError) as error:
            raise BackendError(
                f"{where}: not Prometheus' text format: {masked(str(error))[:160]}: {masked(text)[:80]!r}"
            ) from error
        return cls(values, where)

    def total(self, name: str) -> int | None:
        """The sum over all labels. None where there is no such sample."""
        samples = self.values.get(name)
        return None if samples is None else sum(self._count(name, value) for _, value in samples)

    def needed(self, name: str, flag: str) -> int:
        """The sum over all labels. Raises BackendError where there is no such sample."""
        total = self.total(name)
        if total is None:
            raise BackendError(f"{self.where}: no counter {name}", hint=f"the server needs {flag}")
        return total

    def seconds(self, name: str) -> float | None:
        """The sum of a time over all labels. None where there is no such sample."""
        times = [value for _, value in self.values.get(name, [])]
        if wrong := [value for value in times if not 0 <= value < MOST_COUNTED]:
            raise BackendError(f"{self.where}: {name} = {wrong[0]:g} is no time in seconds")
        return math.fsum(times) if times else None

    def by_position(self, name: str) -> tuple[int, ...]:
        """A counter by its label `position`, from 0 on."""
        counts: dict[int, int] = {}
        for labels, value in self.values.get(name, []):
            label = labels.get("position", "")
            if not (label.isdecimal() and len(label) < 9 and (position := int(label)) < MOST_POSITIONS):
                raise BackendError(f"{self.where}: {name}: position {label[:40]!r} is none below {MOST_POSITIONS}")
            counts[position] = counts.get(position, 0) + self._count(name, value)
        return tuple(counts.get(i, 0) for i in range(max(counts, default=-1) + 1))

    def _count(self, name: str, value: float) -> int:
        """Raises BackendError where the value of a counter or of a number of requests cannot be one."""
        if not 0 <= value < MOST_COUNTED:
            raise BackendError(f"{self.where}: {name} = {value:g} is no count")
        return round(value)


@dataclass(frozen=True, slots=True)
class PrometheusMeter:
    """The names of an engine's counters. `flag` is what switches them on.

    Counters `requests`, `generated`, `cached` and `decode_s` may be missing until the first request has ended. The
    names of the counters on speculation start with `prefix`; they are missing in a server that does not speculate.
    `decode_s` is the sum of a histogram of times.
    """

    path: str
    flag: str
    busy: tuple[str, ...]
    prefix: str
    requests: str | None = None
    generated: str | None = None
    cached: str | None = None
    decode_s: str | None = None

    def read(self, client: Client) -> Reading:
        samples = Samples.scrape(client, self.path, self.flag)
        return Reading(
            requests=(samples.total(self.requests) or 0) if self.requests else None,
            generated=samples.needed(self.generated, self.flag) if self.generated else None,
            busy=sum(samples.needed(name, self.flag) for name in self.busy) if self.busy else None,
            cached=(samples.total(self.cached) or 0) if self.cached else None,
            spec=self.speculation(samples),
            decode_s=(samples.seconds(self.decode_s) or 0.0) if self.decode_s else None,
            speculative=any(name.startswith(f"{self.prefix}spec_decode_") for name in samples.values),
        )

    def speculation(self, samples: Samples) -> SpecCounts:
        name = f"{self.prefix}spec_decode_num_"
        return SpecCounts.of_survivals(
            steps=samples.total(f"{name}drafts_total") or 0,
            drafted=samples.total(f"{name}draft_tokens_total") or 0,
            accepted=samples.total(f"{name}accepted_tokens_total") or 0,
            at_pos=samples.by_position(f"{name}accepted_tokens_per_pos_total"),
        )
