"""The wheel that the guide has people install: complete, and enough by itself."""

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from specgate.machine.plugin_code import DISTRIBUTION
from tests.support.command import ROOT

pytestmark = pytest.mark.slow("makes a wheel")


def files_of_the_checkout() -> set[str]:
    """Every file of the package, through its links, but for what Python has compiled."""
    names = set()
    for folder, folders, files in os.walk(ROOT / "specgate", followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        names |= {(Path(folder) / name).relative_to(ROOT).as_posix() for name in files if not name.endswith(".pyc")}
    return names


def test_a_wheel_has_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = files_of_the_checkout()
    assert sorted(expected - names) == [] and sorted(names - expected) == []
    kinds = {Path(name).suffix for name in names}
    assert {".py", ".cu", ".cuh", ".yaml", ".html", ".js", ".json", ".safetensors", ".typed"} <= kinds


def test_the_wheel_is_named_as_it_names_itself_and_its_command_is_specgate(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (folder,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        metadata, scripts = (archive.read(f"{folder}/{name}").decode() for name in ("METADATA", "entry_points.txt"))
    assert wheel.name.startswith("specgate_bench-") and f"\nName: {DISTRIBUTION}\n" in metadata
    needed = re.findall(r"^Requires-Dist: (specgate[\w-]*)", metadata, re.MULTILINE)
    assert needed and {*needed} == {DISTRIBUTION}, "extras bring along others of the same distribution"
    assert "specgate = specgate.__main__:main" in scripts


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("engine pairs list", "planted-llama-3.1-8b-al3.0"),
        ("scenarios show micro-8b-32k-single", "planted-llama-3.1-8b"),
        ("scenarios plan --scenario micro-8b-16k-b4 --machine gpu", "micro-8b-16k-b4"),
        ("machine backends --validate", "reference"),
    ],
)
def test_what_ships_is_found_where_there_is_no_checkout(
    command: str, message: str, environment: dict[str, str], site: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        ["specgate", *command.split()], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert message in done.stdout


def test_no_file_of_the_checkout_is_read(environment: dict[str, str], site: Path, tmp_path: Path) -> None:
    """The planted pairs that ship have folders with dots in their names, which are no packages."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import specgate; "
        "from specgate.pairs.resolve import resolve_pair; "
        "print(specgate.__file__, resolve_pair('planted-llama-3.1-8b-al2.5', None, None).target)"
    )
    done = subprocess.run(
        ["python", "-P", "-c", program, site],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert all(path.startswith(f"{site}/") for path in done.stdout.split())
