"""Counts of each token in prompt files, plain texts, corpora, and in the emitted tokens of stored runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from specgate.backends.eagle3.pair_tools.train.data import batched, find_corpus
from specgate.checkpoints.tokenizer_file import read_tokenizer
from specgate.contract import BaselineText, Block, Workload
from specgate.errors import UsageError
from specgate.files.panics import refusing
from specgate.files.run_folder import RunFolder
from specgate.pairs.corpus import documents
from specgate.planning.prompt_files.choosing import Tokens, check_ids
from specgate.planning.prompt_files.formats import prompts_in, recognise
from specgate.planning.prompt_files.records import content_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

COUNTED_AT_ONCE: Final = 1 << 20
"""Tokens that are added to the counts together: one pass over the vocabulary for so many."""
TOKENISED_AT_ONCE: Final = 64
"""Pieces of text."""
PIECE: Final = 1 << 16
"""Characters of a piece of plain text, at least; it ends behind a line."""


@dataclass(frozen=True, slots=True)
class TokenSources:
    """Sources whose tokens are counted. `prompts`: files as `micro --prompts` reads them. `texts`: plain UTF-8 text.

    `corpora`: names as `train-draft --corpus` takes them, of whose documents the `train` share counts. `runs`: folders
    of stored runs, of which the emitted tokens count.
    """

    prompts: tuple[Path, ...] = ()
    texts: tuple[Path, ...] = ()
    corpora: tuple[str, ...] = ()
    runs: tuple[Path, ...] = ()

    @property
    def any(self) -> bool:
        return bool(self.prompts or self.texts or self.corpora or self.runs)


@dataclass(frozen=True, slots=True)
class Source:
    """One source: how many `tokens` it has, and the SHA-256 of their ids in order (int32, little-endian)."""

    name: str
    tokens: int
    sha256: str

    @property
    def short(self) -> str:
        """The name without the folders of a path, which say nothing on another machine."""
        kind, what = self.name.split(" ", 1)
        return f"{kind} {Path(what).name}"


@dataclass(frozen=True, slots=True)
class Counts:
    """`of[i]`, int64 [V]: how often token i occurs in all `sources` together."""

    of: Tensor
    sources: tuple[Source, ...]

    @property
    def total(self) -> int:
        return int(self.of.sum())

    @property
    def sha256(self) -> str:
        """SHA-256 of the counts (int64, little-endian, one per token of the target)."""
        return hashlib.sha256(self.of.numpy().astype("<i8").tobytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class CountedTarget:
    """Facts about the target for counting: the size of its vocabulary, its tokenizer's file, and the SHA-256 of its
    weights. The SHA-256 is computed only if a run names one.
    """

    vocab: int
    tokenizer_file: Path
    sha256: str | None


def count(wish: TokenSources, target: CountedTarget) -> Counts:
    """Count the tokens of all sources. A file that is named twice counts twice.

    Raises UsageError for a source without tokens, a token that the target does not have, a run of another target, text
    where the target has no tokenizer, and for files that cannot be read.
    """
    counts, sources = torch.zeros(target.vocab, dtype=torch.int64), list[Source]()
    for name, sequences in sequences_of(wish, target):
        of_source, digest = torch.zeros_like(counts), hashlib.sha256()
        for ids in in_chunks(sequences):
            if outside := ids[(ids < 0) | (ids >= target.vocab)].tolist():
                raise UsageError(f"{name}: token id {outside[0]}: {beyond(target.vocab)}")
            of_source += torch.bincount(ids, minlength=target.vocab)
            digest.update(ids.numpy().astype("<i4").tobytes())
        if not (tokens := int(of_source.sum())):
            raise UsageError(f"{name}: no tokens in it", hint="a draft vocabulary is chosen from tokens that occur")
        counts += of_source
        sources.append(Source(name, tokens, digest.hexdigest()))
    return Counts(counts, tuple(sources))


def beyond(vocab: int) -> str:
    return f"the target's vocabulary has {vocab} tokens: 0 to {vocab - 1}"


def in_chunks(sequences: Iterable[Sequence[int]]) -> Iterator[Tensor]:
    """The ids of all sequences, int64, in chunks of about `COUNTED_AT_ONCE`."""
    chunk = list[int]()
    for ids in sequences:
        chunk += ids
        if len(chunk) >= COUNTED_AT_ONCE:
            yield torch.tensor(chunk)
            chunk = []
    if chunk:
        yield torch.tensor(chunk)


def sequences_of(wish: TokenSources, target: CountedTarget) -> Iterator[tuple[str, Iterator[Sequence[int]]]]:
    """(name, token sequences) of every source."""
    for file in wish.prompts:
        yield f"prompts {file}", prompt_ids(file, target)
    for file in wish.texts:
        yield f"text {file}", encoded(pieces(text_of(file)), str(file), target)
    for named in wish.corpora:
        corpus = find_corpus(named)
        text = (document.text for document in documents(corpus, "train"))
        yield f"corpus {corpus.name} {corpus.version}".rstrip(), encoded(text, f"--corpus {named}", target)
    for folder in wish.runs:
        yield f"run {folder}", emitted_ids(folder, target)


# ── prompts and texts ────────────────────────────────────────────────────────────────────────────────────────────────


def prompt_ids(file: Path, target: CountedTarget) -> Iterator[Sequence[int]]:
    """The tokens of every prompt of a file, as `micro --prompts` would measure them."""
    recognised = recognise(file, "auto")
    entries = prompts_in(file, recognised.sha256, recognised.format).entries
    check_ids(entries, target.vocab)
    tokenizer_file = target.tokenizer_file if target.tokenizer_file.is_file() else None
    tokens = Tokens(Workload(0, 1, 1, file=file, format=recognised.format), tokenizer_file, target.vocab)
    return (tokens.of(entry).token_ids for entry in entries)


def text_of(file: Path) -> str:
    content = content_of(file, "plain text in UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{file}: not UTF-8 at byte {error.start + 1}: 0x{content[error.start]:02x}",
            hint="--text takes plain text; JSON lines go to --prompts",
        ) from None


def pieces(text: str) -> Iterator[str]:
    """`text` in pieces that end behind a line: a tokenizer takes long to encode a whole book at once."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + PIECE) + 1 or len(text)
        yield text[start:end]
        start = end


