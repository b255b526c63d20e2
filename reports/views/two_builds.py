"""The view `ab`, for `specgate ab`: an old and a new build, quantity by quantity."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from specgate.analysis.cell_names import cell_name
from specgate.analysis.intervals.between_runs import OF_TIME
from specgate.analysis.rows import Row
from specgate.contract import EngineFacts, State
from specgate.contract.protocols import Format, visible
from specgate.contract.two_builds import (
    NAMES,
    PREFILL,
    SIDES,
    TELLING_PCT,
    Parting,
    Process,
    Quantity,
    Side,
    TwoBuilds,
    Word,
)
from specgate.errors import ExitCode
from specgate.reports.common.figures import NONE
from specgate.reports.common.parts import Entry, Picture, Table
from specgate.reports.pictures.effects import Effect, effects
from specgate.reports.sheets.formats import SheetView
from specgate.reports.sheets.sheet import Ending, Section, Sheet
from specgate.reports.texts.console import STYLES, Line, aligned, plain, printed, styled
from specgate.reports.texts.junit import element

STATES: Final[Mapping[ExitCode, str]] = {
    ExitCode.PASS: "PASS",
    ExitCode.FAIL: "FAIL",
    ExitCode.INCONCLUSIVE: "INCONCLUSIVE",
    ExitCode.BACKEND_ERROR: "BACKEND_ERROR",
}
"""Exit code → the state whose look a verdict has; INVALID for all others."""
HOW: Final = (
    "Mark: mean of new / old, of times of old / new, so that right is better; line: its interval; band: differences "
    "within the margin. A process pair counts once, however many blocks it has; of acceptance, a prompt does."
)


BESIDE: Final = "Every spec text beside its own side's baseline."
SHARED: Final = (
    "Interim looks share the error. The first word that is not CANNOT TELL is final, so more process pairs make no "
    "wrong word more frequent."
)


def sheet(builds: TwoBuilds) -> Sheet:
    """The page: the word, the quantities, what the sides are, tokens and texts, and the processes."""
    old, new = (builds.sides[name] for name in SIDES)
    return Sheet(
        title="The new build against the old one",
        subtitle=f"{builds.id} · old: {old.label} · new: {new.label} · pair {builds.pair}",
        ending=ending(builds),
        banners=list(banners(builds)),
        sections=[
            Section("What changed", quantities(builds), overall_within(builds), pictures=pictures(builds)),
            *([Section("Tokens", tokens(builds), BESIDE)] if builds.tokens else []),
            Section("Texts", texts(builds), None if builds.texts else "No cell was measured on both sides."),
            *([Section("Interim looks", interim_looks(builds), SHARED)] if len(builds.looks) > 1 else []),
            Section("The two sides", sides(builds)),
            Section("Processes", processes(builds)),
        ],
    )


def short_lines(builds: TwoBuilds) -> Iterator[Line]:
    """Yield a row per quantity, warnings, and the word with its reason.

    An advisory quantity has a row only if it is slower or a prefill; none has one where nothing may be said.
    """
    old, new = (builds.sides[name] for name in SIDES)
    points = {cell(q.cell.removesuffix(role_of(q.cell)).rstrip("/"), builds) for q in builds.quantities if q.cell}
    of = " · ".join(points) if len(points) == 1 else ""
    yield "dim", " · ".join(filter(None, (f"old: {old.label}", f"new: {new.label}", f"pair {builds.pair}", of))), ""
    shown = [q for q in ordered(builds) if q.decides or q.name == PREFILL or q.word is Word.SLOWER]
    quantities = [] if builds.trouble else shown
    head = ["", "new / old", f"{level(builds)} interval", "within", "word"]
    names = [role_of(q.cell) if of else cell(q.cell, builds) for q in quantities]
    rows = [[f"{NAMES[q.name]} {name}".rstrip(), *short_row(q)] for q, name in zip(quantities, names, strict=True)]
    if rows:
        yield from (("", "", line) for lines in aligned([head, *rows]) for line in lines)
    if line := overall_within(builds):
        yield "", "", line
    for line in text_lines(builds):
        yield "yellow", "texts", f": {line}"
    for banner in banners(builds):
        if banner != builds.reason:
            yield "yellow", "note", f": {banner}"
    end = ending(builds)
    yield STYLES.get(State(end.state), "") if end.state in list(State) else "bold", end.said, f": {end.reason}"


def role_of(key: str) -> str:
    """Return the role of a cell; "" for a point, or for a quantity of no cell."""
    return "".join(key.split("/")[3:])


def overall_within(builds: TwoBuilds) -> str | None:
    """Return the line that says how much the builds may differ at most; None where it is not known."""
    if builds.within_pct is None:
        return None
    if builds.within_pct > TELLING_PCT:
        return f"Nothing is proven the same yet: an interval is wider than {TELLING_PCT} %."
    return f"The same within {within(builds.within_pct)} in all that decides."


def short_row(quantity: Quantity) -> list[str]:
    """Return the ratio of a quantity with its interval, the margin within which it is the same, and the word."""
    word = quantity.word.value if quantity.decides else f"({quantity.word.value})"
    ratio = NONE if quantity.ratio is None else f"{quantity.ratio - 1:+.2%}"
    return [ratio, span(quantity), within(quantity.within_pct), word]


def within(pct: float | None) -> str:
    """Return a margin that was proven, rounded up."""
    if pct is None or pct > TELLING_PCT:
        return NONE if pct is None else f"> {TELLING_PCT} %"
    return f"{math.ceil(100 * pct - 1e-9) / 100:g} %"


def text_lines(builds: TwoBuilds) -> Iterator[str]:
    """Yield for each cell whose texts have changed how many, and where the first one parts."""
    for change in builds.texts:
        if change.changed:
            first = min(change.changed, key=lambda p: (p.prompt_set, p.slot))
            yield (
                f"{cell(change.cell, builds)}: {len(change.changed)} of {change.prompts} prompts give another text, "
                f"first {place(first, change.cell, builds)}"
            )


def place(parting: Parting, key: str, builds: TwoBuilds) -> str:
    """Return where a text parts, and the tokens there."""
    prompt = prompt_name(key, parting.prompt_set, parting.slot, builds)
    gap = "" if parting.gap is None else f", logits {parting.gap:.2g} apart"
    return f"{prompt} from token {parting.position} on ({parting.old} → {parting.new}{gap})"


def prompt_name(key: str, prompt_set: int, slot: int, builds: TwoBuilds) -> str:
    """Return a prompt of the cell `key` in words, with its line where it is from a file."""
    scenario, context, batch, *_ = key.split("/")
    about: Any = builds.prompts.get(f"{scenario}/{builds.sides['old'].backend}/{context}/{batch}", {})
    lines = about.get("lines")
    return f"set {prompt_set} slot {slot}" + (f" (line {lines[prompt_set][slot]})" if lines else "")


def ending(builds: TwoBuilds) -> Ending:
    """The word with its exit code and reason."""
    return Ending(STATES.get(builds.code, "INVALID"), builds.code, builds.reason, builds.verdict)


def banners(builds: TwoBuilds) -> Iterator[str]:
    """Yield warnings that a reader of the figures needs."""
    yield from builds.trouble
    if builds.acceptance != "real":
        yield f"Acceptance is {builds.acceptance} on both sides."
    if attached := builds.attached:
        yield (
            f"{' and '.join(attached)}: a server that ran already, so that its sessions are one process. Between "
            f"processes {OF_TIME.process_sd:.2%} (sd) each is assumed, which no session makes less."
        )
    if not builds.beside:
        yield "The two builds did not fit side by side: the processes of a pair ran one after the other."
    yield from unsteady_banners(builds)
    yield from builds.warnings


def unsteady_banners(builds: TwoBuilds) -> Iterator[str]:
    """Yield a warning if one build gives several texts to one prompt: no change has to be behind another text.

    Processes of one build are those of one side. Where both sides are one build, they are those of both sides, too.
    """
    for change in builds.texts:
        prompts = {(s, slot): at for _, s, slot, at in reversed(change.unsteady)}
        if builds.one_build:
            prompts |= {(p.prompt_set, p.slot): p.position for p in change.changed}
        if prompts:
            (s, slot), at = min(prompts.items())
            yield (
                f"{cell(change.cell, builds)}: texts of one build differ between its processes: for {len(prompts)} of "
                f"{change.prompts} "
                f"prompts, such as {prompt_name(change.cell, s, slot, builds)} from token {at} on. That is no change "
                "of a build."
            )


def pictures(builds: TwoBuilds) -> list[Picture]:
    """The quantities that decide and have an interval that tells something.

    Start-up times scatter so much more that the others could not be seen beside them.
    """
    drawn = [q for q in builds.quantities if q.decides and q.within_pct is not None and q.within_pct <= TELLING_PCT]
    rows = [effect for q in drawn if (effect := effect_of(q, builds)) is not None]
    return [replace(effects("builds", "New build against old", rows), caption=HOW)] if rows else []


def effect_of(q: Quantity, builds: TwoBuilds) -> Effect | None:
    """The quantity as a row of the picture; None without an interval."""
    if q.ratio is None or q.low is None or q.high is None:
        return None
    ratio, low, high = (q.ratio, q.low, q.high) if q.better == "higher" else (1 / q.ratio, 1 / q.high, 1 / q.low)
    return Effect(f"{NAMES[q.name]} {cell(q.cell, builds)}".strip(), ratio, low, high, q.margin_pct / 100, q.word.value)


def name_of(quantity: Quantity) -> str:
    """A quantity in words, with its cell."""
    return f"{NAMES[quantity.name]} {quantity.cell}".strip()


def quantities(builds: TwoBuilds) -> Table:
    """A row per quantity, those that decide first."""
    head = ("word", "of", "old", "new", "new / old", f"{level(builds)} interval", "the same within")
    return Table(head, [row_of(q, builds) for q in ordered(builds)], texts=2)


def ordered(builds: TwoBuilds) -> list[Quantity]:
    return sorted(builds.quantities, key=lambda q: not q.decides)


def level(builds: TwoBuilds) -> str:
    return f"{100 * (1 - 2 * builds.error):.4g}%"


def span(quantity: Quantity) -> str:
    """Return the interval of new / old."""
    if quantity.low is None or quantity.high is None or (quantity.within_pct or 0) > TELLING_PCT:
        return NONE
    return f"{quantity.low - 1:+.2%} … {quantity.high - 1:+.2%}"


def cell(key: str, builds: TwoBuilds) -> str:
    """Return the name of a cell or point whose key has no back end; "" for a quantity of no cell."""
    return cell_name(key, builds.scenarios)


def row_of(quantity: Quantity, builds: TwoBuilds) -> list[str | Entry]:
    n = f"n = {quantity.n}"
    if quantity.needed is not None:
        n += f"; {quantity.needed} would tell"
    return [
        quantity.word.value if quantity.decides else Entry(quantity.word.value, "advisory"),
        Entry(NAMES[quantity.name], cell(quantity.cell, builds) or None),
        figure(quantity.name, quantity.old),
        figure(quantity.name, quantity.new),
        Entry(
            NONE if quantity.ratio is None else f"{quantity.ratio - 1:+.2%}", f"± {quantity.margin_pct:g} % is the same"
        ),
        Entry(span(quantity), n),
        within(quantity.within_pct),
    ]


def figure(name: str, value: float | None) -> str:
    """A value with the unit that its name ends with."""
    if value is None:
        return NONE
    for ending, unit in (("_ms", " ms"), ("_s", " s"), ("_mib", " MiB")):
        if name.endswith(ending):
            return f"{value:,.0f}{unit}" if unit == " MiB" else f"{value:.4g}{unit}"
    return f"{value:.4g}"


def tokens(builds: TwoBuilds) -> Table:
    rows = [
        [
            t.side,
            cell(t.cell, builds),
            f"{t.compared:,} of {t.emitted:,}",
            str(t.mismatches),
            str(t.near_ties),
            t.why or "",
        ]
        for t in builds.tokens
    ]
    return Table(("side", "cell", "tokens compared", "texts that differ", "near ties", "why not"), rows, texts=2)


def texts(builds: TwoBuilds) -> Table:
    rows = [
        [
            cell(t.cell, builds),
            "all the same" if not t.changed else f"{len(t.changed)} of {t.prompts} prompts give another text",
            listed([place(p, t.cell, builds) for p in t.changed]),
            listed([f"{of}: {prompt_name(t.cell, s, slot, builds)} from token {at}" for of, s, slot, at in t.unsteady]),
            f"{t.tokens:,}",
        ]
        for t in builds.texts
    ]
    against = "process against process" if builds.one_build else "new against old"
    return Table(("cell", against, "which", "differ within a side", "tokens"), rows, texts=4)


def listed(places: Sequence[str]) -> str:
    """The first four places, and how many more there are."""
    return ", ".join(places[:4]) + (f" and {len(places) - 4} more" if len(places) > 4 else "")


def interim_looks(builds: TwoBuilds) -> Table:
    """A row per look."""
    rows = [
        [str(k.pairs), f"{100 * (1 - 2 * k.error):.4g}%", k.word.value if k.word else builds.verdict, k.reason]
        for k in builds.looks
    ]
    return Table(("process pairs", "interval", "word", "why"), rows, texts=4)


def sides(builds: TwoBuilds) -> Table:
    """Return the facts of both sides beside each other, a row per fact."""
    described = [dict(facts_of(builds.sides[name], builds.engines.get(name, {}), builds.processes)) for name in SIDES]
    keys = dict.fromkeys(key for side in described for key in side)
    rows = [[key, *(side.get(key, NONE) for side in described)] for key in keys]
    return Table(("of", "old", "new"), rows, texts=3)


def facts_of(
    side: Side, engines: Mapping[str, EngineFacts], processes: tuple[Process, ...]
) -> Iterator[tuple[str, str]]:
    """(key, value) of everything that is known of a side."""
    yield "build", side.label
    if side.source:
        yield "code", side.source
    if side.sha256:
        yield "code, SHA-256", side.sha256[:12]
    if side.python:
        yield "interpreter", side.python
    yield "back end", side.backend
    yield "options", " ".join(f"{key}={value}" for key, value in side.options.items()) or NONE
    origin = next((p.origin for p in processes if p.side == side.name and p.origin), None)
    if origin is not None:
        yield "specgate", f"{origin.specgate_version}, Python {origin.python}"
        yield "engine's file", origin.backend_file
    facts = next(iter(engines.values()), None)
    if facts is not None:
        yield "device", f"{facts.device}, {facts.dtype}"
        yield "engine's version", facts.engine_version or NONE
        yield "target, SHA-256", (facts.target_sha256 or NONE)[:12]
        yield "tuned, SHA-256", (facts.tuned_sha256 or NONE)[:12]


def processes(builds: TwoBuilds) -> Table:
    rows = [
        [
            str(p.number),
            p.side,
            "first" if p.first else "second",
            f"{p.start_ns / 1e9:.2f} s",
            NONE if p.device_bytes is None else f"{p.device_bytes / (1 << 20):,.0f} MiB",
            NONE if p.host_bytes is None else f"{p.host_bytes / (1 << 20):,.0f} MiB",
        ]
        for p in builds.processes
    ]
    return Table(("pair", "side", "started", "start-up", "GPU memory", "host memory"), rows, texts=3)


def rows(builds: TwoBuilds) -> Iterator[Row]:
    """The rows of ab.csv: one per quantity."""
    for q in builds.quantities:
        yield {
            "comparison": builds.id,
            "quantity": q.name,
            "cell": q.cell,
            "decides": str(q.decides).lower(),
            "old": q.old,
            "new": q.new,
            "ratio": q.ratio,
            "ci_low": q.low,
            "ci_high": q.high,
            "error_per_side": builds.error,
            "sd": q.sd,
            "n": q.n,
            "margin_pct": q.margin_pct,
            "within_pct": q.within_pct,
            "word": q.word.value,
        }


def junit(builds: TwoBuilds) -> str:
    """A test case for the whole and one per quantity. CANNOT TELL fails: a loss may hide in it."""
    end = ending(builds)
    cases = [case("verdict", end.word or end.state, end.reason, end.code is not ExitCode.PASS, builds.word is None)]
    for q in builds.quantities:
        bad = q.word in (Word.SLOWER, Word.CANNOT_TELL)
        cases.append(case(name_of(q), q.word.value, q.reason, bad and q.decides, invalid=False))
    failures, errors = (sum(c.find(tag) is not None for c in cases) for tag in ("failure", "error"))
    counts = {"tests": str(len(cases)), "failures": str(failures), "errors": str(errors)}
    root = element("testsuites", name="specgate", **counts)
    suite = element("testsuite", name=f"specgate ab {builds.id}", **counts, timestamp=builds.started[:19])
    suite.extend(cases)
    root.append(suite)
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def case(name: str, word: str, reason: str, bad: bool, invalid: bool) -> ET.Element:
    made = element("testcase", classname="specgate.ab", name=name, time="0")
    if bad:
        made.append(element("error" if invalid else "failure", type=word, message=reason))
    else:
        ET.SubElement(made, "system-out").text = visible(f"{word}: {reason}")
    return made


class BuildsView:
    """An `protocols.View` with JUnit beside the formats of a sheet."""

    name = "ab"
    _sheet = SheetView("ab", sheet, lambda result: {"quantities": rows(result)})

    def render(self, subject: TwoBuilds, format: Format) -> str:
        if format == "plain":
            return "\n".join(map(plain, short_lines(subject)))
        if format == "console":
            return "\n".join(printed(*(text for line in short_lines(subject) for text in styled(line))))
        return junit(subject) if format == "junit" else self._sheet.render(subject, format)


VIEW = BuildsView()
