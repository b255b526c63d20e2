"""Sizes of a target that somebody else's engine runs, whatever its architecture.

`target.py` refuses what specgate's own engines cannot compute. An engine behind a server has its own reader: here
nothing is asked of the arithmetic. Keys are those of Hugging Face's configs, with the older spellings that vLLM's
`ModelArchConfigConvertorBase` knows too (0.25.1). A multimodal target keeps those of its text in `text_config`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specgate.checkpoints.hf_keys import Keys, read_config, read_json
from specgate.checkpoints.tokenizer_file import read_tokenizer

TEXT: Final = ("text_config", "llm_config", "language_config")
VOCAB: Final = ("vocab_size", "padded_vocab_size")
LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
POSITIONS: Final = (
    "model_max_length", "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length",
    "max_seq_length", "seq_len",
)  # fmt: skip
"""The first one wins: Cohere states its longest context as `model_max_length`, above its positions."""
ENDS: Final = "eos_token_id"


@dataclass(frozen=True, slots=True)
class AnyTarget:
    """Sizes of a target.

    `vocab`: token ids are below it. `layers`: hidden layers; None where only the tokenizer is known. `max_positions`:
        None where the config states none.
    `eos_token_ids`: of the config and of generation_config.json, which serving engines stop at. `files`: what this was
    read from. `architecture`: the first that the config names; None where it names none.
    """

    vocab: int
    layers: int | None
    max_positions: int | None
    eos_token_ids: tuple[int, ...]
    files: tuple[Path, ...]
    architecture: str | None = None


def read_any_target(folder: Path) -> AnyTarget:
    """The sizes of the target in `folder`, whatever its architecture.

    Raises CheckpointError, with file and key, for a missing file, and for a key that is missing or odd.
    """
    config = read_config(folder)
    text = next((config.part(key) for key in TEXT if key in config), config)
    vocab = vocabulary(config, text, folder)
    sections = [config, *([text] if text is not config else [])]
    files = [config.file]
    if (generation := folder / "generation_config.json").is_file():
        sections.append(read_json(generation))
        files.append(generation)
    return AnyTarget(
        vocab=vocab,
        layers=count(config, text, LAYERS),
        max_positions=positions(config, text),
        eos_token_ids=tuple(dict.fromkeys(i for section in sections for i in ends(section, vocab))),
        files=tuple(files),
        architecture=architecture(config),
    )


def read_served_target(tokenizer: Path) -> AnyTarget:
    """The sizes of a target whose weights are a server's: of the config beside `tokenizer`, where there is one, else of
    the tokenizer alone.

    Raises CheckpointError for a file that is no tokenizer, and as `read_any_target` does.
    """
    has_config = (tokenizer.parent / "config.json").is_file()
    if has_config and not tokenizer.is_file():  # as a server tells of its model
        config = read_config(tokenizer.parent)
        return AnyTarget(count(config, config, VOCAB), None, positions(config, config), (), (config.file,))
    vocab = ids_of(tokenizer)
    if has_config:
        return read_any_target(tokenizer.parent)
    return AnyTarget(vocab=vocab, layers=None, max_positions=None, eos_token_ids=(), files=(tokenizer,))


def ids_of(tokenizer: Path) -> int:
    """One more than the largest id of a tokenizer."""
    return max(read_tokenizer(tokenizer).get_vocab(with_added_tokens=True).values()) + 1


def vocabulary(config: Keys, text: Keys, folder: Path) -> int:
    """The size of the vocabulary. Gemma 3 leaves it to its class's default: then that of its tokenizer is taken, which
    the embedding is at least as large as.
    """
    stated = any(key in section for section in (text, config) for key in VOCAB)
    if not stated and (file := folder / "tokenizer.json").is_file():
        return ids_of(file)
    return count(config, text, VOCAB)


def count(config: Keys, text: Keys, names: tuple[str, ...]) -> int:
    """The first of `names` that the text's section states, or else the config. Raises CheckpointError without any."""
    place = next(((s, key) for s in (text, config) for key in names if key in s), (text, names[0]))
    return place[0].count(place[1])


def positions(config: Keys, text: Keys) -> int | None:
    """The longest context; None where no key states it.

    A YaRN config may state its positions before or after scaling: the larger counts, as in `hf.rope`.
    """
    if not any(key in section for section in (text, config) for key in POSITIONS):
        return None
    stated = count(config, text, POSITIONS)
    for key in ("rope_scaling", "rope_parameters"):
        section = text.part(key)
        kind = section.values.get("rope_type", section.values.get("type"))
        original = section.optional_count("original_max_position_embeddings") if kind == "yarn" else None
        if original is not None and "factor" in section:
            stated = max(stated, round(original * section.number("factor")))
    return stated


def ends(section: Keys, vocab: int) -> tuple[int, ...]:
    """End-of-sequence ids. Raises CheckpointError where one is outside of the vocabulary."""
    token_ids = section.ids(ENDS)
    if any(i >= vocab for i in token_ids):
        raise section.wrong(ENDS, f"token ids must be below the vocabulary of {vocab}")
    return token_ids


def architecture(config: Keys) -> str | None:
    names = config.values.get("architectures")
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise config.wrong("architectures", "a list of names is needed")
    return names[0] if names else None
