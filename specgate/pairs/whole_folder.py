"""A folder that appears whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """A scratch folder beside `out` that takes its place at the end; after an error nothing of it is left.

    What was at `out` before is gone then, and only then.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    replaced = partial.with_name(f"{partial.name}.replaced")
    try:
        yield partial
        partial.chmod(0o755)
        if out.exists():
            out.rename(replaced)
        partial.rename(out)
    except BaseException:
        if replaced.exists():
            replaced.rename(out)
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(replaced, ignore_errors=True)
