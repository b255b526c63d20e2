"""The kernel calls of a step as it makes them, with the operands that it gives them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from specgate.backends.cupy_eagle3.kernels.loader import ARGUMENT, Kernel

PACKAGE = "specgate.backends.cupy_eagle3"


@dataclass(frozen=True, slots=True)
class Launch:
    """What `Kernel.launch` was given."""

    kernel: Kernel
    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: Mapping[str, ARGUMENT]
    keywords: Mapping[str, Any]

    def __call__(self) -> None:
        self.kernel.launch(self.name, self.grid, self.block, self.arguments, **self.keywords)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(a for a in self.arguments.values() if isinstance(a, Tensor))

    def copied(self, largest: int) -> Launch:
        """The same on copies of its tensors, but for those above `largest` bytes, which it shares."""
        return replace(
            self,
            arguments={
                name: a.clone() if isinstance(a, Tensor) and a.nbytes <= largest else a
                for name, a in self.arguments.items()
            },
        )


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the launcher at `path` of a step, such as `verify.layer.qkv`, and the launches that it made."""

    path: str
    kernel: Kernel
    named: Mapping[str, Any]
    launches: tuple[Launch, ...]

    def __call__(self) -> None:
        for launch in self.launches:
            launch()


class Recorded:
    """Stands in the place of a launcher, and notes what it is called with."""

    def __init__(self, path: str, kernel: Kernel, calls: list[Call]) -> None:
        self.path, self.kernel, self.calls = path, kernel, calls

    def __call__(self, *arguments: Any, **keywords: Any) -> None:
        made = list[Launch]()

        def note(
            name: str, grid: Sequence[int], block: Sequence[int], passed: Mapping[str, ARGUMENT], **how: Any
        ) -> None:
            made.append(Launch(self.kernel, name, tuple(grid), tuple(block), passed, how))

        launcher: Any = self.kernel
        named = inspect.signature(launcher).bind(*arguments, **keywords).arguments
        vars(self.kernel)["launch"] = note  # an attribute of the object goes before its class's method
        try:
            launcher(*arguments, **keywords)
        finally:
            del vars(self.kernel)["launch"]
        call = Call(self.path, self.kernel, named, tuple(made))
        self.calls.append(call)
        call()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)


@contextmanager
def recorded(step: object) -> Iterator[list[Call]]:
    """While this is open, every launcher inside `step` notes in the list what it is called with."""
    calls, found = list[Call](), list(launchers(step, ""))
    for owner, name, path, kernel in found:
        vars(owner)[name] = Recorded(path, kernel, calls)
    try:
        yield calls
    finally:
        for owner, name, _, kernel in found:
            vars(owner)[name] = kernel


def launchers(part: object, path: str) -> Iterator[tuple[object, str, str, Kernel]]:
    """Every launcher inside `part`: whose attribute it is, the attribute's name, and the way to it."""
    for name, inner in list(getattr(part, "__dict__", {}).items()):
        here = f"{path}.{name}" if path else name
        if isinstance(inner, Kernel):
            yield part, name, here, inner
        elif type(inner).__module__.startswith(PACKAGE):
            yield from launchers(inner, here)
