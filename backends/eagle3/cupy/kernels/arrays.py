"""Arrays in the GPU's memory: a dataclass that declares each with its dtype and shape, and allocates all of them.

    length: Annotated[Tensor, "int32 [S]"]
    maxima: Annotated[Tensor | None, "int32 [S, WORDS] if !DYNAMIC"] = None

Shapes and conditions are written in sizes, as those of a kernel's operands are.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final, Self, get_type_hints

import torch

from specgate.backends.eagle3.cupy.kernels.operands import python

DECLARED: Final = re.compile(r"(\w+) \[(.*)\](?: if (.*))?")


class Arrays:
    """A dataclass of tensors."""

    __slots__ = ()

    @classmethod
    def zeros(cls, device: torch.device | str, **given: Any) -> Self:
        """Allocate every declared array that is not `given`, filled with zeros. Names in capitals are sizes."""
        sizes = {name: value for name, value in given.items() if name.isupper()}
        made = {name: value for name, value in given.items() if not name.isupper()}
        for name, (dtype, shape, condition) in cls.declared().items():
            if name not in made and eval(condition, {}, sizes):
                made[name] = torch.zeros(eval(shape, {}, sizes), dtype=dtype, device=device)
        return cls(**made)

    @classmethod
    @cache
    def declared(cls) -> dict[str, tuple[torch.dtype, str, str]]:
        """Name → dtype, shape and condition of each declared array."""
        made = dict[str, tuple[torch.dtype, str, str]]()
        for name, hint in get_type_hints(cls, include_extras=True).items():
            for text in getattr(hint, "__metadata__", ()):
                dtype, shape, condition = re.findall(DECLARED, text)[0]
                made[name] = getattr(torch, dtype), python(f"({shape},)"), python(condition or "True")
        return made
