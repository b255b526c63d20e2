"""The SQLite export of Nsight Systems: `nsys export --type sqlite`, or `nsys profile --export=sqlite`.

Its tables are made as there is something to put into them; some versions add a number to a name (`_V2`). Those that
matter (times in nanoseconds):

    CUPTI_ACTIVITY_KIND_RUNTIME            CUDA functions that the host called, runtime and driver; nameId → StringIds
    CUPTI_ACTIVITY_KIND_KERNEL             kernels; demangledName → StringIds
    CUPTI_ACTIVITY_KIND_MEMCPY, _MEMSET    copies (copyKind, srcKind, dstKind, bytes) and memory sets
    CUPTI_ACTIVITY_KIND_GRAPH_TRACE        CUDA graphs that were traced as one piece each, without their kernels
    NVTX_EVENTS                            ranges; text, or textId → StringIds

`correlationId` counts within a process, which the upper bits of `globalPid` and `globalTid` name.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

from specgate.analysis.traces.chrome import MOST_EVENTS, printable
from specgate.analysis.traces.recording import About, Call, Doubt, Malformed, Mark, Recording, Work, WorkKind

ACTIVITY: Final = "CUPTI_ACTIVITY_KIND_"
PAGES: Final = "CUDA_UM_"
"""Beginning of the tables of managed memory, whose pages move without a call."""
COPY_KINDS: Final[Mapping[int, str]] = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP", 11: "HtoD", 12: "DtoH"}
"""Kinds of copies (CUPTI's numbers), where the export has no table with their names."""
_VERSION: Final = re.compile(r"(?:_ptsz|_ptds)?_v\d{4,5}$")
"""The version of the CUDA release that a runtime function's name carries: cudaStreamSynchronize_v3020."""
_PROCESS_BITS: Final = 24
NVTX_RANGES: Final = (59, 60)
"""Types of events that are ranges: pushed and popped, or started and ended."""
MOST_NS: Final = 1 << 62
"""No time of a trace is that late: it is a century after 1970."""

CALLS: Final = ("RUNTIME", "DRIVER")
WORK: Final = ("KERNEL", "MEMCPY", "MEMSET")
KNOWN: Final = (*CALLS, *WORK, "GRAPH_TRACE", "SYNCHRONIZATION", "CUDA_EVENT", "OVERHEAD", "CONTEXT", "STREAM")
"""Kinds of activity that are read, or of no use here."""
NEEDED: Final[Mapping[str, About]] = {"RUNTIME": "calls", "KERNEL": "work"}
CALL_COLUMNS: Final = ("start", "end", "globalTid", "correlationId", "nameId")
WORK_COLUMNS: Final = ("start", "end", "deviceId", "correlationId", "globalPid")
LISTED: Final = 30
"""Tables that a message lists."""

Row = Mapping[str, Any]
T = TypeVar("T")


def read_nsys(file: Path) -> Recording:
    """The recording in an export. Raises Malformed where it is none."""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return Export(database).recording()
    except (sqlite3.Error, OverflowError, UnicodeDecodeError, MemoryError) as error:
        # SQLite takes the length of a text from the file, and runs out of memory if it is a wrong one.
        raise Malformed(f"the database cannot be read: {str(error) or 'out of memory'}") from error


class Export:
    """An open export. A column that it does not have reads as None; a row that cannot be read is counted."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        database.row_factory = sqlite3.Row
        database.text_factory = lambda raw: raw.decode(errors="replace")
        listed = database.execute("select name from sqlite_master where type in ('table', 'view') order by name")
        self.tables = [row["name"] for row in listed]
        if not self.named("StringIds"):
            has = f"it has {', '.join(self.tables[:LISTED]) or 'no tables'}"
            raise Malformed(f"a database without the table StringIds, not an export of nsys: {has}")
        self.names = {row["id"]: row["value"] for row in self.rows("StringIds", "id", "value")}
        self.lost: Counter[About] = Counter()
        self.examples: dict[About, str] = {}
        self.by_process = all(
            "globalPid" in self.columns(table) for kind in WORK for table in self.named(ACTIVITY + kind)
        )

    def recording(self) -> Recording:
        calls = [call for kind in CALLS for call in self.kept(kind, "calls", self.call, *CALL_COLUMNS)]
        work = [
            *self.kept("KERNEL", "work", self.kernel, *WORK_COLUMNS, "demangledName", "shortName"),
            *self.kept("MEMCPY", "work", self.copy, *WORK_COLUMNS, "bytes", "copyKind", "srcKind", "dstKind"),
            *self.kept("MEMSET", "work", self.memory_set, *WORK_COLUMNS),
        ]
        marks = [
            *self.kept("NVTX_EVENTS", "all", self.mark, "start", "end", "eventType", "text", "textId", "globalTid")
        ]
        return Recording("nsys", calls, work, marks, self.devices(), doubts=tuple(self.doubts()))

    def kept(self, kind: str, about: About, read: Callable[[Row, str], T | None], *columns: str) -> Iterator[T]:
        """What `read` makes of each row of a kind's tables."""
        for row in self.rows(kind if kind.startswith("NVTX") else ACTIVITY + kind, *columns):
            try:
                if (entry := read(row, kind)) is not None:
                    yield entry
            except Malformed as error:
                self.lost[about] += 1
                self.examples.setdefault(about, str(error))

    def call(self, row: Row, kind: str) -> Call:
        name = _VERSION.sub("", self.name(row["nameId"], f"{kind}.nameId"))
        thread = row["globalTid"]
        return Call(name, *times(row, kind), thread_of(thread), self.correlated(row["correlationId"], thread))

    def mark(self, row: Row, kind: str) -> Mark | None:
        """A range; None for a mark of one moment. A range that was not closed ends where it begins."""
        opened = row["end"] is None and row["eventType"] in NVTX_RANGES
        if row["end"] is None and not opened:
            return None
        if not isinstance(text := row["text"], str | None):
            raise Malformed(f"{kind}.text: {text}: a text is needed")
        name = printable(text) if text is not None else self.name(row["textId"], f"{kind}.textId")
        begin, end = times({**row, "end": row["start"]} if opened else row, kind)
        return Mark(name, begin, end, thread_of(row["globalTid"]))

    def kernel(self, row: Row, kind: str) -> Work:
        name = row["demangledName"] if row["demangledName"] is not None else row["shortName"]
        return self.work("kernel", self.name(name, f"{kind}.demangledName"), row, kind)

    def copy(self, row: Row, kind: str) -> Work:
        name = f"Memcpy {self.copy_kinds.get(row['copyKind'], row['copyKind'])}"
        if row["srcKind"] in self.memory and row["dstKind"] in self.memory:
            name += f" ({self.memory[row['srcKind']]} -> {self.memory[row['dstKind']]})"
        return self.work("copy", name, row, kind, row["bytes"])

    def memory_set(self, row: Row, kind: str) -> Work:
        return self.work("set", "Memset", row, kind)

    def work(self, what: WorkKind, name: str, row: Row, kind: str, size: object = None) -> Work:
        begin, end = times(row, kind)
        device = row["deviceId"] if isinstance(row["deviceId"], int) else 0
        correlation = self.correlated(row["correlationId"], row["globalPid"])
        return Work(what, name, begin, end, device, correlation, size if isinstance(size, int) and size >= 0 else None)

    def correlated(self, correlation: object, process: object) -> int:
        """A number for a correlation within a process; 0 for none."""
        if not isinstance(correlation, int) or not correlation:
            return 0
        if isinstance(process, int) and self.by_process:
            return (process >> _PROCESS_BITS) << 32 | correlation
        return correlation

    def doubts(self) -> Iterator[Doubt]:
        for about, times in self.lost.items():
            yield Doubt(
                about, f"{times:,} {'rows are' if times > 1 else 'row is'} left out, the first: {self.examples[about]}"
            )
        if graphs := sum(1 for _ in self.rows(ACTIVITY + "GRAPH_TRACE", "start")):
            yield Doubt(
                "work",
                f"{graphs:,} CUDA graphs were traced as one piece each, so that their kernels are missing: "
                "nsys profile --cuda-graph-trace=node",
            )
        for kind, about in NEEDED.items():
            if not self.named(ACTIVITY + kind):
                yield Doubt(about, f"no table {ACTIVITY}{kind} among {', '.join(self.tables[:LISTED])}")
        known = {table for kind in KNOWN for table in self.named(ACTIVITY + kind)[:1]}
        for table in self.tables:
            if table.startswith((ACTIVITY, PAGES)) and table not in known and self.has_rows(table):
                yield Doubt("work", f"the table {table} is not read")
                yield Doubt("calls", f"the table {table} is not read")

    def devices(self) -> tuple[str, ...]:
        return tuple(str(row["name"]) for row in self.rows("TARGET_INFO_GPU", "name") if row["name"])

    @cached_property
    def copy_kinds(self) -> dict[int, str]:
        return {**COPY_KINDS, **self.short_kinds()}

    @cached_property
    def memory(self) -> dict[int, str]:
        return self.labels("ENUM_CUDA_MEM_KIND")

    def short_kinds(self) -> dict[int, str]:
        """Kinds of copies by the export's own table: "Device-to-Host" becomes DtoH."""
        short = {"Host": "H", "Device": "D", "Array": "A", "Peer": "P"}
        kinds = {}
        for number, label in self.labels("ENUM_CUDA_MEMCPY_OPER").items():
            source, _, target = label.removeprefix("Unified ").partition("-to-")
            if source in short and target in short:
                kinds[number] = f"{short[source]}to{short[target]}"
        return kinds

    def labels(self, table: str) -> dict[int, str]:
        return {row["id"]: str(row["label"]) for row in self.rows(table, "id", "label") if row["label"]}

    def name(self, number: object, column: str) -> str:
        """The text with this number. An export of some versions holds the text itself."""
        text = number if isinstance(number, str) else self.names.get(number)
        if not isinstance(text, str):
            raise Malformed(f"{column}: StringIds has no such text as {number}")
        return printable(text)

    def named(self, table: str) -> list[str]:
        """The tables of this name: some versions of nsys add a number (`_V2`) to it. Those with rows come first."""
        pattern = re.compile(rf"{table}(?:_?V?\d+)?", re.IGNORECASE)
        return sorted(
            (name for name in self.tables if pattern.fullmatch(name)), key=lambda name: not self.has_rows(name)
        )

    def columns(self, table: str) -> set[str]:
        return {row["name"] for row in self.database.execute(f"pragma table_info({quoted(table)})")}

    def has_rows(self, table: str) -> bool:
        return self.database.execute(f"select 1 from {quoted(table)} limit 1").fetchone() is not None

    def rows(self, table: str, *columns: str) -> Iterator[Row]:
        """The rows of a table; none where the export has no such table. Of two of one name, it is one of them that has
        rows.
        """
        for name in self.named(table)[:1]:
            known = self.columns(name)
            listed = ", ".join(f'"{column}"' if column in known else f'null as "{column}"' for column in columns)
            for number, row in enumerate(self.database.execute(f"select {listed} from {quoted(name)}"), 1):
                if number > MOST_EVENTS:
                    raise Malformed(f"{name} has more than {MOST_EVENTS:,} rows: trace fewer steps")
                yield row


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def thread_of(number: object) -> str:
    """PROCESS/THREAD of a `globalTid`."""
    return f"{number >> _PROCESS_BITS}/{number}" if isinstance(number, int) else f"/{number}"


def times(row: Row, kind: str) -> tuple[int, int]:
    begin, end = row["start"], row["end"]
    if not isinstance(begin, int) or not isinstance(end, int) or not 0 <= begin <= end < MOST_NS:
        raise Malformed(f"{kind}: a row from {begin} to {end}: two times in nanoseconds, in order, are needed")
    return begin, end
