"""Traces of profilers: as they are, of HIP, with text that is no JSON any more, and with other tables and columns."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

from tests.fuzz.attempt import Ready
from tests.fuzz.mutation import byte_strings, json_texts
from tests.fuzz.targets.shared import USAGE, plain
from tests.support.traces import sglang_loop, vllm_loop

SHAPES: Final = [{"tag": "EAGLE3_FC", "M": 3, "K": 8640, "N": 2880, "dtype": 14, "layout": "row", "count": 512}]


def trace(folder: Path) -> Ready:
    from specgate.analysis.perf_invariants.loop import own_kernels, quiet_loop
    from specgate.analysis.traces.families import has_shapes, read_shapes
    from specgate.analysis.traces.steps import loop_of
    from specgate.analysis.traces.trace_file import read_trace
    from specgate.commands.diagnose.trace import block_of, showing
    from specgate.contract import Held

    file = folder / "fuzzed"
    made = vllm_loop(steps=2)
    exported = made.write_nsys(folder / "valid.sqlite").read_bytes()

    def read() -> None:
        if has_shapes(file):
            read_shapes(file)
            return
        recording = read_trace(file)
        loop = loop_of(recording, 3)
        block = block_of(recording, loop, ("*",))
        invariants = [own_kernels(None, block), quiet_loop(block)]
        json.dumps(showing.as_data(file, recording, loop, invariants))
        showing.as_text(file, recording, loop, invariants).encode()
        assert loop.partial is None or all(invariant.held is not Held.HELD for invariant in invariants)

    whole = made.chrome()
    hip = json.loads(json.dumps(sglang_loop(steps=2).chrome()).replace("cuda", "hip"))
    texts = json_texts([whole, hip, whole["traceEvents"], SHAPES]) | broken_texts([json.dumps(whole), json.dumps(hip)])
    return Ready(texts | byte_strings([exported]) | other_tables(exported), plain(whole), read, file, USAGE)


PIECES: Final = (
    '"', "\\", "\\x", "\x01", "\x00", "{", "}", "[", "]", ",", "}, ", "}]", '}, {"ph": ', '{"name": "{"', ": ", "NaN",
    "\n", "/*", "\ufeff", "é", ' ,"cat": "kernel"', '"ph": "B"', '"dur": -1',
)  # fmt: skip
"""Text that writers of names and writers that were stopped leave behind."""


@st.composite
def broken_texts(draw: Callable[..., Any], texts: Sequence[str]) -> bytes:
    """One of `texts` with one to four pieces put in or taken out, or with its end cut off."""
    text: str = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        match draw(st.sampled_from(("insert", "insert", "insert", "remove", "repeat", "cut"))):
            case "insert":
                text = text[:at] + draw(st.sampled_from(PIECES)) + text[at:]
            case "remove":
                text = text[:at] + text[at + draw(st.integers(1, 40)) :]
            case "repeat":
                text = text[:at] + text[max(0, at - draw(st.integers(1, 400))) :]
            case _:
                text = text[:at]
    return text.encode()


VALUES: Final = ("null", "-1", "0", "1 << 62", "9.5", "'soon'", "x'ff00'", "start", "'cudaMalloc'", "rowid")


@st.composite
def other_tables(draw: Callable[..., Any], database: bytes) -> bytes:
    """A database with one to four tables, columns or values that are not as they were."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(database)
        tables = [name for (name,) in db.execute("select name from sqlite_master where type = 'table'")]
        for _ in range(draw(st.integers(1, 4))):
            table = draw(st.sampled_from(tables))
            columns = [row[1] for row in db.execute(f"pragma table_info({table})")] or ["id"]
            column, new = draw(st.sampled_from(columns)), draw(st.sampled_from(("_V2", "_V3", "2", "_EXTRA", " x")))
            statement = draw(
                st.sampled_from(
                    (
                        f'alter table {table} rename to "{table}{new}"',
                        f'create table "{table}{new}" as select * from {table}',
                        f'create view "{table}{new}" as select * from {table}',
                        f"drop table {table}",
                        f"alter table {table} drop column {column}",
                        f'alter table {table} rename column {column} to "{column}{new}"',
                        f"insert into {table} select * from {table}",
                        f"delete from {table} where rowid % 2",
                        f"update {table} set {column} = {draw(st.sampled_from(VALUES))} where rowid % 3",
                    )
                )
            )
            with suppress(sqlite3.Error):
                db.execute(statement)
        db.commit()
        return db.serialize()
