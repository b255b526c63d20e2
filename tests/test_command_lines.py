"""What documents and workflows tell people to type: commands, options, values and names that exist, and no
installation of somebody else's package.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
import yaml

from specgate import plugins
from specgate.backends.offline import options as offline
from specgate.backends.offline.libraries import LIBRARIES
from specgate.backends.servers import options as servers
from specgate.backends.servers.engines import adapter_named
from specgate.cli import cli
from specgate.errors import UsageError
from specgate.planning.policy import FOR_CONTRASTS, find_policy
from specgate.planning.scenario import find
from tests.support.command import ROOT
from tests.support.example_packages import FOLDERS
from tests.support.fences import blocks, command_lines, mentioned, typed
from tests.test_docs import name_of, pages

pytestmark = pytest.mark.engine  # documents of both houses

PAGES = pages()
NAME = re.compile(r"[a-z][a-z0-9-]*(\.\d[a-z0-9.-]*)?")
"""A name, and neither a file nor what stands for one."""
WORKFLOWS = sorted((ROOT / "docs" / "examples").glob("*.yml"))
SERVERS = ("vllm", "sglang", "trtllm", "lmdeploy", "llamacpp")
OUTSIDE = ("counting", "mine")
"""Back ends of the examples."""

INSTALL = re.compile(
    r"\b(?:(?:pip3?|pipx|uv|conda|mamba)\b[^\n|;&]*?\b(?:install|add|run|wheel|download)|poetry add|uvx)\b"
    r"(?P<what>[^\n|;&`]*)"
)
STRANGER = re.compile(r"""['"]?specgate(?:-bench)?(?:\[[\w,]+\])?(?:[=<>~!]=?[\w.*]+)?['"]?[,.)]?""")
"""A bare name, where an installer would look it up in an index; a path or a wheel is none."""


def faults(words: list[str], *, whole: bool, root: click.Command = cli) -> Iterator[str]:
    """Yield the faults of a command line. `whole`: it must be complete, as in a block; a mention need not be."""
    command = root
    context = click.Context(root, info_name="specgate")
    while isinstance(command, click.Group):
        below = command.get_command(context, words[0]) if words else None
        if not words or words[0].startswith("-") or below is None:
            if words and not words[0].startswith("-"):
                yield f"no command {words[0]!r} of {context.command_path}"
            return
        command = below
        context = click.Context(command, info_name=words[0], parent=context)
        words = words[1:]
    try:
        values, rest, _ = command.make_parser(context).parse_args(list(words))
    except click.UsageError as error:
        if whole or not error.format_message().endswith("requires an argument."):
            yield error.format_message()
        return
    if any(word != "…" for word in rest):
        yield f"unexpected {rest} of {context.command_path}"
    for parameter in command.params:
        value = values.get(parameter.name or "")
        if not isinstance(value, str | list) or isinstance(parameter.type, click.Path):
            if whole and parameter.required and not value and "…" not in words:
                yield f"{context.command_path} needs {parameter.opts[0]}"
        elif not re.search(r"\b[A-Z]\b|[A-Z]{2}|…|^N$", str(value)):
            try:
                parameter.type_cast_value(context, value)
            except click.UsageError as error:
                yield error.format_message()
    yield from unknown_names(values)


def unknown_names(values: dict[str, object]) -> Iterator[str]:
    """Back ends, their options, scenarios and policies that nobody knows."""
    name = values.get("backend")
    if isinstance(name, str) and name not in (*plugins.registered("specgate.backends"), *OUTSIDE, "NAME"):
        yield f"no back end {name!r}"
    for option in values.get("options") or ():  # type: ignore[attr-defined]
        try:
            check_option(str(name), str(option).partition("=")[0])
        except UsageError as error:
            yield str(error)
    scenarios, policy = values.get("scenarios") or values.get("scenario") or (), values.get("policy")
    named = [scenarios] if isinstance(scenarios, str) else list(scenarios)  # type: ignore[call-overload]
    for look_up, names in ((scenario_fault, named), (policy_fault, [policy] if policy else [])):
        yield from filter(None, map(look_up, filter(NAME.fullmatch, map(str, names))))


@cache
def scenario_fault(name: str) -> str | None:
    try:
        find(name)
    except UsageError as error:
        return str(error)
    return None


@cache
def policy_fault(name: str) -> str | None:
    if (FOR_CONTRASTS / f"{name}.yaml").is_file():  # policies of two runs lie apart
        return None
    try:
        find_policy(name, plugins.gates())
    except UsageError as error:
        return str(error)
    return None


def check_option(backend: str, key: str) -> None:
    """Raise UsageError for an option that this back end does not know."""
    if backend in SERVERS:
        servers.check_key(key, tuple(adapter_named(backend).own_options))
    elif library := LIBRARIES.get(backend):
        offline.check_key(key, library.prefix, (*offline.PLAIN, *library.own_options))


