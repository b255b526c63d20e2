"""Settings beside a `tokenizer.json`: special tokens, added tokens and chat templates, read as transformers reads them.

The files: `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json` (of old releases, read only where
the config lists no added tokens), `chat_template.jinja`, `additional_chat_templates/*.jinja`, and `chat_template.json`
or `processor_config.json` of multimodal releases. `test_tokenizer_folders.py` holds the ids of prompts against those of
`AutoTokenizer.from_pretrained`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specgate.errors import CheckpointError
from specgate.files.json_text import read_json, shown
from specgate.files.panics import refusing

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LARGEST: Final = 64 << 20
"""Bytes of a settings file or a template."""
CONFIG: Final = "tokenizer_config.json"
TEMPLATE: Final = "chat_template.jinja"
TEMPLATES: Final = "additional_chat_templates"
OF_PROCESSORS: Final = ("chat_template.json", "processor_config.json")
"""Files of multimodal releases that hold the template in the key `chat_template`, if the tokenizer has none."""
DEFAULT: Final = "default"
SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
OF_CLASSES: Final[Mapping[str, Mapping[str, str]]] = {
    "CodeLlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "CohereTokenizer": {"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>", "unk_token": "<UNK>",
        "sep_token": "<SEP>", "pad_token": "<PAD>", "cls_token": "<CLS>", "mask_token": "<MASK_TOKEN>"},
    "GPT2Tokenizer": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"},
    "GPTNeoXTokenizer": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>",
        "pad_token": "<|padding|>"},
    "GemmaTokenizer": {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>",
        "mask_token": "<mask>"},
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "Qwen2Tokenizer": {"eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
}  # fmt: skip
"""Class of a tokenizer → the special tokens that it has if no file names them (transformers 5.24)."""

Token = Mapping[str, Any]
"""Content and flags (`lstrip`, `rstrip`, `normalized`, `single_word`, `special`) of a token."""


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """Settings of one tokenizer beside its `tokenizer.json`.

    `special`: name (`bos_token`, …) → token; a chat template has them as variables. `extra`: special tokens without a
    name. `added`: id → token of the added tokens. `templates`: name → the chat template of that name, in Jinja; without
    one called `default` a chat has none. `template_file`: their place, for messages. `prepend_scheme`: of a tokenizer
    that transformers builds anew as one of Llama's with sentence pieces, "first", "always" or "never": the texts that
    get a space before them.
    """

    special: Mapping[str, Token] = field(default_factory=dict)
    extra: Sequence[Token] = ()
    added: Mapping[int, Token] = field(default_factory=dict)
    split_special_tokens: bool = False
    prepend_scheme: str | None = None
    templates: Mapping[str, str] = field(default_factory=dict)
    template_file: Path | None = None

    @property
    def variables(self) -> dict[str, str]:
        """Name of a special token → its text."""
        return {name: token["content"] for name, token in self.special.items()}

    def give_to(self, tokenizer: Tokenizer) -> None:
        """Add the tokens to `tokenizer` that its own file lacks, as transformers does.

        Raises CheckpointError for a token with a flag that no token has.
        """
        from tokenizers import AddedToken

        if self.prepend_scheme is not None:
            rebuild(tokenizer, self.prepend_scheme)
        known = tokenizer.get_added_tokens_decoder().values()
        flags, names = {repr(token) for token in known}, {str(token.content) for token in known}
        named = set(self.variables.values())
        fresh = list[AddedToken]()
        with refusing(lambda why: CheckpointError(f"added tokens beside tokenizer.json: {why}")):
            for _, token in sorted(self.added.items()):
                if repr(AddedToken(**token)) not in flags:
                    fresh.append(AddedToken(**{**token, "special": token.get("special") or token["content"] in named}))
                    names.add(token["content"])
            for token in (*self.special.values(), *self.extra):
                if token["content"] not in names:
                    fresh.append(AddedToken(**{**token, "special": True}))
                    names.add(token["content"])
            tokenizer.add_tokens(fresh)
        tokenizer.encode_special_tokens = self.split_special_tokens


def read_settings(tokenizer_file: Path) -> TokenizerSettings:
    """Return the settings in the folder of `tokenizer_file`; a missing file is an empty one.

    Raises CheckpointError, which names the file and the key, where transformers would not read the tokenizer.
    """
    file = tokenizer_file.with_name(CONFIG)
    config = json_object(file)
    old = {} if "added_tokens_decoder" in config else json_object(file.with_name("special_tokens_map.json"))
    values: dict[str, Any] = {**OF_CLASSES.get(str(config.get("tokenizer_class")).removesuffix("Fast"), {})}
    values |= {key: v for key, v in config.items() if key in SPECIAL or (key.endswith("_token") and isinstance(v, str))}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    of_map = old.get("extra_special_tokens") or ([] if extra else old.get("additional_special_tokens")) or []
    if isinstance(extra, dict):
        values, extra = values | extra, []
    if not (isinstance(extra, list) and isinstance(of_map, list)):
        raise CheckpointError(f"{file}: extra_special_tokens: {shown(extra)}: a list of tokens was expected")
    values |= {key: plain(value) for key, value in old.items() if key.endswith("_token")}
    special = {key: token_of(file, key, value) for key, value in values.items() if value is not None}
    extras = [token_of(file, "extra_special_tokens", value) for value in [*extra, *map(plain, of_map)]]
    templates, place = chat_templates(tokenizer_file.parent, config)
    return TokenizerSettings(
        special={key: special[key] for key in (*SPECIAL, *special) if key in special},
        extra=extras,
        added=added_tokens(file, config, {t["content"] for t in (*special.values(), *extras)}),
        split_special_tokens=config.get("split_special_tokens") is True,
        prepend_scheme=prepend_scheme(tokenizer_file.parent, config),
        templates=templates,
        template_file=place,
    )


def prepend_scheme(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The scheme of a tokenizer whose class is Llama's, and whose model is no other; else None."""
    of_llama = str(config.get("tokenizer_class")).removesuffix("Fast") == "LlamaTokenizer"
    if not of_llama or json_object(folder / "config.json").get("model_type", "llama") != "llama":
        return None
    if config.get("add_prefix_space") is False:
        return "never"
    return "always" if config.get("legacy") else "first"


