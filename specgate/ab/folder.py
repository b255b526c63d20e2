"""The files of a comparison.

asked.json                 what was asked, before the first block
processes.json             one entry per engine process, and the machine; replaced after each pair
samples/environment.jsonl  what the monitor process saw
old/  new/                 the journals of either side: samples/ and logs/, as in a run folder
ab.json  ab.html  ab.md  junit.xml  MANIFEST.sha256      at the end
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from specgate.contract import PairRef, Policy, Scenario
from specgate.contract.cycle_budget import Bandwidth
from specgate.contract.protocols import Format
from specgate.contract.two_builds import SIDES, Margins, Process, Side, SideName, TwoBuilds
from specgate.contract.types import ASCENDING, REPEATS, Length, Range
from specgate.errors import InvalidResult, OtherVersion, UsageError
from specgate.files import manifest
from specgate.files.journal import Journal
from specgate.files.json_record import read_record, stored_json
from specgate.files.json_text import shown, to_plain
from specgate.files.run_folder import RunFolder, label_of
from specgate.files.run_schema import made_by, that_version
from specgate.files.writing import disk

ASKED: Final = "asked.json"
PROCESSES: Final = "processes.json"
RESULT: Final = "ab.json"
FAMILY: Final = "specgate.ab/"
SCHEMA: Final = "specgate.ab/v3"
PAGE: Final = "ab.html"
FILES: Final[tuple[tuple[Format, str], ...]] = (("html", PAGE), ("md", "ab.md"), ("junit", "junit.xml"))
"""Format of the view `ab` → the file that it becomes."""
MOST_GROUPS: Final = 100
"""Prompt sets that a process visits, and ABBA groups of a role on a visit."""
MOST_LOOKS: Final = 64
MOST_BLOCKS: Final = 1 << 18
"""Blocks of a whole comparison. Its schedule is laid out before it is judged."""
FOLDERS: Final = frozenset(
    {*manifest.FOLDERS, *SIDES, *(f"{side}/{sub}" for side in SIDES for sub in manifest.FOLDERS)}
)
"""The folders that the folder of a comparison may hold."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Settings of a comparison, in full: with the journals, everything else follows.

    `pairs`, `visits`: see `schedule.schedule_of`. `quads`: ABBA groups of every role on each visit.
    `looks`: numbers of process pairs after which the words are judged, ascending; the last one is `pairs`.
    `begun_with`: what must be the same when the comparison is continued, by name: software, host, GPU and driver.
    """

    sides: Mapping[str, Side]
    pair: PairRef
    policy: Policy
    scenarios: Mapping[str, Scenario]
    pairs: Annotated[int, Range(ge=1, le=REPEATS)]
    visits: Annotated[int, Range(ge=1, le=MOST_GROUPS)]
    quads: Annotated[int, Range(ge=1, le=MOST_GROUPS)]
    margins: Margins
    prompts: Mapping[str, Mapping[str, object]]
    started: str
    argv: tuple[str, ...]
    tool_version: str
    looks: Annotated[tuple[Annotated[int, Range(ge=1, le=REPEATS)], ...], Length(1, MOST_LOOKS), ASCENDING]
    bandwidth: Bandwidth | None = None
    begun_with: Mapping[str, str | None] = field(default_factory=dict)

    def contradiction(self) -> str | None:
        """Return why no comparison can be like that, or none that anybody could judge; None if one can."""
        if self.looks[-1] != self.pairs:
            return f"looks: {list(self.looks)}: the last one is not pairs, {self.pairs}"
        if self.sides.keys() != {*SIDES}:
            return f"sides: {', '.join(self.sides) or 'none'}: {' and '.join(SIDES)} were expected"
        if not self.scenarios:
            return "scenarios: there are none"
        grids = ((len(s.grid.context) * len(s.grid.batch), len(s.roles)) for s in self.scenarios.values())
        blocks = 4 * self.pairs * self.visits * self.quads * sum(points * roles for points, roles in grids)
        return f"{blocks} blocks: at most {MOST_BLOCKS} can be judged" if blocks > MOST_BLOCKS else None


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes so far, and how they ran.

    `failure`: what ended the measuring before its time, and with `code`, its exit code.
    `resumed`: what a reader must know of each time that the measuring was continued, a sentence each.
    """

    found: tuple[Process, ...] = ()
    beside: bool = True
    failure: str | None = None
    code: int | None = None
    ended: str = ""
    environment: Mapping[str, object] = field(default_factory=dict)
    resumed: tuple[str, ...] = ()

    def whole(self) -> set[int]:
        """The numbers of the pairs whose processes have both ended well."""
        sides = [{p.number for p in self.found if p.side == side} for side in SIDES]
        return set.intersection(*sides)

    def upto(self, count: int) -> tuple[Process, ...]:
        """The processes of the first `count` pairs."""
        return tuple(p for p in self.found if p.number < count)


