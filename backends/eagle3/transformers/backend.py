"""Registers Hugging Face transformers as a back end."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Final

from specgate.contract.protocols import Availability, Engine, OpenRequest

OLDEST: Final = 5
"""The oldest major version whose caches and masks are as this back end needs them."""


class TransformersBackend:
    """Any target that `AutoModelForCausalLM` loads. It is never the default: it is there to be compared with."""

    name = "transformers"
    description = "Hugging Face transformers: the target's own forward pass, EAGLE-3 around it (CPU or GPU)"

    def available(self) -> Availability:
        if missing := [name for name in ("torch", "transformers") if find_spec(name) is None]:
            what = "transformers" if missing == ["transformers"] else "torch,transformers"
            why = f"not installed: {', '.join(missing)} (in specgate's checkout: pip install '.[{what}]')"
            return Availability(False, why, rank=-1)
        try:
            installed = version("transformers")
        except PackageNotFoundError:
            return Availability(False, "transformers has no version", rank=-1)
        if int(installed.partition(".")[0]) < OLDEST:
            return Availability(False, f"transformers {installed} is installed, {OLDEST}.0 or later is needed", rank=-1)
        return Availability(True, f"transformers {installed}", rank=-1)

    def attaches(self, options: Mapping[str, str]) -> bool:
        """As `protocols.DrivesAnotherEngine`: weights are always here."""
        return False

    def local_ports(self, options: Mapping[str, str]) -> tuple[int, ...]:
        """As `protocols.DrivesAnotherEngine`: everything is in the engine's process."""
        return ()

    def check_options(self, options: Mapping[str, str]) -> None:
        """Raise UsageError for bad options."""
        from specgate.backends.eagle3.transformers.open import Options

        Options.parse(options)

    def open(self, request: OpenRequest) -> Engine:
        from specgate.backends.eagle3.transformers.open import open_engine

        return open_engine(request)


BACKEND = TransformersBackend()
