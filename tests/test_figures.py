"""Figures that documents quote: each is that of the stored file beside it, or follows from figures there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.kept_runs import KEPT, RESULTS, file_of
from tests.test_docs import ENGINE, name_of, pages

pytestmark = pytest.mark.engine  # documents of both houses

QUOTED = re.compile(
    r"(?<![\w.,])(?<!goal )(?P<value>\d+\.\d+) ?(?P<unit>×|ms\b)(?: \((?P<low>\d[\d.]*)–(?P<high>\d[\d.]*)\))?"
)
"""A speed-up or another ratio, or a time. A goal is none."""
RATIO = re.compile(r"(?<![\w.])(\d+\.\d+) ?(?:x\b|×)(?: \(\D{0,9}?(?:95 % )?(\d+\.\d+)(?: … |–|-| to )(\d+\.\d+))?")
TIME = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?) ?(ms|us|µs)\b")
"""Numbers of a transcript, a ratio with its interval."""
LINK = re.compile(r"\]\([^)\s]*?results/(\d{4}-[^)\s#]+)\)")
OPERAND = re.compile(r"(?<![\w.,–])(\d[\d,]*\.\d+|\d+(?= ms\b))(?![\w,.–]*\d| ?[×%])")
"""A time or another measured number, which a ratio may rest on: no size, date, interval or ratio."""
COMPUTED = (ENGINE / "docs" / "draft-vocabulary.md",)
"""Pages whose ratios are counts of bytes, which need no machine."""
WRITTEN = (".txt", ".md", ".json", ".csv")


class Numbers(NamedTuple):
    """Numbers of a stored file: ratios, and times in milliseconds."""

    ratios: tuple[float, ...]
    times: tuple[float, ...]


@cache
def numbers(file: str) -> Numbers:
    """Return what a stored run or a transcript has: ratios with their intervals, and times."""
    if file in KEPT:
        run = json.loads(file_of(file, "run.json"))
        speedups = [comparison["speedup"] for comparison in run["comparisons"] if comparison["speedup"]]
        values = [value for cell in run["cells"] for value in cell["values"].values() if value["value"] is not None]
        return Numbers(
            tuple(s[key] for s in speedups for key in ("value", "ci_low", "ci_high") if s[key] is not None),
            tuple(value["value"] for value in values if value["metric"].endswith("_ms")),
        )
    text = (RESULTS / file).read_text(encoding="utf-8") if file.endswith(WRITTEN) else ""
    return Numbers(
        tuple(float(number) for ratio in RATIO.findall(text) for number in ratio if number),
        tuple(float(number) / (1 if unit == "ms" else 1000) for number, unit in TIME.findall(text)),
    )


def half(number: str) -> float:
    """Half a unit in the last place of a written number."""
    return 0.5000001 * 10.0 ** -len(number.partition(".")[2])


def is_among(number: str, known: tuple[float, ...]) -> bool:
    return any(abs(each - float(number)) <= half(number) for each in known)


def is_quotient(number: str, block: str) -> bool:
    """True if two measured numbers of the block, as exact as they are written, have that quotient."""
    others = [n.replace(",", "") for n in OPERAND.findall(LINK.sub("]", block))]
    for above in others:
        for below in others:
            least = (float(above) - half(above)) / (float(below) + half(below))
            most = (float(above) + half(above)) / (float(below) - half(below))
            if least - half(number) <= float(number) <= most + half(number):
                return True
    return False


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield each row of a table, item of a list and paragraph, with the section that it stands in."""
    for section in re.split(r"(?m)^(?=#+ )", text):
        for block in re.split(r"\n(?=\||- )|\n\n", section):
            yield block, section


def unfounded(text: str, *, everywhere: bool) -> Iterator[str]:
    """Yield figures that no stored file has: one that the block links, else its section, else the page.

    `everywhere`: figures without any link near them count too; otherwise only those of blocks with a link.
    """
    for block, section in blocks(text):
        files = next(filter(None, (LINK.findall(each) for each in (block, section, text))), [])
        if not everywhere and not LINK.search(block):
            continue
        known = (
            Numbers(*(sum(each, ()) for each in zip(*map(numbers, files), strict=True))) if files else Numbers((), ())
        )
        for quoted in QUOTED.finditer(block):
            has = known.ratios if quoted["unit"] == "×" else known.times
            value, ends = quoted["value"], filter(None, (quoted["low"], quoted["high"]))
            is_known = is_among(value, has) or (quoted["unit"] == "×" and is_quotient(value, block))
            if not (is_known and all(is_among(end, has) for end in ends)):
                yield quoted[0]


@pytest.mark.parametrize("file", pages(), ids=name_of)
def test_every_quoted_figure_is_that_of_its_stored_run(file: Path) -> None:
    """In the engine's documents every ratio and time needs one."""
    assert (
        list(unfounded(file.read_text(encoding="utf-8"), everywhere=ENGINE in file.parents and file not in COMPUTED))
        == []
    )


RUN = "2026-11-30-h200/run-merge-32k.tar.xz"
BESIDE = f"([run](../results/{RUN}))"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"It is 2.80× (2.57–3.06) {BESIDE}.", []),
        (f"It is 2.81× (2.57–3.06) {BESIDE}.", ["2.81× (2.57–3.06)"]),
        (f"It is 2.80× (2.60–3.06) {BESIDE}.", ["2.80× (2.60–3.06)"]),
        (f"It is 2.8× {BESIDE}.", []),
        (f"# A\nIt is 1.70×.\n\n# B\n{BESIDE}", ["1.70×"]),
        (f"# A\nIt is 2.80×.\n\n# B\n{BESIDE}", []),
        ("It is 2.80×.", ["2.80×"]),
        ("1.5 ms beside 3.0 ms: 2.00×", ["1.5 ms", "3.0 ms"]),
        (f"|4.58 ms|2.80×|{BESIDE}|\n|9.9 ms|", ["4.58 ms", "9.9 ms"]),
        (f"1.25× the floor (goal 1.20 ×) {BESIDE}", ["1.25×"]),
    ],
)
def test_a_figure_without_a_run_is_seen(text: str, expected: list[str]) -> None:
    assert list(unfounded(text, everywhere=True)) == expected


def test_the_documents_quote_figures_at_all() -> None:
    assert sum(len(QUOTED.findall(file.read_text(encoding="utf-8"))) for file in pages() if ENGINE in file.parents) > 60
