"""Matrix products: their shapes, and the configurations that were found for them.

Data classes only; `specgate.backends.eagle3.nouns.tuned_gemms` stores them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Final

from specgate.analysis.traces.families import has_shapes as has_products
from specgate.analysis.traces.families import read_shapes as read_products
from specgate.contract import PairRef
from specgate.contract.types import Count, Digest, Length, Pattern, Positive, Size, Text
from specgate.errors import UsageError
from specgate.files.cache import cache_path
from specgate.files.json_text import to_plain
from specgate.files.run_folder import RunFolder
from specgate.files.writing import disk
from specgate.files.yaml_schema import parse
from specgate.files.yamlfile import load

Key = tuple[int | str, ...]
"""What a configuration is found by: (n, k) of a weight. Of experts also their number, how many a token has, and the
tag, since their two products are different kernels.
"""
Config = Annotated[Mapping[Text, int], Length(1)]
"""Setting → value."""


@dataclass(frozen=True, slots=True, order=True)
class GemmShape:
    """out[m][n] = Σ_k x[m][k] · weight[n][k]: a weight of `n` rows and `k` columns, and at most `m` tokens per step.

    `tag`: which product of a step it is: EAGLE3_FC, TARGET_QKV, … A gate and an up projection count as one weight.
    `experts`: how many experts have such a weight each, of which every token has `per_token`; 0: there are no experts.
    """

    tag: Text
    n: Size
    k: Size
    m: Size
    experts: Count = 0
    per_token: Count = 0

    def __post_init__(self) -> None:
        check_mixture(self.experts, self.per_token)

    @property
    def weight(self) -> tuple[int, int]:
        """(n, k): the shape of the weight."""
        return self.n, self.k

    @property
    def key(self) -> Key:
        return key_of(self.tag, self.n, self.k, self.experts, self.per_token)

    def __str__(self) -> str:
        """Tag and weight, such as `TARGET_O 4096 x 4096`."""
        return f"{self.tag} {self.n} x {self.k}" + (f" of {self.experts} experts" if self.experts else "")


def check_mixture(experts: int, per_token: int) -> None:
    """Raise ValueError where one of the two is given without the other."""
    if (experts == 0) != (per_token == 0):
        raise ValueError("experts and per_token: give both of a mixture of experts, and neither of another weight")


def key_of(tag: str, n: int, k: int, experts: int, per_token: int) -> Key:
    return (n, k, experts, per_token, tag) if experts else (n, k)


@dataclass(frozen=True, slots=True)
class Point:
    """`batch` slots of `context` cached positions each."""

    context: Size
    batch: Size

    def __str__(self) -> str:
        return f"{self.batch} x {self.context}"


@dataclass(frozen=True, slots=True)
class StepsRequest:
    """Whose steps are timed: those of the baseline and of spec-`k`, at every one of `points`."""

    pair: PairRef
    points: tuple[Point, ...]
    k: int


@dataclass(frozen=True, slots=True)
class InSteps:
    """Record of a choice by timing whole steps: those of the baseline and of spec-`k` at `points`, of a model with the
    sizes of `pair`.

    `before`: the configuration that was in use before. It may have been kept.
    `before_us`: step (role and point) → microseconds per step with what was in use before.
    `us`: step → microseconds per step with the chosen configuration.
    `tried`: how many configurations were tried.
    `measured`: when, in ISO 8601.
    """

    pair: Text
    points: Annotated[tuple[Point, ...], Length(1)]
    k: Size
    before: Config
    before_us: Annotated[Mapping[Text, Positive], Length(1)]
    us: Annotated[Mapping[Text, Positive], Length(1)]
    tried: Size
    measured: Text

    @property
    def gain(self) -> float:
        """By which share the steps became shorter, as a mean over the steps."""
        return 1 - fmean(us / self.before_us[step] for step, us in self.us.items())


@dataclass(frozen=True, slots=True)
class TunedWgmma:
    """The fastest configuration for products of many rows by a warpgroup (`wgmma`), whose sums round in another way.

    `from_rows`: engines whose largest step has so many rows use it in all of their steps; more than any has: none.
    `us`, `mma_us`, `cublas_us`: rows → microseconds per launch: with it, with the configuration for any number of
        rows, and of cuBLAS.
    `tried`, `measured`, `source_sha256`: as in `TunedGemm`.
    """

    config: Config
    from_rows: Size
    us: Annotated[Mapping[Size, Positive], Length(1)]
    mma_us: Annotated[Mapping[Size, Positive], Length(1)]
    cublas_us: Annotated[Mapping[Size, Positive], Length(1)]
    tried: Size
    measured: Text
    source_sha256: Digest

    @property
    def of_cublas(self) -> Mapping[int, float]:
        """Rows → its time as a multiple of cuBLAS's."""
        return {rows: self.us[rows] / us for rows, us in self.cublas_us.items()}


