"""A pair as Hugging Face folders, and the manifest of what was written."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import torch

from specgate import __version__
from specgate.backends.eagle3.lib.hf_write import draft_config, draft_layer_config, switches, write_config
from specgate.backends.eagle3.lib.layout import describe_rope
from specgate.backends.eagle3.lib.pair import open_target
from specgate.backends.eagle3.pair_tools.export.differences import Format
from specgate.backends.eagle3.pair_tools.export.opened import OpenPair, draft_tensors, dtype_name, target_tensors
from specgate.backends.eagle3.pair_tools.shards import LazyTensor, write_shards
from specgate.backends.eagle3.pairs.gguf_convert import write_json
from specgate.checkpoints.auxiliary_layers import IDS, capture_keys
from specgate.checkpoints.files import contents_sha256
from specgate.checkpoints.hf.draft import TRAINED_FOR, trained_for_keys
from specgate.checkpoints.hf_keys import PLANTED, Keys
from specgate.checkpoints.planted import digest
from specgate.checkpoints.turbomind import CAPTURED

NAME: Final = "EXPORT.json"
NAMES: Final = {
    "hf": "the EAGLE authors': midlayer.*",
    "speculators": "speculators': layers.0.*",
    "gguf": "llama.cpp's; query and key rows interleaved, vectors in float32",
    "turbomind": "TurboMind's; a file each, products stored input by output",
}


def write_manifest(folder: Path, pair: OpenPair, layout: Format, dtype: str, differing: Sequence[str]) -> None:
    """Write EXPORT.json beside the files of `folder`. `dtype` is that of the weights, or "as stored"."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    assert pair.ref.draft is not None
    content: dict[str, object] = {
        "format": layout,
        "made_by": f"specgate {__version__}",
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "pair": pair.ref.name,
        "acceptance": pair.ref.acceptance,
        "source": {
            "target": {"name": pair.ref.target.name, "sha256": pair.target_sha256},
            "draft": {"name": pair.ref.draft.name, "sha256": pair.draft_sha256},
        },
        "dtype": dtype,
        "conventions": conventions(pair, layout),
        "differences": list(differing),
        "files": {
            file.relative_to(folder).as_posix(): {"bytes": file.stat().st_size, "sha256": sha256}
            for file, sha256 in zip(files, contents_sha256(files), strict=True)
        },
    }
    write_json(folder / NAME, content)


def conventions(pair: OpenPair, layout: Format) -> dict[str, object]:
    """Return the conventions that a reader needs to compare two engines with the same draft."""
    draft, boundaries = pair.draft.geometry, pair.draft.capture.boundaries
    return {
        "tensor_names": NAMES[layout],
        "capture_boundaries": list(boundaries),
        "capture_rule_of_source": pair.draft.capture.rule,
        "capture_ids_written": captures_written(boundaries, layout),
        "d2t": "none" if pair.draft.d2t is None else "target ids" if layout in ("gguf", "turbomind") else "offsets",
        "draft_rope": describe_rope(draft.rope),
        "draft_window": draft.window or "none",
    }


def captures_written(boundaries: Sequence[int], layout: Format) -> Mapping[str, object]:
    if layout == "gguf":
        return {"eagle3.target_layers": list(boundaries)}
    if layout == "turbomind":
        return {CAPTURED: [boundary - 1 for boundary in boundaries]}
    return {IDS: list(boundaries)} if layout == "speculators" else capture_keys(boundaries)


TOKENIZER: Final = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "vocab.json", "merges.txt", "tokenizer.model",
)  # fmt: skip
PAPERS: Final = ("README.md", "LICENSE*", "NOTICE*")
"""Model cards and licences, which are copied along with the weights."""
PROPOSED: Final = 3
"""Draft tokens per step, where speculators' config must state a number. Engines let their users override it."""


