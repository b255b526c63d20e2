"""Read a server's counters, from Prometheus' text format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from specgate.backends.servers.exchange import OtherForm, Reading, SpecCounts, one_line
from specgate.contract.protocols import masked
from specgate.errors import BackendError

if TYPE_CHECKING:
    from specgate.backends.servers.client import Client

MOST_COUNTED: Final = 2.0**53
"""Up to here each whole number has a floating-point number of its own."""
LONGEST_NUMBER: Final = 24
"""Characters of a number in a message."""
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
            if not client.status(path):  # nothing listens any more
                raise
            raise BackendError(f"no counters: {error.message}", hint=f"the server needs {flag}") from error
        values: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    values.setdefault(sample.name, []).append((sample.labels, sample.value))
        except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
            why = one_line(str(error), 160)
            raise OtherForm(f"{where}: not Prometheus' text format: {why}: {masked(text)[:80]!r}") from error
        return cls(values, where)

    def total(self, name: str) -> int | None:
        """The sum over all labels. None where there is no such sample."""
        samples = self.values.get(name)
        return None if samples is None else sum(self._count(name, value) for _, value in samples)

    def needed(self, name: str, flag: str) -> int:
        """The sum over all labels. Raises BackendError where there is no such sample."""
        total = self.total(name)
        if total is None:
            end = name.rpartition(":")[2]
            alike = [other for other in self.values if other.endswith(end)]
            beside = f", but {one_line(', '.join(alike), 200)}: under another name it is not read" if alike else ""
            raise OtherForm(f"{self.where}: no counter {name}{beside}", hint=f"the server needs {flag}")
        return total

    def seconds(self, name: str) -> float | None:
        """The sum of a time over all labels. None where there is no such sample."""
        times = [value for _, value in self.values.get(name, [])]
        if wrong := [value for value in times if not 0 <= value < MOST_COUNTED]:
            raise BackendError(f"{self.where}: {name} = {shown(wrong[0])} is no time in seconds")
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
            raise BackendError(f"{self.where}: {name} = {shown(value)} is no count")
        return round(value)


def shown(value: float) -> str:
    """A number of any size: Prometheus' parser gives whole ones as integers."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST_NUMBER else f"{text[:8]}… of {len(text)} characters"


@dataclass(frozen=True, slots=True)
class PrometheusMeter:
    """The names of an engine's counters. `flag` is what switches them on.

    Counters `requests`, `generated` and `decode_s` may be missing until the first request has ended. `cached`: the
    names of one counter in several releases; where none is there, it is not counted. The names of the counters on
    speculation start with `prefix`; they are missing in a server that does not speculate. `speculation_since`: the
    releases that have all of them. `decode_s` is the sum of a histogram of times.
    """

    path: str
    flag: str
    busy: tuple[str, ...]
    prefix: str
    requests: str | None = None
    generated: str | None = None
    cached: tuple[str, ...] = ()
    decode_s: str | None = None
    speculation_since: str = "every release that is known has it"

    def read(self, client: Client) -> Reading:
        samples = Samples.scrape(client, self.path, self.flag)
        return Reading(
            requests=(samples.total(self.requests) or 0) if self.requests else None,
            generated=samples.needed(self.generated, self.flag) if self.generated else None,
            busy=sum(samples.needed(name, self.flag) for name in self.busy) if self.busy else None,
            cached=next((total for name in self.cached if (total := samples.total(name)) is not None), None),
            spec=self.speculation(samples),
            decode_s=(samples.seconds(self.decode_s) or 0.0) if self.decode_s else None,
            speculative=bool(self.of_speculation(samples)),
        )

    def of_speculation(self, samples: Samples) -> list[str]:
        return sorted(name for name in samples.values if name.startswith(f"{self.prefix}spec_decode_"))

    def speculation(self, samples: Samples) -> SpecCounts:
        """The counts of speculation. Raises BackendError where the server has some of the counters, and not all."""
        prefix, present = f"{self.prefix}spec_decode_num_", self.of_speculation(samples)
        at_pos = samples.by_position(f"{prefix}accepted_tokens_per_pos_total")
        names = [f"{prefix}{counted}_total" for counted in ("drafts", "draft_tokens", "accepted_tokens")]
        if present and (missing := [name for name in names if name not in present]):
            raise OtherForm(
                f"{samples.where}: counter {missing[0]} is missing, and {one_line(', '.join(present), 400)} are there",
                hint=self.speculation_since,
            )
        steps, drafted, accepted = (samples.total(name) or 0 for name in names)
        return SpecCounts.of_survivals(steps, drafted, accepted, at_pos)


# ── before a run ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculation of a running server. `length`: draft tokens of a step at most; 0: none; None: not told, and `unknown`
    may say why. `shown`: the longest that a short text showed; drafts may be longer.
    """

    length: int | None = None
    method: str | None = None
    unknown: str | None = None
    shown: bool = False


def counted_speculation(client: Client, meter: PrometheusMeter) -> Speculation:
    """The speculation that an engine's counters show: one for each position of a draft. Raises BackendError where it
    shows no counters.
    """
    samples = Samples.scrape(client, meter.path, meter.flag)
    positions = samples.by_position(f"{meter.prefix}spec_decode_num_accepted_tokens_per_pos_total")
    return Speculation((len(positions) or None) if meter.of_speculation(samples) else 0)


def has_metrics(client: Client, path: str, prefix: str) -> bool:
    """Return whether a server shows metrics whose names begin with `prefix`."""
    try:
        return any(line.startswith(prefix) for line in client.text(path, may_be_missing=True).splitlines())
    except BackendError:
        return False
