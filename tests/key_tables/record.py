"""Tables of the record: claim → stored evidence → figures → tree → date, and what nobody could measure yet."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from bench.record import Part, declared
from specgate.machine import inventory
from tests.key_tables.nouns import markdown
from tests.support.kept_runs import KEPT, RESULTS, file_of

TREES = (re.compile(r"tree[^\n]{0,12}?\b([0-9a-f]{8})\b", re.IGNORECASE), re.compile(r"(commit [0-9a-f]{8})"))
"""Where a transcript says what it was measured with; a tree says more than a commit."""
ENGINE = re.compile(r"^record: .* engine ([0-9a-f]{64})$", re.MULTILINE)
"""Likewise a transcript that `bench.record` wrote."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Facts of one stored file. `engine`: SHA-256 of the built-in engine's sources, if it was stored."""

    file: str
    date: str
    tree: str = ""
    figures: str = ""
    engine: str | None = None


@cache
def evidence(file: str) -> Evidence:
    """Return what a file of docs/results says of itself."""
    if file in KEPT:
        return evidence_of_run(file)
    text = (RESULTS / file).read_text(encoding="utf-8") if file.endswith(".txt") else ""
    tree, engine = next(filter(None, (one.search(text) for one in TREES)), None), ENGINE.search(text)
    return Evidence(file, file[:10], tree[1] if tree else "", engine=engine[1] if engine else None)


def evidence_of_run(file: str) -> Evidence:
    run, gates = (json.loads(file_of(file, name)) for name in ("run.json", "gates.json"))
    source = (run["environment"] or {}).get("source") or {}
    speedups = [c["speedup"] for c in run["comparisons"] if c["speedup"]]
    ratios = ", ".join(f"{s['value']:.2f}" for s in speedups) + "×"
    if len(speedups) == 1 and speedups[0]["ci_low"] is not None:
        ratios += " ({ci_low:.2f}–{ci_high:.2f})".format(**speedups[0])
    return Evidence(
        file,
        run["started"][:10],
        run["fingerprint"]["source_tree_sha256"][:8],
        f"{gates['verdict']}, {ratios}",
        source.get("backends", {}).get("eagle3"),
    )


def is_stale(part: Part) -> bool:
    """True if a claim about the built-in engine rests on evidence of another engine tree than the one that ships."""
    ships, since = inventory.backend_trees()["eagle3"], declared().counted_then
    engines = [evidence(file).engine for file in part.stored]
    return part.engine == "built-in" and any(engine is None or since.get(engine, engine) != ships for engine in engines)


def record() -> Iterator[tuple[str, str]]:
    """Yield the table of claims with stored evidence, and that of claims without."""
    rows = [
        (
            part.claim,
            ", ".join(f"[{file.rpartition('/')[2]}]({file})" for file in part.stored),
            "; ".join(filter(None, (one.figures for one in map(evidence, part.stored)))),
            ", ".join(dict.fromkeys(f"`{one.tree}`" for one in map(evidence, part.stored) if one.tree)),
            max(evidence(file).date for file in part.stored),
            f"`{part.name}`" + (": awaited" if is_stale(part) else ""),
        )
        for part in declared().parts
        if part.stored
    ]
    yield "record", markdown(("claim", "stored", "verdict, speed-up (95 %)", "tree", "date", "part"), rows)
    rest = [part for part in declared().parts if not part.stored]
    machines = declared().machines
    missing = [(part.claim, machines[part.machine].words, f"`{part.machine} --only {part.name}`") for part in rest]
    yield "not measured", markdown(("claim", "needs", "`bench/record.sh`"), missing)
