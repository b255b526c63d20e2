"""Write a folder so that it appears whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """Yield a scratch folder beside `out`, which takes the place of `out` at the end.

    After an error the scratch folder is removed and `out` is as it was before. After success, what was at `out` is
    gone.
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
