"""The documentation: links resolve, paths exist, the index has no gaps, and tables have what the code has."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for

from specgate.backends.servers.engines import ADAPTERS, TITLES
from specgate.contract import Run
from specgate.files.json_text import to_plain
from specgate.files.run_schema import SCHEMA_VERSION
from specgate.files.yamlfile import load
from tests import key_tables
from tests.key_tables.nouns import schema as schema_of
from tests.key_tables.variables import VARIABLES
from tests.support.command import ROOT
from tests.support.kept_runs import KEPT, RESULTS, file_of
from tests.support.loaded import loaded_run

pytestmark = pytest.mark.engine  # documents of both houses

DOCS = ROOT / "docs"
ENGINE = ROOT / "backends" / "eagle3"
"""The engine's house, which has documents and an index of its own."""
FOLDERS = ("specgate", "backends", "gates", "reports", "scenarios", "tests", "bench", "docs", ".ci")
"""At the top level: what a path in the documentation may begin with."""
CODE = ("specgate", "backends", "gates", "reports", "tests", "bench")
PLACEHOLDER = re.compile(r"[A-Z]{2,}|[<…]")
"""A part of a path that stands for a name of the reader's."""
LARGEST = 6_000_000
"""Bytes of all stored results together: they are in every clone."""


def pages() -> list[Path]:
    """Everything that is written by hand. What a run or a command wrote is a record, but for the README beside it."""
    files = [file for file in DOCS.rglob("*.md") if RESULTS not in file.parents or file == RESULTS / "README.md"]
    engine = [ENGINE / "README.md", *(ENGINE / "docs").rglob("*.md")]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(files), *sorted(engine)]


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


@cache
def text_of(file: Path) -> str:
    """Without what stands in fences: examples hold no links and no headings."""
    return re.sub(r"^```.*?^```", "", file.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@cache
def anchors_of(file: Path) -> frozenset[str]:
    """The names that GitHub gives to the headings of a page; a second heading of one name gets a number."""
    results = dict[str, int]()
    anchors = set[str]()
    for heading in re.findall(r"^#+ +(.+?) *$", text_of(file), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        seen = results.get(slug, 0)
        results[slug] = seen + 1
        anchors.add(f"{slug}-{seen}" if seen else slug)
    return frozenset(anchors)


def links_of(file: Path) -> Iterator[str]:
    """Targets of its relative links."""
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text_of(file))):
        if not re.match(r"[a-z]+:", target):
            yield target


def broken(file: Path) -> Iterator[str]:
    for link in links_of(file):
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        if not target.exists():
            yield f"{link}: no such file"
        elif anchor and anchor not in anchors_of(target):
            yield f"{link}: no such heading in {name_of(target)}"


def paths_of(file: Path) -> Iterator[str]:
    """Inline code that is a path of this repository."""
    for code in re.findall(r"`([^`\n]+)`", text_of(file)):
        first, *words = code.split()
        if not words and first.split("/")[0] in FOLDERS and "/" in first:
            yield first


def exists(path: str) -> bool:
    """Of a path with a placeholder, the folder that it names."""
    parts = path.split("/")
    fixed = next((i for i, part in enumerate(parts) if PLACEHOLDER.search(part) and part != "README.md"), len(parts))
    kept = "/".join(parts[:fixed])
    return any(ROOT.glob(kept)) if "*" in kept else (ROOT / kept).exists()


@cache
def sources() -> dict[Path, str]:
    files = [file for folder in CODE for file in (ROOT / folder).rglob("*.py")]
    scripts = [ROOT / "run_suite.sh", *(ROOT / "tests").rglob("*.sh")]
    return {file: file.read_text(encoding="utf-8") for file in (*files, *scripts)}


def variables_of(file: Path, source: str) -> Iterator[str]:
    """Environment variables that a Python file reads or sets by name; that a script takes from outside, or exports."""
    if file.suffix == ".sh":
        yield from re.findall(r"\$\{([A-Z][A-Z0-9_]*):[-+?]", source)
        for exported in re.findall(r"^\s*export (.+)$", source, re.MULTILINE):
            yield from re.findall(r"\b([A-Z][A-Z0-9_]*)=", exported)
        return
    if "environ" not in source and "getenv" not in source:
        return
    tree = ast.parse(source)
    constants = {name: value for node in tree.body for name, value in strings(node)}
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Attribute(attr="environ"), slice=key):
                pass
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="environ")), args=[key, *_]):
                pass
            case ast.Call(func=ast.Attribute(attr="getenv"), args=[key, *_]):
                pass
            case _:
                continue
        match key:
            case ast.Constant(value=str(name)):
                yield name
            case ast.Name(id=constant) if constant in constants:
                yield constants[constant]


def strings(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """Names that a statement gives to strings."""
    match node:
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(value))):
            yield name, value
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(value))):
            yield name, value
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            for target, given in zip(names, values, strict=True):
                if isinstance(target, ast.Name) and isinstance(given, ast.Constant) and isinstance(given.value, str):
                    yield target.id, given.value


@pytest.mark.parametrize("file", pages(), ids=name_of)
def test_every_link_leads_to_a_file_and_every_anchor_to_a_heading(file: Path) -> None:
    assert list(broken(file)) == []


