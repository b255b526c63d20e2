"""The terms in which the speculative configs of all engines are laid side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

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


@dataclass(slots=True)
class StatedConfig:
    """One engine's speculative config.

    `engine`: whose format it is. `where`: the file or the text that it was read from.
    `terms`: term → what the config says of it. A term that is missing is not known.
    `expresses`: the terms that this format can express.
    `notes`: what else a reader should know.
    `undecided`: what was not read or not understood, and may decide a term: unknown keys, files that are not here.
    `unclear`: true where it cannot be told whether the config asks for speculation.
    `places`: path or name of target and draft as written; they are compared by content where both are here.
    `others`: keys about speculation that have no term of their own.
    `unread`: flags and keys that were not read, and may decide how fast a step is, with their values.
    """

    engine: str
    where: str
    terms: Mapping[str, Said]
    expresses: frozenset[str]
    notes: tuple[str, ...] = ()
    boundaries: tuple[int, ...] | None = field(default=None)
    """Boundaries of the target's layers that feed the draft, where these follow from files on this machine."""
    undecided: tuple[str, ...] = ()
    unclear: bool = False
    places: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, object] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)

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
        return "method" in self.terms or "k" in self.terms

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


DRAFTERS: Final = frozenset({
    "eagle", "eagle3", "mtp", "draft_model", "ngram", "ngram_gpu", "suffix", "lookahead", "medusa", "mlp_speculator",
    "pard", "dflash", "dspark", "uno", "auto", "custom_class", "extract_hidden_states",
})  # fmt: skip
"""Values of `method`, which every format translates its own names into."""
NAMES: Final[Mapping[str, str]] = {
    "eagle": "EAGLE", "eagle3": "EAGLE-3", "mtp": "MTP", "draft_model": "draft model", "ngram": "n-gram",
    "ngram_gpu": "n-gram", "medusa": "Medusa", "mlp_speculator": "MLP speculator", "pard": "PARD", "dflash": "DFlash",
    "dspark": "DSpark", "uno": "UNO", "nextn": "MTP", "frozen_kv_mtp": "MTP", "standalone": "draft model",
}  # fmt: skip
"""Value of `method`, or an engine's own word for it → its name in the field, where that is another."""

Breaks = Literal["acceptance", "speed", "nothing"]
"""Which figures of two engines cannot be compared where a term differs. Speed cannot either, where acceptance cannot.
`nothing`: figures at temperature 0, which is what specgate measures, can be compared all the same.
"""


@dataclass(frozen=True, slots=True)
class Term:
    """One thing that speculative configs say. `consequence` is what follows where two of them differ in it."""

    title: str
    breaks: Breaks
    consequence: str