def encoded(texts: Iterable[str], where: str, target: CountedTarget) -> Iterator[Sequence[int]]:
    """The tokens of `texts`, without those that a tokenizer puts around them."""
    tokenizer = tokenizer_for(where, target)
    for batch in batched(texts, TOKENISED_AT_ONCE):
        with refusing(lambda why: UsageError(f"{where}: the tokenizer cannot encode it: {why}")):
            encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        for encoding in encodings:
            yield encoding.ids


def tokenizer_for(where: str, target: CountedTarget) -> Tokenizer:
    if not target.tokenizer_file.is_file():
        raise UsageError(
            f"{where}: text, but the target has no tokenizer.json",
            hint=f"put it at {target.tokenizer_file}, or count token ids: --prompts with lines of ids, or --run",
        )
    tokenizer = read_tokenizer(target.tokenizer_file)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


# ── stored runs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def emitted_ids(folder: Path, target: CountedTarget) -> Iterator[Sequence[int]]:
    """Yield the tokens that a stored run emitted for every prompt, each text once: the longest one of any role.

    The first token of a text comes from the prefill and is never drafted, so it does not count.
    """
    run = RunFolder.open(folder, read_only=True)
    check_same_target(run, target)
    longest = dict[tuple[str, int, int], tuple[int, ...]]()
    spoken: list[Block | BaselineText] = [*run.lines(Block), *run.lines(BaselineText)]
    for text in spoken:
        for slot, tokens in enumerate(text.tokens):
            key = (text.point.key, text.prompt_set, slot)
            longest[key] = max(longest.get(key, ()), tokens, key=len)
    return (tokens[1:] for tokens in longest.values())


def check_same_target(run: RunFolder, target: CountedTarget) -> None:
    """Raise UsageError where the run was measured with other weights. A server's are not known."""
    for point, facts in run.engines().items():
        if None not in (facts.target_sha256, target.sha256) and facts.target_sha256 != target.sha256:
            raise UsageError(
                f"{run.path}: {point}: target_sha256 = {facts.target_sha256}, this target's is {target.sha256}",
                hint="tokens of another target say nothing of this one: name a run of this target",
            )
