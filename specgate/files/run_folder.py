"""The run folder. Journals grow while the run goes on; every other file is written whole or not at all.

config.resolved.yaml  env.json       before the first block
samples/blocks.jsonl                 one line per block, on disk as soon as it ends; beside it engines.jsonl, and what
                                     tokens and invariants are checked by: texts.jsonl, margins.jsonl, logits.jsonl,
                                     traces.jsonl, rescored.jsonl
samples/environment.jsonl            one line per half second, written by the monitor process
run.json                             `status: running` from the start, replaced at the end
gates.json  metrics.csv  summary.csv  report.html  MANIFEST.sha256      at the end
logs/                                what the engine processes printed
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from specgate.core import BaselineText, Block, BlockTrace, EngineFacts, Followed, LogitSample, Margin, Rescoring, Run
from specgate.core.conditions import Sample
from specgate.errors import EnvironmentRefused, InvalidResult, UsageError
from specgate.files.config import Config
from specgate.files.journal import Journal
from specgate.files.json_text import parse_json, read_json, shown
from specgate.files.manifest import FORMER, LOCK, MANIFEST, UNLISTED, manifest_of, odd_files, plain_files
from specgate.files.plain import from_plain, to_plain
from specgate.files.redaction import masked_data
from specgate.files.writing import as_json, as_stored, disk, json_text, sha256_of, without_home, write_whole
from specgate.files.written import Content, changed, content_of
from specgate.files.yamlfile import dump_yaml, load

SCHEMA = "specgate.result/v1"
SCHEMA_VERSION = "1.6.0"
LATER_FIELDS: Mapping[str, tuple[str, ...]] = {
    "1.1.0": (
        "bandwidth",
        "budgets",
        "engines.*.traffic",
        "engines.*.tuned_sha256",
        "last_green",
        "files",
        "cells*.by_depth",
        "cells*.distributions",
        "cells*.values.*acceptance_at_pos*.ci_low",
        "cells*.values.*acceptance_at_pos*.ci_high",
        "conditions.*.timeline",
    ),
    "1.2.0": ("cells*.acceptance.totals",),
    "1.3.0": (
        "bandwidth.cache_bytes",
        "cells*.reason_code",
        "cells*.values.undrafted_steps",
        "engines.*.least_weight_bytes",
        "engines.*.engine_version",
        "comparisons*.tokens.emitted_tokens",
        "comparisons*.tokens.whole_sets",
        "comparisons*.tokens.logits",
        "cells*.rescored",
        "sampled_after",
        "check_seconds",
        "reports",
    ),
    "1.4.0": (
        "not_judged",
        "between_runs",
        "required_decisions",
        "scenarios.*.statistics",
        "scenarios.*.schedule.extended",
        "scenarios.*.definitions",
        "scenarios.*.goodput",
        "comparisons*.beside",
        "cells*.set_aside",
        "conditions.*.host",
        "conditions.*.gpu.max_sm_clock_mhz",
        "conditions.*.gpu.power_w",
        "conditions.*.gpu.capped",
    ),
    "1.5.0": ("times", "earlier", "builds", "between_runs.*.least_process_sd", "comparisons*.even_prefill"),
    "1.6.0": (
        "break_even",
        "cells*.values.client_clock_ratio",
        "cells*.cell.point.rate",
        "comparisons*.cell.point.rate",
        "scenarios.*.load",
        "engines.*.identity",
        "pair.weights",
        "scenarios.*.baseline",
        "scenarios.*.workload.file",
        "scenarios.*.workload.shared_prefix",
        "comparisons*.tokens.sequences",
        "comparisons*.tokens.followed",
        "comparisons*.tokens.divergences*.unit",
        "conditions.*.gpu.prefill_clock_mhz",
        "cells*.drift",
        "cells*.values.drafted_share",
    ),
}
"""Schema version → fields of run.json that it added (`fnmatch` patterns). In an older file such a field is missing or
null.
"""
EVIDENCE_FILES = ("config.resolved.yaml", "env.json", "gates.json", "samples/*")
JOURNALS = frozenset(
    f"samples/{name}.jsonl"
    for name in ("blocks", "environment", "engines", "margins", "texts", "logits", "traces", "rescored", "followed")
)
WATCH = "samples/environment.jsonl"
"""The journal that the monitor process writes; the harness writes all others."""


class RunFolder:
    """The files of one run. Every write raises EnvironmentRefused where the disk is full or the folder is not writable.

    A process that died may have left an unfinished last line in a journal. Reading cuts that line off, so that writing
    can go on. In a folder that was opened `read_only`, reading raises InvalidResult instead.

    The harness alone writes a run. What it has written or read through this object is remembered by size and SHA-256:
    a journal that somebody else has changed since raises InvalidResult when it is read or continued, and `check` looks
    at all files.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only
        self._written: dict[str, Content] = {}
        """File name → what the harness knows it to hold."""
        self._journal: Journal | None = None

    @classmethod
    def create(cls, parent: Path, kind: str, label: str, source_sha256: str) -> RunFolder:
        """A new folder below `parent`, named by time, kind, label, source tree and a random part."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        folder = cls(parent / f"{stamp}-{kind}-{label}-{source_sha256[:8]}-{secrets.token_hex(3)}")
        with disk(folder.path):
            for sub in ("samples", "logs"):
                (folder.path / sub).mkdir(parents=True)
        return folder

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> RunFolder:
        """An existing run folder. Raises UsageError where `path` is not one."""
        if not (path / "config.resolved.yaml").is_file():
            raise UsageError(
                f"{path} is not a run folder: it has no config.resolved.yaml", hint="give the folder a run printed"
            )
        return cls(path, read_only=read_only)

    @property
    def id(self) -> str:
        """The name of the folder."""
        return self.path.name

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Only one process at a time may write into a run. Raises EnvironmentRefused while another one does."""
        lock = FileLock(self.path / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise EnvironmentRefused(f"{self.path}: another specgate is writing this run", hint="wait for it") from None
        try:
            yield
        finally:
            lock.release()

    def log(self, name: str) -> Path:
        """The path of the log file called `name`."""
        return self.path / "logs" / name

    # ── before the loop ──────────────────────────────────────────────────────────────────────────────────────────────

    def write_config(self, config: Config) -> None:
        """Write config.resolved.yaml."""
        plain = {"schema": "specgate.config/v1", **to_plain(Config, config)}
        self._write("config.resolved.yaml", without_home(dump_yaml(masked_data(plain))))

    def read_config(self) -> Config:
        """The configuration, with `~` in paths expanded. Raises InvalidResult where the file holds anything else."""
        file = self.path / "config.resolved.yaml"
        try:
            data = dict(load(file).data)
        except UsageError as error:
            raise InvalidResult(error.message, hint=error.hint) from error
        if data.pop("schema", None) != "specgate.config/v1":
            raise InvalidResult(f"{file}: schema is not specgate.config/v1: written by another version of specgate")
        config = from_plain(Config, data, file)
        pair = config.pair
        draft = pair.draft.expanduser() if pair.draft else None
        return replace(config, pair=replace(pair, target=pair.target.expanduser(), draft=draft))

    def write_json(self, name: str, data: object) -> None:
        """Write `data` to the file called `name` in the run folder."""
        self._write(name, json_text(data))

    # ── the journal ──────────────────────────────────────────────────────────────────────────────────────────────────

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

    def traces(self) -> dict[str, BlockTrace]:
        """Cell key → its traced block; the newest one where a resumed run has traced it again."""
        read = [from_plain(BlockTrace, line, self.path) for line in self._lines("traces.jsonl")]
        return {trace.cell: trace for trace in read}

    @property
    def watch_file(self) -> Path:
        """The file that the monitor process appends its samples to."""
        return self.path / WATCH

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
        )
        self._journal = found if self.read_only else None
        return found

    def _append(self, name: str, data: object) -> None:
        """Append one line and flush it to disk before the next block starts: a kill -9 loses at most the block in
        flight.
        """
        file, key = self.path / "samples" / name, f"samples/{name}"
        line = (as_json(data, separators=(",", ":")) + "\n").encode()
        if key not in self._written:
            self._written[key] = content_of(file.read_bytes() if file.is_file() else b"")
        known = self._written[key]
        with disk(file), file.open("ab") as out:
            if (size := os.fstat(out.fileno()).st_size) != known.size:
                raise changed(key, f"it has {size} bytes; the harness wrote {known.size}")
            out.write(line)
            out.flush()
            os.fsync(out.fileno())
        known.append(line)
        self._look_at_watch()

    def _lines(self, name: str) -> Iterator[object]:
        file, key = self.path / "samples" / name, f"samples/{name}"
        content = file.read_bytes() if file.is_file() else b""
        if key in self._written and (why := self._written[key].contradiction(content)):
            raise changed(key, why)
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.decode(errors="replace").split("\n")[:-1], 1):
            try:
                yield parse_json(line)
            except ValueError as error:
                raise InvalidResult(f"{file}:{number}: not JSON: {error}") from error
        if self.read_only:
            if len(whole) != len(content):
                number = whole.count(b"\n") + 1
                raise InvalidResult(f"{file}:{number}: an unfinished line", hint="continue the run with --resume")
            return
        if len(whole) != len(content):
            # The last line has no newline: it was being written when the process died. Cut it off, so that the next
            # line starts on its own.
            with disk(file), file.open("r+b") as out:
                out.truncate(len(whole))
        self._written.setdefault(key, content_of(whole, open_end=key == WATCH))

    # ── nobody else writes ───────────────────────────────────────────────────────────────────────────────────────────

    def adopt(self) -> None:
        """Take every file that is there now for the harness's own: those of a run that is being resumed.

        The unfinished last line of a journal is cut off first.
        """
        self.journal()
        for name in plain_files(self.path) - UNLISTED:
            self._written.setdefault(name, content_of((self.path / name).read_bytes(), open_end=name == WATCH))

    def adopt_watch(self, start: int, size: int, sha256: str) -> None:
        """Hold the monitor's journal to what the monitor says that it wrote: `size` bytes from byte `start` on.

        Raises InvalidResult if the file holds anything else there.
        """
        known = self._written.setdefault(WATCH, Content(open_end=True))
        content = self.watch_file.read_bytes()
        why = known.contradiction(content) or content_of(content[start:]).mismatch(size, sha256)
        if why:
            raise changed(WATCH, why)
        known.append(content[known.size :])
        known.open_end = False

    def _look_at_watch(self) -> None:
        """Remember what the monitor has written so far, so that it cannot be rewritten later."""
        known = self._written.get(WATCH)
        if known is None or not known.open_end or not self.watch_file.is_file():
            return
        with disk(self.watch_file), self.watch_file.open("rb") as file:
            file.seek(known.size)
            known.append(file.read())

    def check(self) -> None:
        """Raises InvalidResult for the first file that is not as the harness left it, or that it has not written.

        Logs are left out, since engines write into them.
        """
        if odd := next((d for d in odd_files(self.path) if not d.file.startswith("logs/")), None):
            raise changed(odd.file, odd.why)
        present = {name for name in plain_files(self.path) if not name.startswith("logs/")} - UNLISTED
        for name, known in self._written.items():
            if name.startswith("logs/"):
                continue
            found = (self.path / name).read_bytes() if name in present else b""
            if why := known.contradiction(found):
                raise changed(name, why)
        if foreign := sorted(present - self._written.keys()):
            raise changed(foreign[0], "no part of the harness wrote it")

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def write_run(self, run: Run, extra: Mapping[str, object] | None = None) -> None:
        """Write run.json: a header, the whole `core.Run`, and `extra` (per-cell data for outside readers)."""
        header = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION}
        self.write_json("run.json", {**header, **to_plain(Run, run), **(extra or {})})

    def read_run(self) -> Run:
        """The run in run.json.

        Raises UsageError where there is no such file, and InvalidResult where it is not JSON or has another schema.
        """
        file = self.path / "run.json"
        try:
            data = read_json(file)
        except FileNotFoundError:
            raise UsageError(f"{file} does not exist", hint="the run never started; start it again") from None
        except ValueError as error:
            raise InvalidResult(f"{file}: not JSON: {error}") from error
        schema = data.get("schema") if isinstance(data, dict) else None
        if schema != SCHEMA:
            raise InvalidResult(f"{file}: schema: {shown(schema)}; this specgate reads {SCHEMA!r}")
        return from_plain(Run, data, file)

    def evidence_hashes(self) -> dict[str, str]:
        """File → SHA-256, for the files that reports may rest on. They are finished before any report is written."""
        found = (p for pattern in EVIDENCE_FILES for p in sorted(self.path.glob(pattern)))
        return {name: self._sha256(name) for name in (p.relative_to(self.path).as_posix() for p in found)}

    def write_manifest(self) -> None:
        """Write MANIFEST.sha256, with the hash of every file of the run.

        For a file that the harness wrote, that is the hash of what it wrote, whatever lies there by now.
        """
        known = {name: content.sha256 for name, content in self._written.items() if not content.open_end}
        self.write_text(MANIFEST, manifest_of(self.path, known))
        (self.path / FORMER).unlink(missing_ok=True)

    def put_manifest_aside(self) -> None:
        """Keep the manifest of a run that is being resumed under another name until the run has ended again."""
        with disk(self.path):
            if (self.path / MANIFEST).is_file():
                (self.path / MANIFEST).replace(self.path / FORMER)

    def _sha256(self, name: str) -> str:
        known = self._written.get(name)
        return sha256_of(self.path / name) if known is None or known.open_end else known.sha256

    def write_text(self, name: str, text: str) -> None:
        """Write `text` to the file called `name` in the run folder."""
        self._write(name, as_stored(text))

    def _write(self, name: str, text: str) -> None:
        """Write `text`, which is masked already, and remember it."""
        write_whole(self.path / name, text)
        self._written[name] = content_of(text.encode())


def without_credentials(run: Run) -> Run:
    """The run as run.json stores it. Reports are made of this one, so that they can be made again from what is stored:
    a mask is of another length than what it hides.
    """
    plain = to_plain(Run, run)
    hidden = masked_data(plain)
    return run if hidden == plain else from_plain(Run, hidden, Path("run.json"))


def label_of(names: Sequence[str]) -> str:
    """A short folder label for the scenarios of a run."""
    return names[0] if len(names) == 1 else f"{len(names)}-scenarios"
