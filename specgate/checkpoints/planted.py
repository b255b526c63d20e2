"""The section `planted` in the config of a pair that was made from a seed, as far as a harness must read it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from specgate.checkpoints.hf_keys import DRAFT_ARCHITECTURE, PLANTED, Keys
from specgate.errors import CheckpointError
from specgate.files.json_text import shown


def from_seed(config: Keys) -> bool:
    """True if the folder of `config` holds no weights, because they are generated when loaded.

    Raises CheckpointError for a planted pair's config that was edited.
    """
    section = config.part(PLANTED)
    if not section.values:
        return False
    check_digest(config)
    weights = section.text("weights")
    if weights not in ("seed", "written"):
        raise section.wrong("weights", "seed (made when loaded) or written (in safetensors files)")
    return weights == "seed"


def digest(config: Mapping[str, object]) -> str:
    """SHA-256 (hexadecimal) over a whole config except `planted.sha256` itself, as JSON with sorted keys."""
    section = config.get(PLANTED)
    assert isinstance(section, Mapping)
    rest = {**config, PLANTED: {key: value for key, value in section.items() if key != "sha256"}}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def check_digest(config: Keys) -> None:
    """Raise CheckpointError where a config was edited after planting: what it says of acceptance would not hold.

    Another name of a draft's architecture changes nothing of that. LMDeploy 0.18 knows drafts under another one only.
    """
    stated, computed = config.part(PLANTED).text("sha256"), digest(config.values)
    as_written = {**config.values, "architectures": [DRAFT_ARCHITECTURE]}
    if stated not in (computed, digest(as_written)):
        raise CheckpointError(
            f"{config.file}: {PLANTED}.sha256 = {shown(stated)}, but the rest of the file has {computed}",
            hint="the file was edited after the pair was calibrated: plant the pair anew",
        )