TERMS: Final[Mapping[str, Term]] = {
    "method": Term("drafter", "acceptance", "other drafters: their acceptance cannot be compared"),
    "draft_model": Term("draft", "acceptance", "another draft: acceptance is that of another pair"),
    "target": Term("target", "acceptance", "another target: neither acceptance nor speed can be compared"),
    "k": Term("draft tokens per path (K)", "acceptance", "acceptance length cannot be compared: it ends at K + 1"),
    "path_len": Term("tokens from root to leaf", "acceptance", "the longest accepted path has another length"),
    "verified": Term("tokens verified per step, root included", "acceptance",
         "another number of candidates: acceptance length and the cost of a step cannot be compared"),
    "topk": Term("candidates per draft step", "acceptance",
         "a tree accepts the best of several paths, a chain its only one: acceptance length cannot be compared"),
    "tree": Term("shape of the drafts", "acceptance",
         "trees of other shapes: acceptance by position has another meaning"),
    "non_leaves": Term("nodes with children per depth", "acceptance", "trees of another width"),
    "varies": Term("K at run time", "acceptance",
         "K is not the same in every step: acceptance length is a mixture of several K"),
    "p_min": Term("least probability of a draft token", "acceptance",
         "drafts end early where the draft is unsure: fewer are drafted, and more of them accepted"),
    "verification": Term("verification", "nothing",
         "the same at temperature 0; above it, other draft tokens are accepted"),
    "threshold": Term("acceptance threshold", "acceptance",
         "draft tokens are accepted that the target would not have chosen"),
    "draft_sampling": Term("how drafts are sampled", "nothing",
         "the same at temperature 0; above it, other tokens are drafted"),
    "forced": Term("forced acceptance", "acceptance", "acceptance is made up: only speed means anything"),
    "weights": Term("draft weights", "acceptance", "weights that are not the checkpoint's: acceptance says nothing"),
    "capture": Term("auxiliary hidden-state layers", "acceptance",
         "the draft is fed other layers: one layer off costs about 0.1 acceptance length, and nothing else shows it"),
    "window": Term("the draft's attention window", "acceptance",
         "beyond the window one draft sees more than it was trained on, and acceptance falls there"),
    "draft_positions": Term("longest sequence that is drafted for", "acceptance",
         "beyond the shorter limit one engine drafts nothing of use, the other goes on"),
    "lookup": Term("looked up n-grams", "acceptance", "other tokens are drafted from the prompt"),
    "passes": Term("passes of the draft per step", "acceptance",
         "drafts made in one pass do not see each other: other tokens"),
    "vocabulary": Term("vocabulary of the draft", "acceptance", "tokens outside a smaller one are never drafted"),
    "draft_hidden": Term("width of the draft", "acceptance", "another draft"),
    "draft_quantization": Term("quantisation of the draft", "acceptance", "other arithmetic in the draft"),
    "draft_kv_dtype": Term("dtype of the draft's KV cache", "acceptance", "other arithmetic in the draft's attention"),
    "overrides": Term("overridden keys of the target's config", "acceptance", "another target, whatever its name"),
    "target_weights": Term("target weights", "acceptance",
         "weights that are not the checkpoint's: acceptance says nothing"),
    "quantization": Term("quantisation of the target", "speed", "other arithmetic, and other bytes per step"),
    "dtype": Term("dtype", "speed", "other arithmetic: texts part at near ties, and a step moves other bytes"),
    "kv_dtype": Term("dtype of the KV cache", "speed", "other arithmetic in attention, and other bytes per step"),
    "tp": Term("GPUs per target (tp)", "speed", "steps of another number of GPUs: times cannot be compared"),
    "pp": Term("pipeline stages (pp)", "speed", "steps of another number of GPUs: times cannot be compared"),
    "dp": Term("replicas (dp)", "speed", "another number of replicas: throughput cannot be compared"),
    "ep": Term("GPUs that share the experts (ep)", "speed", "experts are spread over another number of GPUs"),
    "cp": Term("GPUs per context (cp)", "speed", "steps of another number of GPUs: times cannot be compared"),
    "draft_tp": Term("GPUs per draft", "speed", "draft steps of another number of GPUs"),
    "graphs": Term("CUDA graphs", "speed", "launches from the host in one engine, replayed graphs in the other"),
    "compilation": Term("compilation", "speed", "other kernels, and other parts in CUDA graphs"),
    "prefix_cache": Term("prefix cache", "speed",
         "one engine may skip prefills: TTFT and throughput cannot be compared, TPOT can"),
    "overlap": Term("overlapped scheduling", "speed", "the host works between steps in one engine"),
    "max_positions": Term("context length", "nothing", "contexts above the shorter one run in one engine only"),
    "max_batch": Term("requests at a time", "nothing", "batches above the smaller one wait in one engine"),
    "max_tokens": Term("tokens per step", "nothing", "long prompts are cut into other pieces: TTFT is another"),
}  # fmt: skip
"""Term → what it is, in the order in which differences are shown."""


def shown(value: object) -> str:
    """A term's value in words."""
    if value is True or value is False:
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple | list):
        return ", ".join(map(shown, value))
    return "none" if value is None else str(value)
