"""Pairs written for other engines: what a back end of such an engine tells of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from specgate.checkpoints.auxiliary_layers import AuxiliaryLayers
from specgate.checkpoints.hf_keys import Keys
from specgate.contract import PairRef, Role


class StartCommand(NamedTuple):
    """The command line that starts an engine, and the environment variables that it needs."""

    argv: Sequence[str]
    env: Mapping[str, str]


@runtime_checkable
class ReadsExports(Protocol):
    """Optional for a back end: say how its engine is started with a pair on disk, and how it reads the draft."""

    def start_command(
        self, pair: PairRef, role: Role, dtype: str, max_positions: int, own: Mapping[str, str]
    ) -> StartCommand:
        """Return the command that serves `pair` for one request at a time. `own`: options of the back end's own."""

    def misread_layers(self, draft: Keys, layers: int, meant: AuxiliaryLayers) -> str | None:
        """Return a warning where the engine takes the draft's hidden states from other layers of a target with `layers`
        layers than those that are meant; None where it takes the right ones.
        """
