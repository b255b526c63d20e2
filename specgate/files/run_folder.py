"""The run folder. Journals grow while the run goes on; every other file is written whole or not at all.

config.resolved.yaml  env.json       before the first block
samples/blocks.jsonl                 one line per block, on disk as soon as it ends; beside it engines.jsonl, and what
                                     tokens and invariants are checked by: texts.jsonl, margins.jsonl, logits.jsonl,
                                     followed.jsonl, traces.jsonl, rescored.jsonl, draws.jsonl; when engines
                                     started: starts.jsonl, and points whose time was spent: ends.jsonl
samples/environment.jsonl            one line per half second, written by the monitor process
run.json                             `status: running` from the start, replaced at the end
gates.json  MANIFEST.sha256          at the end; then the reports, which the last lines of the manifest list
ending.json                          while these are written: see `specgate.promotion.ending`
logs/                                what the engine processes printed
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from specgate.contract import Run
from specgate.errors import EnvironmentRefused, InvalidResult, UsageError
from specgate.files.config import Config
from specgate.files.json_text import from_plain, read_json, to_plain
from specgate.files.manifest import FORMER, LOCK, MANIFEST, NOTHING, manifest_of, plain_files
from specgate.files.run_schema import CONFIG_SCHEMA, SCHEMA, SCHEMA_VERSION, check_schema, refuse_other_schema
from specgate.files.samples import Samples
from specgate.files.writing import disk, sha256_of, without_home, write_whole
from specgate.files.yamlfile import dump_yaml, load
from specgate.redaction import masked_data

RUN: Final = "run.json"
EVIDENCE_FILES = ("config.resolved.yaml", "env.json", "gates.json", "samples/*")


def is_run(path: Path) -> bool:
    """True if `path` is the folder of a run."""
    return (path / "config.resolved.yaml").is_file()


class RunFolder(Samples):
    """The files of one run: see `Samples` for how they are written, and for the journals."""

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
        if not is_run(path):
            why = "it has no config.resolved.yaml" if path.exists() else "there is none of that name"
            inside = max(filter(is_run, path.glob("*/")), default=None)
            hint = (
                "give the folder a run printed" if inside is None else f"give one of the runs in it, such as {inside}"
            )
            raise UsageError(f"{path} is not a run folder: {why}", hint=hint)
        return cls(path, read_only=read_only)

    @cached_property
    def id(self) -> str:
        """The run's id: what run.json says, since a folder may be renamed and a fleet measures in other ones. Before
        there is a run.json, the folder's name.
        """
        return self.read_run().id if (self.path / RUN).is_file() else self.path.name

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
        plain = {"schema": CONFIG_SCHEMA, **to_plain(Config, config)}
        write_whole(self.path / "config.resolved.yaml", without_home(dump_yaml(masked_data(plain))))

    def read_config(self) -> Config:
        """The configuration, with `~` in paths expanded.

        Raises OtherVersion for a run of another version, and InvalidResult where the file holds anything else.
        """
        file = self.path / "config.resolved.yaml"
        try:
            data = dict(load(file).data)
        except UsageError as error:
            raise InvalidResult(error.message, hint=error.hint) from error
        if data.pop("schema", None) != CONFIG_SCHEMA:
            refuse_other_schema(self.path)
            raise InvalidResult(f"{file}: schema is not {CONFIG_SCHEMA}: written by another version of specgate")
        config = from_plain(Config, data, file)
        pair = config.pair
        draft = pair.draft.expanduser() if pair.draft else None
        return replace(config, pair=replace(pair, target=pair.target.expanduser(), draft=draft))

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def write_run(self, run: Run) -> None:
        """Write run.json: a header and the whole `contract.Run`."""
        self.write_json(RUN, run_json(run))

    def read_run(self) -> Run:
        """The run in run.json.

        Raises UsageError where there is no such file, OtherVersion for a run of another version, and InvalidResult
        where it is no run.json.
        """
        file = self.path / RUN
        try:
            data = read_json(file)
        except FileNotFoundError:
            raise UsageError(
                f"{file} does not exist",
                hint="a run that never began, or a calibration: noise.json has the result of one",
            ) from None
        except OSError as error:
            raise InvalidResult(f"{file}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise InvalidResult(f"{file}: not JSON: {error}") from error
        check_schema(file, data)
        return from_plain(Run, data, file)

    def evidence_hashes(self, coming: Mapping[str, str] = NOTHING) -> dict[str, str]:
        """File → SHA-256, for the files that reports may rest on. `coming`: those of files that are yet to be written,
        in the place of what lies there.
        """
        there = {p.relative_to(self.path).as_posix() for pattern in EVIDENCE_FILES for p in self.path.glob(pattern)}
        names = sorted(there | {name for name in coming if name in EVIDENCE_FILES}, key=in_order)
        return {name: coming.get(name) or sha256_of(self.path / name) for name in names}

    def write_manifest(self, first: str = "") -> None:
        """Write MANIFEST.sha256. Its first lines are `first`; all files that these do not list come after them."""
        listed = {line.partition("  ")[2] for line in first.split("\n")}
        self.write_text(MANIFEST, first + manifest_of(self.path, without=listed))
        self.remove(FORMER)

    def remove(self, name: str) -> None:
        """Remove the file called `name`, if there is one. Raises EnvironmentRefused where that cannot be."""
        with disk(self.path / name):
            (self.path / name).unlink(missing_ok=True)

    def remove_unfinished(self) -> None:
        """Remove what a process that was killed has left of files that it was writing (`writing.write_whole`)."""
        for name in plain_files(self.path):
            if name.endswith(".tmp") and "logs/" not in name:
                self.remove(name)

    def put_manifest_aside(self) -> None:
        """Keep the manifest of a run that is being resumed under another name until the run has ended again."""
        with disk(self.path):
            if (self.path / MANIFEST).is_file():
                (self.path / MANIFEST).replace(self.path / FORMER)


def run_json(run: Run, extra: Mapping[str, object] | None = None) -> dict[str, object]:
    """The contents of run.json: see `RunFolder.write_run`."""
    return {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **to_plain(Run, run), **(extra or {})}


def in_order(name: str) -> tuple[int, str]:
    """The place of an evidence file: as `EVIDENCE_FILES` has it, then by name."""
    return next(n for n, pattern in enumerate(EVIDENCE_FILES) if fnmatchcase(name, pattern)), name


def without_credentials(run: Run) -> Run:
    """The run as run.json stores it. Reports are made of this one, so that they can be made again from what is stored:
    a mask is of another length than what it hides.
    """
    plain = to_plain(Run, run)
    hidden = masked_data(plain)
    return run if hidden == plain else from_plain(Run, hidden, Path(RUN))


def label_of(names: Sequence[str]) -> str:
    """A short folder label for the scenarios of a run."""
    return names[0] if len(names) == 1 else f"{len(names)}-scenarios"
