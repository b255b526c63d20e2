"""The view `parity`, for `specgate diagnose parity`: two engines stage by stage, and where the first departs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from specgate.analysis.parity.comparison import Parity, StageFinding
from specgate.analysis.parity.phrases import hints, verdict
from specgate.analysis.rows import Row
from specgate.contract import State
from specgate.errors import ExitCode
from specgate.reports.common.parts import Entry, Table
from specgate.reports.pictures.cycle import stages
from specgate.reports.sheets.formats import SheetView
from specgate.reports.sheets.sheet import Ending, Section, Sheet

HEAD = ("stage", "rows", "mean abs", "max abs", "worst cosine", "last cosine", "error", "worst row", "at", "")
ABOUT = (
    "error: |a − b| / max(|a|, |b|) of a row in Euclidean norms, root mean square over the rows; below it, what "
    "rounding explains. at: the prompt position of the row that is furthest off."
)
LEADING = (
    "A token that only one side has among its leading ones is a near tie where the other side's logits hold it within "
    "one step of the dtype behind their own last. The others are counted. These counts do not decide."
)


def sheet(parity: Parity) -> Sheet:
    """The page: what came of it, every stage, the leading tokens, and what is usually the cause."""
    code = ExitCode.PASS if parity.agrees else ExitCode.FAIL
    state, (word, reason) = State.PASS if parity.agrees else State.FAIL, verdict(parity)
    return Sheet(
        title="Parity by stage",
        subtitle=f"A {parity.a} · B {parity.b}",
        ending=Ending(state.value, code, f"{reason}.", word),
        banners=(),
        sections=[*stage_sections(parity), *leading_sections(parity), *advice_sections(parity)],
        facts=[("prompt", f"{parity.prompt_tokens:,} tokens"), ("tolerances of", parity.dtype)],
    )


def stage_sections(parity: Parity) -> Iterator[Section]:
    """The picture, then the draft's stages before the target's: of a table, a comment shows the first 40 rows."""
    yield Section("Stage by stage", Table(HEAD, []), ABOUT, [stages(parity)])
    parts = {"The draft, and its next step": False, "The target": True}
    for title, of_target in parts.items():
        rows = [stage_row(s) for s in parity.stages if s.stage.startswith("target.") is of_target]
        if rows:
            yield Section(title, Table(HEAD, rows), folded=of_target and parity.agrees)


def stage_row(stage: StageFinding) -> list[str | Entry]:
    d = stage.distance
    return [
        stage.stage,
        str(stage.rows),
        f"{d.mean_abs:.1e}",
        f"{d.max_abs:.1e}",
        f"{d.worst_cosine:.6f}",
        f"{d.last_cosine:.6f}",
        Entry(f"{d.error:.1e}", f"of {stage.tolerance:.1e}"),
        Entry(f"{d.worst_error:.1e}", f"of {stage.worst_tolerance:.1e}"),
        str(stage.worst_position),
        Entry("departs", mark="slower") if stage.departs else "",
    ]


def leading_sections(parity: Parity) -> Iterator[Section]:
    rows: Sequence[Sequence[str | Entry]] = [
        [stage.stage, f"{part.k}", f"{part.overlap:.1%}", f"{part.worst_overlap:.0%}", f"{part.beyond_one_step:,}"]
        for stage in parity.stages
        for part in stage.leading
    ]
    if rows:
        head = ("logits", "leading", "shared", "in the worst row", "beyond one step")
        yield Section("Leading tokens", Table(head, rows), LEADING)


def advice_sections(parity: Parity) -> Iterator[Section]:
    if sentences := list(hints(parity)):
        yield Section("Usual causes", Table(("what", "which"), sentences, texts=2))


def rows(parity: Parity) -> Iterator[Row]:
    """The rows of parity.csv: one per stage."""
    for stage in parity.stages:
        top_1, top_8 = stage.leading or (None, None)
        own = {key: value for key, value in asdict(stage.distance).items() if key != "worst_row"}
        yield {
            "a": parity.a,
            "b": parity.b,
            "dtype": parity.dtype,
            "stage": stage.stage,
            "rows": stage.rows,
            "width": stage.width,
            **own,
            "tolerance": stage.tolerance,
            "worst_tolerance": stage.worst_tolerance,
            "worst_position": stage.worst_position,
            "top1_overlap": top_1.overlap if top_1 else None,
            "top8_overlap": top_8.overlap if top_8 else None,
            "top8_beyond_one_step": top_8.beyond_one_step if top_8 else None,
            "departs": stage.departs,
        }


VIEW = SheetView("parity", sheet, lambda result: {"stages": rows(result)})
