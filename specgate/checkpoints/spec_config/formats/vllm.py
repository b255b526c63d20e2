"""vLLM: the JSON of `--speculative-config`, the flags around it, and the YAML file of its `--config`."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from specgate.checkpoints.spec_config.files import referred
from specgate.checkpoints.spec_config.flags import Given, dotted, from_argv, from_mapping, operands
from specgate.checkpoints.spec_config.formats.collect_terms import (
    AS_THE_CHECKPOINT,
    SUGGESTS,
    Terms,
    chain,
    count_of,
    default,
    fixed,
    follow,
    name_of,
    object_text,
    take,
)
from specgate.checkpoints.spec_config.formats.draft_folder import (
    AS_THE_DRAFT_SAYS,
    BOUNDARIES,
    add_draft,
    config_of,
    resolve_auto,
)
from specgate.checkpoints.spec_config.formats.static_trees import static_tree, tree_paths
from specgate.checkpoints.spec_config.tables.vllm import FLAGS, MTP, SECTION, SHORT
from specgate.checkpoints.spec_config.terms import Said, StatedConfig
from specgate.errors import UsageError
from specgate.files.json_text import shown

OPTION: Final = "--speculative-config"
AROUND: Final = frozenset({
    "target", "dtype", "kv_dtype", "quantization", "target_weights", "overrides", "tp", "pp", "dp", "ep", "cp",
    "graphs", "prefix_cache", "overlap", "compilation", "max_positions", "max_batch", "max_tokens",
})  # fmt: skip
"""Terms that stand outside `--speculative-config`."""
EXPRESSES: Final = AROUND | {
    "method", "draft_model", "k", "varies", "verification", "draft_sampling", "forced", "draft_positions", "lookup",
    "draft_quantization", "draft_kv_dtype", "weights", "draft_tp", "threshold", "passes",
    "path_len", "verified", "topk", "tree", "non_leaves",
}  # fmt: skip
VERIFICATION: Final = {
    "standard": "rejection sampling", "block": "block verification", "synthetic": "forced", "fly": "FLy, lossy",
    "rejection_sampler": "rejection sampling", "typical_acceptance_sampler": "typical acceptance",
}  # fmt: skip
OWN_DRAFT: Final = frozenset({"mtp", "suffix", "ngram", "ngram_gpu", "dspark"})
"""Methods that need no draft beside the target."""
FROM_CHECKPOINT: Final = frozenset({"mtp", "suffix", *MTP})
"""Methods for which vLLM takes the number of draft tokens from elsewhere if none is given."""


def read_flags(argv: Sequence[str], where: str) -> StatedConfig:
    """The config of a command line. Raises UsageError for a value of the wrong type."""
    argv = [re.sub(r"^-O=?(?=\w)", "--optimization-level=", word) for word in argv]
    flags = from_argv(argv, FLAGS, where)
    over = dict(dotted(argv, (OPTION, "-sc"), where))
    free = operands(argv, FLAGS, "serve")
    target = free[0] if "serve" in argv and free else None
    compiled = dict(dotted(argv, ("--compilation-config", "-cc"), where))
    return of(flags, over, where, target, compiled)


def read_object(values: Mapping[str, object], where: str) -> StatedConfig:
    """The config of a YAML file of `--config`, of arguments of `LLM`, or of the JSON of `--speculative-config` alone.

    Raises UsageError for a value of the wrong type.
    """
    names = {name.replace("-", "_") for name in values}
    if "speculative_config" in names or not names & set(SECTION.rows) - {"model", "revision", "quantization"}:
        return of(from_mapping(values, FLAGS, where, dashes=True), {}, where, None)
    return of(Given({"speculative_config": values}), {}, where, None, alone=True)


def of(
    flags: Given,
    over: Mapping[str, object],
    where: str,
    served: str | None,
    compiled: Mapping[str, object] = MappingProxyType({}),
    *,
    alone: bool = False,
) -> StatedConfig:
    """`over`, `compiled`: keys of the section and of the compilation that were given one by one. `alone`: nothing but
    the section was read.
    """
    file = referred(flags.text("config"), FLAGS)
    notes: list[str] = []
    flags = flags.over(file.given)
    section = dict(as_object(flags.get("speculative_config")))
    section |= {SHORT[key]: flags.get(key) for key in SHORT if key in flags} | dict(over)
    target = served or flags.text("model")
    section, target, speculators = of_speculators(section, target, where)
    spec = from_mapping(section, SECTION, f"{where}: {OPTION}" if not alone else where)
    terms = {} if alone else around(flags, target, compiled, whole=not file.missing)
    undecided = [*file.undecided, *flags.undecided, *spec.undecided]
    unclear = not section and target is not None and config_of(target) is None and bool(SUGGESTS.search(target))
    if unclear:
        terms.pop("target", None)
        undecided.append(
            f"{target}: vLLM takes speculation, target and K from the config of a speculators folder, and this one is "
            "not on this machine: whether it speculates cannot be told"
        )
    places = {"target": target} if target and not unclear else {}
    config = StatedConfig(
        "vllm", where, {}, EXPRESSES, unclear=unclear or file.missing, places=places, unread=flags.unread
    )
    resolve_auto(terms, target)
    if not section:
        return replace(config, terms=terms, undecided=tuple(undecided), notes=tuple(notes))
    draft = spec.text("model")
    boundaries = drafting(terms, spec, where, target)
    if "method" not in terms:
        undecided.append("method: not given, and vLLM takes it from the draft's config, which is not on this machine")
    if draft is not None and spec.values.get("method") not in ("ngram", "suffix", "ngram_gpu"):
        places["draft_model"] = draft
    if speculators:
        notes.append(f"{speculators}: a speculators folder: it says what is drafted, and for which target")
    return replace(
        config,
        terms=terms,
        notes=tuple(notes),
        boundaries=boundaries,
        undecided=tuple(undecided),
        others=spec.rest(),
    )


def as_object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def of_speculators(
    section: dict[str, object], target: str | None, where: str
) -> tuple[dict[str, object], str | None, str]:
    """(section, target, the folder) where the served model is a speculators folder on this machine: its config switches
    speculation on, and names method, number of draft tokens and target. Otherwise what was given, and "".
    """
    config = config_of(target)
    wanted = config.values.get("speculators_config") if config is not None else None
    if config is None or target is None or not isinstance(wanted, Mapping):
        return section, target, ""
    methods, verifier = wanted.get("proposal_methods"), as_object(wanted.get("verifier")).get("name_or_path")
    first = as_object(methods[0]) if isinstance(methods, list) and methods else {}
    kind = str(config.values.get("speculators_model_type"))
    drafted: dict[str, object] = {"model": target, "method": {"peagle": "eagle3", "dflash2": "dflash"}.get(kind, kind)}
    drafted |= {"parallel_drafting": True} if kind == "peagle" else {}
    tokens = {"num_speculative_tokens": first["speculative_tokens"]} if "speculative_tokens" in first else {}
    if not isinstance(verifier, str):
        hint = "verifier.name_or_path names the target"
        raise UsageError(f"{where}: {target}/config.json: speculators_config has no target", hint=hint)
    return {**tokens, **section, **drafted}, verifier, target


def around(flags: Given, target: str | None, one_by_one: Mapping[str, object], *, whole: bool) -> Terms:
    """The terms that stand outside `--speculative-config`; with their defaults, where the whole config was read."""
    terms: Terms = {}
    if target is not None:
        revision = flags.text("revision")
        terms["target"] = Said(name_of(target) + (f"@{revision}" if revision else ""), "stated", "--model")
    for key, term in (
        ("tensor_parallel_size", "tp"), ("pipeline_parallel_size", "pp"), ("data_parallel_size", "dp"),
        ("dtype", "dtype"), ("kv_cache_dtype", "kv_dtype"), ("quantization", "quantization"),
        ("enable_prefix_caching", "prefix_cache"),
        ("max_num_seqs", "max_batch"), ("async_scheduling", "overlap"),
    ):  # fmt: skip
        take(terms, flags, key, term)
    take(terms, flags, "enforce_eager", "graphs", lambda eager: not eager)
    take(terms, flags, "max_model_len", "max_positions", count_of)
    take(terms, flags, "max_num_batched_tokens", "max_tokens", count_of)
    take(terms, flags, "load_format", "target_weights", lambda form: "dummy" if form == "dummy" else None)
    compiled = {**as_object(flags.get("compilation_config")), **dict(one_by_one)}
    if "optimization_level" in flags:
        compiled["optimization_level"] = flags.get("optimization_level")
    if compiled:
        terms["compilation"] = Said(object_text(compiled), "stated", "--compilation-config")
    contexts = [flags.get(k) for k in ("decode_context_parallel_size", "prefill_context_parallel_size") if k in flags]
    if contexts:
        terms["cp"] = Said(max(int(str(n)) for n in contexts), "stated", "--decode-context-parallel-size")
    changed = [object_text(flags.get(key)) for key in ("hf_overrides", "rope_scaling", "rope_theta") if key in flags]
    if any(changed):
        terms["overrides"] = Said("; ".join(filter(None, changed)), "stated", "--hf-overrides")
    if whole:
        default(terms, tp=1, pp=1, dp=1, cp=1, dtype="auto", kv_dtype="auto", quantization=AS_THE_CHECKPOINT,
                prefix_cache=True, graphs=True, overrides=None, compilation=None,
                target_weights=AS_THE_CHECKPOINT)  # fmt: skip
    if terms.keys() >= {"tp", "dp"}:
        shared = int(str(terms["tp"].value)) * int(str(terms["dp"].value))
        take(terms, flags, "enable_expert_parallel", "ep", lambda on: shared if on else 1)
        default(terms, ep=1)
    return terms


def drafting(terms: Terms, spec: Given, where: str, target: str | None) -> tuple[int, ...] | None:
    """Put the terms of the section into `terms`; returns the boundaries that vLLM feeds the draft."""
    draft = spec.text("model")
    take(terms, spec, "num_speculative_tokens", "k")
    take(terms, spec, "method", "method", lambda name: "mtp" if name in MTP else str(name).strip("[]"))
    if (guess := guessed_method(draft)) is not None:
        default(terms, method=guess)
    method = terms["method"].value if "method" in terms else None
    if "k" not in terms and method not in FROM_CHECKPOINT and not spec.undecided:
        raise UsageError(f"{where}: num_speculative_tokens is missing", hint="the number of draft tokens per step")
    revision = spec.text("revision")
    if draft is not None and method not in ("ngram", "suffix", "ngram_gpu"):
        terms["draft_model"] = Said(name_of(draft) + (f"@{revision}" if revision else ""), "stated", "model")
    elif method in OWN_DRAFT:
        fixed(terms, draft_model="in the target" if method in ("mtp", "dspark") else None)
    take(terms, spec, "draft_tensor_parallel_size", "draft_tp")
    follow(terms, "draft_tp", "tp")
    verifying(terms, spec, where)
    take(terms, spec, "num_speculative_tokens_per_batch_size", "varies", lambda rows: f"by batch size: {rows}")
    take(terms, spec, "disable_by_batch_size", "varies", lambda n: f"off above batch {n}")
    take(terms, spec, "max_model_len", "draft_positions")
    take(terms, spec, "quantization", "draft_quantization")
    take(terms, spec, "kv_cache_dtype", "draft_kv_dtype")
    take(terms, spec, "draft_load_config", "weights", load_format)
    take(terms, spec, "parallel_drafting", "passes", lambda on: "one for all" if on else None)
    lookups = {
        key: spec.get(key) for key in sorted(SECTION.rows) if key in spec and key.startswith(("prompt_", "suffix_"))
    }
    if lookups:
        terms["lookup"] = Said(object_text(lookups), "stated", next(iter(lookups)))
    default(terms, varies="constant", draft_quantization=AS_THE_CHECKPOINT, weights=AS_THE_CHECKPOINT, lookup=None,
            passes="one per token", draft_positions=None, threshold=1.0)  # fmt: skip
    follow(terms, "draft_kv_dtype", "kv_dtype")
    tree = spec.text("speculative_token_tree")
    if tree is not None:
        static_tree(
            terms, tree_paths(tree_text(tree, where), where, "speculative_token_tree"), "speculative_token_tree"
        )
    chain(terms)
    if method != "eagle3":
        add_draft(terms, draft, target, None)
        return None
    fixed(terms, window=AS_THE_DRAFT_SAYS, capture=BOUNDARIES)
    return add_draft(terms, draft, target, BOUNDARIES)


def verifying(terms: Terms, spec: Given, where: str) -> None:
    """Put into `terms` how drafts are drawn and accepted."""
    for key in ("acceptance_method", "rejection_sample_method"):
        take(terms, spec, key, "verification", lambda name: VERIFICATION.get(str(name), name))
    take(terms, spec, "posterior_threshold", "threshold")
    take(terms, spec, "draft_sample_method", "draft_sampling")
    take(terms, spec, "synthetic_acceptance_length", "forced")
    take(terms, spec, "synthetic_acceptance_rates", "forced", lambda rates: length_of(rates, where))
    take(terms, spec, "synthetic_acceptance_rate", "forced", lambda rate: f"a rate of {rate:g}")
    default(terms, verification=VERIFICATION["standard"], draft_sampling="greedy", forced=None)


def tree_text(text: str, where: str) -> object:
    """The value of `speculative_token_tree`, a text of Python's tuples. Raises UsageError where it is none."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise UsageError(
            f"{where}: speculative_token_tree = {shown(text)}: a list of paths is needed, such as [(0,), (0, 0), (1,)]"
        ) from None


