"""Operands of a kernel: the fields of the struct that its function takes, with the shapes that stand beside them.

A field is the one declaration of an operand. A launch finds, checks and packs by it:

    const float* squares;  // [R, K_IN / 8] if PRE_NORM_X: sums of squares

The C type is a number's, or gives the dtype of a tensor, which must be contiguous. Its shape is written in constants
that the kernel has, in numbers of the struct, and in sizes of the launch: R rows and S slots of a step, and others that
the launch or the launcher names. A size that it does not name is the length of the first input that begins with it. The
first axis may be longer; `_` is any size. A tensor without a shape may have any. An operand with `if` is null unless
the condition holds; one with `or null` may be. One with `only if` is a field only where that condition holds of the
constants that a launcher compiles with: see `with_fields`. A line may declare several fields of a type, with one shape
for all or one for each.

A matrix that the GPU copies in boxes is handed over as a map of it, whose boxes stand behind its shape:

    TensorMap weight;  // [N, K_IN] in boxes of [64, 64]

The first line of the struct says how many blocks a launch has, of how many threads, in the same words; THREADS without.
It may say how many rows of a slot a launch is for, and what else must hold of one:

    struct AcceptArguments {  // launched on [1] with S threads for ROWS rows of a slot
    struct RouteArguments {  // launched on [EXPERT_BLOCKS] where R <= MOST
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import CodeType
from typing import Any, Final

import torch
from torch import Tensor

from specgate.errors import BackendError

ARGUMENT = Tensor | int | float | None
"""A field of the struct that a kernel takes."""
ELEMENTS: Final = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "float": torch.float32,
    "float2": torch.float32,
    "double": torch.float64,
    "unsigned char": torch.uint8,
    **dict.fromkeys(("int", "unsigned", "uint2", "int4"), torch.int32),
    **dict.fromkeys(("long long", "Choice", "Rank", "PeerWord"), torch.int64),
    "void": None,
}
"""C type → dtype of the tensor that a pointer to it takes; None: any."""
DEFINED: Final = re.compile(r"^(?:#define \w+ (?:\d+|\([\w |]+\))$|const int [^;]+;)", re.MULTILINE)
DEFINITION: Final = re.compile(r"(\w+)(?: = | (?=[\d(]))([^,;]+)")
"""A name, and what it stands for."""
NUMBERS: Final[Mapping[str, Any]] = {"int": ctypes.c_int, "float": ctypes.c_float}
TENSOR_MAP: Final = ctypes.c_uint64 * 16
"""The type of a `TensorMap` of bfloat16. A struct that has one is as long as a multiple of `MAP_ALIGNMENT` bytes."""
MAP_ALIGNMENT: Final = 64
BOX: Final = re.compile(r"in boxes of \[(.*?)\]")
STRUCT: Final = re.compile(r"^struct \w+Arguments \{.*?^\};", re.DOTALL | re.MULTILINE)
SEVERAL: Final = re.compile(r"^( *(?:const )?[\w ]+?) (\*?)(\w+(?:, \*?\w+)+);", re.MULTILINE)
"""Several fields of a type."""
FIELD: Final = re.compile(r" *(?P<const>const )?(?P<type>[\w ]+?)(?P<pointer>\*?) (?P<name>\w+)")
OPERAND: Final = re.compile(r"(?P<shapes>(?:,? ?\[[^]]*\])*)(?P<null> ?or null)?(?: ?if (?P<condition>[^:]*))?.*")
LAUNCH: Final = (
    r"(?: *// launched on \[(?P<grid>[^]]*)\](?: with (?P<threads>[\w *]+) threads)?"
    r"(?: for (?P<rows>[\w +]+) rows of a slot)?(?: where (?P<where>[^\n]+))?)?"
)


@dataclass(frozen=True, slots=True)
class Operand:
    """A field of the struct.

    `shape` is as it stands there. `given`: None if the operand may be null, and False if it must be. `box`: of a
    `TensorMap`, the rows and columns that the GPU copies at a time.
    """

    name: str
    read_only: bool
    type: Any
    dtype: torch.dtype | None
    shape: str | None
    given: bool | None
    condition: str | None
    box: tuple[int, int] | None = None

    @property
    def is_number(self) -> bool:
        return self.type in NUMBERS.values()

    @classmethod
    def of(cls, line: str, constants: Constants) -> Iterator[Operand]:
        """Raises ValueError for a line that declares no operands, or another number of them than of shapes."""
        declared, _, text = line.partition("//")
        fields = [FIELD.fullmatch(field) for field in declared.strip().removesuffix(";").split(";")]
        remark, boxes = OPERAND.fullmatch(text), BOX.search(text)
        shapes = re.findall(r"\[(.*?)\]", remark["shapes"]) if remark else []
        for field in fields:
            known = field and (field["pointer"] or field["type"] in NUMBERS or (field["type"] == "TensorMap" and boxes))
            if not field or not known or not remark or len(shapes) not in (0, 1, len(fields)):
                raise ValueError(f"not fields of a kernel's struct: {line.strip()}")
            condition, shape = remark["condition"], shapes[len(shapes) > 1 and fields.index(field)] if shapes else None
            present = constants.hold(condition) if condition else None if remark["null"] else True
            if field["type"] == "TensorMap" and boxes:
                box = eval(python(f"({boxes[1]})"), {}, constants)
                yield cls(field["name"], True, TENSOR_MAP, torch.bfloat16, shape, present, condition, box)
                continue
            kind = ctypes.c_void_p if field["pointer"] else NUMBERS[field["type"]]
            dtype = ELEMENTS[field["type"]] if field["pointer"] else None
            yield cls(field["name"], field["const"] is not None, kind, dtype, shape, present, condition)


class Constants(dict[str, float]):
    """Constants of a kernel: those that it is compiled with, and others that its text defines. Any other is 0."""

    texts: Mapping[str, str] = {}
    """How the kernel's text defines others, which become items when they are asked for."""

    @classmethod
    def of(cls, constants: Sequence[tuple[str, str]], source: str = "") -> Constants:
        """From names and texts, and those that a source defines."""
        made = cls((name, int(text) if re.fullmatch(r"-?\d+", text) else float(text)) for name, text in constants)
        made.texts = dict(each for line in DEFINED.findall(source) for each in DEFINITION.findall(line))
        return made

    def __missing__(self, name: str) -> float:
        if name not in self.texts:
            return 0
        self[name] = eval(python(self.texts[name]), {}, self)
        return self[name]

    def hold(self, condition: str) -> bool:
        return bool(eval(python(condition), {}, self))


