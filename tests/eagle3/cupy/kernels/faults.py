"""Faults that are planted in a kernel, for tests that have to see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from specgate.backends.eagle3.cupy.kernels.loader import Kernel, Spec
from specgate.backends.eagle3.cupy.step.token_draw import Rejection


class Faulty(Spec):
    """A kernel file with one place of its text replaced."""

    was: str
    becomes: str

    @property
    def source(self) -> str:
        text = super().source
        assert text.count(self.was) == 1
        return text.replace(self.was, self.becomes)


def planted(kernel: Kernel, was: str, becomes: str) -> None:
    """Plant a fault in `kernel`, before its first launch."""
    spec = type("Faulty", (Faulty,), {"was": was, "becomes": becomes})
    kernel.spec = spec(kernel.spec.stem, kernel.spec.constants)


REJECTION: Final[Mapping[str, Callable[[Rejection], None]]] = {
    "accepts whatever is drafted": lambda r: planted(r.verify, "* q < p;", "* 0 < q + p;"),
    "forgets the residual": lambda r: planted(r.verify, "return p > q ? p - q : 0;", "return p;"),
    "forgets the draft's share": lambda r: planted(r.verify, "* q < p;", "< p;"),
    "is always greedy": lambda r: planted(r.verify, "if (!finite) return;", "return;"),
}
