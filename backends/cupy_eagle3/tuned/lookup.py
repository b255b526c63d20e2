"""The configurations that are known for this GPU, from the files that hold them; and why one is not known."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from specgate.backends.cupy_eagle3.kernels.loader import OPTIONS, with_headers
from specgate.backends.cupy_eagle3.kernels.matmul.gemm_config import ROW_TILE, GemmConfig
from specgate.tuning.gemms import GemmShape, TunedGemm, TunedGemms

SHIPPED: Final = Path(__file__).parent
KERNEL: Final = "matmul_rows.cu"
NOT_CODE: Final = re.compile(r"//[^\n]*|/\*.*?\*/|^#line[^\n]*", re.DOTALL | re.MULTILINE)


@cache
def code_sha256() -> str:
    """Hash of the kernel's code, its headers and the compiler's options. Comments and white space do not count, because
    they change no machine code.
    """
    words = NOT_CODE.sub(" ", with_headers(KERNEL)).split()
    return hashlib.sha256(" ".join((*OPTIONS, *words)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class WeightConfig:
    """How the work on one weight is divided at every number of rows: as `at_rows` says where it has been measured, else
    by `config`. All of these split k alike.
    """

    config: GemmConfig
    at_rows: Mapping[int, GemmConfig] = field(default_factory=dict)

    @classmethod
    def of(cls, gemm: TunedGemm) -> WeightConfig:
        at_rows = {rows: GemmConfig.from_stored(config) for rows, config in sorted(gemm.at_rows.items())}
        return cls(GemmConfig.from_stored(gemm.config), at_rows)

    def at(self, rows: int) -> GemmConfig:
        """For `rows` rows; where these were not measured, as for the nearest number with as many tiles of rows."""
        near = [known for known in self.at_rows if -(-known // ROW_TILE) == -(-rows // ROW_TILE)]
        return self.at_rows[min(near, key=lambda known: (abs(known - rows), known))] if near else self.config.at(rows)

    def identity(self) -> str:
        """What `Tuned.sha256` hashes. Stored runs carry such hashes, so names in this text stay as they once were."""
        at_rows = ", ".join(f"{rows}: {identity(config)}" for rows, config in self.at_rows.items())
        return f"Cuts(config={identity(self.config)}, at_rows={{{at_rows}}})"


def identity(config: GemmConfig) -> str:
    return f"GemmConfig({', '.join(f'{name}={value}' for name, value in config.stored().items())})"


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
        """What `file` holds; without one, what the user's file holds, then what the file that comes with specgate does.

        Raises UsageError, with file, line and key, where a file cannot be read.
        """
        from specgate.tuning.gemm_files import file_name, read_tuned, user_file

        files = [file] if file else [user_file(device), SHIPPED / file_name(device)]
        found = tuple(Source(f, read_tuned(f)) for f in files if f == file or f.is_file())
        return cls(device, found, tuple(files))

    def find(self, shape: GemmShape) -> GemmConfig | None:
        """For a step of `shape.m` rows."""
        found = self.entry(shape)
        return WeightConfig.of(found).at(shape.m) if found else None

    def entry(self, shape: GemmShape) -> TunedGemm | None:
        """For the weight of `shape`: what the first source holds that has a configuration of use; None without one."""
        useful = (source for source in self.sources if why_not(source, shape, self.device) is None)
        return next((entry(source, shape) for source in useful), None)

    def misses(self, shapes: Sequence[GemmShape]) -> Iterator[str]:
        """Why `shapes` were not found: a sentence per reason and file."""
        if not self.sources:
            yield f"no file for {self.device}: {' and '.join(map(str, self.looked_for))} are not there"
        for source in self.sources:
            reasons = dict.fromkeys(why_not(source, shape, self.device) for shape in shapes)
            yield from (f"{source.file}: {reason}" for reason in reasons if reason is not None)

    def sha256(self, shapes: Sequence[GemmShape]) -> str:
        """Hash of the configurations of these shapes' weights. Engines with the same hash sum in the same order."""
        entries = {shape.weight: self.entry(shape) for shape in shapes}
        chosen = sorted(
            (weight, (WeightConfig.of(found) if found else WeightConfig(GemmConfig())).identity())
            for weight, found in entries.items()
        )
        return hashlib.sha256(repr(chosen).encode()).hexdigest()


NOTHING_TUNED: Final = Tuned("no device")


def entry(source: Source, shape: GemmShape) -> TunedGemm:
    return next(gemm for gemm in source.tuned.gemms if gemm.weight == shape.weight)


def why_not(source: Source, shape: GemmShape, device: str) -> str | None:
    """Why `source` has no configuration of use for the weight of `shape` on `device`; None where it has."""
    if source.tuned.device != device:
        return f"tuned on {source.tuned.device}, this is {device}"
    if all(gemm.weight != shape.weight for gemm in source.tuned.gemms):
        return "does not hold them"
    return stale(entry(source, shape))


def stale(gemm: TunedGemm) -> str | None:
    """Why a configuration that was once found is no longer of use."""
    if gemm.source_sha256 != code_sha256():
        return f"tuned for other code of {KERNEL} ({gemm.source_sha256[:8]}, this is {code_sha256()[:8]})"
    return next((why for config in (gemm.config, *gemm.at_rows.values()) if (why := unusable(config, gemm))), None)


def unusable(config: Mapping[str, int], gemm: TunedGemm) -> str | None:
    """Why one of the configurations of `gemm` is of no use."""
    known, given = set(GemmConfig().stored()), set(config)
    if known != given:
        return f"has configurations of {', '.join(sorted(given))}; the kernel takes {', '.join(sorted(known))}"
    own, usual = GemmConfig.from_stored(config), GemmConfig.from_stored(gemm.config)
    if not own.possible(gemm.n, gemm.k):
        return f"config of {gemm.n} x {gemm.k} is none that the kernel can have: {dict(config)}"
    if own.split != usual.split:
        return (
            f"at_rows of {gemm.n} x {gemm.k} splits k by {own.warps} warps of {own.k_chunks} chunks, config by "
            f"{usual.warps} of {usual.k_chunks}: bits would depend on the rows"
        )
    return None
