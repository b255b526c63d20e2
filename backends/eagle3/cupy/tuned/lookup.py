"""The configurations that are known for this GPU, from the files that hold them; and why one is not known."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, cast

from specgate.backends.eagle3.cupy.kernels.experts.expert_config import ExpertConfig
from specgate.backends.eagle3.cupy.kernels.experts.launchers import USUAL_TILES
from specgate.backends.eagle3.cupy.kernels.experts.packing import TILE
from specgate.backends.eagle3.cupy.kernels.loader import OPTIONS, with_headers
from specgate.backends.eagle3.cupy.kernels.matmul.gemm_config import ROW_TILE, GemmConfig
from specgate.backends.eagle3.cupy.kernels.matmul.matmul_rows import AnyConfig
from specgate.backends.eagle3.cupy.kernels.matmul.wgmma_config import WgmmaConfig
from specgate.backends.eagle3.cupy.kernels.operands import one_by_one
from specgate.backends.eagle3.nouns.gemms import GemmShape, TunedGemm, TunedGemms, TunedWgmma

SHIPPED: Final = Path(__file__).parent
KERNEL: Final = "matmul_rows.cu"
KERNEL_OF_WGMMA: Final = "matmul_wgmma.cu"
EXPERT_GATE_UP: Final = "TARGET_EXPERT_GATE_UP"
EXPERT_DOWN: Final = "TARGET_EXPERT_DOWN"
KERNELS_OF_EXPERTS: Final[Mapping[str, str]] = {EXPERT_GATE_UP: "expert_gate_up.cu", EXPERT_DOWN: "expert_down.cu"}
"""The products of experts by their tags, and the kernels that compute them."""
Config = TypeVar("Config", bound=GemmConfig | ExpertConfig)
NOT_CODE: Final = re.compile(r"//[^\n]*|/\*.*?\*/|^#line[^\n]*", re.DOTALL | re.MULTILINE)


@cache
def code_sha256(kernel: str = KERNEL) -> str:
    """Hash of a kernel's code, its headers and the compiler's options. Comments and white space do not count, because
    they change no machine code.
    """
    words = NOT_CODE.sub(" ", one_by_one(with_headers(kernel))).split()
    return hashlib.sha256(" ".join((*OPTIONS, *words)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class WeightConfig(Generic[Config]):
    """Division of the work on one weight at every number of rows: as `at_rows` says where it has been measured, else by
    `config`. All of these split k alike.
    """

    config: Config
    at_rows: Mapping[int, Config] = field(default_factory=dict)

    @classmethod
    def of(cls, gemm: TunedGemm) -> WeightConfig[Any]:
        at_rows = {rows: config_of(config, gemm) for rows, config in sorted(gemm.at_rows.items())}
        made: WeightConfig[Any] = WeightConfig(config_of(gemm.config, gemm), at_rows)
        return made

    def at(self, rows: int) -> Config:
        """For `rows` rows; where these were not measured, as for the nearest number with as many tiles of rows."""
        near = [known for known in self.at_rows if -(-known // ROW_TILE) == -(-rows // ROW_TILE)]
        if near:
            return self.at_rows[min(near, key=lambda known: (abs(known - rows), known))]
        return cast(Config, self.config.at(rows)) if isinstance(self.config, GemmConfig) else self.config

    def identity(self) -> str:
        """Return the text that `Tuned.sha256` hashes. Stored runs carry such hashes: names in it stay as they were."""
        at_rows = ", ".join(f"{rows}: {identity(config)}" for rows, config in self.at_rows.items())
        return f"Cuts(config={identity(self.config)}, at_rows={{{at_rows}}})"


def config_of(stored: Mapping[str, int], gemm: TunedGemm) -> GemmConfig | ExpertConfig:
    """One of the configurations of `gemm`, which has the kernel's fields."""
    return ExpertConfig.from_stored(stored, gemm.k) if gemm.experts else GemmConfig.from_stored(stored)


def by_wgmma(gemm: TunedGemm, largest_step: int) -> WgmmaConfig | None:
    """Return how a warpgroup multiplies a weight in all steps of an engine whose largest has so many rows; None: the
    sums of its steps are those of `mma`.
    """
    wgmma = gemm.wgmma
    return WgmmaConfig(**wgmma.config) if wgmma and largest_step >= wgmma.from_rows else None


def identity(config: GemmConfig | ExpertConfig | WgmmaConfig) -> str:
    return f"{type(config).__name__}({', '.join(f'{name}={value}' for name, value in config.stored().items())})"


@dataclass(frozen=True, slots=True)
class Source:
    """A file, and what it holds."""

    file: Path
    tuned: TunedGemms


