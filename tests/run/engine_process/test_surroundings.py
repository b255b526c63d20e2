"""An engine's process gets the variables that engines read, those that the user lists, and no credentials."""

from __future__ import annotations

import re

import pytest

from specgate.run.engine_process.surroundings import LISTED, NAMES, PREFIXES, passed
from tests.support.command import ROOT

NEEDED = (
    *("PATH", "HOME", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUPY_CACHE_DIR", "PYTHONPATH"),
    *("HF_HUB_OFFLINE", "OMP_NUM_THREADS", "TORCHINDUCTOR_CACHE_DIR", "TOKENIZERS_PARALLELISM", "SPECGATE_CACHE"),
    "VLLM_MAX_TOKENS_PER_EXPERT",
)
KEPT_BACK = (
    *("HF_TOKEN", "HUGGINGFACE_API_KEY", "VLLM_API_KEY", "CUDA_SECRET_1", "NVIDIA_PASSWORD", "XDG_CREDENTIALS"),
    *("hf_token", "AWS_ACCESS_KEY_ID", "GITHUB_TOKEN", "SSH_AUTH_SOCK", "SPECGATE_HISTORY", "MODEL_PATH"),
)


@pytest.mark.parametrize("name", NEEDED)
def test_what_engines_read_is_passed(name: str) -> None:
    assert passed({name: "x"}, {}) == {name: "x"}


@pytest.mark.parametrize("name", KEPT_BACK)
def test_credentials_and_what_nobody_needs_are_not_passed(name: str) -> None:
    assert passed({name: "x"}, {}) == {}


def test_the_user_may_list_names_and_name_a_servers_key() -> None:
    environment = {"A": "1", "B_TOKEN": "2", "C_KEY": "3", "D": "4", LISTED: " A,B_TOKEN ,NOT_SET"}
    assert passed(environment, {"api_key_env": "C_KEY"}) == {"A": "1", "B_TOKEN": "2", "C_KEY": "3"}


def test_the_reference_names_everything_that_is_passed() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    _, section = reference.split("### Passed to an engine's process")
    named = set(re.findall(r"`([A-Za-z_]+\*?)`", section.split("\n### ")[0]))
    assert {*NAMES, *(f"{prefix}*" for prefix in PREFIXES)} <= named
