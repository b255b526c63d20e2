"""Acceptance that an earlier run measured, forced in this one: `-o force_al=RUN`, or `RUN[category]`.

Engines take a number of tokens per step. It is the acceptance length of the run's spec cells of one draft length,
pooled over steps, or that of one category of its prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Final

from specgate.contract import CellResult, Run, Scenario
from specgate.errors import UsageError
from specgate.files.run_folder import RUN, RunFolder
from specgate.files.writing import sha256_of
from specgate.planning.request import Request

OPTION: Final = "force_al"
MEASURED: Final = ("real", "planted")
"""Sources of acceptance that a run measured."""


@dataclass(frozen=True, slots=True)
class Forced:
    """The acceptance length of spec-`k` that the run in `folder` measured; of one category of its prompts, or None."""

    folder: Path
    category: str | None
    k: int
    length: float

    @property
    def option(self) -> str:
        """The value that the option has then."""
        return f"{self.length:.6g}"

    @property
    def in_words(self) -> str:
        """A sentence for the new run, which says where the length comes from."""
        of = f" on {self.category} prompts" if self.category else ""
        digest = sha256_of(self.folder / RUN)[:12]
        measured = f"{self.folder.resolve().name} measured it{of} (run.json {digest}…)"
        return f"acceptance of spec-{self.k} is forced to a length of {self.option}, as {measured}"

    def check(self, scenarios: Iterable[Scenario]) -> None:
        """Raise UsageError where a scenario has another draft length."""
        for scenario in scenarios:
            if scenario.grid.spec != (self.k,):
                roles = ", ".join(f"spec-{k}" for k in scenario.grid.spec)
                message = f"{OPTION}: {self.folder} measured spec-{self.k}, and {scenario.name} has {roles}"
                raise UsageError(message, hint=f"--spec {self.k}")


def forced_of(request: Request) -> Forced | None:
    """The acceptance that a command line forces as an earlier run measured it; None where it names no run.

    Raises UsageError where what it names is no run, or has no such acceptance.
    """
    value = request.options.get(OPTION)
    if value is None or is_number(value):
        return None
    folder, category = run_and_category(value)
    run, spec = stored(value, folder), request.question.spec
    if run.acceptance not in MEASURED:
        raise UsageError(f"-o {OPTION}={value}: its acceptance is {run.acceptance}, not measured")
    cells = [c for c in run.cells if c.acceptance and c.acceptance.steps and (not spec or c.cell.role.k in spec)]
    lengths = sorted({c.cell.role.k for c in cells})
    if len(lengths) != 1:
        known = ", ".join(f"spec-{k}" for k in lengths) or "no spec cell with a draft"
        message = f"-o {OPTION}={value}: one acceptance length is forced, and the run has {known}"
        raise UsageError(message, hint="--spec K says of which draft length")
    length = of_category(value, cells, category) if category else pooled(cells)
    return Forced(folder, category, lengths[0], length)


def run_and_category(value: str) -> tuple[Path, str | None]:
    """The folder and the category in `RUN[category]`; a folder of that very name comes first."""
    path = Path(value).expanduser()
    if path.is_dir() or not value.endswith("]") or "[" not in value:
        return path, None
    folder, _, category = value[:-1].rpartition("[")
    return Path(folder).expanduser(), category


def stored(value: str, path: Path) -> Run:
    """The run in a folder. Raises UsageError where there is none."""
    if not (path / RUN).is_file():
        raise UsageError(
            f"-o {OPTION}={value}: neither a number nor a run folder", hint="tokens per step, or a run that has them"
        )
    return RunFolder.open(path, read_only=True).read_run()


def pooled(cells: Sequence[CellResult]) -> float:
    """The acceptance length over the steps of all cells, each of which has some with a draft."""
    length = reduce(add, [c.acceptance for c in cells if c.acceptance]).acceptance_length
    assert length is not None
    return length


def of_category(value: str, cells: Sequence[CellResult], category: str) -> float:
    """The acceptance length of a category, which one cell has."""
    name = f"acceptance_length[{category}]"
    lengths = [figure.value for c in cells if (figure := c.values.get(name)) and figure.value is not None]
    if len(lengths) != 1:
        known = dict.fromkeys(n[18:-1] for c in cells for n in c.values if n.startswith("acceptance_length["))
        raise UsageError(
            f"-o {OPTION}={value}: {len(lengths)} cells have the category {category!r}",
            hint=f"its categories: {', '.join(known) or 'none'}",
        )
    return lengths[0]


def is_number(text: str) -> bool:
    """True if the text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
