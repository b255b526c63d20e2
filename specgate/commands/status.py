"""`specgate full --status`: how often the micro gates have been green, what is missing, and what the ledger holds."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from specgate.commands.runs.pin import anchor_lines
from specgate.terminal import echo, echo_json

if TYPE_CHECKING:
    from specgate.planning.request import Request
    from specgate.promotion.ledger import Entry
    from specgate.promotion.standing import PromotionStatus

LAST = 10
WIDTH = 80


def show_status(request: Request, taking_part: Mapping[str, str], *, as_json: bool) -> None:
    """Print whether each full run that is requested could begin now, and which micro runs are missing. Nothing is
    loaded. `taking_part`: as in `promotion_status`. Raises InvalidResult if the ledger was changed.
    """
    from specgate.planning.defaults import machine_size, runs_of
    from specgate.promotion.standing import promotion_status

    for each in runs_of(request, machine_size()):
        status = promotion_status(each, taking_part)
        if as_json:
            echo_json(plain(status))
        else:
            echo("\n".join(lines(status)))


def plain(status: PromotionStatus) -> dict[str, object]:
    from specgate.machine import host

    green = status.green
    return {
        "schema": "specgate.status/v1",
        "ledger": str(status.ledger.file),
        "chain": "intact",
        "host": host.identity(),
        "head_host": status.history.host,
        "entries": len(status.history.entries) - len(status.history.cut),
        "cut_endings": list(status.history.cut),
        "torn_line": status.history.torn,
        "torn_lines_set_aside": status.history.set_aside,
        "subject": dict(status.claim.subject),
        "gates": dict(status.claim.gates),
        "fingerprint": dict(status.claim.fingerprint),
        "streak": green.length,
        "needed": status.promotion.needed,
        "full_allowed": green.complete,
        "expires": green.expires.isoformat() if green.expires else None,
        "command": status.promotion.command,
        "last": [
            {
                "time": e.time,
                "run": e.run,
                "state": e.state.value,
                "exit_code": e.exit_code,
                "effect": effect,
                "not_judged": list(e.not_judged),
            }
            for e, effect in green.steps[-LAST:]
        ],
        "overrides": [
            {"time": e.time, "run": e.run, "reason": e.override} for e in status.history.entries if e.override
        ],
    }


def lines(status: PromotionStatus) -> list[str]:
    from specgate.machine import host
    from specgate.promotion.admission import subject_in_words, what_is_missing
    from specgate.promotion.pins import key_of

    green, history = status.green, status.history
    text = [f"ledger {status.ledger.file}: {len(history.entries) - len(history.cut)} entries, chain intact"]
    for folder, entry in history.cut.items():
        text.append(f"  {entry.state} {entry.run}: its ending was cut, and it counts; this finishes it:")
        text.append(f"  specgate {entry.kind} --resume {shlex.quote(folder)}")
    if history.host not in (None, host.identity()):
        text += [f"  written last on another host ({history.host}):", "  entries of another host do not count"]
    if history.torn:
        text.append("  a torn line at its end: a writer was killed; the next one will set it aside")
    if history.set_aside:
        text.append(f"  {history.set_aside} torn lines set aside in ledger.torn.jsonl")
    text += wrapped(f"micro gates {', '.join(status.promotion.gates)} ({subject_in_words(status.claim)})")
    text += step_lines(green.steps[-LAST:])
    text += wrapped(f"green micro runs in a row: {green.length} of {status.promotion.needed}")
    if green.complete and green.expires:
        until = green.expires.isoformat(timespec="minutes")
        text += wrapped(f"full may begin until {until}, if software, weights and machine stay as they are")
    for line in what_is_missing(status.claim, status.promotion, green):
        # The command is for copying, so it stays on one line.
        text += [f"  {line}"] if line.startswith("run: ") else wrapped(line, 2)
    here = key_of("micro", status.claim.subject, status.claim.fingerprint)
    for line in anchor_lines(status.ledger, here, list(status.promotion.gates)):
        text += wrapped(line, 2)
    for entry in history.entries:
        text += wrapped(f"overridden: {entry.time} {entry.run}: {entry.override}") if entry.override else []
    return text


def step_lines(steps: Sequence[tuple[Entry, str]]) -> Iterator[str]:
    """Two lines or more for each micro run: its state and name, then when it ended and what it did to the count."""
    before = None
    for entry, effect in steps:
        yield f"  {entry.state.value:12} {entry.run}"
        yield from wrapped(f"{entry.time}: {'starts anew, as the run above' if effect == before else effect}", 15)
        for gap in entry.not_judged:
            yield from wrapped(f"not judged: {gap}", 15)
        before = effect if effect.startswith("starts anew: ") else None


def wrapped(text: str, indent: int = 0) -> list[str]:
    """The text in lines of at most `WIDTH` characters, all but the first indented by four more. Words stay whole."""
    first, others = " " * indent, " " * (indent + 4)
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )
