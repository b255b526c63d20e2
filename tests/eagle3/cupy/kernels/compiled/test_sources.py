"""Rules for the source of a kernel, and the compiler's message for a wrong one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specgate.backends.eagle3.cupy.kernels import loader
from specgate.backends.eagle3.cupy.kernels.attention.attention import Attention, TreeNodes
from specgate.backends.eagle3.cupy.kernels.attention.kept_blocks import KeptBlocks
from specgate.backends.eagle3.cupy.kernels.heads import Heads
from specgate.backends.eagle3.cupy.kernels.loader import ENTRY, FOLDER, Spec, kernel_files, with_headers
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import Epilogue, MatmulRows
from specgate.backends.eagle3.cupy.kernels.prefill.launchers import PrefillHeads
from specgate.backends.eagle3.cupy.kernels.rows.launchers import EmbedRows, FeatureCapture
from specgate.backends.eagle3.lib.kv.modes import MODES
from tests.eagle3.cupy.kernels.compiled.compiler import outcomes, with_constant
from tests.eagle3.cupy.kernels.launches import compiled_text

HEADS = Heads(8, 2, 64, 500)
CHAIN = Attention(HEADS, 4)


def test_a_field_is_in_the_struct_of_those_kernels_alone_that_are_compiled_for_it() -> None:
    plain = [field.name for field in CHAIN.operands_of("attention").fields]
    own = {
        "tree": Attention(HEADS, 4, tree=TreeNodes(0, 4, 3)),
        "fp8": Attention(replace(HEADS, kv="fp8"), 4),
        "nvfp4": Attention(replace(HEADS, kv="nvfp4"), 4),
        "part": Attention(HEADS, 4, kept=KeptBlocks(1, 2, 3, 4)),
        "joins": Attention(HEADS, 4, 64, sinks=True, may_join=True),
    }
    names = {name: {field.name for field in kernel.operands_of("attention").fields} for name, kernel in own.items()}
    assert {name: fields - {*plain} for name, fields in names.items()} == {
        "tree": {"masks"},
        "fp8": {"scales"},
        "nvfp4": {"scales"},
        "part": {"kept", "dropped"},
        "joins": {"out", "sinks", "finished"},
    }
    assert all({*plain} < fields for fields in names.values()) and len({*plain}) == len(plain)
    lines = {kernel.spec.source.count("\n") for kernel in (CHAIN, *own.values())}
    assert len(lines) == 1, "an error has to be reported in its own line"


def test_what_is_compiled_for_a_chain_over_a_whole_cache_has_no_other_part() -> None:
    chain = compiled_text(CHAIN.spec)
    assert (
        "find_paths" in compiled_text(Attention(HEADS, 4, tree=TreeNodes(0, 4, 3)).spec) and "find_paths" not in chain
    )
    assert not re.search("TREE_|SINK_BLOCKS|RETRIEVED", chain.replace("TREE_ROWS", ""))
    embed, capture = EmbedRows(64, 4, 6), FeatureCapture(64, 3, 4, 6)
    assert not any("verified" in compiled_text(kernel.spec) for kernel in (embed, capture))


def test_what_is_compiled_for_a_cache_in_bfloat16_has_nothing_of_codes() -> None:
    for plain, *narrow in (
        [Attention(replace(HEADS, kv=kv), 4).spec for kv in MODES],
        [PrefillHeads(8, 2, 64, kv=kv).spec for kv in MODES],
    ):
        text, *coded = map(compiled_text, (plain, *narrow))
        assert all("fp8_code" in of for of in coded) and "fp8_code" not in text
        assert "BlockScale" in coded[1] and "BlockScale" not in coded[0]
        assert not re.search("scale_of|dequantised|E4M3|BlockScale", text)
        assert not any(name.startswith("KV_") and name != "KV_HEADS" for name, _ in plain.constants)


def test_no_two_kernel_files_have_the_same_name() -> None:
    assert len(kernel_files()) == sum(file.suffix in (".cu", ".cuh") for file in FOLDER.rglob("*")) > 0


def test_every_kernel_waits_for_the_one_before_it_since_it_may_be_started_early() -> None:
    early = set()
    for file in (file for file in kernel_files().values() if file.suffix == ".cu"):
        _, *parts = ENTRY.split(file.read_text(encoding="utf-8"))
        for name, kernel in zip(parts[::2], parts[1::2], strict=True):
            before, waits, _ = kernel.partition("\n    await_previous();\n")  # whatever else holds
            assert waits, f"{file.name}: a kernel that does not wait may run before its input is written"
            if "let_next_start" in before:
                early.add(name)
    assert early == {"matmul_rows", "matmul_many", "matmul_wgmma", "attention_combine", "all_reduce"}, (
        "what dependent.cuh says of products holds for no other kernel"
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            Spec.of("embed_rows", {"hidden": 100, "rows": 1, "max_rows": 1, "threads": 128}),
            r"HIDDEN must be a multiple of 8",
        ),
        (Attention(Heads(3, 1, 96, 128), 1).spec, r"HEAD_DIM must be 64 or 128"),
        (MatmulRows(64, 48, Epilogue.PLAIN, 1).spec, r"K_IN must be a multiple of 32"),
        (
            Spec.of("feature_rows", {"hidden": 64, "features": 3, "norm": 3, "rows": 4, "max_rows": 6, "threads": 256}),
            r"NORM: 0 none, 1 each stream, 2 all streams",
        ),
        (
            with_constant(MatmulRows(64, 64, Epilogue.SWIGLU, 1).spec, "TAKES_ARGMAX", 1),
            r"TAKES_ARGMAX needs results as they are: EPILOGUE PLAIN",
        ),
        (
            with_constant(MatmulRows(64, 64, Epilogue.SWIGLU, 1).spec, "HAS_BIAS", 1),
            r"HAS_BIAS needs one sum per result: EPILOGUE PLAIN or RESIDUAL",
        ),
    ],
)
def test_a_size_that_no_kernel_is_made_for_is_refused_with_a_sentence(spec: Spec, message: str) -> None:
    (outcome,) = outcomes("sm_80", [spec])
    assert not outcome.compiled
    assert re.search(rf"^{spec.stem}\.cu\(\d+\): .*{message}", outcome.log, re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the kernels, to edit."""
    copy = tmp_path / "kernels"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    monkeypatch.setattr(loader, "FOLDER", copy)
    with_headers.cache_clear()
    yield copy
    with_headers.cache_clear()