def rebuild(tokenizer: Tokenizer, scheme: str) -> None:
    """Give `tokenizer` the parts of transformers' LlamaTokenizer, if it has no byte-level ones and is of pairs."""
    from tokenizers import models, pre_tokenizers

    if isinstance(tokenizer.model, models.BPE) and "ByteLevel" not in f"{tokenizer.pre_tokenizer}{tokenizer.decoder}":
        tokenizer.normalizer = None
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
        tokenizer.model.fuse_unk, tokenizer.model.byte_fallback, tokenizer.model.unk_token = True, True, None


def json_object(file: Path) -> Mapping[str, Any]:
    """The JSON object in `file`; an empty one if there is no such file. Raises CheckpointError for anything else."""
    if not file.is_file():
        return {}
    try:
        data = read_json(file, LARGEST)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}", hint="it must hold a JSON object") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{file}: {shown(data)}: a JSON object was expected")
    return data


def plain(value: object) -> object:
    """Mark an object of `special_tokens_map.json` as a token, as `tokenizer_config.json` has them."""
    return {**value, "__type": "AddedToken"} if isinstance(value, dict) else value


def token_of(file: Path, key: str, value: object) -> Token:
    """The token that a text or an object stands for. Raises CheckpointError for anything else."""
    if isinstance(value, str):
        return {"content": value}
    if isinstance(value, dict) and value.get("__type") == "AddedToken" and isinstance(value.get("content"), str):
        return {name: flag for name, flag in value.items() if name != "__type"}
    raise CheckpointError(
        f"{file}: {key}: {shown(value)}: a token was expected",
        hint='a text, or an object with "__type": "AddedToken" and "content"',
    )


def added_tokens(file: Path, config: Mapping[str, Any], special: set[str]) -> dict[int, Token]:
    """Return id → token from `added_tokens_decoder` of the config, else from `added_tokens.json`."""
    if "added_tokens_decoder" not in config:
        old = json_object(file.with_name("added_tokens.json"))
        return {
            index: {"content": text, "normalized": text not in special, "special": text in special}
            for text, index in old.items()
            if type(index) is int
        }
    listed = config["added_tokens_decoder"]
    try:
        return {int(index): token_of(file, str(index), plain(token)) for index, token in listed.items()}
    except (AttributeError, ValueError):
        raise CheckpointError(
            f"{file}: added_tokens_decoder: {shown(listed)}: an object of ids and tokens was expected"
        ) from None


def chat_templates(folder: Path, config: Mapping[str, Any]) -> tuple[dict[str, str], Path | None]:
    """Return name → template, and their file or folder. Files of their own come before the config's key, and that
    before a processor's.
    """
    more = sorted((folder / TEMPLATES).glob("*.jinja"))
    files = {**({DEFAULT: folder / TEMPLATE} if (folder / TEMPLATE).is_file() else {}), **{f.stem: f for f in more}}
    if files:
        return {name: text_of(file) for name, file in files.items()}, files.get(DEFAULT, folder / TEMPLATES)
    for name, content in ((CONFIG, config), *((name, json_object(folder / name)) for name in OF_PROCESSORS)):
        if (value := content.get("chat_template")) is not None:
            return named_templates(folder / name, value), folder / name
    return {}, None


def named_templates(file: Path, value: Any) -> dict[str, str]:
    """The templates in the key `chat_template`: a text, or several texts by name."""
    if isinstance(value, list) and all(isinstance(t, dict) and isinstance(t.get("name"), str) for t in value):
        value = {t["name"]: t.get("template") for t in value}
    templates: dict[str, str] = value if isinstance(value, dict) else {DEFAULT: value}
    if all(isinstance(text, str) for text in (*templates, *templates.values())):
        return templates
    raise CheckpointError(f"{file}: chat_template: {shown(value)}: a Jinja template was expected, as text")


def text_of(file: Path) -> str:
    """The text of a template's file. Raises CheckpointError where it is not UTF-8 or too large."""
    try:
        with file.open("rb") as stream:
            content = stream.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ValueError(f"more than {LARGEST} bytes")
        return content.decode()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}", hint="a Jinja template in UTF-8") from None
