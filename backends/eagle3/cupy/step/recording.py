"""The kernel calls of a step as it makes them, with the operands that it gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from specgate.backends.eagle3.cupy.kernels.loader import LISTENER, Kernel, Launch
from specgate.backends.eagle3.cupy.step.cycle import Cycle


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the launcher at `path` of a step, such as `verify.layer.qkv`; the arguments that it was `named`; and
    the launches that it made. Calling it makes them once more.
    """

    path: str
    kernel: Kernel
    named: Mapping[str, Any]
    launches: list[Launch] = field(default_factory=list)

    @property
    def operands(self) -> Mapping[str, Any]:
        """What it was named, and what its launches were given."""
        given = {name: value for launch in self.launches for name, value in launch.arguments.items()}
        return {**given, **self.named}

    def __call__(self) -> None:
        for launch in self.launches:
            launch()


@dataclass(frozen=True, slots=True)
class Recorder:
    """Listens to the launchers in `paths`, each by its path, and to no others."""

    paths: Mapping[Kernel, str]
    calls: list[Call] = field(default_factory=list)

    def called(self, kernel: Kernel, named: Mapping[str, Any]) -> None:
        if kernel in self.paths:
            self.calls.append(Call(self.paths[kernel], kernel, named))

    def launched(self, launch: Launch) -> None:
        if launch.kernel in self.paths:
            call = self.calls[-1]
            assert call.kernel is launch.kernel, f"{launch.name}: launched outside of a call of its launcher"
            call.launches.append(launch)


@contextmanager
def recorded(cycle: Cycle) -> Iterator[list[Call]]:
    """While this is open, the calls of the launchers of `cycle` are added to the list; they launch as always."""
    recorder = Recorder({kernel: path for path, kernel in cycle.kernels().items()})
    token = LISTENER.set(recorder)
    try:
        yield recorder.calls
    finally:
        LISTENER.reset(token)
