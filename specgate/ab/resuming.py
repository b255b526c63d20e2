"""A comparison that goes on: one that was cut off, or one that ended with CANNOT TELL and gets more process pairs.

Both sides, the machine and everything that was asked must be what they were. The first word that is not CANNOT TELL is
final: to go on from there until another word comes would make every error as frequent as one likes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from specgate.ab.folder import FOLDERS, MOST_LOOKS, AbFolder, Asked, Processes
from specgate.ab.judging import interim_looks
from specgate.ab.request import AbRequest
from specgate.contract import Block, Margin
from specgate.contract.samples.rescoring import BaselineText
from specgate.contract.two_builds import SIDES, Word
from specgate.contract.types import REPEATS
from specgate.errors import InvalidResult, UsageError
from specgate.files.json_text import to_plain
from specgate.files.manifest import MANIFEST
from specgate.files.run_folder import RunFolder
from specgate.files.writing import as_json, without_home
from specgate.promotion.ledger import Ledger
from specgate.run.resuming import contradictions, last_entry

OF_A_SIDE: Final = ("backend", "options", "python", "sha256")
"""What of a side must be what it was. Where its files lie may change: a revision's worktree is made anew."""
OF_ALL: Final = ("begun_with", "pair", "policy", "scenarios", "visits", "quads", "margins", "prompts")
"""What else must be what it was."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """A stored comparison that may go on. `asked`: with the looks that it will have. `request`: its command line."""

    folder: AbFolder
    stored: Asked
    asked: Asked
    processes: Processes
    request: AbRequest


def earlier(folder: AbFolder, more: int | None, request_of: Callable[[Sequence[str]], AbRequest]) -> Earlier:
    """Collect what is needed to go on with the comparison in `folder`, with `more` process pairs of each side than it
    had.

    `request_of`: arguments of a command line → the request. Raises UsageError where the comparison is decided, and
    InvalidResult where its files are not those that it ended with.
    """
    path = folder.path
    entry = last_entry(Ledger(path.absolute().parent), path.absolute().name)
    if contradiction := next(contradictions(path, entry, FOLDERS), None):
        raise InvalidResult(f"{path}: {contradiction}", hint="only a comparison as it was stored can go on")
    stored, processes = folder.asked(), folder.processes()
    settings = with_more(folder, stored, processes, more)
    request = request_of([expanded(argument) for argument in stored.argv[1:]])
    if request.base is not None:
        request = replace(request, base=stored.sides["old"].revision)
    return Earlier(folder, stored, settings, processes, request)


def with_more(folder: AbFolder, stored: Asked, processes: Processes, more: int | None) -> Asked:
    """Settings from now on. Raises UsageError where nothing is left to do, or where the word is final."""
    path, looked = folder.path, list(interim_looks(stored, folder.journals(), processes))
    last, _, count = looked[-1]
    ended = processes.whole().issuperset(range(count)) and (path / MANIFEST).is_file()
    if ended and last.word is not Word.CANNOT_TELL and processes.failure is None and processes.ended:
        word = last.word.value if last.word else "INVALID"
        hint = "only CANNOT TELL can be followed by more process pairs, or errors would be as frequent as one likes"
        raise UsageError(f"{path}: it ended with {word}", hint=hint)
    if ended and len(looked) == len(stored.looks) and last.word is Word.CANNOT_TELL and more is None:
        raise UsageError(f"{path}: all its process pairs are measured", hint="--processes N says how many more")
    total = stored.looks[-1] + (more or 0)
    settings = replace(stored, pairs=total, looks=(*stored.looks, total) if more else stored.looks)
    if total > REPEATS or len(settings.looks) > MOST_LOOKS or settings.contradiction():
        raise UsageError(f"{path}: with {total} process pairs it cannot be judged", hint="begin a new comparison")
    return settings


def expanded(argument: str) -> str:
    """An argument as it was given: paths below the home folder are stored with `~`."""
    key, equals, value = argument.rpartition("=")
    return f"{key}{equals}{Path(value).expanduser()}" if value.startswith("~/") else argument


def refuse_changes(path: Path, stored: Asked, again: Asked) -> None:
    """Raise UsageError, which names all differences, where `again` would measure anything else than what was `stored`
    in `path`.
    """
    then, now = (plain(settings) for settings in (stored, again))
    changes = [
        difference
        for side in SIDES
        for key in OF_A_SIDE
        for difference in differing(f"{side}: {key}", then["sides"][side].get(key), now["sides"][side].get(key))
    ]
    changes += [difference for key in OF_ALL for difference in differing(key, then.get(key), now.get(key))]
    if changes:
        hint = "start a new comparison: samples of two builds or machines must not be mixed"
        raise UsageError(f"{path}: {'; '.join(changes)}", hint=hint)


def plain(settings: Asked) -> dict[str, dict[str, dict[str, object]]]:
    """`settings` as it is stored."""
    data: dict[str, dict[str, dict[str, object]]] = json.loads(without_home(as_json(to_plain(Asked, settings))))
    return data


def differing(place: str, was: object, is_: object) -> Iterator[str]:
    """Every place where two JSON values differ, in words."""
    if isinstance(was, dict) and isinstance(is_, dict):
        for key in dict.fromkeys([*was, *is_]):
            yield from differing(f"{place}.{key}", was.get(key), is_.get(key))
    elif was != is_:
        yield f"{place}: was {json.dumps(was)}, is {json.dumps(is_)}"


def without_unfinished(folder: AbFolder, processes: Processes) -> Processes:
    """Drop the samples of a process pair that was cut off, since the whole pair is measured again."""
    whole = processes.whole()
    for name in SIDES:
        side = folder.sides[name]
        blocks = [b for b in side.lines(Block) if b.worker_generation in whole]
        whole_blocks = {(b.cell.key, b.prompt_set, b.round) for b in blocks}
        texts = [t for t in side.lines(BaselineText) if t.worker_generation in whole]
        margins = [m for m in side.lines(Margin) if (m.cell, m.prompt_set, m.round) in whole_blocks]
        if len(blocks) < len(side.lines(Block)):
            # Blocks come last: while they are there, a rewriting that was cut off is done again.
            write_journal(side, "margins", [to_plain(Margin, m) for m in margins])
            write_journal(side, "texts", [to_plain(BaselineText, t) for t in texts])
            write_journal(side, "blocks", [to_plain(Block, b) for b in blocks])
    return replace(processes, found=tuple(p for p in processes.found if p.number in whole))


def write_journal(side: RunFolder, name: str, lines: Sequence[object]) -> None:
    """Replace a journal, if there is one, by `lines`."""
    if side.path.joinpath("samples", f"{name}.jsonl").is_file():
        text = "".join(as_json(line, separators=(",", ":")) + "\n" for line in lines)
        side.write_text(f"samples/{name}.jsonl", text)


def resumption(earlier: Earlier, now: str) -> str:
    """Sentence for the reader about this continuation."""
    pairs, processes = len(earlier.processes.whole()), earlier.processes
    why = processes.failure or (None if processes.ended else "the harness did not end by itself")
    if why is not None:
        return f"continued at {now} after {pairs} process pairs; it had ended with: {why}"
    return f"extended at {now} from {earlier.stored.pairs} to {earlier.asked.pairs} process pairs per side"