def installations(text: str) -> Iterator[str]:
    """Return commands that would install specgate by name from a package index, which has it under neither name."""
    for line in text.replace("\\\n", " ").splitlines():
        for match in INSTALL.finditer(line) if "specgate" in line else ():
            if any(STRANGER.fullmatch(word) for word in match["what"].split()):
                yield match[0].strip()


@pytest.mark.parametrize("file", PAGES, ids=name_of)
def test_every_command_line_of_a_document_can_be_typed(file: Path) -> None:
    result = [(words, True) for words in typed(file)] + [(words, False) for words in mentioned(file)]
    assert [(words, fault) for words, whole in result for fault in faults(words, whole=whole)] == []


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda f: f.name)
def test_every_command_line_of_a_workflow_can_be_typed(file: Path) -> None:
    jobs = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"].values()
    scripts = [re.sub(r"\$\{\{.*?\}\}|\$\{.*?\}", "X", step.get("run", "")) for job in jobs for step in job["steps"]]
    result = [words for script in scripts for words in command_lines(script)]
    assert len(result) > 1
    assert [(words, fault) for words in result for fault in faults(words, whole=True)] == []


def test_the_documents_have_command_lines_at_all() -> None:
    assert sum(len(list(typed(file))) for file in PAGES) > 100
    assert sum(len(list(mentioned(file))) for file in PAGES) > 50


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("specgate micor", "no command 'micor' of specgate"),
        ("specgate micro --contxt 8K", "No such option"),
        ("specgate micro --context eight", "'eight'"),
        ("specgate micro --backend", "requires an argument"),
        ("specgate micro --backend vlm", "no back end 'vlm'"),
        ("specgate micro --backend vllm -o programme=x", "option programme: not known (did you mean program?)"),
        ("specgate micro --backend vllm-offline -o lllm.x=1", "option lllm.x: not known"),
        ("specgate micro --scenario cpu-1k-singel", "cpu-1k-singel"),
        ("specgate micro --policy seeed", "seeed"),
        ("specgate runs verify A B", "unexpected ['B']"),
        ("specgate engine export OUT", "needs --format"),
        ("venv/bin/specgate engine plant --geometry tiny OUT", "needs --accept-length"),
        ("docker run --rm -v a:b specgate:cpu micro --specc 3", "No such option"),
        ("for a in 1 2; do specgate full --spec 99; done", "99"),
    ],
)
def test_what_cannot_be_typed_is_seen(line: str, fault: str) -> None:
    (words,) = command_lines(line)
    (result,) = faults(words, whole=True)
    assert fault in result


def test_command_lines_are_read_as_a_shell_reads_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One\n```sh\nA=1 specgate runs verify RUN > f && specgate scenarios plan --only 'a b' \\\n --plain # a\n"
        "cat > f <<'END'\nspecgate nothing\nEND\necho specgate\n```\n"
        "## Two\n```console\n$ specgate full --status\nspecgate said\n```\n"
        "Type `specgate diagnose trace FILE [--json]`.\n"
    )
    assert list(typed(page)) == [
        ["runs", "verify", "RUN"],
        ["scenarios", "plan", "--only", "a b", "--plain"],
        ["full", "--status"],
    ]
    assert list(mentioned(page)) == [["diagnose", "trace", "FILE", "--json"]]
    assert [(block.section, block.language, block.line) for block in blocks(page)] == [
        ("One", "sh", 3),
        ("Two", "console", 12),
    ]


def texts() -> Iterator[Path]:
    """Whatever a reader or a user is shown: documents, examples, workflows, messages and hints, metadata."""
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "pyproject.toml", "run_suite.sh"))
    for folder in ("docs", "specgate", "backends", "gates", "reports", "scenarios"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in (".md", ".py", ".yml", ".yaml", ".toml", ".html", ".sh") or file.name == "Containerfile":
                yield file


def test_nothing_tells_people_to_install_it_by_name_from_a_package_index() -> None:
    """On the public index `specgate` is another project's, and nobody has `specgate-bench`."""
    read = list(texts())
    assert len(read) > 300
    assert [
        (name_of(file), installation)
        for file in read
        for installation in installations(file.read_text(encoding="utf-8"))
    ] == []


def test_the_example_packages_do_not_ask_an_index_for_it_either() -> None:
    import tomllib

    for folder in FOLDERS:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert project["dependencies"] == [], folder


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pip install specgate", True),
        ("run: python -m pip install --quiet 'specgate[torch]'", True),
        ("uv pip install \\\n  specgate==0.1", True),
        ("uvx specgate micro", True),
        ("Install it: `pip install specgate`.", True),
        ("python -m pip wheel --no-deps specgate", True),
        ("python -m pip wheel --no-deps ./specgate", False),
        ("pip install ./specgate", False),
        ("pip install '.[torch]' in specgate's checkout", False),
        ("pip install 'specgate-bench[torch]'", True),
        ('pip install "$(echo dist/specgate_bench-*.whl)[torch]"', False),
        ("pip install uv; specgate micro", False),
        ("uv venv specgate", False),
    ],
)
def test_such_an_installation_is_seen(text: str, expected: bool) -> None:
    assert bool(list(installations(text))) == expected