@pytest.mark.parametrize("file", pages(), ids=name_of)
def test_every_path_of_this_repository_exists(file: Path) -> None:
    assert [path for path in paths_of(file) if not exists(path)] == []


@pytest.mark.parametrize("file", pages(), ids=name_of)
def test_every_module_to_run_and_every_kernel_file_exists(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    modules = set(re.findall(r"python3? -m\s+((?:tests|specgate|bench)\.[\w.]+\w)", text))
    places = {module: ROOT / module.replace(".", "/") for module in modules}
    assert [
        m for m, at in places.items() if not (at.with_suffix(".py").is_file() or (at / "__main__.py").is_file())
    ] == []
    kernels = {path.name for path in (ROOT / "backends").rglob("*.cu*")}
    assert set(re.findall(r"`(\w+\.cuh?)`", text)) - kernels == set()


def test_a_broken_link_a_missing_heading_and_a_stale_path_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n## One\n[a](page.md#one-1) [b](gone.md) [c](#nowhere) `docs/gone.md` `docs/README.md`\n")
    faults = [fault.split(":")[0] for fault in broken_at(page, tmp_path)]
    assert faults == ["gone.md", "#nowhere"]
    assert [path for path in paths_of(page) if not exists(path)] == ["docs/gone.md"]
    assert exists("docs/results/RUN/run.json") and not exists("docs/gone/NAME.md")


def broken_at(page: Path, root: Path) -> list[str]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tests.test_docs.ROOT", root)
        return list(broken(page))


def test_the_index_names_every_document() -> None:
    for index, house in ((DOCS / "README.md", DOCS), (ENGINE / "README.md", ENGINE)):
        indexed = {(index.parent / link.partition("#")[0]).resolve() for link in links_of(index)}
        assert {page for page in pages() if house in page.parents} - {index} <= indexed


def test_tables_written_by_hand_have_every_extra_and_every_server() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    readme, sampling = text_of(ROOT / "README.md"), text_of(DOCS / "sampling.md")
    assert [extra for extra in extras if extra not in ("dev", "browser") and f"`{extra}`" not in readme] == []
    titles = {**TITLES, "openai": "`openai`"}
    assert [name for name in ADAPTERS if f"\n| {titles[name]} |" not in sampling] == []


def test_no_entry_of_the_changelog_has_more_than_forty_words() -> None:
    entries = [line[2:] for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("- ")]
    assert [entry for entry in entries if len(entry.split()) > 40] == []


def test_every_environment_variable_that_is_read_or_set_is_declared_and_no_other() -> None:
    used = {name for file, source in sources().items() for name in variables_of(file, source)}
    assert {"SPECGATE_CACHE", "SPECGATE_VLLM", "GITHUB_STEP_SUMMARY", "MODEL_PATH"} <= used
    declared = {name for names in VARIABLES.values() for name in names}
    assert used - declared == {"PATH"}
    others = "\n".join(source for file, source in sources().items() if file.parent.name != "key_tables")
    assert {name for name in declared if name not in others} == set()


def test_tables_of_keys_and_schemas_are_those_of_the_nouns() -> None:
    written = dict(key_tables.written())
    assert {DOCS / "reference.md", DOCS / "schemas" / "run.json"} <= written.keys()
    stale = [name_of(file) for file, text in written.items() if file.read_text(encoding="utf-8") != text]
    assert not stale, f"python -m tests.key_tables --write would change {', '.join(stale)}"


def validator_of(name: str) -> Validator:
    """Of one kind of file. Its schema is checked once, which takes longer than a file."""
    kind = validator_for(schema := schema_of(name))
    kind.check_schema(schema)
    return kind(schema)


@pytest.mark.parametrize(("name", "folder"), [("scenario", "scenarios"), ("policy", "gates/policies")])
def test_every_shipped_file_fits_its_schema(name: str, folder: str) -> None:
    schema = validator_of(name)
    for file in sorted((ROOT / folder).rglob("*.yaml")):
        schema.validate(load(file).data)
    assert not schema.is_valid({"kind": 3, "unreachable": 3})


def test_a_run_fits_its_schema() -> None:
    plain = json.loads(json.dumps(to_plain(Run, loaded_run())))
    schema = validator_of("run")
    schema.validate(plain)
    assert not schema.is_valid({**plain, "cells": 3})


def test_every_stored_run_backs_a_claim_and_has_the_schema_of_today() -> None:
    linked = {(RESULTS / link).resolve() for link in links_of(RESULTS / "README.md")}
    assert [name for name in KEPT if RESULTS / name not in linked] == []
    assert {json.loads(file_of(name, "run.json"))["schema_version"] for name in KEPT} == {SCHEMA_VERSION}


def test_no_stored_run_lies_open() -> None:
    """What is verified and counted among the stored runs is packed."""
    assert [file.relative_to(RESULTS) for file in RESULTS.rglob("run.json")] == []


def test_stored_results_stay_small() -> None:
    assert sum(file.stat().st_size for file in RESULTS.rglob("*") if file.is_file()) < LARGEST
