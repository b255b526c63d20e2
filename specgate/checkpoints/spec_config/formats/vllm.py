"""vLLM: the JSON of `--speculative-config`, the flags around it, and the YAML file of its `--config`.

Keys up to 0.33.0, read from `config/speculative.py` and `engine/arg_utils.py` of every wheel since 0.4.0.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from specgate.checkpoints.spec_config.files import referred
from specgate.checkpoints.spec_config.flags import Given, dotted, from_argv, from_mapping, operands
from specgate.checkpoints.spec_config.formats.collect_terms import (
    AS_THE_CHECKPOINT,
    SUGGESTS,
    Reading,
    count_of,
    dummy,
    object_text,
)
from specgate.checkpoints.spec_config.formats.draft_folder import (
    AS_THE_DRAFT_SAYS,
    BOUNDARIES,
    add_draft,
    config_of,
    resolve_auto,
)
from specgate.checkpoints.spec_config.formats.static_trees import static_tree, tree_paths
from specgate.checkpoints.spec_config.tables import Table
from specgate.checkpoints.spec_config.terms import StatedConfig
from specgate.errors import UsageError
from specgate.files.json_text import shown

SECTION: Final = Table(
    count="""
        num_speculative_tokens draft_tensor_parallel_size tensor_parallel_size max_model_len prompt_lookup_max
        prompt_lookup_min disable_by_batch_size suffix_decoding_max_cached_requests suffix_decoding_max_tree_depth
        dspark_draft_topk fly_entropy_top_k fly_window_size xpress_topc
    """,
    number="""
        posterior_threshold posterior_alpha suffix_decoding_max_spec_factor suffix_decoding_min_token_prob
        synthetic_acceptance_rate synthetic_acceptance_length fly_entropy_threshold
    """,
    text="""
        method model quantization revision code_revision acceptance_method speculative_token_tree
        rejection_sample_method moe_backend attention_backend draft_sample_method kv_cache_dtype
        draft_lm_head_quantization
    """,
    switch="""
        disable_mqa_scorer disable_logprobs disable_log_stats enable_chunked_prefill enforce_eager
        disable_padded_drafter_batch parallel_drafting use_local_argmax_reduction use_heterogeneous_vocab
        enable_adaptive_verification index_share_for_mtp_iteration disable_eagle_block_drop
        disable_lookahead_block_hashes
    """,
    object="draft_load_config",
    list="synthetic_acceptance_rates num_speculative_tokens_per_batch_size",
)
"""Keys of `--speculative-config`."""
FLAGS: Final = Table(
    count="""
        spec_tokens tensor_parallel_size,-tp pipeline_parallel_size,-pp data_parallel_size,-dp
        decode_context_parallel_size,-dcp prefill_context_parallel_size,-pcp max_num_seqs num_lookahead_slots
    """,
    number="rope_theta",
    text="""
        spec_method spec_model per_request_spec_decode_metrics model revision dtype kv_cache_dtype quantization,-q
        load_format config
    """,
    flag="""
        specialize_active_lora enable_expert_parallel,-ep enable_prefix_caching enforce_eager async_scheduling
    """,
    off="no_enable_expert_parallel no_enable_prefix_caching no_enforce_eager no_async_scheduling",
    setting="speculative_config,-sc compilation_config,-cc hf_overrides rope_scaling engram_config",
    any="max_model_len max_num_batched_tokens optimization_level,-O",
)
"""Flags of the server, and keys of the YAML file of its `--config`."""
SHORT: Final = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
"""Flag that stands for one key → that key of `--speculative-config`."""
MTP: Final = frozenset({
    "deepseek_mtp", "dots3_note_mtp", "mimo_mtp", "mimo_v2_mtp", "glm4_moe_mtp", "glm4_moe_lite_mtp", "glm_ocr_mtp",
    "ernie_mtp", "nemotron_h_mtp", "exaone_moe_mtp", "exaone4_5_mtp", "qwen3_next_mtp", "qwen4_exp_mtp", "qwen3_5_mtp",
    "longcat_flash_mtp", "bailing_hybrid_v3_mtp", "minimax_m3_mtp", "bailing_hybrid_mtp", "kimi_k3_mtp",
    "pangu_ultra_moe_mtp", "step3p5_mtp", "step5_mtp", "hy_v3_mtp", "hy_v4_mtp", "gemma4_mtp", "inkling_mtp",
    "glm5_next_mtp",
})  # fmt: skip
"""Older names of the method `mtp`."""
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
    if "speculative_config" in names or not names & SECTION.keys() - {"model", "revision", "quantization"}:
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
    flags = flags.over(file.given)
    section = dict(as_object(flags.get("speculative_config")))
    section |= {SHORT[key]: flags.get(key) for key in SHORT if key in flags} | dict(over)
    target = served or flags.text("model")
    section, target, speculators = of_speculators(section, target, where)
    spec = from_mapping(section, SECTION, f"{where}: {OPTION}" if not alone else where)
    undecided = (*file.undecided, *flags.undecided, *spec.undecided)
    reading = Reading("vllm", where, {}, EXPRESSES, undecided=undecided, unclear=file.missing, unread=flags.unread)
    unclear = not section and target is not None and config_of(target) is None and bool(SUGGESTS.search(target))
    if unclear:
        reading.unclear = True
        reading.undecided += (
            f"{target}: vLLM takes speculation, target and K from the config of a speculators folder, and this one is "
            "not on this machine: whether it speculates cannot be told",
        )
    if not alone:
        around(reading, flags, None if unclear else target, compiled, whole=not file.missing)
    resolve_auto(reading.terms, target)
    if not section:
        return reading
    drafting(reading, spec, target)
    if "method" not in reading.terms:
        reading.undecided += (
            "method: not given, and vLLM takes it from the draft's config, which is not on this machine",
        )
    if speculators:
        reading.notes += (f"{speculators}: a speculators folder: it says what is drafted, and for which target",)
    reading.others = spec.rest()
    return reading


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


def around(
    reading: Reading, flags: Given, target: str | None, one_by_one: Mapping[str, object], *, whole: bool
) -> None:
    """Take the terms that stand outside `--speculative-config`; with their defaults, where the whole file was read."""
    if target is not None:
        reading.name("target", target, "--model", flags.text("revision"))
    reading.take_each(flags, tensor_parallel_size="tp", pipeline_parallel_size="pp", data_parallel_size="dp",
            dtype="dtype", kv_cache_dtype="kv_dtype", quantization="quantization",
            enable_prefix_caching="prefix_cache", max_num_seqs="max_batch", async_scheduling="overlap")  # fmt: skip
    reading.take(flags, "enforce_eager", "graphs", lambda eager: not eager)
    reading.take(flags, "max_model_len", "max_positions", count_of)
    reading.take(flags, "max_num_batched_tokens", "max_tokens", count_of)
    reading.take(flags, "load_format", "target_weights", dummy)
    compiled = {**as_object(flags.get("compilation_config")), **dict(one_by_one)}
    if "optimization_level" in flags:
        compiled["optimization_level"] = flags.get("optimization_level")
    if compiled:
        reading.say("compilation", object_text(compiled), "--compilation-config")
    contexts = [flags.get(k) for k in ("decode_context_parallel_size", "prefill_context_parallel_size") if k in flags]
    if contexts:
        reading.say("cp", max(int(str(n)) for n in contexts), "--decode-context-parallel-size")
    changed = [object_text(flags.get(key)) for key in ("hf_overrides", "rope_scaling", "rope_theta") if key in flags]
    if any(changed):
        reading.say("overrides", "; ".join(filter(None, changed)), "--hf-overrides")
    if whole:
        reading.default(tp=1, pp=1, dp=1, cp=1, dtype="auto", kv_dtype="auto", quantization=AS_THE_CHECKPOINT,
                prefix_cache=True, graphs=True, overrides=None, compilation=None,
                target_weights=AS_THE_CHECKPOINT)  # fmt: skip
    if reading.terms.keys() >= {"tp", "dp"}:
        shared = int(str(reading.value("tp"))) * int(str(reading.value("dp")))
        reading.take(flags, "enable_expert_parallel", "ep", lambda on: shared if on else 1)
        reading.default(ep=1)


def drafting(reading: Reading, spec: Given, target: str | None) -> None:
    """Take the terms of the section, and the boundaries that vLLM feeds the draft."""
    where = reading.where
    draft = spec.text("model")
    reading.take(spec, "num_speculative_tokens", "k")
    reading.take(spec, "method", "method", lambda name: "mtp" if name in MTP else str(name).strip("[]"))
    if (guess := guessed_method(draft)) is not None:
        reading.default(method=guess)
    method = reading.value("method")
    if "k" not in reading.terms and method not in FROM_CHECKPOINT and not spec.undecided:
        raise UsageError(f"{where}: num_speculative_tokens is missing", hint="the number of draft tokens per step")
    revision = spec.text("revision")
    if draft is not None and method not in ("ngram", "suffix", "ngram_gpu"):
        reading.name("draft_model", draft, "model", revision)
    elif method in OWN_DRAFT:
        reading.fixed(draft_model="in the target" if method in ("mtp", "dspark") else None)
    reading.take(spec, "draft_tensor_parallel_size", "draft_tp")
    reading.follow("draft_tp", "tp")
    verifying(reading, spec, where)
    reading.take(spec, "num_speculative_tokens_per_batch_size", "varies", lambda rows: f"by batch size: {rows}")
    reading.take(spec, "disable_by_batch_size", "varies", lambda n: f"off above batch {n}")
    reading.take_each(spec, max_model_len="draft_positions", quantization="draft_quantization",
            kv_cache_dtype="draft_kv_dtype")  # fmt: skip
    reading.take(spec, "draft_load_config", "weights", lambda load: dummy(as_object(load).get("load_format")))
    reading.take(spec, "parallel_drafting", "passes", lambda on: "one for all" if on else None)
    reading.look_up(spec, (key for key in sorted(SECTION) if key.startswith(("prompt_", "suffix_"))))
    reading.default(varies="constant", draft_quantization=AS_THE_CHECKPOINT, weights=AS_THE_CHECKPOINT, lookup=None,
            passes="one per token", draft_positions=None, threshold=1.0)  # fmt: skip
    reading.follow("draft_kv_dtype", "kv_dtype")
    tree = spec.text("speculative_token_tree")
    if tree is not None:
        paths = tree_paths(tree_text(tree, where), where, "speculative_token_tree")
        static_tree(reading.terms, paths, "speculative_token_tree")
    reading.chain()
    eagle3 = method == "eagle3"
    if eagle3:
        reading.fixed(window=AS_THE_DRAFT_SAYS, capture=BOUNDARIES)
    reading.boundaries = add_draft(reading.terms, draft, target, BOUNDARIES if eagle3 else None)


def verifying(reading: Reading, spec: Given, where: str) -> None:
    """Take how drafts are drawn and accepted."""
    for key in ("acceptance_method", "rejection_sample_method"):
        reading.take(spec, key, "verification", lambda name: VERIFICATION.get(str(name), name))
    reading.take_each(spec, posterior_threshold="threshold", draft_sample_method="draft_sampling",
            synthetic_acceptance_length="forced")  # fmt: skip
    reading.take(spec, "synthetic_acceptance_rates", "forced", lambda rates: length_of(rates, where))
    reading.take(spec, "synthetic_acceptance_rate", "forced", lambda rate: f"a rate of {rate:g}")
    reading.default(verification=VERIFICATION["standard"], draft_sampling="greedy", forced=None)


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
