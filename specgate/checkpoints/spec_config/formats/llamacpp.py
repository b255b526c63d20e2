"""llama.cpp: the flags of its server that are about drafts, and those around them.

Read from `tools/server/README.md` up to November 2026, and the pull requests 22397 (April 2026: `--draft-…` became
`--spec-draft-…`; K is read of either) and 22964 (May 2026: types of drafts are called `draft-…`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from specgate.checkpoints.spec_config.flags import Given, from_argv
from specgate.checkpoints.spec_config.formats.collect_terms import Reading, count_of, name_of
from specgate.checkpoints.spec_config.formats.draft_folder import NOT_APPLIED
from specgate.checkpoints.spec_config.tables import Table
from specgate.checkpoints.spec_config.terms import StatedConfig

FLAGS: Final = Table(
    count="""
        ctx_size,-c batch_size,-b spec_draft_n_max,--draft,--draft-n,--draft-max
        spec_draft_n_min,--draft-min,--draft-n-min ctx_size_draft,-cd
        spec_draft_threads,-td,--threads-draft spec_draft_threads_batch,-tbd,--threads-batch-draft
        spec_draft_n_cpu_moe,--spec-draft-ncmoe,-ncmoed,--n-cpu-moe-draft spec_ngram_mod_n_min spec_ngram_mod_n_max
        spec_ngram_mod_n_match spec_ngram_simple_size_n spec_ngram_simple_size_m spec_ngram_simple_min_hits
        spec_ngram_map_k_size_n spec_ngram_map_k_size_m spec_ngram_map_k_min_hits spec_ngram_map_k4v_size_n
        spec_ngram_map_k4v_size_m spec_ngram_map_k4v_min_hits
    """,
    number="spec_draft_p_min,--draft-p-min spec_draft_p_split,--draft-p-split spec_synth_len",
    text="""
        model,-m model_url,-mu hf_repo,-hf,-hfr hf_file,-hff docker_repo,-dr cache_type_k,-ctk cache_type_v,-ctv
        split_mode,-sm tensor_split,-ts override_kv spec_type spec_draft_model,-md,--model-draft
        spec_draft_hf,-hfd,-hfrd,--hf-repo-draft spec_draft_sampling spec_synth_rates
        spec_draft_type_k,-ctkd,--cache-type-k-draft spec_draft_type_v,-ctvd,--cache-type-v-draft
        spec_draft_ngl,-ngld,--gpu-layers-draft,--n-gpu-layers-draft spec_draft_device,-devd,--device-draft
        spec_draft_cpu_mask,-Cd,--cpu-mask-draft spec_draft_cpu_range,-Crd,--cpu-range-draft
        spec_draft_cpu_mask_batch,-Cbd,--cpu-mask-batch-draft spec_draft_override_tensor,-otd,--override-tensor-draft
        spec_replace,--spec-replace
    """,
    flag="cache_prompt spec_default spec_draft_backend_sampling spec_draft_cpu_moe,-cmoed,--cpu-moe-draft",
    off="no_cache_prompt no_spec_draft_backend_sampling",
    any="""
        parallel,-np spec_draft_cpu_strict,--cpu-strict-draft spec_draft_prio,--prio-draft
        spec_draft_poll,--poll-draft spec_draft_cpu_strict_batch,--cpu-strict-batch-draft
        spec_draft_prio_batch,--prio-batch-draft spec_draft_poll_batch,--poll-batch-draft
    """,
)
"""Flags of `llama-server`."""
METHODS: Final = {
    "draft-eagle3": "eagle3", "draft-simple": "draft_model", "draft-mtp": "mtp", "draft-dflash": "dflash",
    "draft-dspark": "dspark", "ngram-simple": "ngram", "ngram-map-k": "ngram", "ngram-map-k4v": "ngram",
    "ngram-mod": "ngram", "ngram-cache": "ngram",
}  # fmt: skip
"""`--spec-type` → drafter."""
EXPRESSES: Final = frozenset({
    "method", "draft_model", "target", "k", "varies", "p_min", "draft_sampling", "forced", "kv_dtype", "overrides",
    "draft_kv_dtype", "lookup", "prefix_cache", "tp", "max_positions", "max_batch", "max_tokens",
})  # fmt: skip


def read_flags(argv: Sequence[str], where: str) -> StatedConfig:
    """The config of a command line. Raises UsageError for a value of the wrong type."""
    flags = from_argv(argv, FLAGS, where)
    reading = Reading("llamacpp", where, {}, EXPRESSES, undecided=flags.undecided, unread=flags.unread)
    around(reading, flags)
    draft = flags.text("spec_draft_model") or flags.text("spec_draft_hf")
    kind = flags.text("spec_type") or "none"
    if flags.get("spec_default"):
        reading.undecided += ("--spec-default: what it switches on is another thing in other builds",)
    former = flags.names.get("spec_draft_n_max", "")
    if former.startswith("--draft") and "spec_draft_p_min" not in flags:
        why = "is of builds until April 2026, whose --draft-p-min had other defaults"
        reading.undecided += (f"{former} {why}",)
    if kind == "none" and draft is None:
        reading.unclear = bool(flags.get("spec_default"))
        return reading
    if draft is not None:
        reading.name("draft_model", draft, flags.names.get("spec_draft_model", "--spec-draft-hf"))
    if kind == "none":
        reading.default(method="draft_model")
    else:
        reading.say("method", METHODS.get(kind, kind), "--spec-type")
    drafted(reading, flags, kind)
    reading.others = others(flags)
    return reading


def others(flags: Given) -> dict[str, object]:
    """Keys about drafts that have become no term, but for those that say where drafts are computed."""
    placed = re.compile("threads|cpu|prio|poll|ngl|device|override-tensor|gpu-layers|p-split|-td|-otd")
    return {name: v for name, v in flags.rest().items() if re.search("spec|draft", name) and not placed.search(name)}


def around(reading: Reading, flags: Given) -> None:
    """Take the terms that are not about drafts."""
    target = next((t for key in ("model", "hf_repo", "model_url", "docker_repo") if (t := flags.text(key))), None)
    if target is not None:
        file = flags.text("hf_file")
        reading.say("target", name_of(target) + (f"/{name_of(file)}" if file else ""), "--model")
        reading.places["target"] = target
    reading.take(flags, "cache_prompt", "prefix_cache")
    reading.take(flags, "parallel", "max_batch", count_of)
    reading.take(flags, "batch_size", "max_tokens")
    reading.take(flags, "override_kv", "overrides")
    slots = 1 if "max_batch" not in reading.terms else reading.value("max_batch")
    if isinstance(slots, int):
        reading.take(flags, "ctx_size", "max_positions", lambda n: int(str(n)) // max(1, slots) or None)
    kinds = [str(flags.get(key) or "f16") for key in ("cache_type_k", "cache_type_v")]
    if "cache_type_k" in flags or "cache_type_v" in flags:
        both = kinds[0] if kinds[0] == kinds[1] else f"{kinds[0]} keys, {kinds[1]} values"
        reading.say("kv_dtype", both, "--cache-type-k")
    if flags.get("split_mode") in ("row", "tensor"):
        if parts := str(flags.get("tensor_split") or ""):
            reading.say("tp", len(parts.split(",")), "--tensor-split")
    else:
        reading.fixed(tp=1)
    reading.default(kv_dtype="f16", prefix_cache=True, overrides=None)
    reading.fixed(dtype="as in the GGUF files")


def drafted(reading: Reading, flags: Given, kind: str) -> None:
    """Take the terms about drafts."""
    lookups = [key for key in sorted(FLAGS) if "ngram" in key and key in flags]
    if reading.value("method") == "ngram":
        name = kind.removeprefix("ngram-").replace("-", "_")
        for key in (f"spec_ngram_{name}_size_m", "spec_ngram_mod_n_max"):
            if key in lookups and "k" not in reading.terms:
                lookups.remove(key)
                reading.take(flags, key, "k")
        reading.default(k=48)
        reading.fixed(draft_model=None)
    reading.look_up(flags, lookups)
    reading.take(flags, "spec_draft_n_max", "k")
    reading.default(k=3, lookup=None)
    reading.take(flags, "spec_draft_p_min", "p_min", lambda p: float(str(p)))
    reading.default(p_min=0.0)
    reading.take(flags, "spec_draft_sampling", "draft_sampling")
    reading.default(draft_sampling="greedy")
    probabilistic = reading.value("draft_sampling") == "probabilistic"
    if probabilistic and reading.value("method") == "eagle3":
        probabilistic = False
        reading.notes += ("--spec-draft-sampling probabilistic changes nothing for EAGLE-3 drafts (b11434)",)
    reading.fixed(verification="rejection sampling" if probabilistic else "sampled tokens must match")
    reading.take(flags, "spec_synth_len", "forced")
    reading.take(flags, "spec_synth_rates", "forced", rates_length)
    reading.take(flags, "spec_draft_type_k", "draft_kv_dtype")
    reading.default(forced=None, draft_kv_dtype="f16")
    reading.fixed(varies="shorter where the draft is unsure" if reading.value("p_min") else "constant", draft_tp=1)
    if reading.value("method") == "eagle3":
        reading.fixed(window=NOT_APPLIED, capture="baked in at conversion to GGUF")
    reading.chain()


def rates_length(text: object) -> object:
    """The acceptance length of rates such as `0.8,0.5`, or the text where it is none."""
    try:
        return 1 + sum(map(float, str(text).split(",")))
    except ValueError:
        return text