@dataclass(frozen=True, slots=True)
class TunedGemm:
    """The fastest configuration found for the weight [n, k] on one device.

    `tags`: the products that have this weight's shape; of experts one.
    `config`: the configuration for every number of rows, except those in `at_rows`.
    `tried`: how many configurations were timed.
    `left_out`: configuration → why it was not timed.
    `us`, `default_us`: rows → microseconds per launch, with this configuration and with the default one.
    `share`: the time to read the weight alone at `bandwidth`, as a share of the slowest of `us`.
    `bandwidth`: bytes per second of a plain read in the same run.
    `source_sha256`: SHA-256 of the kernel's code.
    `versions`: of driver, CUDA and libraries.
    `in_steps`: how the configuration was chosen in whole steps; None where its products were only timed alone. With it,
        `us` still describes the configuration that was fastest alone.
    `at_rows`: rows → the configuration for steps of that many rows. It differs from `config` only in settings that
        change no bit of the result.
    `experts`, `per_token`: as in `GemmShape`. Then `share` counts the weights of the experts that rows have.
    `wgmma`: products by a warpgroup; None where they were not tried.
    """

    n: Size
    k: Size
    tags: Annotated[tuple[Text, ...], Length(1)]
    config: Config
    tried: Size
    left_out: Mapping[Text, Text]
    us: Annotated[Mapping[Size, Positive], Length(1)]
    default_us: Annotated[Mapping[Size, Positive], Length(1)]
    share: Positive
    bandwidth: Positive
    measured: Text
    source_sha256: Digest
    versions: Mapping[Text, Text]
    in_steps: InSteps | None = None
    at_rows: Mapping[Size, Config] = field(default_factory=dict)
    experts: Count = 0
    per_token: Count = 0
    wgmma: TunedWgmma | None = None

    def __post_init__(self) -> None:
        check_mixture(self.experts, self.per_token)
        if self.experts and len(self.tags) > 1:
            raise ValueError(f"tags: {', '.join(self.tags)}: experts have an entry for each of their products")

    @property
    def weight(self) -> tuple[int, int]:
        """(n, k): the shape of the weight."""
        return self.n, self.k

    @property
    def key(self) -> Key:
        return key_of(self.tags[0], self.n, self.k, self.experts, self.per_token)


@dataclass(frozen=True, slots=True)
class TunedGemms:
    """Everything that was tuned for one kind of device. Each weight is listed once."""

    device: Text
    compute_capability: Annotated[str, Pattern(r"^\d+\.\d+$")]
    gemms: tuple[TunedGemm, ...] = ()

    def __post_init__(self) -> None:
        keys = set[Key]()
        for gemm in self.gemms:
            if gemm.key in keys:
                of = f" of {gemm.experts} experts" if gemm.experts else ""
                raise ValueError(f"the weight {gemm.n} x {gemm.k}{of} is there twice: keep one")
            keys.add(gemm.key)

    def with_(self, tuned: TunedGemm) -> TunedGemms:
        """Return a copy with `tuned` in the place of the earlier entry for its weight."""
        others = [gemm for gemm in self.gemms if gemm.key != tuned.key]
        gemms = tuple(sorted((*others, tuned), key=lambda gemm: gemm.key))
        return TunedGemms(self.device, self.compute_capability, gemms)


SHAPES: Final = "specgate.gemm-shapes/v1"
TUNED: Final = "specgate.tuned-gemms/v1"


@dataclass(frozen=True, slots=True)
class ShapesFile:
    """A file of shapes."""

    shapes: Annotated[tuple[GemmShape, ...], Length(1)]


TURBOMIND_TAGS: Final = {"EAGLE3_LM_HEAD": "EAGLE3_LM_HEAD_SMALLVOC"}
"""Tag of a product in TurboMind's list → what it is called here, where that differs."""


def read_shapes(file: Path) -> tuple[GemmShape, ...]:
    """The shapes in `file`, which `tune shapes` wrote, or TurboMind (`eagle3_gemm_shapes_*.json`).

    Raises UsageError with file, line, key, value and what would be right.
    """
    if has_products(file):
        products = read_products(file)
        if empty := next((p for p in products if not p.m * p.n * p.k), None):
            raise UsageError(f"{file}: {empty.tag}: {empty.m} x {empty.k} x {empty.n}: M, K and N are at least 1")
        shapes = {GemmShape(TURBOMIND_TAGS.get(p.tag, p.tag), p.n, p.k, p.m) for p in products}
        return tuple(sorted(shapes))
    return parse(ShapesFile, load(file), SHAPES).shapes


def write_shapes(file: Path, shapes: Iterable[GemmShape]) -> None:
    """Write `shapes`, replacing the file. Raises EnvironmentRefused where it cannot be written."""
    plain = [without_mixture(to_plain(GemmShape, shape)) for shape in sorted(set(shapes))]
    write(file, {"schema": SHAPES, "shapes": plain})


def read_tuned(file: Path) -> TunedGemms:
    """The tuned configurations in `file`. Raises UsageError with file, line, key, value and what would be right."""
    return parse(TunedGemms, load(file), TUNED)


def write_tuned(file: Path, tuned: TunedGemms) -> None:
    """Write `tuned`, replacing the file. Raises EnvironmentRefused where it cannot be written."""
    plain = to_plain(TunedGemms, tuned)
    write(file, {"schema": TUNED, **plain, "gemms": [without_mixture(gemm) for gemm in plain["gemms"]]})


def without_mixture(entry: dict[str, Any]) -> dict[str, Any]:
    """`entry` as it is stored: only those of experts say how many there are, and only tried ones what wgmma does."""
    left_out = () if entry["experts"] else ("experts", "per_token")
    return {k: v for k, v in entry.items() if k not in left_out and (k != "wgmma" or v is not None)}


def write(file: Path, data: object) -> None:
    """Write `data` as JSON and make missing folders. Raises EnvironmentRefused where that cannot be done."""
    with disk(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
    RunFolder(file.parent).write_json(file.name, data)


def file_name(device: str) -> str:
    """`NVIDIA H200` → `nvidia-h200.json`."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") + ".json"


def user_file(device: str) -> Path:
    """The file in which this user keeps what was tuned on `device`."""
    return cache_path() / "tuned" / file_name(device)