def python(expression: str) -> str:
    """The same expression in Python. Divisions are those of integers."""
    text = re.sub(r"^(.+?) \? (.+?) : (.+)$", r"(\2) if \1 else (\3)", expression)
    return re.sub("!(?!=)", " not ", text.replace("||", " or ").replace("&&", " and ")).replace("/", "//").strip()


def with_fields(source: str, constants: Sequence[tuple[str, str]]) -> str:
    """Return the source with those of its fields with `only if` that these constants make, each declared for itself;
    lines keep their numbers.
    """
    numbers, lines = Constants.of(constants), source.split("\n")
    for number, line in enumerate(lines):
        if " only if " in line:
            field, _, condition = line.partition(" only if ")
            lines[number] = field.removesuffix(",") if numbers.hold(condition.partition(":")[0]) else ""
    return one_by_one("\n".join(lines))


def one_by_one(source: str) -> str:
    """`source` as the compiler gets it: each field of a struct of arguments in a line of its own."""
    return STRUCT.sub(lambda struct: SEVERAL.sub(apart, struct[0]), source)


def apart(several: re.Match[str]) -> str:
    """The same fields, each with its type."""
    return "".join(f"{several[1]}{several[2]} {name.lstrip('*')};" for name in several[3].split(", "))


@dataclass(frozen=True)
class Operands:
    """Operands of `function`, as the kernel file with `text` and `constants` declares them, and how it is launched."""

    function: str
    fields: tuple[Operand, ...]
    constants: dict[str, float]
    launch: tuple[CodeType | None, ...]

    @classmethod
    def of(cls, function: str, source: str, constants: Sequence[tuple[str, str]]) -> Operands:
        """Raises ValueError if `source`, a kernel file with its headers, has no function that takes one struct."""
        taken = re.search(rf"__global__ [^{{;]*?void {function}\(\s*const (?:__grid_constant__ )?(\w+) \w+\)", source)
        struct = taken and re.search(
            rf"^struct {taken[1]} \{{{LAUNCH}\n(?P<fields>.*?)^\}};", source, re.DOTALL | re.MULTILINE
        )
        if not struct:
            raise ValueError(f"no kernel {function} that takes one struct")
        numbers = Constants.of(constants, source)
        named = {"THREADS", *re.findall(r"\w+", struct[0])} & numbers.texts.keys()
        numbers |= {name: numbers[name] for name in named} | {"_": 1}
        fields = tuple(field for line in struct["fields"].splitlines() if line for field in Operand.of(line, numbers))
        grid = f"({struct['grid']},)" if struct["grid"] else None
        texts = grid, struct["threads"] or "THREADS", struct["rows"], struct["where"]
        launch = tuple(compile(python(each), function, "eval") if each else None for each in texts)
        return cls(function, fields, numbers, launch)

    @cached_property
    def struct(self) -> type[ctypes.Structure]:
        """The same in C's layout."""
        fields = [(field.name, field.type) for field in self.fields]
        made = type("Arguments", (ctypes.Structure,), {"_fields_": fields})
        if not any(field.box for field in self.fields):
            return made
        padding = ctypes.c_char * (-ctypes.sizeof(made) % MAP_ALIGNMENT)
        return type("Arguments", (ctypes.Structure,), {"_fields_": [*fields, ("padding", padding)]})

    @cached_property
    def boxes(self) -> tuple[tuple[int, tuple[int, int]], ...]:
        """Return the place and the box of each map."""
        return tuple((place, field.box) for place, field in enumerate(self.fields) if field.box)

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(field.name for field in self.fields)

    @cached_property
    def tensors(self) -> tuple[Operand, ...]:
        return tuple(field for field in self.fields if not field.is_number and field.given is not False)

    @cached_property
    def shapes(self) -> CodeType:
        """Evaluates to the shapes of `tensors`; None without one."""
        all_of = (f"({python(o.shape)},)" if o.shape is not None else "None" for o in self.tensors)
        return compile(f"({','.join(all_of)},)", self.function, "eval")

    @cached_property
    def numbers(self) -> tuple[str, ...]:
        """Numbers of the struct that its shapes name."""
        return tuple(field.name for field in self.fields if field.name in self.shapes.co_names)

    @cached_property
    def measured(self) -> tuple[tuple[str, str], ...]:
        """(size, operand) for each input whose shape begins with a size, the last one first."""
        shaped = (
            (field.name, field.shape.partition(",")[0]) for field in self.tensors if field.read_only and field.shape
        )
        return tuple((size, name) for name, size in shaped if size.isidentifier() and size not in self.constants)[::-1]

    def arguments(
        self, groups: Sequence[object], operands: Mapping[str, ARGUMENT]
    ) -> tuple[dict[str, ARGUMENT], dict[str, Any]]:
        """Return each operand by name, in order, out of `operands` or as the attribute of this name of one of `groups`;
        and the sizes of the launch.

        Names in capitals are sizes. Raises ValueError, with kernel and operand, for what the kernel does not take.
        """
        arguments = dict[str, ARGUMENT]()
        for name in (field.name for field in self.fields):
            known = [operands[name]] if name in operands else (getattr(group, name, None) for group in groups)
            arguments[name] = next((value for value in known if value is not None), None)
        lengths = {size: len(given) for size, name in self.measured if isinstance(given := arguments[name], Tensor)}
        for field in self.fields:
            name = field.name
            value = lengths.get(name) if arguments[name] is None else arguments[name]
            if field.given is (value is None):
                if field.given or name in operands:
                    raise ValueError(f"{self.function}: {name} is {'missing' if field.given else 'given'}{why(field)}")
                value = None
            arguments[name] = value
        sizes = lengths | self.sizes(groups, operands, arguments)
        self.check(arguments, sizes)
        return arguments, sizes

    def blocks(self, sizes: dict[str, Any]) -> tuple[tuple[int, ...], int]:
        """Return the blocks of a launch, and the threads of each. Raises ValueError where the file does not say."""
        grid, threads = self.launch[:2]
        if grid is None or threads is None:
            raise ValueError(f"{self.function}: its struct does not say what it is launched on")
        return eval(grid, self.constants, sizes), eval(threads, self.constants, sizes)

    def sizes(
        self, groups: Sequence[object], operands: Mapping[str, ARGUMENT], arguments: Mapping[str, ARGUMENT]
    ) -> dict[str, Any]:
        """Return the sizes of a launch. Raises ValueError for a name of `operands` that is unknown."""
        sizes = dict[str, Any]()
        for group in groups:
            sizes |= getattr(group, "sizes", ())
        for name in operands.keys() - arguments.keys():
            if not name.isupper() and operands[name] is not None:
                raise ValueError(f"{self.function}: {name} is given, and is no operand of this launcher")
            sizes[name] = operands[name]
        for name in self.numbers:
            sizes[name] = arguments[name]
        return sizes

    def check(self, arguments: Mapping[str, Any], sizes: dict[str, Any]) -> None:
        """Raise ValueError for a tensor that is not what its field declares, for another number of rows per slot than
        the launch is for, and where something else does not hold that must.
        """
        if (rows := self.launch[2]) and sizes["R"] != sizes["S"] * (most := eval(rows, self.constants, sizes)):
            given = sizes["R"] // sizes["S"]
            raise ValueError(f"{self.function}: {given} rows per slot for a launcher of {most}")
        if (where := self.launch[3]) and not eval(where, self.constants, sizes):
            values = ", ".join(f"{name} = {sizes.get(name, self.constants[name])}" for name in where.co_names)
            raise ValueError(f"{self.function}: launched with {values}, which is not what it is made for")
        for operand, shape in zip(self.tensors, eval(self.shapes, self.constants, sizes), strict=True):
            tensor = arguments[operand.name]
            if tensor is None or (tensor.shape == shape and tensor.dtype is operand.dtype and tensor.is_contiguous()):
                continue
            expect(f"{self.function}: {operand.name}", tensor, shape, operand.dtype, operand.shape)

    def packed(self, arguments: Mapping[str, ARGUMENT]) -> ctypes.Structure:
        """The struct of `arguments`: pointers of tensors, or maps of them, and numbers of 32 bits."""
        packed: list[Any] = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments.values()]
        for place, box in self.boxes:
            matrix = arguments[self.fields[place].name]
            if isinstance(matrix, Tensor):
                packed[place] = tensor_map(matrix, box)
        return self.struct(*packed)


