"""Second engines over the reference engine that round as a text of 32K does, which no tiny pair makes them do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from specgate.backends.eagle3.reference.open import open_engine
from specgate.contract import Score, TopTokens
from specgate.contract.protocols import OpenRequest
from specgate.errors import EnvironmentRefused
from tests.support.engines.plugged import Plugged

GAP: Final = 0.5625
"""As seen of the reference engine in bfloat16, on a GPU (docs/trust.md)."""


class Rough:
    """In bfloat16 it finds another token better than the emitted one, once whenever it is asked; in float32 never."""

    def __init__(self, request: OpenRequest) -> None:
        self.request, self.engine = request, open_engine(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def score(self, prompt: Sequence[int], continuation: Sequence[int], positions: Sequence[int]) -> list[Score]:
        scores = list(self.engine.score(prompt, continuation, positions))
        if self.rough():
            token = continuation[positions[0]]
            scores[0] = Score(token + 1 if token == 0 else token - 1, scores[0].logit + GAP, scores[0].logit)
        return scores

    def rough(self) -> bool:
        return self.request.dtype == "bfloat16"


class Wrong(Rough):
    """It finds the same in float32, as it would where the emitted token really is another one."""

    def rough(self) -> bool:
        return True

    def token_logits(
        self,
        prompt: Sequence[int],
        continuation: Sequence[int],
        places: Sequence[tuple[int, Sequence[int]]],
        count: int,
    ) -> list[TopTokens]:
        shown = self.engine.token_logits(prompt, continuation, places, count)
        return [
            TopTokens((top.values[0] - GAP - (top.values[0] - top.values[1]), *top.values[1:]), top.tokens)
            for top in shown
        ]


class Small(Rough):
    """In float32 it does not fit."""

    def __init__(self, request: OpenRequest) -> None:
        if request.dtype == "float32":
            raise EnvironmentRefused("4 GiB are needed, 3 are free", hint="a smaller pair")
        super().__init__(request)


class Deaf(Rough):
    """It computes in bfloat16, whatever it is asked for."""

    def __init__(self, request: OpenRequest) -> None:
        super().__init__(replace(request, dtype="bfloat16"))


ROUGH, WRONG, SMALL, DEAF = (Plugged(engine, "rounds", logit_options=("kv",)) for engine in (Rough, Wrong, Small, Deaf))
NAMES: Final = ("ROUGH", "WRONG", "SMALL", "DEAF")
"""Of the back ends, as a plug-in names them."""