def length_of(rates: object, where: str) -> float:
    """The acceptance length of rates by position, bonus token included. Raises UsageError where they are no rates."""
    numbers = [float(r) for r in rates if is_rate(r)] if isinstance(rates, list | tuple) else []
    if not isinstance(rates, list | tuple) or len(numbers) < len(rates):
        raise UsageError(
            f"{where}: synthetic_acceptance_rates = {shown(rates)}: a list of numbers from 0 to 1 is needed"
        )
    return 1 + sum(numbers)


def is_rate(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def load_format(load: object) -> object:
    """Format in which the draft's weights are loaded, where it is `dummy`; None for all that read the checkpoint."""
    form = load.get("load_format") if isinstance(load, Mapping) else None
    return form if form == "dummy" else None


def guessed_method(draft: str | None) -> str | None:
    """The method that vLLM takes where none is named: by the draft's name, else by its config; None without that."""
    name = (draft or "").lower()
    if name in ("ngram", "[ngram]"):
        return "ngram"
    if sign := next((sign for sign in ("eagle-", "eagle3", "dflash", "dspark") if sign in name), None):
        return sign.rstrip("-")
    config = config_of(draft)
    if config is None:
        return None
    kind = str(config.values.get("model_type"))
    return "mtp" if kind in MTP else kind if kind in ("medusa", "mlp_speculator", "eagle") else "draft_model"