class AbFolder:
    """The folder of a comparison, with the journals of its sides."""

    def __init__(self, top: RunFolder) -> None:
        self.top = top
        self.sides: dict[SideName, RunFolder] = {
            name: RunFolder(top.path / name, read_only=top.read_only) for name in SIDES
        }

    @classmethod
    def create(cls, parent: Path, names: Sequence[str], source_sha256: str) -> AbFolder:
        """A new folder below `parent`. Raises EnvironmentRefused where it cannot be written."""
        top = RunFolder.create(parent, "ab", label_of(names), source_sha256)
        with disk(top.path):
            for name in SIDES:
                for sub in ("samples", "logs"):
                    (top.path / name / sub).mkdir(parents=True)
        return cls(top)

    @classmethod
    def open(cls, path: Path, *, read_only: bool = True) -> AbFolder:
        """A stored comparison. Raises UsageError where `path` is none."""
        if not is_comparison(path):
            raise UsageError(f"{path} is not a comparison: it has no {ASKED}", hint="give the folder `ab` printed")
        return cls(RunFolder(path, read_only=read_only))

    @property
    def path(self) -> Path:
        return self.top.path

    def journals(self) -> dict[SideName, Journal]:
        """The journals of both sides."""
        return {name: side.journal() for name, side in self.sides.items()}

    def write_asked(self, settings: Asked) -> None:
        self.top.write_json(ASKED, {"schema": SCHEMA, **to_plain(Asked, settings)})

    def asked(self) -> Asked:
        """Raises OtherVersion for a comparison of another version, and InvalidResult where the file is missing or holds
        anything else.
        """
        self._check_schema()
        stored = read_record(Asked, self.path / ASKED, SCHEMA)
        if stored is None:
            raise InvalidResult(f"{self.path / ASKED}: missing")
        if why := stored.contradiction():
            raise InvalidResult(f"{self.path / ASKED}: {why}")
        return stored

    def _check_schema(self) -> None:
        try:
            data = stored_json(self.path / ASKED)
        except InvalidResult:
            return  # the reader that comes next says what is wrong
        schema = data.get("schema") if isinstance(data, dict) else None
        if isinstance(data, dict) and isinstance(schema, str) and schema != SCHEMA and schema.startswith(FAMILY):
            run = {"fingerprint": data.get("begun_with")}
            message = f"{self.path / ASKED}: schema {shown(schema)}; this specgate reads {SCHEMA!r}. It was made by "
            raise OtherVersion(message + made_by(run), hint=that_version(run))

    def write_processes(self, processes: Processes) -> None:
        self.top.write_json(PROCESSES, {"schema": SCHEMA, **to_plain(Processes, processes)})

    def processes(self) -> Processes:
        """The processes; none where the first pair never ended."""
        return read_record(Processes, self.path / PROCESSES, SCHEMA) or Processes()

    def result(self) -> object:
        """Content of ab.json. Raises InvalidResult where it cannot be read."""
        return stored_json(self.path / RESULT)


def result_json(result: TwoBuilds) -> dict[str, object]:
    """The contents of ab.json."""
    return {"schema": SCHEMA, **to_plain(TwoBuilds, result)}


def is_comparison(path: Path) -> bool:
    """True if `path` is the folder of a comparison."""
    return (path / ASKED).is_file()
