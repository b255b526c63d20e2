"""Launches that are checked once: all that the check of operands reads is the key of its result.

The check costs several times what is left of a launch, and a prefill makes the same few launches in every layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from specgate.backends.eagle3.cupy.kernels.operands import ARGUMENT, Operand, Operands

MOST: Final = 1024
"""Results that are kept. A prompt of another length has some of its own."""

Blocks = tuple[tuple[int, ...], int]
"""Blocks of a launch, and the threads of each."""
Lookup = Callable[[Sequence[object], Mapping[str, ARGUMENT]], tuple[dict[str, ARGUMENT], tuple[object, ...]]]


class CheckedLaunches:
    """Launches of a function with `own` sizes of its kernel, in which a call names the same operands and has as many
    groups.

    Operands are looked up for each launch. It is not checked if an earlier one was that agrees with it in all that the
    check reads: shape, dtype and contiguity of each tensor, numbers, sizes, and which operands there are.
    """

    def __init__(self, operands: Operands, own: Mapping[str, Any], named: Sequence[str], groups: int) -> None:
        self.operands, self.own = operands, own
        self.beside = tuple(name for name in named if name not in operands.names)
        self.lookup = lookup(operands.fields, named, groups)
        self.results: dict[tuple[object, ...], tuple[Mapping[str, ARGUMENT], Blocks | None]] = {}

    def __call__(
        self, groups: Sequence[object], named: Mapping[str, ARGUMENT], *, divided: bool
    ) -> tuple[dict[str, ARGUMENT], Blocks | None]:
        """Return the arguments of a launch and its blocks, as the file has them; None where its caller has `divided`
        it. Raises ValueError as `Operands` does.
        """
        try:
            arguments, key = self.lookup(groups, named)
            if groups or self.beside:
                sizes = dict[str, Any]()
                for group in groups:
                    sizes |= getattr(group, "sizes", ())
                for name in self.beside:
                    sizes[name] = named[name]
                key = *key, *sizes.items(), *map(type, sizes.values())
            result = self.results.get((divided, key))
        except (AttributeError, TypeError):  # not a tensor where there has to be one, or nothing to look up by
            return self.checked(groups, named, divided)
        if result is None:
            checked, blocks = self.checked(groups, named, divided)
            # Where the check has put a length, or nothing, in the place of a value.
            others = {name: a for name, a in checked.items() if (a is None) is not (arguments[name] is None)}
            if len(self.results) == MOST:
                self.results.clear()
            self.results[divided, key] = others, blocks
            return checked, blocks
        if result[0]:
            arguments.update(result[0])
        return arguments, result[1]

    def checked(
        self, groups: Sequence[object], named: Mapping[str, ARGUMENT], divided: bool
    ) -> tuple[dict[str, ARGUMENT], Blocks | None]:
        arguments, sizes = self.operands.arguments(groups, {**self.own, **named})
        return arguments, None if divided else self.operands.blocks(sizes)


def lookup(fields: Sequence[Operand], named: Sequence[str], groups: int) -> Lookup:
    """Return a function that finds the value of each field in what is `named` or in groups, and what its check reads.

    It has a term for each field: a loop over these would take twice its time.
    """
    values, traits = list[str](), list[str]()
    for n, field in enumerate(fields):
        value = f"named[{field.name!r}]" if field.name in named else attribute(field.name, groups)
        values.append(f"{field.name!r}: (v{n} := {value})")
        traits.append(
            f"type(v{n}), v{n}"
            if field.is_number
            else f"None if v{n} is None else (v{n}.shape, v{n}.dtype, v{n}.is_contiguous())"
        )
    made: Lookup = eval(f"lambda groups, named: ({{{', '.join(values)}}}, ({', '.join(traits)},))")
    return made


def attribute(name: str, groups: int) -> str:
    """The expression of the first attribute `name` of so many groups that is not None."""
    text = "None"
    for n in reversed(range(groups)):
        text = f"(a if (a := getattr(groups[{n}], {name!r}, None)) is not None else {text})"
    return text
