"""The git checkout that a folder lies in."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Checkout:
    """A folder of a git checkout: its top level, its commit, and whether files differ from that commit."""

    top: Path
    commit: str
    changed: bool


def checkout_of(folder: Path) -> Checkout | None:
    """The git checkout that `folder` lies in; None where there is none, no git, or git ignores the folder.

    The commit says nothing of what an ignored folder holds, such as a build or an environment inside a checkout.
    """
    if run(folder, "check-ignore", "--quiet", ".").returncode == 0:
        return None
    top = git(folder, "rev-parse", "--show-toplevel")
    commit = git(folder, "rev-parse", "HEAD")
    if top is None or commit is None:
        return None
    status = git(folder, "status", "--porcelain", "--untracked-files=no")
    return Checkout(Path(top), commit, bool(status))


def checkout_with(file: Path) -> Checkout | None:
    """The git checkout that has `file`; None where git does not follow it, as in an installed package."""
    tracked = git(file.parent, "ls-files", "--error-unmatch", file.name) is not None
    return checkout_of(file.parent) if tracked else None


def git(folder: Path, *arguments: str) -> str | None:
    """Output of git in `folder`; None if it fails or there is no git."""
    done = run(folder, *arguments)
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run git in `folder`. Without git or without the folder, the exit code is 127."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, b"", str(error).encode())
