"""Files that specgate has stored: run folders, the ledger, records of a machine, and runs that `runs check` is
given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from specgate.files.json_record import read_record, write_record
from specgate.files.run_folder import RunFolder
from tests.fuzz import seeds
from tests.fuzz.attempt import Ready
from tests.fuzz.mutation import byte_strings, json_lines, json_texts, yaml_texts
from tests.fuzz.targets.shared import STORED, gates, plain


def stored(name: str, inputs: Callable[[Path], st.SearchStrategy[bytes]]) -> Callable[[Path], Ready]:
    """The target of one file of a run folder: it is read, and everything that follows from it is computed."""

    def prepare(folder: Path) -> Ready:
        from specgate.archive.stored_runs import load_unended

        run = seeds.a_run(folder)
        file = run / name

        def read() -> None:
            load_unended(RunFolder.open(run, read_only=True))

        return Ready(inputs(file), file.read_bytes(), read, file, STORED, named=(run.name, "scenario", "no such gate"))

    return prepare


def edited_json(file: Path) -> st.SearchStrategy[bytes]:
    return json_texts([seeds.json_of(file)])


def edited_lines(file: Path) -> st.SearchStrategy[bytes]:
    return json_lines(seeds.lines_of(file))


def edited_yaml(file: Path) -> st.SearchStrategy[bytes]:
    return yaml_texts([file.read_text(encoding="utf-8")])


def verified(folder: Path) -> Ready:
    """`specgate runs verify` on a run whose gates.json is odd: whatever it holds is a difference, not an error."""
    from specgate.archive.verification import verify

    run = seeds.a_run(folder)
    for report in (*run.glob("*.html"), *run.glob("*.csv"), *run.glob("*.xml"), *run.glob("*.md")):
        report.unlink()  # rendering them anew takes most of the time, and reads none of the input
    file = run / "gates.json"
    return Ready(edited_json(file), file.read_bytes(), lambda: verify(run), file, STORED, named=(run.name,))


def compared(name: str) -> Callable[[Path], Ready]:
    """`specgate runs verify` on a comparison of which one file is odd."""

    def prepare(folder: Path) -> Ready:
        from specgate.archive.verification import verify_builds

        path = seeds.a_comparison(folder)
        file = path / name
        inputs = edited_lines(file) if name.endswith(".jsonl") else edited_json(file)
        return Ready(inputs, file.read_bytes(), lambda: verify_builds(path), file, STORED, named=(path.name,))

    return prepare


def ledger(folder: Path) -> Ready:
    from specgate.promotion.ledger import Ledger

    file = seeds.a_ledger(folder)
    return Ready(json_lines(seeds.lines_of(file)), file.read_bytes(), lambda: Ledger(folder).read(), file, STORED)


def ledger_entries(folder: Path) -> Ready:
    """Odd entries in a ledger whose chain is whole: without that, every edit ends at the chain."""
    import hashlib

    from specgate.promotion.ledger import GENESIS, Ledger

    file = seeds.a_ledger(folder)
    lines = seeds.lines_of(file)

    def read() -> None:
        written, previous = list[bytes](), GENESIS
        for line in file.read_bytes().split(b"\n"):
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            made = json.dumps({**entry, "prev_sha256": previous} if isinstance(entry, dict) else entry).encode()
            written.append(made)
            previous = hashlib.sha256(made).hexdigest()
        file.write_bytes(b"".join(line + b"\n" for line in written))
        (folder / "ledger.head").write_text(f"{len(written)} {previous}\n")
        Ledger(folder).read()

    return Ready(json_lines(lines), file.read_bytes(), read, file, STORED)


def ledger_head(folder: Path) -> Ready:
    from specgate.promotion.ledger import Ledger

    seeds.a_ledger(folder)
    file = folder / "ledger.head"
    inputs = byte_strings([file.read_bytes(), b"1 " + b"0" * 64])
    return Ready(inputs, file.read_bytes(), lambda: Ledger(folder).read(), file, STORED, named=("ledger.jsonl",))


def records(folder: Path) -> Ready:
    """The noise profile and the bandwidth of a machine."""
    from specgate.contract.cycle_budget import Bandwidth
    from specgate.machine import bandwidth, noise_profile

    file = folder / "fuzzed.json"
    documents = []
    for kind, value, schema in (
        (Bandwidth, Bandwidth("2026", "cpu", None, 1 << 20, 30, 1e10, 0.01), bandwidth.SCHEMA),
        (noise_profile.NoiseProfile, seeds.a_profile(), noise_profile.SCHEMA),
    ):
        write_record(kind, value, file, schema)
        documents.append(seeds.json_of(file))

    def read() -> None:
        if b"noise" in file.read_bytes():
            record = read_record(noise_profile.NoiseProfile, file, noise_profile.SCHEMA)
            noise_profile.warnings(record)
        else:
            read_record(Bandwidth, file, bandwidth.SCHEMA)

    return Ready(json_texts(documents), plain(documents[0]), read, file, STORED)


def results_compared(documents: Sequence[Any]) -> Callable[[Path], Ready]:
    """`specgate runs compare FILE FILE`, on results of other tools."""

    def prepare(folder: Path) -> Ready:
        from specgate.archive.comparing.other_results import contrast_of_results

        file = folder / "fuzzed.json"
        return Ready(json_texts(documents), plain(documents[0]), lambda: contrast_of_results(file, file), file, STORED)

    return prepare


def checked(documents: Callable[[Path], Sequence[Any]]) -> Callable[[Path], Ready]:
    """`specgate runs check FILE`, on a benchmark JSON."""

    def prepare(folder: Path) -> Ready:
        from specgate.archive.judging.other_results import judged_results
        from specgate.planning.policy import find_policy

        file, seed = folder / "fuzzed.json", find_policy("seed", gates())
        made = documents(folder)
        return Ready(
            json_texts(made), plain(made[0]), lambda: judged_results(file, seed), file, STORED, named=("--role",)
        )

    return prepare
