"""Software of this machine: packages, their versions, and the checkout.

Nothing is imported to find out.
"""

from __future__ import annotations

import ast
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from specgate.machine.inventory import source_tree_sha256
from specgate.machine.plugin_code import taking_part

PACKAGES: Final = (
    *("torch", "triton", "numpy", "scipy", "safetensors", "tokenizers", "transformers", "gguf", "aiohttp"),
    *("vllm", "sglang", "tensorrt-llm", "lmdeploy"),
)
"""Distributions that compute, load or time what a figure rests on, in specgate or in an engine of this environment."""
FAMILIES: Final = ("cuda", "cupy", "nvidia")
"""First words of further names: CuPy under each of its names, and the CUDA libraries that come as wheels."""
TOOLKIT: Final = "/usr/local/cuda"
"""Where NVIDIA's installers put a toolkit."""


def packages(also: Iterable[str] = ()) -> dict[str, str]:
    """Distribution → version of what is installed of `PACKAGES`, of `FAMILIES` and of `also`, sorted by name."""
    names = {re.sub(r"[-_.]+", "-", name).lower() for name in (*PACKAGES, *_of_families(), *also)}
    return {name: version for name in sorted(names) if (version := _version(name)) is not None}


def interpreter() -> str:
    """Implementation, version and build of the running interpreter, such as
    `CPython 3.11.7 (main, May 9 2026, 07:35:25) [GCC 12.2.0]`.
    """
    return " ".join(f"{platform.python_implementation()} {sys.version}".split())


def torch_cuda() -> str | None:
    """The CUDA version that torch was built for, from its `version.py`; None without torch or in a build for CPUs."""
    try:
        spec = find_spec("torch")
        tree = ast.parse(Path(spec.origin).with_name("version.py").read_bytes()) if spec and spec.origin else None
    except (OSError, ValueError, SyntaxError):
        return None
    for node in tree.body if tree else ():
        match node:
            case (
                ast.AnnAssign(target=ast.Name(id="cuda"), value=ast.Constant(str(stated)))
                | ast.Assign(targets=[ast.Name(id="cuda")], value=ast.Constant(str(stated)))
            ):
                return stated
    return None


def cuda_toolkit() -> str | None:
    """The CUDA toolkit that is installed apart from Python, and its run-time compiler: `13.0.1, NVRTC 13.0.88`.

    It is what `version.json` in the folder of CUDA_PATH or CUDA_HOME states, or in `TOOLKIT`. None where there is
    none that can be read.
    """
    for folder in (os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), TOOLKIT):
        try:
            stated = json.loads((Path(folder) / "version.json").read_bytes()) if folder else {}
            return f"{stated['cuda']['version']}, NVRTC {stated['cuda_nvrtc']['version']}"
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return None


def _of_families() -> Iterator[str]:
    """Names of installed distributions, from the names of their metadata folders: reading them all takes too long."""
    pattern = re.compile(rf"((?:{'|'.join(FAMILIES)})(?:[-_.]\w+)*)-[^-]+\.(?:dist|egg)-info")
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:  # an archive, or a folder that does not exist
            continue
        yield from (match[1] for name in names if (match := pattern.fullmatch(name)))


def _version(package: str) -> str | None:
    """From the headers of the metadata, which `importlib.metadata.version` would parse with the description below."""
    try:
        package_metadata = distribution(package)
    except PackageNotFoundError:
        return None
    stated = (
        package_metadata.read_text("METADATA")
        or package_metadata.read_text("PKG-INFO")
        or package_metadata.read_text("")
        or ""
    )
    version = re.search(r"^Version:[ \t]*(.*?)[ \t]*$", stated.partition("\n\n")[0], re.MULTILINE | re.IGNORECASE)
    return version[1] if version else None


@dataclass(frozen=True, slots=True)
class Checkout:
    """A folder of a git checkout: its top level, its commit, and whether files differ from that commit."""

    top: Path
    commit: str
    changed: bool


def checkout_of(folder: Path) -> Checkout | None:
    """The git checkout that `folder` lies in; None where there is none, or no git."""
    top = git(folder, "rev-parse", "--show-toplevel")
    commit = git(folder, "rev-parse", "HEAD")
    if top is None or commit is None:
        return None
    status = git(folder, "status", "--porcelain", "--untracked-files=no")
    return Checkout(Path(top), commit, bool(status))


def git(folder: Path, *arguments: str) -> str | None:
    """Output of git in `folder`; None if it fails or there is no git."""
    done = run(folder, *arguments)
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run git in `folder`. Without git or without the folder, the exit code is 127."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, b"", str(error).encode())


NONE: Final = "none"


@dataclass(frozen=True, slots=True)
class Software:
    """Software that a run rests on.

    `facts`: keys of the fingerprint. `source_tree_sha256`, `interpreter`, `torch_cuda` and `cuda_toolkit` are always
        there; `package:NAME` and `plugin:KIND:NAME` where there is such a package or plug-in.
    `files`: plug-in, by its key → path → SHA-256 of that file.
    """

    facts: Mapping[str, str]
    files: Mapping[str, Mapping[str, str]]


def software(backends: Iterable[str], gates: Iterable[str]) -> Software:
    """The software of a run that `backends` take part in and `gates` judge, read anew from the files.

    Raises EnvironmentRefused where a file of a plug-in cannot be read.
    """
    plugins = taking_part(backends, gates)
    required = {name for plugin in plugins for name in plugin.requires}
    facts = {
        "source_tree_sha256": source_tree_sha256(),
        "interpreter": interpreter(),
        "torch_cuda": torch_cuda() or NONE,
        "cuda_toolkit": cuda_toolkit() or NONE,
        **{f"package:{name}": version for name, version in packages(required).items()},
        **{plugin.key: plugin.said for plugin in plugins},
    }
    return Software(facts, {plugin.key: plugin.files for plugin in plugins})


def plugin_commits(code: Software) -> dict[str, dict[str, object]]:
    """Return plug-in, by its key → `repository` (the folder's name), `commit` and `dirty` of the git checkout that has
    its code. Plug-ins whose files are in none are left out.
    """
    commits = {}
    for key, files in code.files.items():
        file = Path(next(iter(files), ""))
        tracked = file.name and git(file.parent, "ls-files", "--error-unmatch", file.name) is not None
        if tracked and (checkout := checkout_of(file.parent)):
            commits[key] = {
                "repository": checkout.top.name,
                "commit": checkout.commit,
                "dirty": checkout.changed,
            }
    return commits