def write_target(folder: Path, pair: OpenPair, dtype: torch.dtype | None) -> None:
    """Write weights, config, generation config and tokenizer. Everything but the dtype stays as it is."""
    folder.mkdir()
    tensors = target_tensors(pair, dtype)
    write_config(folder, with_dtype(pair.target.config, dtype_name(tensors)))
    source = pair.target.config.file.parent
    copy_files(source, folder, ("generation_config.json", *TOKENIZER, *PAPERS))
    write_shards(folder, tensors)


def with_dtype(config: Keys, dtype: str) -> dict[str, object]:
    """The target's config, for weights that are now stored in files in `dtype`."""
    keys = {key: value for key, value in config.values.items() if key not in ("dtype", "torch_dtype")}
    return as_written({**keys, "torch_dtype": dtype})


def as_written(config: Mapping[str, object]) -> dict[str, object]:
    """A planted pair's config, after its generated weights were written into files.

    Its section says where the weights are and holds a digest of the whole config, so both are updated. Other configs
    stay.
    """
    section = config.get(PLANTED)
    if not isinstance(section, Mapping):
        return dict(config)
    written = {**config, PLANTED: {**section, "weights": "written"}}
    return {**written, PLANTED: {**section, "weights": "written", "sha256": digest(written)}}


def write_eagle_draft(folder: Path, pair: OpenPair, dtype: torch.dtype | None) -> None:
    """Write the flat config and the tensor names that vLLM, SGLang, TensorRT-LLM, LMDeploy and llama.cpp's converter
    read.
    """
    tensors = draft_tensors(pair, dtype)
    geometry, boundaries = pair.draft.geometry, pair.draft.capture.boundaries
    config = draft_config(geometry, boundaries, dtype_name(tensors))
    write_draft(folder, pair, config, tensors)


def write_speculators_draft(folder: Path, pair: OpenPair, dtype: torch.dtype | None, verifier: Path) -> None:
    """Write the nested config of the speculators library. `verifier` is the folder where the target will be.

    Source: speculators' Eagle3SpeculatorConfig. It states the auxiliary hidden-state layers as boundaries.
    """
    tensors = draft_tensors(pair, dtype)
    renamed = {re.sub(r"^midlayer\.", "layers.0.", name): tensor for name, tensor in tensors.items()}
    write_draft(folder, pair, speculators_config(pair, dtype_name(tensors), verifier), renamed)


def speculators_config(pair: OpenPair, dtype: str, verifier: Path) -> dict[str, object]:
    g = pair.draft.geometry
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "torch_dtype": dtype,
        "draft_vocab_size": g.draft_vocab,
        "target_hidden_size": g.target_hidden if g.target_hidden != g.hidden else None,
        IDS: list(pair.draft.capture.boundaries),
        **switches(g),
        "tie_word_embeddings": False,
        "transformer_layer_config": draft_layer_config(g, dtype),
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": PROPOSED}],
            "verifier": {
                "name_or_path": str(verifier),
                "architectures": pair.target.config.values["architectures"],
            },
        },
    }


def write_draft(folder: Path, pair: OpenPair, config: Mapping[str, object], tensors: Mapping[str, LazyTensor]) -> None:
    """Write weights, config and model card.

    The exported target, beside `folder`, is named in the config as the target that the draft was trained for. If the
    draft's config names a different target, it is kept, so that readers are still warned.
    """
    folder.mkdir()
    source = pair.draft.config
    notes = {key: source.values[key] for key in (TRAINED_FOR, PLANTED) if key in source}
    if source.part(TRAINED_FOR).text("sha256") == pair.target_sha256:
        exported = open_target(folder.parent / "target")
        notes |= trained_for_keys(pair.ref.target.name, exported.geometry, exported.sha256())
    write_config(folder, as_written({**config, **notes}))
    copy_files(source.file.parent, folder, PAPERS)
    write_shards(folder, tensors)


def copy_files(source: Path, folder: Path, patterns: tuple[str, ...], prefix: str = "") -> None:
    for pattern in patterns:
        for file in source.glob(pattern):
            shutil.copyfile(file, folder / f"{prefix}{file.name}")