def tensor_map(matrix: Tensor, box: tuple[int, int]) -> ctypes.Array[ctypes.c_uint64]:
    """Return the driver's map of `matrix`, bfloat16, whose boxes lie in shared memory as `bulk_copy.cuh` says.

    Raises BackendError for a matrix or a box that the GPU cannot copy so.
    """
    from cuda.bindings import driver

    rows, columns = matrix.shape
    wide, narrow = driver.cuuint64_t, driver.cuuint32_t
    status, made = driver.cuTensorMapEncodeTiled(
        driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        *(2, matrix.data_ptr(), [wide(columns), wide(rows)], [wide(columns * matrix.element_size())]),
        *([narrow(box[1]), narrow(box[0])], [narrow(1), narrow(1)]),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        raise BackendError(f"a map of [{rows}, {columns}] in boxes of {list(box)}: {status.name}")
    return TENSOR_MAP(*map(int, made.opaque))


def why(operand: Operand) -> str:
    """Return the condition that an operand is missing, or given, against."""
    made = "" if operand.given else " not"
    return f": the kernel is{made} compiled for {operand.condition}" if operand.condition else ""


def expect(
    name: str, tensor: Tensor, shape: Sequence[int] | None, dtype: torch.dtype | None, sizes: str | None = None
) -> None:
    """Raise ValueError if `tensor` is not a contiguous array of at least `shape` in its first axis, exactly in the
    others. `sizes`: the shape in words.
    """
    own = tensor.shape
    fits = shape is None or (len(own) == len(shape) and own[0] >= shape[0] and own[1:] == tuple(shape[1:]))
    if not fits or (dtype is not None and tensor.dtype != dtype) or not tensor.is_contiguous():
        layout = "" if tensor.is_contiguous() else f" of strides {tensor.stride()}"
        needed = f"{dtype or tensor.dtype} {list(shape or own)}"
        raise ValueError(
            f"{name}: {tensor.dtype} {list(own)}{layout}, but a contiguous {needed} is needed"
            + (f": [{sizes}]" if sizes else "")
        )
