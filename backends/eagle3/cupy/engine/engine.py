"""`CupyEngine`: `eagle3.nouns.abilities.TunableEngine`, and everything that an engine may show."""

from __future__ import annotations

from specgate.backends.eagle3.cupy.engine.forensics import ForensicEngine
from specgate.contract import EngineFacts


class CupyEngine(ForensicEngine):
    """EAGLE-3 on one GPU. What it is made of: `DecodingEngine`."""

    def facts(self) -> EngineFacts:
        return self._facts

    def close(self) -> None:
        """Nothing to release before the process ends."""
