"""The sizes of a speculative decoder, checked before anything is loaded.

The names are those of TensorRT-LLM and TurboMind. They describe a tree of draft tokens whose root is the newest
committed token. A chain of K draft tokens is a tree with a single path: K + 1 tokens on the path, K + 1 tokens verified
per step, and one node with children at each depth but the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from typing import Final

from specgate.checkpoints.geometry import DraftGeometry, TargetSizes
from specgate.errors import UsageError

SIZES: Final = ("num_speculative_tokens", "max_path_len", "max_decoding_tokens", "max_non_leaves_per_layer", "tp")


@dataclass(frozen=True, slots=True)
class SpecConfig:
    """Sizes of one speculative decoder.

    `num_speculative_tokens`: most draft tokens on a path. `max_path_len`: tokens from root to leaf.
    `max_decoding_tokens`: tokens verified per step, the root included. `max_non_leaves_per_layer`: nodes of one depth
    that have children. `tp`: GPUs per model.
    """

    num_speculative_tokens: int
    max_path_len: int
    max_decoding_tokens: int
    max_non_leaves_per_layer: int = 1
    tp: int = 1
    method: str = "eagle3"

    @classmethod
    def chain(cls, k: int, *, tp: int = 1) -> SpecConfig:
        """The config of spec-k: a chain of `k` draft tokens."""
        return cls(num_speculative_tokens=k, max_path_len=k + 1, max_decoding_tokens=k + 1, tp=tp)

    @classmethod
    def read(cls, values: Mapping[str, object], where: str) -> SpecConfig:
        """Read the config of an engine or a file; a missing size gets the value that a chain has.

        Raises UsageError for unknown keys and for values of the wrong type. `where` names the source in the message.
        """
        problems = list(misread(values))
        if problems:
            raise UsageError(f"{where}: {'; '.join(problems)}", hint=f"known keys: {', '.join(KEYS)}")
        k = values["num_speculative_tokens"]
        assert isinstance(k, int)
        return cls(**{**asdict(cls.chain(k)), **values})


KEYS: Final = tuple(field.name for field in fields(SpecConfig))


def misread(values: Mapping[str, object]) -> Iterator[str]:
    """One sentence for each reason why `values` cannot be read as a SpecConfig."""
    if "num_speculative_tokens" not in values:
        yield "num_speculative_tokens is missing"
    for key, value in values.items():
        if key not in KEYS:
            near = get_close_matches(key, KEYS, 1)
            yield f"unknown key {key}" + (f" (did you mean {near[0]}?)" if near else "")
        elif key in SIZES and (not isinstance(value, int) or isinstance(value, bool)):
            yield f"{key} = {value!r}: an integer is needed"
        elif key == "method" and not isinstance(value, str):
            yield f"method = {value!r}: a string is needed"


def check(
    config: SpecConfig,
    where: str,
    *,
    target: TargetSizes | None = None,
    draft: DraftGeometry | None = None,
    positions: int | None = None,
    most_tp: int = 1,
) -> None:
    """Check `config` by itself and against the limits of a pair. Raises one UsageError that names every broken rule.

    `positions` is the number of positions that the longest request needs, draft tokens included. It must not exceed
    `target.max_positions`. The length of the chain must not exceed the draft's attention window. `most_tp`: as in
    `broken_rules`.
    """
    broken = [*broken_rules(config, most_tp), *broken_limits(config, target, draft, positions)]
    if broken:
        raise UsageError(f"{where}: {'; '.join(broken)}", hint="for a chain of K drafts, SpecConfig.chain(K) is right")


def broken_rules(c: SpecConfig, most_tp: int = 1) -> Iterator[str]:
    """One sentence for each rule that the config breaks by itself. `most_tp`: the most GPUs per model with which the
    engine drafts several tokens. One that does not say so can with a single GPU alone.
    """
    if c.method != "eagle3":
        yield f"method = {c.method!r}: 'eagle3' is what the built-in engines speak"
    for key in SIZES:
        if getattr(c, key) < 1:
            yield f"{key} = {getattr(c, key)}: must be at least 1"
    if c.max_path_len > c.max_decoding_tokens:
        yield f"max_path_len = {c.max_path_len} is more than max_decoding_tokens = {c.max_decoding_tokens}"
    if c.max_path_len < c.num_speculative_tokens:
        yield f"max_path_len = {c.max_path_len} is less than num_speculative_tokens = {c.num_speculative_tokens}"
    if c.max_non_leaves_per_layer > c.max_decoding_tokens:
        yield (
            f"max_non_leaves_per_layer = {c.max_non_leaves_per_layer} is more than "
            f"max_decoding_tokens = {c.max_decoding_tokens}"
        )
    if c.tp > most_tp and c.num_speculative_tokens > 1:
        right = "tp = 1" if most_tp == 1 else f"tp <= {most_tp}"
        yield f"tp = {c.tp} with num_speculative_tokens = {c.num_speculative_tokens}: several drafts need {right}"


def broken_limits(
    c: SpecConfig, target: TargetSizes | None, draft: DraftGeometry | None, positions: int | None
) -> Iterator[str]:
    """One sentence for each limit of the pair that the config or the request exceeds."""
    if target is not None and positions is not None and positions > target.max_positions:
        yield f"{positions} positions are needed, the target has {target.max_positions}"
    if draft is not None and draft.window is not None and c.num_speculative_tokens > draft.window:
        yield (
            f"num_speculative_tokens = {c.num_speculative_tokens} in a draft window of {draft.window}: "
            f"the last draft would see no committed position (at most {draft.window} can)"
        )
