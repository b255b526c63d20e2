"""Files of shapes (which matrix products an engine runs) and of tuned configurations (what was found for their
weights).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from specgate.backends.eagle3.nouns.gemms import GemmShape, InSteps, Key, Point, TunedGemm, TunedGemms
from specgate.files.cache import cache_path
from specgate.files.plain import to_plain
from specgate.files.run_folder import RunFolder
from specgate.files.writing import disk
from specgate.files.yaml_schema import Form, parse
from specgate.files.yamlfile import load

SHAPES: Final = "specgate.gemm-shapes/v1"
TUNED: Final = "specgate.tuned-gemms/v1"

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]
Rows = Annotated[str, Field(pattern=r"^[1-9]\d*$")]
Config = Annotated[dict[Text, int], Field(min_length=1)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class OfExperts(Form):
    """What the entry of a mixture of experts has beside others."""

    experts: Count | None = None
    per_token: Count | None = None

    @model_validator(mode="after")
    def both_or_neither(self) -> Self:
        """Refuses one of the two without the other."""
        if (self.experts is None) != (self.per_token is None):
            raise ValueError("experts and per_token: give both of a mixture of experts, and neither of another weight")
        return self

    def mixture(self) -> dict[str, int]:
        return {"experts": self.experts or 0, "per_token": self.per_token or 0}


class ShapeForm(OfExperts):
    """A `contract.gemms.GemmShape` in a file."""

    tag: Text
    n: Count
    k: Count
    m: Count


class ShapesForm(Form):
    """A file of shapes."""

    schema_: Literal["specgate.gemm-shapes/v1"] = Field(alias="schema")
    shapes: Annotated[list[ShapeForm], Field(min_length=1)]


class PointForm(Form):
    """A `contract.gemms.Point` in a file."""

    context: Count
    batch: Count


class InStepsForm(Form):
    """A `contract.gemms.InSteps` in a file."""

    pair: Text
    points: Annotated[list[PointForm], Field(min_length=1)]
    k: Count
    before: Config
    before_us: Annotated[dict[Text, Positive], Field(min_length=1)]
    us: Annotated[dict[Text, Positive], Field(min_length=1)]
    tried: Count
    measured: Text


class TunedGemmForm(OfExperts):
    """A `contract.gemms.TunedGemm` in a file."""

    n: Count
    k: Count
    tags: Annotated[list[Text], Field(min_length=1)]
    config: Config
    tried: Count
    left_out: dict[Text, Text]
    us: Annotated[dict[Rows, Positive], Field(min_length=1)]
    default_us: Annotated[dict[Rows, Positive], Field(min_length=1)]
    share: Positive
    bandwidth: Positive
    measured: Text
    source_sha256: Sha256
    versions: dict[Text, Text]
    in_steps: InStepsForm | None = None
    at_rows: dict[Rows, Config] = Field(default_factory=dict)

    @model_validator(mode="after")
    def one_product_of_experts(self) -> Self:
        """Refuses several products of experts in one entry: they are different kernels."""
        if self.experts and len(self.tags) > 1:
            raise ValueError(f"tags: {', '.join(self.tags)}: experts have an entry for each of their products")
        return self


class TunedForm(Form):
    """A file of tuned configurations, for one kind of device."""

    schema_: Literal["specgate.tuned-gemms/v1"] = Field(alias="schema")
    device: Text
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d+$")]
    gemms: list[TunedGemmForm]

    @model_validator(mode="after")
    def weights_once(self) -> TunedForm:
        """Refuses a file with two entries for one weight."""
        seen = set[Key]()
        for gemm in map(tuned_gemm, self.gemms):
            if gemm.key in seen:
                of = f" of {gemm.experts} experts" if gemm.experts else ""
                raise ValueError(f"the weight {gemm.n} x {gemm.k}{of} is there twice: keep one")
            seen.add(gemm.key)
        return self


def read_shapes(file: Path) -> tuple[GemmShape, ...]:
    """The shapes in `file`. Raises UsageError with file, line, key, value and what would be right."""
    form = parse(ShapesForm, load(file))
    return tuple(GemmShape(s.tag, s.n, s.k, s.m, **s.mixture()) for s in form.shapes)


def write_shapes(file: Path, shapes: Iterable[GemmShape]) -> None:
    """Write `shapes`, replacing the file. Raises EnvironmentRefused where it cannot be written."""
    plain = [without_mixture(to_plain(GemmShape, shape)) for shape in sorted(set(shapes))]
    write(file, {"schema": SHAPES, "shapes": plain})


def read_tuned(file: Path) -> TunedGemms:
    """The tuned configurations in `file`. Raises UsageError with file, line, key, value and what would be right."""
    form = parse(TunedForm, load(file))
    return TunedGemms(form.device, form.compute_capability, tuple(tuned_gemm(gemm) for gemm in form.gemms))


def tuned_gemm(form: TunedGemmForm) -> TunedGemm:
    """The checked form as a data class."""
    us, default_us = ({int(m): t for m, t in times.items()} for times in (form.us, form.default_us))
    at_rows = {int(m): config for m, config in form.at_rows.items()}
    steps = in_steps(form.in_steps) if form.in_steps else None
    changed = {"tags": tuple(form.tags), "us": us, "default_us": default_us, "in_steps": steps, "at_rows": at_rows}
    return TunedGemm(**{**dict(form), **changed, **form.mixture()})


def in_steps(form: InStepsForm) -> InSteps:
    """The checked form as a data class."""
    points = tuple(Point(point.context, point.batch) for point in form.points)
    return InSteps(**{**dict(form), "points": points})


def write_tuned(file: Path, tuned: TunedGemms) -> None:
    """Write `tuned`, replacing the file. Raises EnvironmentRefused where it cannot be written."""
    plain = to_plain(TunedGemms, tuned)
    write(file, {"schema": TUNED, **plain, "gemms": [without_mixture(gemm) for gemm in plain["gemms"]]})


def without_mixture(entry: dict[str, Any]) -> dict[str, Any]:
    """`entry` as it is stored: only those of experts say how many there are."""
    return entry if entry["experts"] else {k: v for k, v in entry.items() if k not in ("experts", "per_token")}


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
