"""EXPORT.json: what an export was made from, the conventions of its layout, and the hashes of its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from specgate import __version__
from specgate.backends.eagle3.lib.layout import describe_rope
from specgate.backends.eagle3.pair_tools.export.differences import Format
from specgate.backends.eagle3.pair_tools.export.opened import OpenPair
from specgate.backends.eagle3.pairs.gguf_convert import write_json
from specgate.checkpoints.auxiliary_layers import IDS, capture_keys
from specgate.checkpoints.files import contents_sha256

NAME: Final = "EXPORT.json"
NAMES: Final = {
    "hf": "the EAGLE authors': midlayer.*",
    "speculators": "speculators': layers.0.*",
    "gguf": "llama.cpp's; query and key rows interleaved, vectors in float32",
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
        "d2t": "none" if pair.draft.d2t is None else "target ids" if layout == "gguf" else "offsets",
        "draft_rope": describe_rope(draft.rope),
        "draft_window": draft.window or "none",
    }


def captures_written(boundaries: Sequence[int], layout: Format) -> Mapping[str, object]:
    if layout == "gguf":
        return {"eagle3.target_layers": list(boundaries)}
    return {IDS: list(boundaries)} if layout == "speculators" else capture_keys(boundaries)
