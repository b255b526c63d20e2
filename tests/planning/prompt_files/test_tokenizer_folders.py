"""Prompts of a tokenizer's folder, beside the ids that transformers makes of it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from specgate.backends.eagle3.pairs.shipped import demo_target
from specgate.checkpoints.chat_template import Chat
from specgate.checkpoints.tokenizer_settings import OF_CLASSES, SPECIAL
from specgate.contract import Workload
from specgate.errors import CheckpointError, EnvironmentRefused, UsageError
from specgate.planning.prompt_files.choosing import Tokens
from specgate.planning.prompt_files.formats import Entry

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WITH_BOS = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}{{ unk_token }} A:"
HARMONY = """\
{%- macro render(m) %}<|im_start|>{{ m.role }}{{ "\\n" + m.content }}<|im_end|>{% endmacro %}
{{- "Knowledge cutoff: 2024-06\\nReasoning: " + (reasoning_effort if reasoning_effort is defined else "medium") }}
{%- if tools is not none %}{{- tools | tojson(indent=1) }}{%- endif %}
{%- for m in messages %}{% if m.role == "tool" %}{% continue %}{% endif %}{{- render(m) }}{% endfor -%}
{%- if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}<|im_start|>assistant
"""
TOOLS = [{"type": "function", "function": {"name": "sum", "parameters": {"type": "object", "properties": {"ü": {}}}}}]
CHATS: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
    ([{"role": "user", "content": "  Why is <s> the sky <|im_end|> dark\n at <x> night? "}], {}),
    (
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Sum 1 and 2."},
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "sum", "arguments": {"ü": 1}}}]},
            {"role": "tool", "content": "3", "name": None},
            {"role": "user", "content": "Thanks"},
        ],
        {"tools": TOOLS, "enable_thinking": False, "reasoning_effort": "high"},
    ),
]
NAMES = {"bos_token": "<s>", "eos_token": "<|im_end|>", "unk_token": "<unk>"}
WORDS = ("why", "is", "the", "sky", "dark", "at", "night", "be", "brief", "sum", "and", "thanks", "user", "tool", "a")
CONFIG, MAP = "tokenizer_config.json", "special_tokens_map.json"
Folder = Mapping[str, object]
"""Name of a file → its text, or its content in JSON."""


def bpe() -> Tokenizer:
    letters = {c: n for n, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "m"), ("s", "t"), ("a", "r"), ("<", "s"), ("<s", ">")]
    vocab = letters | {"".join(pair): len(letters) + n for n, pair in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def word_piece() -> Tokenizer:
    pieces = [
        "<unk>",
        *WORDS,
        *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"),
        *"abcdefghijklmnopqrstuvwxyz.,:?<>|_/",
    ]
    tokenizer = Tokenizer(models.WordPiece({p: n for n, p in enumerate(dict.fromkeys(pieces))}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def unigram() -> Tokenizer:
    pieces = [("<unk>", 0.0), ("▁", -2.0), *((f"▁{w}", -3.0) for w in WORDS), *((chr(c), -5.0) for c in range(33, 127))]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def bpe_of_sentences() -> Tokenizer:
    letters = ["<unk>", "<s>", "</s>", "▁", *map(chr, range(33, 127)), "▁t", "he", "▁the"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he")]
    vocab = {piece: n for n, piece in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def special(make: Callable[[], Tokenizer] = bpe, *, bos: int = 0, listed: bool = True) -> Tokenizer:
    """A tokenizer with the special tokens of `NAMES`, and with `bos` of them before every text."""
    tokenizer = make()
    if listed:
        tokenizer.add_special_tokens(["<|im_start|>", *NAMES.values()])
    if bos:
        token = ("<s>", tokenizer.token_to_id("<s>"))
        tokenizer.post_processor = processors.TemplateProcessing("<s> " * bos + "$A", None, [token])
    return tokenizer


def cut_and_filled() -> Tokenizer:
    tokenizer = special(bos=1)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64, pad_token="<unk>", pad_id=tokenizer.token_to_id("<unk>"))
    return tokenizer


def config(template: object = CHATML, **more: object) -> dict[str, object]:
    named = {} if template is None else {"chat_template": template}
    return {"tokenizer_class": "PreTrainedTokenizerFast", **NAMES, **named, **more}


def flags(content: str, **more: object) -> dict[str, object]:
    return {"content": content, **dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False), **more}


def llama(**more: object) -> Folder:
    return {"config.json": {"model_type": "llama"}, CONFIG: config(**{"tokenizer_class": "LlamaTokenizerFast", **more})}


UNNAMED = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": WITH_BOS}
ADDED = {"300": flags("<x>", special=False, lstrip=True), "301": flags("night", special=False, normalized=True)}
LAYOUTS: Mapping[str, tuple[Callable[[], Tokenizer], Folder]] = {
    "a template in the config": (special, {CONFIG: config()}),
    "named templates": (
        special,
        {CONFIG: config([{"name": "tool_use", "template": HARMONY}, {"name": "default", "template": CHATML}])},
    ),
    "templates by name": (special, {CONFIG: config({"default": CHATML, "rag": "R"})}),
    "a template in a file": (special, {CONFIG: config("old"), "chat_template.jinja": CHATML}),
    "a template with Windows' line ends": (
        special,
        {CONFIG: config(), "chat_template.jinja": HARMONY.replace("\n", "\r\n")},
    ),
    "a folder of templates": (special, {CONFIG: config("old"), "additional_chat_templates/default.jinja": CHATML}),
    "a folder of templates beside a file": (
        special,
        {CONFIG: config(), "chat_template.jinja": CHATML, "additional_chat_templates/tool_use.jinja": HARMONY},
    ),
    "harmony": (special, {CONFIG: config(HARMONY)}),
    "a generation block": (
        special,
        {
            CONFIG: config(
                "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ messages[0].content }}{% endgeneration %}{{ x }}"
            )
        },
    ),
    "json": (special, {CONFIG: config("{{ messages | tojson(false, 1, [',', ' : '], true) }}{{ documents is none }}")}),
    "special tokens as objects": (
        special,
        {CONFIG: config(WITH_BOS, bos_token={"__type": "AddedToken", **flags("<s>", rstrip=True)}, pad_token=None)},
    ),
    "special tokens in a map": (
        special,
        {CONFIG: UNNAMED, MAP: {**NAMES, "bos_token": flags("<s>"), "eos_token": flags("<|im_end|>", rstrip=True)}},
    ),
    "a map that the config's list of tokens rules out": (
        special,
        {CONFIG: config(WITH_BOS, added_tokens_decoder={}), MAP: {"bos_token": "<|im_start|>"}},
    ),
    "special tokens of the class": (special, {CONFIG: {**UNNAMED, "tokenizer_class": "GPT2TokenizerFast"}}),
    "special tokens that tokenizer.json does not list": (lambda: special(listed=False), {CONFIG: config(WITH_BOS)}),
    "added tokens in the config": (special, {CONFIG: config(added_tokens_decoder=ADDED)}),
    "added tokens of an old release": (special, {CONFIG: config(), "added_tokens.json": {"<x>": 270, "night": 269}}),
    "more special tokens": (special, {CONFIG: config(additional_special_tokens=["<x>", "dark"])}),
    "special tokens with other names": (
        special,
        {
            CONFIG: config(
                "{{ image_token }}{{ eot_token }}" + CHATML,
                image_token="<x>",
                extra_special_tokens={"eot_token": "dark"},
            )
        },
    ),
    "special tokens that are split": (special, {CONFIG: config(split_special_tokens=True)}),
    "BOS by the template and by the post-processor": (lambda: special(bos=1), {CONFIG: config(WITH_BOS)}),
    "BOS twice, and a switch against it": (lambda: special(bos=2), {CONFIG: config(WITH_BOS, add_bos_token=False)}),
    "a switch for BOS alone": (special, {CONFIG: config(WITH_BOS, add_bos_token=True)}),
    "texts that are cut and filled up": (cut_and_filled, {CONFIG: config()}),
    "word pieces": (lambda: special(word_piece), {CONFIG: config()}),
    "word pieces with a special token in the vocabulary only": (word_piece, {CONFIG: config(mask_token="sky")}),
    "a unigram model": (lambda: special(unigram, bos=1), {CONFIG: config(WITH_BOS)}),
    "Llama's class": (lambda: special(bpe_of_sentences, bos=1), llama()),
    "Llama's class as it was": (lambda: special(bpe_of_sentences, bos=1), llama(legacy=True)),
    "Llama's class without a space before": (
        lambda: special(bpe_of_sentences, bos=1),
        llama(add_prefix_space=False, tokenizer_class="LlamaTokenizer"),
    ),
    "Llama's class of another model": (
        lambda: special(bpe_of_sentences, bos=1),
        {**llama(), "config.json": {"model_type": "mistral"}},
    ),
    "Llama's class over bytes": (lambda: special(bos=1), llama()),
    "pairs of sentence pieces": (lambda: special(bpe_of_sentences, bos=1), {CONFIG: config(WITH_BOS)}),
}


def written(folder: Path, tokenizer: Tokenizer, files: Folder) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_bytes(text.encode())
    return folder / "tokenizer.json"


def ours(file: Path, content: Chat | str) -> list[int]:
    tokens = Tokens(Workload(0, 1, 1, format="lines"), file, 1 << 20)
    return list(tokens.of(Entry("p.jsonl:1", 1, content)).token_ids)


def theirs(tokenizer: PreTrainedTokenizerBase, turns: list[dict[str, Any]], variables: Mapping[str, Any]) -> list[int]:
    encoded = tokenizer.apply_chat_template(turns, add_generation_prompt=True, **variables)
    ids: list[int] = encoded["input_ids"]
    return ids


@pytest.mark.parametrize("layout", LAYOUTS)
def test_chats_and_texts_have_the_ids_that_transformers_gives_them(layout: str, tmp_path: Path) -> None:
    make, files = LAYOUTS[layout]
    file = written(tmp_path, make(), files)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for turns, variables in CHATS:
        assert ours(file, Chat(tuple(turns), variables)) == theirs(tokenizer, turns, variables)
    text = CHATS[0][0][0]["content"]
    assert ours(file, text) == tokenizer(text)["input_ids"]


@pytest.mark.slow("transformers reads 49,152 tokens")
def test_the_demo_targets_chats_have_the_ids_that_transformers_gives_them() -> None:
    try:
        target = demo_target()
    except EnvironmentRefused as error:
        pytest.skip(str(error))
    tokenizer = AutoTokenizer.from_pretrained(target)
    for turns, variables in CHATS:
        assert ours(target / "tokenizer.json", Chat(tuple(turns), variables)) == theirs(tokenizer, turns, variables)


@pytest.mark.parametrize("name", ["chat_template.json", "processor_config.json"])
def test_a_processors_template_is_the_last_resort(name: str, tmp_path: Path) -> None:
    """AutoTokenizer does not read it; AutoProcessor of a multimodal release does, and so do servers."""
    file = written(tmp_path, special(), {CONFIG: config(None), name: {"chat_template": CHATML}})
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.chat_template is None
    turns, variables = CHATS[0]
    assert ours(file, Chat(tuple(turns))) == theirs(tokenizer, turns, {**variables, "chat_template": CHATML})
    written(tmp_path, special(), {CONFIG: config(WITH_BOS)})
    assert ours(file, Chat(tuple(turns))) == theirs(tokenizer, turns, {"chat_template": WITH_BOS})


NO_TEMPLATE = "messages need a chat template, and the target's tokenizer has no chat template"
REFUSED: Mapping[str, tuple[Folder, str]] = {
    "no template": ({CONFIG: config(None)}, NO_TEMPLATE),
    "no config": ({}, NO_TEMPLATE),
    "no default template": (
        {CONFIG: config([{"name": "rag", "template": "R"}])},
        "tokenizer_config.json has no chat template of the name 'default', only 'rag'",
    ),
    "a folder without a default template": (
        {CONFIG: config(), "additional_chat_templates/tool_use.jinja": "T"},
        "additional_chat_templates has no chat template of the name 'default', only 'tool_use'",
    ),
    "a template that refuses": (
        {CONFIG: config("{{ raise_exception('no') }}")},
        "the chat template refuses them: 'no'",
    ),
    "a template that is no Jinja": ({CONFIG: config("{% if %}")}, "chat_template, line 1: not a Jinja template"),
    "a template that is no text": ({CONFIG: config(5)}, "chat_template: 5: a Jinja template was expected"),
    "extra tokens that are no list": ({CONFIG: config(extra_special_tokens=5)}, "extra_special_tokens: 5: a list"),
    "a token that is no token": (
        {CONFIG: config(bos_token=flags("<s>"))},
        "tokenizer_config.json: bos_token: {'content': '<s>', 'lstrip': False",
    ),
    "a config that is no JSON": ({CONFIG: "\ufeff{}"}, "tokenizer_config.json: cannot be read: "),
}


@pytest.mark.parametrize("layout", REFUSED)
def test_what_transformers_refuses_is_refused_with_the_cause(layout: str, tmp_path: Path) -> None:
    files, cause = REFUSED[layout]
    file = written(tmp_path, special(), files)
    turns = CHATS[0][0]
    with pytest.raises((UsageError, CheckpointError)) as caught:
        ours(file, Chat(tuple(turns)))
    assert cause in str(caught.value)
    with pytest.raises(Exception):  # noqa: B017 - of many kinds
        theirs(AutoTokenizer.from_pretrained(tmp_path), turns, {})


@pytest.mark.parametrize("name", OF_CLASSES)
def test_the_special_tokens_of_a_class_are_those_of_transformers(name: str) -> None:
    parameters = inspect.signature(getattr(transformers, name).__init__).parameters
    assert OF_CLASSES[name] == {key: p.default for key, p in parameters.items() if key in SPECIAL and p.default}


def test_a_token_beyond_the_vocabulary_is_refused_where_a_prompt_has_it(tmp_path: Path) -> None:
    file = written(tmp_path, special(), {CONFIG: config(added_tokens_decoder=ADDED)})
    size = Tokenizer.from_file(str(file)).get_vocab_size()
    tokens = Tokens(Workload(0, 1, 1, format="lines"), file, size)
    assert tokens.of(Entry("p.jsonl:1", 1, "why")).token_ids
    with pytest.raises(
        UsageError, match=rf"p\.jsonl:2: token '<x>' has the id {size}, but the target's vocabulary has"
    ):
        tokens.of(Entry("p.jsonl:2", 2, "a <x>"))
