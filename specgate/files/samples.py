"""The journals of a run, under `samples/`: each noun on a line of its own, appended as the run goes and read back.

blocks.jsonl        one line per block, on disk as soon as it ends
engines.jsonl       the engine that measured each point
margins, followed, texts, logits, traces, rescored, draws (.jsonl)     what tokens and invariants are checked by
environment.jsonl   one line per half second, the GPU's clock ten times a second, written by the monitor process
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from specgate.contract import BaselineText, Block, BlockTrace, EngineFacts, Followed, LogitSample, Margin, Rescoring
from specgate.contract.conditions import Sample
from specgate.contract.draws import DrawnTexts
from specgate.errors import InvalidResult
from specgate.files.journal import Journal
from specgate.files.json_text import shown
from specgate.files.manifest import UNLISTED, plain_files
from specgate.files.own_files import WATCH, OwnFiles
from specgate.files.plain import from_plain, to_plain
from specgate.files.written import content_of

JOURNALS: Final = frozenset(
    f"samples/{name}.jsonl"
    for name in (
        "blocks",
        "environment",
        "engines",
        "margins",
        "texts",
        "logits",
        "traces",
        "rescored",
        "followed",
        "draws",
    )
)


class Samples(OwnFiles):
    """The journals, typed. What cannot be read raises InvalidResult with file and line."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        super().__init__(path, read_only=read_only)
        self._journal: Journal | None = None

    def append(self, block: Block) -> None:
        """Append a block to the journal."""
        self._append("blocks.jsonl", to_plain(Block, block))

    def append_margin(self, margin: Margin) -> None:
        """Append the top-2 logits of a divergence to the journal."""
        self._append("margins.jsonl", to_plain(Margin, margin))

    def append_followed(self, followed: Followed) -> None:
        """Append what plain decoding said behind a place where a text had left the baseline's."""
        self._append("followed.jsonl", to_plain(Followed, followed))

    def append_text(self, text: BaselineText) -> None:
        """Append an untimed baseline text to the journal."""
        self._append("texts.jsonl", to_plain(BaselineText, text))

    def append_logits(self, sample: LogitSample) -> None:
        """Append the digests of a cell's logits to the journal."""
        self._append("logits.jsonl", to_plain(LogitSample, sample))

    def append_rescoring(self, rescoring: Rescoring) -> None:
        """Append what a second engine said of a point's tokens to the journal."""
        self._append("rescored.jsonl", to_plain(Rescoring, rescoring))

    def append_draws(self, drawn: DrawnTexts) -> None:
        """Append the texts that were drawn of a point to the journal."""
        self._append("draws.jsonl", to_plain(DrawnTexts, drawn))

    def append_trace(self, trace: BlockTrace) -> None:
        """Append a traced block to the journal."""
        self._append("traces.jsonl", to_plain(BlockTrace, trace))

    def append_engine(self, point: str, facts: EngineFacts) -> None:
        """Append the engine that measures the point with key `point`."""
        self._append("engines.jsonl", {"point": point, "facts": to_plain(EngineFacts, facts)})

    def engines(self) -> dict[str, EngineFacts]:
        """Point key → the engine that measured it first."""
        found: dict[str, EngineFacts] = {}
        for line in self._lines("engines.jsonl"):
            if not isinstance(line, dict) or not isinstance(line.get("point"), str):
                raise InvalidResult(f"{self.path / 'samples' / 'engines.jsonl'}: point: {shown(line)}")
            found.setdefault(line["point"], from_plain(EngineFacts, line.get("facts"), self.path))
        return found

    def blocks(self) -> list[Block]:
        """The blocks of the journal, in the order in which they were measured."""
        return [from_plain(Block, line, self.path) for line in self._lines("blocks.jsonl")]

    def margins(self) -> list[Margin]:
        """The recorded top-2 logits of divergences."""
        return [from_plain(Margin, line, self.path) for line in self._lines("margins.jsonl")]

    def followed(self) -> list[Followed]:
        """What plain decoding said behind places where texts had left the baseline's."""
        return [from_plain(Followed, line, self.path) for line in self._lines("followed.jsonl")]

    def texts(self) -> list[BaselineText]:
        """The untimed baseline texts."""
        return [from_plain(BaselineText, line, self.path) for line in self._lines("texts.jsonl")]

    def logits(self) -> list[LogitSample]:
        """The digests of logits, one sample per cell; the newest one where a resumed run has taken it again."""
        read = [from_plain(LogitSample, line, self.path) for line in self._lines("logits.jsonl")]
        return list({sample.cell: sample for sample in read}.values())

    def rescorings(self) -> dict[str, Rescoring]:
        """Point key → how its tokens were scored by a second engine; the newest where that was done again."""
        read = [from_plain(Rescoring, line, self.path) for line in self._lines("rescored.jsonl")]
        return {rescoring.point: rescoring for rescoring in read}

    def draws(self) -> dict[str, DrawnTexts]:
        """Point key → the texts that were drawn of it; the newest where that was done again."""
        read = [from_plain(DrawnTexts, line, self.path) for line in self._lines("draws.jsonl")]
        return {drawn.point: drawn for drawn in read}

    def traces(self) -> dict[str, BlockTrace]:
        """Cell key → its traced block; the newest one where a resumed run has traced it again."""
        read = [from_plain(BlockTrace, line, self.path) for line in self._lines("traces.jsonl")]
        return {trace.cell: trace for trace in read}

    def samples(self) -> list[Sample]:
        """What the monitor process observed, in the order in which it was written."""
        return [from_plain(Sample, line, self.path) for line in self._lines("environment.jsonl")]

    def journal(self) -> Journal:
        """Everything under `samples/`. In a folder that was opened `read_only`, it is read once."""
        if self._journal is not None:
            return self._journal
        found = Journal(
            blocks=self.blocks(),
            margins=self.margins(),
            engines=self.engines(),
            traces=self.traces(),
            samples=self.samples(),
            texts=self.texts(),
            logits=self.logits(),
            rescorings=self.rescorings(),
            followed=self.followed(),
            draws=self.draws(),
        )
        self._journal = found if self.read_only else None
        return found

    def adopt(self) -> None:
        """Take every file that is there now for the harness's own: those of a run that is being resumed.

        The unfinished last line of a journal is cut off first.
        """
        self.journal()
        for name in plain_files(self.path) - UNLISTED:
            self._written.setdefault(name, content_of((self.path / name).read_bytes(), open_end=name == WATCH))
