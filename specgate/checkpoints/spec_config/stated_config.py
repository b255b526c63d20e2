"""Speculative config of one engine, in the terms of `terms.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from specgate.checkpoints.spec_config.sizes import SpecConfig, broken_rules

How = Literal["stated", "default", "fixed"]


@dataclass(frozen=True, slots=True)
class Said:
    """The value of one term.

    `how`: `stated` by the config, the engine's `default`, or `fixed` because the engine knows nothing else.
    `by`: the key or flag that says it, where it is stated.
    """

    value: object
    how: How = "stated"
    by: str = ""


@dataclass(frozen=True, slots=True)
class StatedConfig:
    """One engine's speculative config.

    `engine`: whose format it is. `where`: the file or the text that it was read from.
    `terms`: term → what the config says of it. A term that is missing is not known.
    `expresses`: the terms that this format can express.
    `notes`: what else a reader must know, such as keys that nobody knows.
    """

    engine: str
    where: str
    terms: Mapping[str, Said]
    expresses: frozenset[str]
    notes: tuple[str, ...] = ()
    boundaries: tuple[int, ...] | None = field(default=None)
    """Boundaries of the target's layers that feed the draft, where these follow from files on this machine."""

    def value(self, term: str) -> object:
        """Value of `term`; None if the config does not state it."""
        setting = self.terms.get(term)
        return setting.value if setting else None

    def count(self, term: str) -> int | None:
        """The value of a term that is a number of something; None where it is not known or no single number."""
        value = self.value(term)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def stated_count(self, term: str) -> int | None:
        """As `count`, where the config itself says it."""
        setting = self.terms.get(term)
        return self.count(term) if setting is not None and setting.how == "stated" else None

    @property
    def speculative(self) -> bool:
        """True if the config asks for speculation at all."""
        return "method" in self.terms

    def broken(self) -> Iterator[str]:
        """One sentence for each rule of `sizes.broken_rules` that the config breaks, as far as its sizes are known."""
        k = self.count("k")
        if k is None:
            return
        chain = SpecConfig.chain(max(k, 1))
        sizes = SpecConfig(
            num_speculative_tokens=k,
            max_path_len=self.count("path_len") or chain.max_path_len,
            max_decoding_tokens=self.count("verified") or max(chain.max_decoding_tokens, self.count("path_len") or 0),
            max_non_leaves_per_layer=self.stated_count("non_leaves") or 1,
        )
        yield from broken_rules(sizes)
