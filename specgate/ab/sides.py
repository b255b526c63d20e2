"""Build of a side: from `--old KEY=VALUE` and `--new KEY=VALUE` to the start of its processes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from specgate.contract.two_builds import Side, SideName
from specgate.errors import BackendError, EnvironmentRefused, UsageError
from specgate.machine.checkout import checkout_of, git, run
from specgate.run.engine_process.launch import Launch

_TAIL_LINES: Final = 8


@contextmanager
def worktree(repository: Path, revision: str) -> Iterator[Path]:
    """A worktree of `revision`, removed when the body ends.

    Raises UsageError where `repository` is no git checkout or has no such revision.
    """
    here = checkout_of(repository)
    if here is None:
        raise UsageError(f"--base {revision}: {repository} is not in a git checkout", hint="run it in the checkout")
    commit = git(here.top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if commit is None:
        hint = "name a branch, a tag or a commit that this checkout has; git fetch gets more"
        raise UsageError(f"--base {revision}: no such revision in {here.top}", hint=hint)
    with tempfile.TemporaryDirectory(prefix="specgate-base-") as parent:
        folder = Path(parent) / commit[:12]
        try:
            made = run(here.top, "worktree", "add", "--detach", "--force", str(folder), commit)
            if made.returncode:
                output = last_lines(made.stderr)
                raise EnvironmentRefused(f"--base {revision}: git cannot make a worktree of {commit}: {output}")
            yield folder
        finally:
            run(here.top, "worktree", "remove", "--force", "--force", str(folder))
            run(here.top, "worktree", "prune")


def build(folder: Path, command: str, log: Path, side: str) -> None:
    """Run `command` in the shell of `folder`, and keep what it prints in `log`.

    Raises BackendError with the end of what it printed where it fails.
    """
    with log.open("wb") as out:
        done = subprocess.run(
            command, shell=True, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False
        )
    if done.returncode:
        output = last_lines(log.read_bytes())
        raise BackendError(
            f"{side}: --build {command!r} ended with exit code {done.returncode} in {folder}:\n    {output}"
        )


def last_lines(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()[-_TAIL_LINES:]
    return "\n    ".join(lines) or "it printed nothing"


KEYS: Final = ("source", "python", "backend")
"""What `--old` and `--new` say of a build. Every other key is an option of its back end."""
_CODE: Final = frozenset(
    f".{kind}" for kind in ["py", "pyi", "so", "c", "cc", "cpp", "cu", "cuh", "h", "hpp", "rs", "json", "yaml"]
)
_NO_CODE: Final = frozenset((".git", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".ruff_cache"))
_OF_RUNS: Final = ("ledger.jsonl", "MANIFEST.sha256", "asked.json")
"""A folder that holds one of them has results and no code: it may lie in the checkout, and grows with every run."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A side as the command line has it.

    `source`: the folder to import from first. `python`: the interpreter.
    `backend`, `options`: over what both sides have in common.
    """

    name: SideName
    source: Path | None = None
    python: Path | None = None
    backend: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def foreign(self) -> bool:
        """True if the side's code may be another than the harness's."""
        return self.source is not None or self.python is not None


def asked_of(name: SideName, pairs: Sequence[tuple[str, str]]) -> Asked:
    """A side from its KEY=VALUE pairs. Raises UsageError for files that are not there, and for two of one key."""
    values: dict[str, str] = {}
    for key, value in pairs:
        if key in values:
            raise UsageError(f"--{name} {key}: given twice: {values[key]!r} and {value!r}", hint="give one of them")
        if not value and key in KEYS:
            raise UsageError(f"--{name} {key}: empty", hint=f"write it as --{name} {key}=VALUE")
        if key not in KEYS and (near := get_close_matches(key, KEYS, 1, 0.9)):
            raise UsageError(f"--{name} {key}: no such key", hint=f"did you mean {near[0]}?")
        values[key] = value
    return Asked(
        name=name,
        source=folder_of(name, values["source"]) if "source" in values else None,
        python=interpreter_of(name, values["python"]) if "python" in values else None,
        backend=values.get("backend"),
        options={key: value for key, value in values.items() if key not in KEYS},
    )


def folder_of(name: SideName, text: str) -> Path:
    """A folder to import from: `text` itself, or its `src` where the packages lie there."""
    folder = Path(text).expanduser().absolute()
    if not folder.is_dir():
        raise UsageError(f"--{name} source={text}: no such folder", hint="give the folder that the package lies in")
    return package_folder(folder)


def package_folder(folder: Path) -> Path:
    """Folder of a checkout's packages: `src`, or else the checkout itself."""
    inner = folder / "src"
    here = any((f / "__init__.py").is_file() for f in folder.iterdir() if f.is_dir())
    return inner if not here and inner.is_dir() else folder


def interpreter_of(name: SideName, text: str) -> Path:
    """An interpreter by path or by name. Links are kept: those of a virtual environment lead out of it."""
    program = shutil.which(os.path.expanduser(text))
    if program is None:
        raise UsageError(
            f"--{name} python={text}: no such program",
            hint="give the interpreter of the build's environment, such as ENV/bin/python",
        )
    return Path(program).absolute()


def launch_of(side: Asked) -> Launch:
    """Launch of a side's processes. Raises UsageError where its specgate speaks another protocol."""
    if side.source is not None and too_old(side.source):
        hint = "its engine process speaks another protocol: take a later revision"
        raise UsageError(f"{side.name}: {side.source}: its specgate is too old to be started by this one", hint=hint)
    return Launch(side.python, (side.source,) if side.source else ())


def too_old(source: Path) -> bool:
    """True if `source` brings a specgate that has no engine process as this one starts it."""
    package = source / "specgate"
    return (package / "__init__.py").is_file() and not (package / "run" / "engine_process" / "service.py").is_file()


def side_of(side: Asked, backend: str, options: Mapping[str, str]) -> Side:
    """The side as it is stored. `options`: all of its back end's."""
    source = side.source
    checkout = checkout_of(source) if source is not None else None
    return Side(
        name=side.name,
        backend=backend,
        options=options,
        python=str(side.python) if side.python else None,
        source=str(source) if source else None,
        revision=checkout.commit if checkout else None,
        changed=checkout.changed if checkout else None,
        sha256=tree_sha256(source) if source else None,
    )


def tree_sha256(folder: Path) -> str:
    """SHA-256 over path and content of every file with code below `folder`, in the order of the paths."""
    digest = hashlib.sha256()
    for file in sorted(code_files(folder)):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def code_files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [f for f in folders if f not in _NO_CODE and not has_results(Path(parent, f))]
        yield from (Path(parent, name) for name in names if os.path.splitext(name)[1] in _CODE)


def has_results(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _OF_RUNS)
