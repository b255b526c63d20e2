"""The schema of a run's files, and the version of specgate that made a run of any schema."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from specgate.errors import InvalidResult, OtherVersion
from specgate.files.json_text import read_json, shown

SCHEMA: Final = "specgate.result/v2"
SCHEMA_VERSION: Final = "2.0"
CONFIG_SCHEMA: Final = "specgate.config/v2"
FAMILY: Final = "specgate.result/"
"""How the schema of a run.json begins in every version of specgate."""


def check_schema(file: Path, data: object) -> None:
    """Check that `data`, from the run.json `file`, has the schema that this version reads.

    Raises OtherVersion for a run of another version, and InvalidResult for anything else.
    """
    schema, version = (data.get(key) if isinstance(data, dict) else None for key in ("schema", "schema_version"))
    if schema == SCHEMA and version == SCHEMA_VERSION:
        return
    if not isinstance(data, dict) or not isinstance(schema, str) or not schema.startswith(FAMILY):
        raise InvalidResult(f"{file}: schema: {shown(schema)}; this specgate reads {SCHEMA!r}")
    raise OtherVersion(
        f"{file}: schema {shown(schema)}, version {shown(version)}; this specgate reads {SCHEMA!r}, version "
        f"{SCHEMA_VERSION!r}. It was made by {made_by(data)}",
        hint=that_version(data),
    )


def refuse_other_schema(folder: Path) -> None:
    """Check the schema of the run.json in `folder`, where there is one that can be read; raises as `check_schema`."""
    try:
        data = read_json(folder / "run.json")
    except (OSError, ValueError):
        return
    check_schema(folder / "run.json", data)


def made_by(run: Mapping[str, Any]) -> str:
    """Return the source tree and the commit that made a run, in words. `run`: the content of its run.json."""
    tree, commit, dirty = _source(run)
    of = f" (commit {commit[:12]}{', with changes' if dirty else ''})" if commit else ""
    return f"source tree {tree[:12]}{of}" if tree else f"an unknown source tree{of}"


def that_version(run: Mapping[str, Any]) -> str:
    """Return the next step for a run that another source tree has to judge. `run`: the content of its run.json."""
    tree, commit, dirty = _source(run)
    what = f"source tree {tree[:12]}" if tree else "the source tree that made it"
    if commit is not None:
        what = f"commit {commit[:12]} ({what}{', which differs from the commit' if dirty else ''})"
    return f"check out {what}, and run its `specgate runs verify`"


def _source(run: Mapping[str, Any]) -> tuple[str | None, str | None, bool]:
    """(hash of the source tree, commit, whether files differed from it), as far as a run.json has them."""
    parts = [run.get("fingerprint"), run.get("environment")]
    fingerprint, environment = (part if isinstance(part, Mapping) else {} for part in parts)
    source = environment.get("source")
    source = source if isinstance(source, Mapping) else {}
    tree, commit = fingerprint.get("source_tree_sha256"), source.get("commit")
    known = [value if isinstance(value, str) and value.isalnum() else None for value in (tree, commit)]
    return known[0], known[1], source.get("dirty") is True
