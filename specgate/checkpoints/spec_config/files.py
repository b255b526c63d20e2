"""Files that a command line refers to: read where they are on this machine, and named as missing where not."""

from __future__ import annotations

from dataclasses import dataclass, field
from os.path import expanduser, isfile
from pathlib import Path

from specgate.checkpoints.spec_config.flags import Given, from_mapping
from specgate.checkpoints.spec_config.tables import Table
from specgate.files import yamlfile


@dataclass(frozen=True, slots=True)
class Referred:
    """Keys of a file that a command line names. `missing`: it is not on this machine, so nothing in it is known."""

    given: Given = field(default_factory=Given)
    undecided: tuple[str, ...] = ()
    missing: bool = False


def referred(name: str | None, table: Table, where: str) -> Referred:
    """The keys of the YAML file `name`; nothing where none is named. Raises UsageError for one that cannot be read."""
    if name is None:
        return Referred()
    if not isfile(expanduser(name)):
        return Referred(undecided=(f"--config {name}: no such file here, so nothing in it is known",), missing=True)
    path = Path(expanduser(name))
    return Referred(from_mapping(yamlfile.load(path).data, table, str(path), dashes=True))
