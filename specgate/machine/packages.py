"""Versions of the interpreter, of installed packages and of CUDA, from package metadata and from files.

Nothing is imported to find out.
"""

from __future__ import annotations

import ast
import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Final

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
