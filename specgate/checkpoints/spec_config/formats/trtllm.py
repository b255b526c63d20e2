"""TensorRT-LLM: `speculative_config` of its YAML (1.2 and main of 2026, `tensorrt_llm/llmapi/llm_args.py`), and the
keys of its former EAGLE builds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from specgate.checkpoints.spec_config.flags import Given, Kind, from_argv, from_mapping
from specgate.checkpoints.spec_config.formats.collect_terms import Terms, chain, default, fixed, name_of, take
from specgate.checkpoints.spec_config.formats.draft_folder import OUTPUTS, add_draft
from specgate.checkpoints.spec_config.terms import Said, StatedConfig
from specgate.errors import UsageError
from specgate.files import yamlfile

SECTION: Final = "speculative_config"
KEYS: Final[Mapping[str, Kind]] = {
    "decoding_type": "text", "max_draft_len": "count", "max_total_draft_tokens": "count", "speculative_model": "text",
    "speculative_model_dir": "text", "pytorch_weights_path": "text", "max_concurrency": "count",
    "draft_len_schedule": "object", "load_format": "text", "acceptance_window": "count",
    "acceptance_length_threshold": "number", "use_rejection_sampling": "switch", "allow_advanced_sampling": "switch",
    "eagle_choices": "list", "greedy_sampling": "switch", "posterior_threshold": "number", "use_dynamic_tree": "switch",
    "dynamic_tree_max_topK": "count", "num_eagle_layers": "count", "max_non_leaves_per_layer": "count",
    "eagle3_one_model": "switch", "eagle3_layers_to_capture": "list", "eagle3_model_arch": "text",
    "sa_config": "object", "max_path_len": "count", "max_decoding_tokens": "count",
    "max_decoding_draft_tokens": "count", "num_nextn_predict_layers": "count",
}  # fmt: skip
AROUND: Final[Mapping[str, Kind]] = {
    "model": "text", "tensor_parallel_size": "count", "dtype": "text", "max_seq_len": "count",
    "max_batch_size": "count", "disable_overlap_scheduler": "switch", "kv_cache_config": "object",
    "cuda_graph_config": "object",
}  # fmt: skip
FLAGS: Final[Mapping[str, tuple[str, Kind]]] = {
    "--config": ("config", "text"),
    "--extra-llm-api-options": ("config", "text"),
    "--tp-size": ("tensor_parallel_size", "count"),
    "--max-seq-len": ("max_seq_len", "count"),
    "--max-batch-size": ("max_batch_size", "count"),
}
EXPRESSES: Final = frozenset({
    "method", "draft_model", "target", "k", "path_len", "verified", "topk", "tree", "non_leaves", "varies",
    "verification", "threshold", "capture", "weights", "dtype", "kv_dtype", "tp", "overlap", "prefix_cache",
    "max_positions", "max_batch",
})  # fmt: skip
METHODS: Final = {"Eagle3": "eagle3", "Eagle": "eagle", "MTP": "mtp", "DraftTarget": "draft_model", "NGram": "ngram"}


def read_object(values: Mapping[str, object], where: str) -> StatedConfig:
    """The config of a whole file, or of its `speculative_config` alone. Raises UsageError for a bad value."""
    section = values.get(SECTION, {} if not values or set(values) & set(AROUND) else values)
    if not isinstance(section, Mapping):
        raise UsageError(f"{where}: {SECTION} is no mapping", hint="decoding_type, max_draft_len, speculative_model, …")
    inside = where if section is values else f"{where}: {SECTION}"
    spec = from_mapping(section, KEYS, inside)
    around = from_mapping({k: v for k, v in values.items() if k in AROUND}, AROUND, where)
    terms = terms_around(around)
    if not section:
        return StatedConfig("trtllm", where, terms, EXPRESSES)
    take(terms, spec, "decoding_type", "method", lambda name: METHODS.get(str(name), name))
    default(terms, method="eagle3")
    draft = next((str(spec.values[k]) for k in ("speculative_model", "speculative_model_dir") if k in spec), None)
    if draft:
        terms["draft_model"] = Said(name_of(draft), "stated", "speculative_model")
    tree(terms, spec, inside)
    sampling = "sampled tokens must match"
    take(terms, spec, "use_rejection_sampling", "verification", lambda on: "rejection sampling" if on else sampling)
    if spec.values.get("greedy_sampling") is False:
        terms["verification"] = Said("typical acceptance", "stated", "greedy_sampling")
        terms["threshold"] = Said(spec.values.get("posterior_threshold"), "stated", "posterior_threshold")
    default(terms, verification=sampling, threshold=1.0)
    terms["varies"] = varies(spec)
    take(terms, spec, "load_format", "weights", lambda form: form if form == "dummy" else None)
    fixed(terms, draft_sampling="greedy", draft_tp=terms["tp"].value)
    captured(terms, spec)
    boundaries = add_draft(terms, draft, None, OUTPUTS) or explicit(spec)
    return StatedConfig("trtllm", where, terms, EXPRESSES, spec.notes, boundaries)


def read_flags(argv: Sequence[str], where: str) -> StatedConfig:
    """The config of a command line: the YAML file that it names, and the flags that win over it.

    Raises UsageError for a file that cannot be read and for bad values.
    """
    flags = from_argv(argv, FLAGS, ("--spec",), where)
    values: Mapping[str, object] = {}
    if "config" in flags:
        file = Path(str(flags.values["config"]))
        if not file.is_file():
            raise UsageError(f"{where}: {flags.names['config']} {file}: no such file")
        values, where = yamlfile.load(file).data, str(file)
    over = {key: value for key, value in flags.values.items() if key != "config"}
    config = read_object({**values, **over}, where)
    return replace(config, notes=(*config.notes, *flags.notes))


def terms_around(around: Given) -> Terms:
    terms: Terms = {}
    take(terms, around, "model", "target", name_of)
    take(terms, around, "tensor_parallel_size", "tp")
    take(terms, around, "dtype", "dtype")
    take(terms, around, "max_seq_len", "max_positions")
    take(terms, around, "max_batch_size", "max_batch")
    take(terms, around, "disable_overlap_scheduler", "overlap", lambda off: not off)
    cache = around.values.get("kv_cache_config", {})
    assert isinstance(cache, Mapping)
    if isinstance(reuse := cache.get("enable_block_reuse"), bool):
        terms["prefix_cache"] = Said(reuse, "stated", "kv_cache_config.enable_block_reuse")
    if isinstance(dtype := cache.get("dtype"), str):
        terms["kv_dtype"] = Said(dtype, "stated", "kv_cache_config.dtype")
    default(terms, tp=1, dtype="auto", kv_dtype="auto", prefix_cache=True, overlap=True)
    return terms


def tree(terms: Terms, spec: Given, where: str) -> None:
    """The sizes of a chain, of a static tree (`eagle_choices`), of a dynamic one, or of a former build."""
    if "eagle_choices" in spec:
        static_tree(terms, choices_of(spec.values["eagle_choices"], where))
        return
    take(terms, spec, "max_draft_len", "k")
    take(terms, spec, "num_nextn_predict_layers", "k")
    take(terms, spec, "max_path_len", "path_len")
    take(terms, spec, "max_decoding_tokens", "verified")
    take(terms, spec, "max_decoding_draft_tokens", "verified", lambda n: int(str(n)) + 1)
    take(terms, spec, "max_total_draft_tokens", "verified", lambda n: int(str(n)) + 1)
    take(terms, spec, "max_non_leaves_per_layer", "non_leaves")
    if "k" not in terms and "path_len" in terms:
        terms["k"] = Said(max(0, int(str(terms["path_len"].value)) - 1), "stated", "max_path_len")
    if "k" not in terms:
        raise UsageError(f"{where}: max_draft_len is missing", hint="the number of draft tokens on a path")
    if spec.values.get("use_dynamic_tree"):
        take(terms, spec, "dynamic_tree_max_topK", "topk")
        terms["tree"] = Said("dynamic tree", "stated", "use_dynamic_tree")
        fixed(terms, path_len=int(str(terms["k"].value)) + 1)
    elif "verified" not in terms or terms["verified"].value == int(str(terms["k"].value)) + 1:
        chain(terms)


def choices_of(value: object, where: str) -> list[tuple[int, ...]]:
    """The paths of a static tree. Raises UsageError for anything else than lists of integers."""
    assert isinstance(value, list | tuple)
    paths = [tuple(path) if isinstance(path, list | tuple) else () for path in value]
    if not paths or not all(path and all(isinstance(i, int) and i >= 0 for i in path) for path in paths):
        raise UsageError(f"{where}: eagle_choices: lists of child indices are needed, such as [[0], [0, 0], [1]]")
    return paths


def static_tree(terms: Terms, paths: list[tuple[int, ...]]) -> None:
    """The sizes that a tree of `paths` has: its depth, its nodes, the widest node, and the nodes with children."""
    depth = max(map(len, paths))
    parents = {path[:-1] for path in paths}
    children = Counter(path[:-1] for path in set(paths))
    by = "eagle_choices"
    terms["k"] = Said(depth, "stated", by)
    terms["path_len"] = Said(depth + 1, "stated", by)
    terms["verified"] = Said(len(set(paths)) + 1, "stated", by)
    terms["topk"] = Said(max(children.values()), "stated", by)
    terms["non_leaves"] = Said(max(Counter(map(len, parents)).values()), "stated", by)
    terms["tree"] = Said("chain" if len(set(paths)) == depth else "static tree", "stated", by)


def varies(spec: Given) -> Said:
    """Change of the draft length at run time."""
    for key, words in (
        ("draft_len_schedule", "by batch size: {}"),
        ("max_concurrency", "off above batch {}"),
        ("acceptance_length_threshold", "off for good below an acceptance length of {}"),
    ):
        if key in spec:
            return Said(words.format(spec.values[key]), "stated", key)
    return Said("constant", "default")


def explicit(spec: Given) -> tuple[int, ...] | None:
    """Boundaries of the layers that are named; ids are outputs of layers."""
    ids = spec.values.get("eagle3_layers_to_capture")
    if not isinstance(ids, list | tuple) or not all(isinstance(i, int) and i >= 0 for i in ids):
        return None
    return tuple(sorted(i + 1 for i in ids))


def captured(terms: Terms, spec: Given) -> None:
    if (layers := explicit(spec)) is not None:
        terms["capture"] = Said(layers, "stated", "eagle3_layers_to_capture")
    default(terms, capture=OUTPUTS)
