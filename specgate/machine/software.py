"""The software that a run rests on: source tree, interpreter, packages, CUDA, and plug-ins from outside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specgate.machine.checkout import checkout_with
from specgate.machine.inventory import source_tree_sha256
from specgate.machine.packages import cuda_toolkit, interpreter, packages, torch_cuda
from specgate.machine.plugin_code import taking_part
from specgate.sandbox.isolation import facts as sandbox_facts

NONE: Final = "none"


@dataclass(frozen=True, slots=True)
class Software:
    """Software that a run rests on.

    `facts`: keys of the fingerprint. `source_tree_sha256`, `interpreter`, `torch_cuda` and `cuda_toolkit` are always
        there; `package:NAME` and `plugin:KIND:NAME` where there is such a package or plug-in; `sandbox`
        where engines run in one.
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
        **sandbox_facts(),
    }
    return Software(facts, {plugin.key: plugin.files for plugin in plugins})


def plugin_commits(code: Software) -> dict[str, dict[str, object]]:
    """Return plug-in, by its key → `repository` (the folder's name), `commit` and `dirty` of the git checkout that has
    its code. Plug-ins whose files are in none are left out.
    """
    commits = {}
    for key, files in code.files.items():
        file = Path(next(iter(files), ""))
        if file.name and (checkout := checkout_with(file)):
            commits[key] = {"repository": checkout.top.name, "commit": checkout.commit, "dirty": checkout.changed}
    return commits