def test_an_edit_to_a_header_changes_the_source_and_so_the_cached_binarys_key(folder: Path) -> None:
    before = with_headers("draft_input.cu")
    block = kernel_files()["block.cuh"]
    block.write_text(block.read_text() + "// another line\n")
    with_headers.cache_clear()
    assert with_headers("draft_input.cu") != before


def test_a_header_comes_once_however_often_it_is_included(folder: Path) -> None:
    (folder / "a.cuh").write_text('#pragma once\n#include "b.cuh"\nint a;\n')
    (folder / "b.cuh").write_text("#pragma once\nint b;\n")
    (folder / "main.cu").write_text('#include "a.cuh"\n#include "b.cuh"\n#include "a.cuh"\nint c;\n')
    lines = with_headers("main.cu").splitlines()
    assert [line for line in lines if line.startswith("int")] == ["int b;", "int a;", "int c;"]
    assert not any(line.startswith(("#include", "#pragma")) for line in lines)


@pytest.mark.parametrize(
    "file", ["bf16.cuh", "block.cuh", "norm.cuh", "argmax.cuh", "draft_row.cuh", "slots.cuh", "draft_token.cu"]
)
def test_an_error_is_reported_in_its_own_file_and_line(folder: Path, file: str) -> None:
    main, edited = kernel_files()["draft_token.cu"], kernel_files()[file]
    assert edited.is_relative_to(folder)
    # Twice: an include that is left out must not shift what follows it.
    main.write_text(main.read_text().replace('#include "slots.cuh"', '#include "slots.cuh"\n#include "norm.cuh"'))
    text = edited.read_text()
    edited.write_text(f"{text}typedef unknown planted;\n")
    constants = {"hidden": 64, "draft_vocab": 96, "max_rows": 4, "threads": 256}
    switches = {"norm_output": 0, "norm_before_residual": 0}
    (outcome,) = outcomes("sm_80", [Spec.of("draft_token", {**constants, **switches})])
    errors = re.findall(r"^(\S+)\((\d+)\): error", outcome.log, re.MULTILINE)
    assert errors == [(file, str(text.count("\n") + 1))]
