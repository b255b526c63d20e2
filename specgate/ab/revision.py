"""A git revision in a worktree of its own, built by a command where it needs that."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from specgate.errors import BackendError, EnvironmentRefused, UsageError
from specgate.machine.checkout import checkout_of, git, run

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
