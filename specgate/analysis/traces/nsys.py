"""The SQLite export of Nsight Systems: `nsys export --type sqlite`, or `nsys profile --export=sqlite`.

Its tables are made as there is something to put into them. Those that matter (times in nanoseconds):

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
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from specgate.analysis.traces.chrome import MOST_EVENTS
from specgate.analysis.traces.recording import Call, Malformed, Mark, Recording, Work, WorkKind

ACTIVITY: Final = "CUPTI_ACTIVITY_KIND_"
COPY_KINDS: Final[Mapping[int, str]] = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
"""Kinds of copies (CUPTI's numbers), where the export has no table with their names."""
_VERSION: Final = re.compile(r"(?:_ptsz|_ptds)?_v\d{4,5}$")
"""The version of the CUDA release that a runtime function's name carries: cudaStreamSynchronize_v3020."""
_PROCESS_BITS: Final = 24
MOST_NS: Final = 1 << 62
"""No time of a trace is that late: it is a century after 1970."""

Row = Mapping[str, Any]


def read_nsys(file: Path) -> Recording:
    """The recording in an export. Raises Malformed where it is none."""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return Export(database).recording()
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        raise Malformed(f"the database cannot be read: {error}") from error


class Export:
    """An open export. A column that a version of nsys does not have reads as None."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        database.row_factory = sqlite3.Row
        database.text_factory = lambda raw: raw.decode(errors="replace")
        self.tables = {row["name"] for row in database.execute("select name from sqlite_master where type = 'table'")}
        if "StringIds" not in self.tables:
            raise Malformed("a database without the table StringIds: not an export of nsys")
        self.names = {row["id"]: row["value"] for row in self.rows("StringIds", "id", "value")}

    def recording(self) -> Recording:
        calls = [
            Call(
                _VERSION.sub("", self.name(row["nameId"], "RUNTIME.nameId")),
                *times(row, "RUNTIME"),
                str(row["globalTid"]),
                correlated(row["correlationId"], row["globalTid"]),
            )
            for row in self.activity("RUNTIME", "start", "end", "globalTid", "correlationId", "nameId")
        ]
        work = [*self.kernels(), *self.copies(), *self.sets()]
        marks = [
            Mark(
                str(row["text"]) if row["text"] else self.name(row["textId"], "NVTX_EVENTS.textId"),
                *times(row, "NVTX"),
                str(row["globalTid"]),
            )
            for row in self.rows("NVTX_EVENTS", "start", "end", "text", "textId", "globalTid")
            if row["end"] is not None and (row["text"] or row["textId"] is not None)
        ]
        return Recording("nsys", calls, work, marks, self.devices(), self.begin_ns(), tuple(self.notes()))

    def kernels(self) -> Iterator[Work]:
        columns = ("start", "end", "deviceId", "correlationId", "globalPid", "demangledName", "shortName")
        for row in self.activity("KERNEL", *columns):
            name = row["demangledName"] if row["demangledName"] is not None else row["shortName"]
            yield self.work("kernel", self.name(name, "KERNEL.demangledName"), row, "KERNEL")

    def copies(self) -> Iterator[Work]:
        kinds = {**COPY_KINDS, **self.short_kinds()}
        memory = self.labels("ENUM_CUDA_MEM_KIND")
        columns = ("start", "end", "deviceId", "correlationId", "globalPid", "bytes", "copyKind", "srcKind", "dstKind")
        for row in self.activity("MEMCPY", *columns):
            name = f"Memcpy {kinds.get(row['copyKind'], row['copyKind'])}"
            if row["srcKind"] in memory and row["dstKind"] in memory:
                name += f" ({memory[row['srcKind']]} -> {memory[row['dstKind']]})"
            yield self.work("copy", name, row, "MEMCPY", row["bytes"])

    def sets(self) -> Iterator[Work]:
        for row in self.activity("MEMSET", "start", "end", "deviceId", "correlationId", "globalPid"):
            yield self.work("set", "Memset", row, "MEMSET")

    def work(self, kind: WorkKind, name: str, row: Row, table: str, size: object = None) -> Work:
        begin, end = times(row, table)
        device = row["deviceId"] if isinstance(row["deviceId"], int) else 0
        correlation = correlated(row["correlationId"], row["globalPid"])
        return Work(kind, name, begin, end, device, correlation, size if isinstance(size, int) and size >= 0 else None)

    def notes(self) -> Iterator[str]:
        if graphs := sum(1 for _ in self.activity("GRAPH_TRACE", "start")):
            yield (
                f"{graphs:,} CUDA graphs were traced as one piece each, so that their kernels are missing: "
                "nsys profile --cuda-graph-trace=node"
            )

    def devices(self) -> tuple[str, ...]:
        return tuple(str(row["name"]) for row in self.rows("TARGET_INFO_GPU", "name") if row["name"])

    def begin_ns(self) -> int | None:
        begins = [row["utcEpochNs"] for row in self.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")]
        return begins[0] if begins and isinstance(begins[0], int) else None

    def short_kinds(self) -> dict[int, str]:
        """Kinds of copies by the export's own table: "Device-to-Host" becomes DtoH."""
        short = {"Host": "H", "Device": "D", "Array": "A", "Peer": "P"}
        kinds = {}
        for number, label in self.labels("ENUM_CUDA_MEMCPY_OPER").items():
            source, _, target = label.partition("-to-")
            if source in short and target in short:
                kinds[number] = f"{short[source]}to{short[target]}"
        return kinds

    def labels(self, table: str) -> dict[int, str]:
        return {row["id"]: str(row["label"]) for row in self.rows(table, "id", "label") if row["label"]}

    def name(self, number: object, column: str) -> str:
        """The text with this number. An export of some versions holds the text itself."""
        text = number if isinstance(number, str) else self.names.get(number)
        if not isinstance(text, str):
            raise Malformed(f"{column} = {number}: StringIds has no such text")
        return text

    def activity(self, kind: str, *columns: str) -> Iterator[Row]:
        return self.rows(ACTIVITY + kind, *columns)

    def rows(self, table: str, *columns: str) -> Iterator[Row]:
        """The rows of a table; none where the export has no such table."""
        if table not in self.tables:
            return
        known = {row["name"] for row in self.database.execute(f"pragma table_info({table})")}
        listed = ", ".join(f'"{column}"' if column in known else f'null as "{column}"' for column in columns)
        for number, row in enumerate(self.database.execute(f"select {listed} from {table}"), 1):
            if number > MOST_EVENTS:
                raise Malformed(f"{table} has more than {MOST_EVENTS:,} rows: trace fewer steps")
            yield row


def times(row: Row, table: str) -> tuple[int, int]:
    begin, end = row["start"], row["end"]
    if not isinstance(begin, int) or not isinstance(end, int) or not 0 <= begin <= end < MOST_NS:
        raise Malformed(f"{table}: a row from {begin} to {end}: two times in nanoseconds, in order, are needed")
    return begin, end


def correlated(correlation: object, process: object) -> int:
    """A number for a correlation within a process; 0 for none."""
    if not isinstance(correlation, int) or not correlation:
        return 0
    return (process >> _PROCESS_BITS) << 32 | correlation if isinstance(process, int) else correlation
