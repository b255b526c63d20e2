"""One data class in a JSON file of its own, with a schema. Used for what is known about a machine."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from specgate.errors import InvalidResult
from specgate.files.json_text import from_plain, read_json, shown, to_plain
from specgate.files.writing import write_json

T = TypeVar("T")


def read_record(kind: type[T], file: Path, schema: str) -> T | None:
    """The record in `file`; None where there is no such file. Raises InvalidResult where it holds anything else."""
    try:
        data = read_json(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InvalidResult(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidResult(f"{file}: not JSON: {error}") from error
    stored_schema = data.pop("schema", None) if isinstance(data, dict) else None
    if stored_schema != schema:
        raise InvalidResult(f"{file}: schema: {shown(stored_schema)}; this specgate reads {schema!r}")
    return from_plain(kind, data, file)


def write_record(kind: type[T], value: T, file: Path, schema: str) -> None:
    """Write the record, in the place of an earlier one. Raises EnvironmentRefused where `file` cannot be written."""
    write_json(file, {"schema": schema, **to_plain(kind, value)})


def stored_json(file: Path) -> object:
    """Content of a JSON file of a run. Raises InvalidResult where it cannot be read as JSON."""
    try:
        return read_json(file)
    except (OSError, ValueError) as error:
        raise InvalidResult(f"{file.name}: not readable as JSON: {error}") from error