@dataclass(frozen=True, slots=True)
class Tuned:
    """The configurations that are known for `device`. For each weight, the first of `sources` counts that has one which
    is still of use. `looked_for`: every file that was looked for, whether it is there or not.
    """

    device: str
    sources: tuple[Source, ...] = ()
    looked_for: tuple[Path, ...] = ()

    @classmethod
    def on(cls, device: str, file: Path | None = None) -> Tuned:
        """Read `file`; without one, the user's file, then the one that comes with specgate.

        Raises UsageError, with file, line and key, where a file cannot be read.
        """
        from specgate.backends.eagle3.nouns.gemms import file_name, read_tuned, user_file

        files = [file] if file else [user_file(device), SHIPPED / file_name(device)]
        sources = tuple(Source(f, read_tuned(f)) for f in files if f == file or f.is_file())
        return cls(device, sources, tuple(files))

    def find(self, shape: GemmShape, largest_step: int = 0) -> AnyConfig | None:
        """For a step of `shape.m` rows, in an engine whose largest has `largest_step`."""
        gemm = None if shape.experts else self.entry(shape)
        return (by_wgmma(gemm, largest_step) or WeightConfig.of(gemm).at(shape.m)) if gemm else None

    def find_experts(self, shape: GemmShape) -> ExpertConfig | None:
        """The same for a product of experts."""
        gemm = self.entry(shape) if shape.experts else None
        return WeightConfig.of(gemm).at(shape.m) if gemm else None

    def entry(self, shape: GemmShape) -> TunedGemm | None:
        """For the weight of `shape`: what the first source holds that has a configuration of use; None without one."""
        useful = (source for source in self.sources if why_not(source, shape, self.device) is None)
        return next((entry(source, shape) for source in useful), None)

    @property
    def knows_device(self) -> bool:
        """Return whether any file holds something that was tuned on this device, of use or not."""
        return any(source.tuned.device == self.device for source in self.sources)

    def misses(self, shapes: Sequence[GemmShape]) -> Iterator[str]:
        """Yield why `shapes` were not found: a sentence per reason and file."""
        if not self.sources:
            yield f"no file for {self.device}: {' and '.join(map(str, self.looked_for))} are not there"
        for source in self.sources:
            reasons = dict.fromkeys(why_not(source, shape, self.device) for shape in shapes)
            yield from (f"{source.file}: {reason}" for reason in reasons if reason is not None)

    def sha256(self, shapes: Sequence[GemmShape], largest_step: int = 0) -> str:
        """Hash of the configurations of these shapes' weights. Engines with the same hash sum in the same order."""
        entries = {shape.key: (shape, self.entry(shape)) for shape in shapes}
        chosen = sorted(
            (
                key,
                identity(of_group)
                if gemm and (of_group := by_wgmma(gemm, largest_step))
                else (WeightConfig.of(gemm) if gemm else usual_of(shape)).identity(),
            )
            for key, (shape, gemm) in entries.items()
        )
        return hashlib.sha256(repr(chosen).encode()).hexdigest()


NOTHING_TUNED: Final = Tuned("no device")


def usual_of(shape: GemmShape) -> WeightConfig[Any]:
    """Return the configuration of a weight without an entry."""
    if shape.experts:
        return WeightConfig(ExpertConfig.usual(shape.k, shape.n // TILE, USUAL_TILES))
    return WeightConfig(GemmConfig())


def entry(source: Source, shape: GemmShape) -> TunedGemm:
    return next(gemm for gemm in source.tuned.gemms if gemm.key == shape.key)


def why_not(source: Source, shape: GemmShape, device: str) -> str | None:
    """Return why `source` has no configuration of use for the weight of `shape` on `device`; None where it has."""
    if source.tuned.device != device:
        return f"tuned on {source.tuned.device}, this is {device}"
    if all(gemm.key != shape.key for gemm in source.tuned.gemms):
        return "does not hold them"
    return stale(entry(source, shape))


def stale(gemm: TunedGemm) -> str | None:
    """Return why a configuration that was once found is no longer of use."""
    kernel = KERNELS_OF_EXPERTS[gemm.tags[0]] if gemm.experts else KERNEL
    if gemm.source_sha256 != code_sha256(kernel):
        return f"tuned for other code of {kernel} ({gemm.source_sha256[:8]}, this is {code_sha256(kernel)[:8]})"
    reasons = (why for config in (gemm.config, *gemm.at_rows.values()) if (why := unusable(config, gemm)))
    return next(reasons, None) or (stale_wgmma(gemm, gemm.wgmma) if gemm.wgmma else None)


def stale_wgmma(gemm: TunedGemm, wgmma: TunedWgmma) -> str | None:
    """The same of how a warpgroup multiplies the weight of `gemm`."""
    kernel, code = KERNEL_OF_WGMMA, code_sha256(KERNEL_OF_WGMMA)
    if wgmma.source_sha256 != code:
        return f"tuned for other code of {kernel} ({wgmma.source_sha256[:8]}, this is {code[:8]})"
    known = WgmmaConfig().stored()
    if wgmma.config.keys() != known.keys():
        return f"has configurations of {', '.join(sorted(wgmma.config))}; {kernel} takes {', '.join(sorted(known))}"
    if not WgmmaConfig(**wgmma.config).possible(gemm.n, gemm.k):
        return f"wgmma of {gemm.n} x {gemm.k} is none that the kernel can have: {dict(wgmma.config)}"
    return None


def unusable(config: Mapping[str, int], gemm: TunedGemm) -> str | None:
    """Return why one of the configurations of `gemm` is of no use."""
    usual_fields = ExpertConfig.usual(gemm.k, 1, 1).stored() if gemm.experts else GemmConfig().stored()
    known, fields = set(usual_fields), set(config)
    if known != fields:
        return f"has configurations of {', '.join(sorted(fields))}; the kernel takes {', '.join(sorted(known))}"
    own, usual = config_of(config, gemm), config_of(gemm.config, gemm)
    if not (own.possible(gemm.n, gemm.k) if isinstance(own, GemmConfig) else own.possible(gemm.n // TILE)):
        return f"config of {gemm.n} x {gemm.k} is none that the kernel can have: {dict(config)}"
    if own.split != usual.split:
        return (
            f"at_rows of {gemm.n} x {gemm.k} splits k by {split_text(own)}, config by {split_text(usual)}: "
            "bits would depend on the rows"
        )
    return None


def split_text(config: GemmConfig | ExpertConfig) -> str:
    return f"{config.warps} warps" + (f" of {config.k_chunks} chunks" if isinstance(config, GemmConfig) else "")
