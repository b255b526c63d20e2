"""TensorRT-LLM: `speculative_config` of its YAML, the keys and flags around it, and the keys of former EAGLE builds.

Read in part from `llmapi/llm_args.py` and `commands/serve.py` of main of 2026 and an older version. The package index
has no wheels of it, so that releases of a key are not known.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import yaml

from specgate.checkpoints.spec_config.files import referred
from specgate.checkpoints.spec_config.flags import Given, from_argv, from_mapping, operands
from specgate.checkpoints.spec_config.formats.collect_terms import AS_THE_CHECKPOINT, Reading, dummy, object_text
from specgate.checkpoints.spec_config.formats.draft_folder import OUTPUTS, add_draft, resolve_auto
from specgate.checkpoints.spec_config.formats.static_trees import static_tree, tree_paths
from specgate.checkpoints.spec_config.tables import Table
from specgate.checkpoints.spec_config.terms import StatedConfig
from specgate.errors import UsageError

SECTION: Final = Table(
    count="""
        max_draft_len max_total_draft_tokens max_concurrency acceptance_window acceptance_rate_window_size
        dynamic_tree_max_topK num_eagle_layers max_non_leaves_per_layer num_medusa_heads num_nextn_predict_layers
        num_nextn_predict_layers_from_model_config relaxed_topk begin_thinking_phase_token end_thinking_phase_token
        BEGIN_THINKING_PHASE_TOKEN END_THINKING_PHASE_TOKEN global_pool_size max_window_size max_ngram_size
        max_verification_set_size mask_token_id write_interval max_path_len max_decoding_tokens
        max_decoding_draft_tokens
    """,
    number="acceptance_length_threshold acceptance_rate_threshold posterior_threshold relaxed_delta",
    text="""
        decoding_type speculative_model speculative_model_dir pytorch_weights_path load_format advanced_sampling_mode
        eagle3_model_arch attention_backend output_directory file_prefix
    """,
    switch="""
        use_rejection_sampling allow_advanced_sampling enable_penalty greedy_sampling use_dynamic_tree
        eagle3_one_model use_relaxed_acceptance_for_thinking use_mtp_vanilla mtp_eagle_one_model is_keep_all
        is_use_oldest is_public_pool is_auto_heuristic enable_global_pool
    """,
    object="draft_len_schedule sa_config",
    list="eagle3_layers_to_capture target_layer_ids",
    any="eagle_choices medusa_choices max_matching_ngram_size",
)
"""Keys of `speculative_config`, of all its decoding types and of the former EAGLE builds."""
FLAGS: Final = Table(
    count="""
        tensor_parallel_size,tp_size,tp pipeline_parallel_size,pp_size,pp context_parallel_size,cp_size
        moe_expert_parallel_size,ep_size,ep max_seq_len max_batch_size max_num_tokens
    """,
    text="model backend revision dtype kv_cache_dtype load_format config,extra_llm_api_options set",
    switch="disable_overlap_scheduler use_cuda_graph per_request_spec_decode_stats",
    flag="enable_attention_dp disable_kv_cache_reuse",
    object="kv_cache_config pytorch_backend_config speculative_config",
    any="quant_config model_kwargs cuda_graph_config",
)
"""Keys of the YAML file, and flags of `trtllm-serve`."""
METHODS: Final = {
    "eagle3": "eagle3", "eagle": "eagle3", "mtp": "mtp", "draftarget": "draft_model", "drafttarget": "draft_model",
    "draft_target": "draft_model", "ngram": "ngram", "medusa": "medusa", "lookahead": "lookahead", "pard": "pard",
    "dflash": "dflash", "dspark": "dspark", "sa": "suffix", "auto": "auto", "userprovided": "custom_class",
    "user_provided": "custom_class", "savestate": "extract_hidden_states",
}  # fmt: skip
"""`decoding_type`, in small letters → drafter. The PyTorch back end, the default since 1.0, takes `Eagle` as it."""
OPTION: Final = "speculative_config"
EXPRESSES: Final = frozenset({
    "method", "draft_model", "k", "path_len", "verified", "topk", "tree", "non_leaves", "varies", "verification",
    "threshold", "lookup", "capture", "weights", "dtype", "kv_dtype", "quantization", "target_weights", "overrides",
    "tp", "pp", "ep", "cp", "dp", "graphs", "overlap", "prefix_cache", "max_positions", "max_batch", "max_tokens",
})  # fmt: skip
"""Of its YAML file. The target is named by the command line that takes it."""


def read_object(values: Mapping[str, object], where: str) -> StatedConfig:
    """The config of a whole file, or of its `speculative_config` alone. Raises UsageError for a bad value."""
    names = {name.replace("-", "_") for name in values}
    if values and not names & FLAGS.keys() - {"load_format"}:
        return of(Given({OPTION: values}), where, where, None, whole=False)
    if OPTION in values and values[OPTION] is not None and not isinstance(values[OPTION], Mapping):
        hint = "decoding_type, max_draft_len, speculative_model, …"
        raise UsageError(f"{where}: {OPTION} is no mapping", hint=hint)
    return of(from_mapping(values, FLAGS, where, dashes=True), where, f"{where}: {OPTION}", None, whole=True)


def read_flags(argv: Sequence[str], where: str) -> StatedConfig:
    """The config of a command line: its flags, and the YAML file that it names.

    Raises UsageError for a file that cannot be read and for bad values.
    """
    flags = from_argv(argv, FLAGS, where)
    file = referred(flags.text("config"), FLAGS)
    free = [word for word in operands(argv, FLAGS, program(argv)) if word != "serve"]
    target = free[0] if free and program(argv).endswith("trtllm-serve") else None
    file_values, one_by_one = file.given.values, dict(settings(argv, where))
    if both := next((k for k, v in flags.values.items() if k != "config" and file_values.get(k, v) != v), None):
        raise UsageError(
            f"{where}: {flags.names[both]} {flags.values[both]}, and {both}: {file_values[both]} in the file",
            hint="which of them counts depends on the release: say it once",
        )
    given = flags.over(file.given)
    given = Given(
        merged(given.values, one_by_one), given.names, (*given.undecided, *file.undecided), unread=given.unread
    )
    inside = f"{flags.text('config') or where}: {OPTION}"
    return of(given, where, inside, target, whole=not file.missing)


def program(argv: Sequence[str]) -> str:
    """The word of a command line that starts TensorRT-LLM; "" where there are flags alone."""
    return next((word for word in argv if word.rsplit("/", 1)[-1] in ("trtllm-serve", "trtllm-bench")), "")


def settings(argv: Sequence[str], where: str) -> list[tuple[str, object]]:
    """(path, value) of every `--set PATH=VALUE`."""
    texts = [after for before, after in pairwise(argv) if before == "--set"]
    texts += [word.removeprefix("--set=") for word in argv if word.startswith("--set=")]
    pairs = []
    for text in texts:
        path, equals, value = text.partition("=")
        try:
            pairs.append((path, yaml.safe_load(value)))
        except yaml.YAMLError:
            raise UsageError(f"{where}: --set {path}: {value[:80]!r} is no value of YAML") from None
        if not equals:
            raise UsageError(f"{where}: --set {text[:80]}: PATH=VALUE is needed")
    return pairs


def merged(values: Mapping[str, object], one_by_one: Mapping[str, object]) -> dict[str, object]:
    """`values` with each of `one_by_one` at its dotted path."""
    result = dict(values)
    for path, value in one_by_one.items():
        first, _, rest = path.partition(".")
        below = result.get(first)
        result[first] = merged(below if isinstance(below, Mapping) else {}, {rest: value}) if rest else value
    return result


def of(given: Given, where: str, inside: str, target: str | None, *, whole: bool) -> StatedConfig:
    target = target or given.text("model")
    section = given.get(OPTION)
    spec = from_mapping(section if isinstance(section, Mapping) else {}, SECTION, inside)
    alone = not whole and "config" not in given
    expresses = EXPRESSES | {"target"} if target else EXPRESSES
    undecided = (*given.undecided, *spec.undecided)
    reading = Reading("trtllm", where, {}, expresses, undecided=undecided, unread=given.unread)
    if not alone:
        around(reading, given, target, whole=whole)
    if not section:
        reading.unclear = not whole and not alone
        return reading
    draft = next((d for k in ("speculative_model", "speculative_model_dir", "pytorch_weights_path")
                  if (d := spec.text(k))), None)  # fmt: skip
    method_of(reading, spec, str(given.get("backend") or "pytorch"))
    method = reading.value("method")
    if draft:
        reading.name("draft_model", draft, "speculative_model")
    elif method in ("mtp", "ngram", "suffix", "lookahead"):
        reading.fixed(draft_model="in the target" if method == "mtp" else None)
    tree(reading, spec, inside)
    verifying(reading, spec)
    varying(reading, spec)
    reading.take(spec, "load_format", "weights", dummy)
    reading.look_up(spec, LOOKUPS)
    reading.default(weights=AS_THE_CHECKPOINT, lookup=None)
    reading.fixed(draft_sampling="greedy")
    reading.follow("draft_tp", "tp", "fixed")
    if method == "eagle3":
        if (layers := explicit(spec)) is not None:
            reading.say("capture", layers, "eagle3_layers_to_capture")
        reading.default(capture=OUTPUTS)
        reading.boundaries = add_draft(reading.terms, draft, target, OUTPUTS) or layers
    for key in ("eagle3_one_model", "num_eagle_layers", "allow_advanced_sampling", "eagle3_model_arch"):
        spec.get(key)  # no term: how the draft is loaded, or of no effect
    reading.others = spec.rest()
    return reading


LOOKUPS: Final = ("max_matching_ngram_size", "is_keep_all", "is_use_oldest", "is_public_pool", "max_window_size",
                  "max_ngram_size", "max_verification_set_size", "enable_global_pool", "sa_config")  # fmt: skip


def method_of(reading: Reading, spec: Given, backend: str) -> None:
    """Take the drafter. `Eagle` is EAGLE-3 on the PyTorch back end, which has no other."""
    reading.take(spec, "decoding_type", "method", lambda name: METHODS.get(str(name).lower(), str(name)))
    reading.default(method="eagle3")
    former = "max_path_len" in spec or "max_decoding_draft_tokens" in spec or "max_decoding_tokens" in spec
    if str(spec.values.get("decoding_type")).lower() == "eagle" and (backend in ("tensorrt", "trt") or former):
        reading.say("method", "eagle", "decoding_type")


def verifying(reading: Reading, spec: Given) -> None:
    """Take how drafts are accepted."""
    sampling = "sampled tokens must match"
    reading.take(spec, "use_rejection_sampling", "verification", lambda on: "rejection sampling" if on else sampling)
    if spec.get("greedy_sampling") is False:
        reading.say("verification", "typical acceptance", "greedy_sampling")
        reading.say("threshold", spec.get("posterior_threshold"), "posterior_threshold")
    if spec.get("use_relaxed_acceptance_for_thinking"):
        relaxed = f"the likeliest {spec.get('relaxed_topk') or 1}, within {spec.get('relaxed_delta') or 0} of the first"
        reading.say("threshold", relaxed, "use_relaxed_acceptance_for_thinking")
    reading.default(verification=sampling, threshold=1.0)


def around(reading: Reading, given: Given, target: str | None, *, whole: bool) -> None:
    """Take the terms that are not about drafts; with their defaults, where the whole config was read."""
    if target is not None:
        reading.name("target", target, "model", given.text("revision"))
    reading.take_each(given, tensor_parallel_size="tp", pipeline_parallel_size="pp", context_parallel_size="cp",
            moe_expert_parallel_size="ep", dtype="dtype", kv_cache_dtype="kv_dtype", max_seq_len="max_positions",
            max_batch_size="max_batch", max_num_tokens="max_tokens")  # fmt: skip
    if given.get("enable_attention_dp"):
        reading.say("dp", "attention, over the same GPUs", "enable_attention_dp")
    reading.take(given, "disable_overlap_scheduler", "overlap", lambda off: not off)
    reading.take(given, "disable_kv_cache_reuse", "prefix_cache", lambda off: not off)
    reading.take(given, "load_format", "target_weights", dummy)
    reading.take(given, "model_kwargs", "overrides", object_text)
    reading.take(given, "quant_config", "quantization", object_text)
    cache = given.get("kv_cache_config")
    if isinstance(cache, Mapping):
        if isinstance(reuse := cache.get("enable_block_reuse"), bool):
            reading.say("prefix_cache", reuse, "kv_cache_config.enable_block_reuse")
        if isinstance(dtype := cache.get("dtype"), str):
            reading.say("kv_dtype", dtype, "kv_cache_config.dtype")
    reading.take(given, "cuda_graph_config", "graphs", lambda config: config != "none")
    if whole:
        reading.default(tp=1, pp=1, cp=1, dp=1, dtype="auto", kv_dtype="auto", prefix_cache=True, overlap=True,
                graphs=True, quantization=AS_THE_CHECKPOINT, overrides=None,
                target_weights=AS_THE_CHECKPOINT)  # fmt: skip
    resolve_auto(reading.terms, target)


def choices_of(spec: Given, key: str, where: str) -> list[tuple[int, ...]]:
    """The paths of a static tree, which may be a text. Raises UsageError for anything else than lists of integers."""
    value = spec.get(key)
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            value = None
    return tree_paths(value, where, key)


def tree(reading: Reading, spec: Given, where: str) -> None:
    """Take the sizes of a chain, of a static tree (`eagle_choices`), of a dynamic one, or of a former build."""
    for key in ("eagle_choices", "medusa_choices"):
        if key in spec:
            static_tree(reading.terms, choices_of(spec, key, where), key)
            spec.used.update(("max_draft_len", "max_total_draft_tokens", "max_non_leaves_per_layer"))
            return
    reading.take_each(spec, num_nextn_predict_layers="k", max_draft_len="k", max_path_len="path_len",
            max_decoding_tokens="verified")  # fmt: skip
    reading.take(spec, "max_decoding_draft_tokens", "verified", lambda n: int(str(n)) + 1)
    reading.take(spec, "max_total_draft_tokens", "verified", lambda n: int(str(n)) + 1)
    reading.take(spec, "max_non_leaves_per_layer", "non_leaves")
    path = reading.value("path_len")
    if "k" not in reading.terms and isinstance(path, int):
        reading.say("k", max(0, path - 1), "max_path_len")
    k = reading.value("k")
    if not isinstance(k, int):
        if spec.undecided or reading.value("method") in ("mtp", "auto", "lookahead", "medusa"):
            return
        raise UsageError(f"{where}: max_draft_len is missing", hint="the number of draft tokens on a path")
    if spec.get("use_dynamic_tree"):
        reading.take(spec, "dynamic_tree_max_topK", "topk")
        reading.say("tree", "dynamic tree", "use_dynamic_tree")
        reading.fixed(path_len=k + 1)
        if isinstance(topk := reading.value("topk"), int):
            reading.fixed(verified=k * topk + 1)
    elif reading.value("verified") in (None, k + 1):
        reading.chain()


def varying(reading: Reading, spec: Given) -> None:
    """Take the change of the draft length at run time."""
    if str(spec.values.get("decoding_type")).upper() == "AUTO":
        reading.fixed(varies="by batch size: 5 up to 4, 3 up to 32, off above")
        return
    for key, words in (
        ("draft_len_schedule", "by batch size: {}"),
        ("max_concurrency", "off above batch {}"),
        ("acceptance_length_threshold", "off for good below an acceptance length of {}"),
        ("acceptance_rate_threshold", "off for good below an acceptance rate of {}"),
    ):
        if key in spec:
            reading.say("varies", words.format(spec.get(key)), key)
            return
    reading.default(varies="constant")


def explicit(spec: Given) -> tuple[int, ...] | None:
    """Boundaries of the layers that are named; ids are outputs of layers."""
    ids = spec.get("eagle3_layers_to_capture")
    if not isinstance(ids, list | tuple) or not all(isinstance(i, int) and i >= 0 for i in ids):
        return None
    return tuple(sorted(i + 1 for i in ids))
