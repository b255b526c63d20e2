"""Weight files: whole or refused; every tensor that does not fit is named."""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path
from threading import Event

import pytest
import torch
from safetensors.torch import load_file, save_file

from specgate.backends.eagle3.lib.checkpoint import Entry, TensorFiles
from specgate.checkpoints.files import content_sha256, files_sha256
from specgate.checkpoints.heads.tensors import Wanted, check_tensors
from specgate.errors import CheckpointError
from tests.checkpoints.folders import Tensors


@pytest.fixture
def tensors() -> Tensors:
    return {
        "a": torch.arange(6.0).view(2, 3),
        "b": torch.ones(4, dtype=torch.bfloat16),
        "c": torch.arange(3),
        "d": torch.tensor([True, False]),
    }


def write_shards(folder: Path, tensors: Tensors) -> None:
    names = sorted(tensors)
    shards = {"model-1.safetensors": names[:2], "model-2.safetensors": names[2:]}
    for shard, rows in shards.items():
        save_file({name: tensors[name] for name in rows}, folder / shard)
    weight_map = {name: shard for shard, rows in shards.items() for name in rows}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def write(folder: Path, layout: str, tensors: Tensors) -> None:
    if layout == "single":
        save_file(tensors, folder / "model.safetensors")
    elif layout == "shards":
        write_shards(folder, tensors)
    else:
        torch.save(tensors, folder / "pytorch_model.bin")


@pytest.mark.parametrize("layout", ["single", "shards", "bin"])
def test_every_layout_gives_back_what_was_written(tmp_path: Path, tensors: Tensors, layout: str) -> None:
    write(tmp_path, layout, tensors)
    files = TensorFiles(tmp_path)
    assert files.entries.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(files.read(name), tensor)
        assert files.entries[name].shape == tuple(tensor.shape)
    assert [files.entries[name].dtype for name in "abcd"] == ["F32", "BF16", "I64", "BOOL"]


def test_a_folder_without_weights_is_refused_with_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no weights\n.*model\.safetensors, .*index\.json or pytorch_model"):
        TensorFiles(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 60, -1])
def test_a_truncated_safetensors_file_is_named(tmp_path: Path, tensors: Tensors, kept: int) -> None:
    file = tmp_path / "model.safetensors"
    save_file(tensors, file)
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a whole safetensors file.*\n.*fetch it again"):
        TensorFiles(tmp_path)


def test_a_truncated_shard_is_named(tmp_path: Path, tensors: Tensors) -> None:
    write_shards(tmp_path, tensors)
    shard = tmp_path / "model-2.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"model-2\.safetensors: not a whole"):
        TensorFiles(tmp_path)


def test_missing_shards_are_named(tmp_path: Path, tensors: Tensors) -> None:
    write_shards(tmp_path, tensors)
    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"index\.json: shards missing: model-1\.safetensors"):
        TensorFiles(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path, tensors: Tensors) -> None:
    write_shards(tmp_path, tensors)
    shard = tmp_path / "model-2.safetensors"
    save_file(load_file(shard) | {"a": tensors["a"]}, shard)
    with pytest.raises(CheckpointError, match=r"model-2\.safetensors: tensor a is also in model-1\.safetensors"):
        TensorFiles(tmp_path)


def test_a_truncated_bin_file_is_named(tmp_path: Path, tensors: Tensors) -> None:
    file = tmp_path / "pytorch_model.bin"
    torch.save(tensors, file)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: not a whole torch file.*\n.*truncated"):
        TensorFiles(tmp_path)


class Payload:
    """Unpickling this would create the file that it names."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("container", ["torch", "pickle"])
def test_code_in_a_bin_file_is_refused_and_not_run(tmp_path: Path, container: str) -> None:
    file, witness = tmp_path / "pytorch_model.bin", tmp_path / "executed"
    if container == "torch":
        torch.save({"a": Payload(witness)}, file)
    else:
        file.write_bytes(pickle.dumps({"a": Payload(witness)}))
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: not a whole torch file of tensors"):
        TensorFiles(tmp_path)
    assert not witness.exists()


def test_a_bin_file_of_anything_but_tensors_is_refused(tmp_path: Path, tensors: Tensors) -> None:
    torch.save({"state_dict": tensors}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"not a flat dictionary of tensors\n.*state dict alone"):
        TensorFiles(tmp_path)


def test_the_hash_is_of_names_and_content(tmp_path: Path, tensors: Tensors) -> None:
    config = tmp_path / "config.json"
    config.write_text("{}")
    save_file(tensors, tmp_path / "model.safetensors")
    first = TensorFiles(tmp_path).sha256(config)
    assert TensorFiles(tmp_path).sha256(config) == first and len(first) == 64
    config.write_text("{ }")
    second = TensorFiles(tmp_path).sha256(config)
    tensors["a"][0, 0] = 7
    save_file(tensors, tmp_path / "model.safetensors")
    assert len({first, second, TensorFiles(tmp_path).sha256(config)}) == 3


def entry(*shape: int, dtype: str = "F32") -> Entry:
    return Entry(Path("file"), shape, dtype)


def test_all_tensors_that_do_not_fit_are_named_in_one_message() -> None:
    data = {"a": entry(2), "b": entry(3), "c": entry(4), "e": entry(5, dtype="U8"), "rope": entry(1), "f": entry(9)}
    wanted = {"a": Wanted((2,)), "b": Wanted((2,), "two"), "d": Wanted((2,)), "e": Wanted((5,)), "g": Wanted(())}
    with pytest.raises(CheckpointError) as error:
        check_tensors(data, wanted, Path("folder"), "rope")
    assert error.value.message == (
        "folder: tensors do not fit the config: missing: d, g; wrong: b is [3], not [2] (two), "
        "e is of type U8, not a float of 16 to 64 bits; left over: c, f"
    )


def test_tensors_that_fit_pass() -> None:
    data = {"a": entry(2, dtype="BF16"), "d2t": entry(3, dtype="I64"), "rope": entry(1)}
    check_tensors(data, {"a": Wanted((2,)), "d2t": Wanted((3,), "", "I64")}, Path("folder"), "rope|x")


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "", "x" * 300, "a\x00b", 5, None, ["a"]])
def test_a_shard_must_be_the_name_of_a_file_beside_the_index(tmp_path: Path, name: object) -> None:
    index = {"weight_map": {"a": name}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json: (weight_map|shards)") as caught:
        TensorFiles(tmp_path)
    assert len(str(caught.value)) < 500 and "\x00" not in str(caught.value)


def test_files_are_hashed_in_their_order_however_many_are_read_at_a_time(tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.safetensors" for i in range(20)]
    for i, file in enumerate(files):
        file.write_bytes(bytes([i]) * (20 - i) * 50_000)
    line_by_line = "".join(f"{f.name} {hashlib.sha256(f.read_bytes()).hexdigest()}\n" for f in files)
    assert files_sha256(files) == hashlib.sha256(line_by_line.encode()).hexdigest()
    assert files_sha256(files[::-1]) != files_sha256(files)


def test_a_file_that_cannot_be_read_ends_the_hashing_of_the_others(tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.safetensors" for i in range(3)]
    for file in files[1:]:
        file.write_bytes(b"there")
    with pytest.raises(FileNotFoundError, match=r"0\.safetensors"):
        files_sha256(files)
    stopped = Event()
    stopped.set()
    assert content_sha256(files[1], stopped) == hashlib.sha256(b"").hexdigest()
