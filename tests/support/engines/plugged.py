"""A back end for an engine of a test, as a plug-in has it."""

from __future__ import annotations

from typing import Any

from specgate.contract.protocols import Availability, OpenRequest


class Plugged:
    """Its name is the engine's. `logit_options`: what an engine that scores takes of the measured one's options."""

    def __init__(self, engine: type[Any], description: str, logit_options: tuple[str, ...] = ()) -> None:
        self.engine, self.name, self.description = engine, engine.__name__, description
        self.logit_options = logit_options

    def available(self) -> Availability:
        return Availability(True, "always", rank=-1)

    def open(self, request: OpenRequest) -> Any:
        return self.engine(request)
