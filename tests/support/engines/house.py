"""The engine's house, which may not be installed: the harness's tests run without it."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from specgate.checkpoints.auxiliary_layers import IDS
from specgate.checkpoints.heads.tensors import draft_tensors
from specgate.checkpoints.hf.draft import draft_geometry
from specgate.checkpoints.hf_keys import read_config
from tests.support.imports import imports_of

ENGINE: Final = "specgate.backends.eagle3"
TESTS: Final = Path(__file__).parents[2]
MEASURING: Final = ("micro", "full", "load", "ab", "smoke")
"""Commands that open an engine: where none is named, the house's."""
ENGINES: Final = ("cupy", "reference", "transformers")


def is_here() -> bool:
    """Return whether the engine's house is installed."""
    return find_spec(ENGINE) is not None


@cache
def needs_engine(file: Path) -> bool:
    """Return whether a test file, or a helper that it imports, imports the engine's house or torch."""
    return any(is_of_engine(name) or needs_engine_itself(helper_of(name)) for name in imports_of(file))


@cache
def needs_engine_itself(helper: Path | None) -> bool:
    """Return whether a helper cannot be imported without them: what it imports in functions does not count."""
    if helper is None:
        return False
    names = top_imports_of(helper)
    return any(is_of_engine(name) or needs_engine_itself(helper_of(name)) for name in names)


def is_of_engine(name: str) -> bool:
    return name.split(".")[0] == "torch" or name == ENGINE or name.startswith(f"{ENGINE}.")


def top_imports_of(file: Path) -> Iterator[str]:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def helper_of(name: str) -> Path | None:
    """Return the file of a module of the tests, of which `name` is a part; None for another module."""
    parts = name.split(".")
    for count in range(len(parts), 1, -1) if parts[0] == TESTS.name else ():
        module = TESTS.parent.joinpath(*parts[:count])
        for file in (module.with_suffix(".py"), module / "__init__.py"):
            if file.is_file():
                return file
    return None


def opens_its_engine(command: Sequence[str]) -> bool:
    """Return whether a command line opens an engine of the house: by name, or because it names none."""
    if command[0] not in MEASURING and list(command[:2]) not in (["diagnose", "parity"], ["machine", "calibrate"]):
        return False
    named = [word for flag, word in pairwise(command) if flag == "--backend"]
    return not named or named[0].split(",")[0] in ENGINES


def write_configs(folder: Path) -> tuple[Path, Path]:
    """Write what a scripted engine reads of a pair, `folder/target` and `folder/draft`: configs, a tokenizer, and a
    head of ones. The target's weights are there in name only. Returns both paths.
    """
    sizes = {
        "model_type": "llama",
        "torch_dtype": "float32",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 320,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
    ends = {"bos_token_id": 256, "eos_token_id": [257]}
    configs = {
        "target": {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, **sizes, **ends},
        "draft": {
            "architectures": ["LlamaForCausalLMEagle3"],
            "num_hidden_layers": 1,
            "draft_vocab_size": 96,
            **sizes,
            IDS: [1, 2, 3],
        },
    }
    for name, config in configs.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
        save_file({"none": np.zeros(1, np.float32)}, folder / name / "model.safetensors")
    save_file(head_of_ones(folder / "draft"), folder / "draft" / "model.safetensors")
    write_byte_tokenizer(folder / "target")
    return folder / "target", folder / "draft"


def head_of_ones(folder: Path) -> dict[str, Any]:
    """The tensors of the head whose config lies in `folder`, with a map of every second pair of target tokens."""
    config = read_config(folder)
    vocab = config.count("vocab_size")
    sizes = Sizes(config.count("hidden_size"), vocab)
    geometry, _ = draft_geometry(config, sizes, ())
    tensors: dict[str, Any] = {
        name: np.ones(want.shape, np.float32) for name, want in draft_tensors(geometry, False, False).items()
    }
    rows = np.arange(geometry.draft_vocab)
    mask = np.zeros(vocab, np.bool_)
    mask[rows + 2 * (rows // 2)] = True
    return tensors | {"d2t": 2 * (rows // 2), "t2d": mask}


class Sizes(NamedTuple):
    """The sizes of the target of these heads."""

    hidden: int
    vocab: int
    layers: int = 4
    max_positions: int = 4096


def write_byte_tokenizer(folder: Path) -> None:
    """Write a tokenizer of every byte and two special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|begin|>", "<|end|>")])
    tokenizer.save(str(folder / "tokenizer.json"))
