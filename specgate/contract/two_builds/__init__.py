"""Data classes of `specgate ab`: two builds of an engine, measured in turns in one session.

sides.py        what the two sides are, and what was seen of each of their processes
findings.py     what the samples say of every quantity, and the word for the whole
"""

from specgate.contract.two_builds.findings import (
    ACCEPTANCE,
    HOST_MEMORY,
    MEMORY,
    NAMES,
    PREFILL,
    START_UP,
    STEP,
    Look,
    Margins,
    Quantity,
    TextChange,
    TokensOf,
    TwoBuilds,
    Word,
)
from specgate.contract.two_builds.sides import SIDES, Origin, Process, Side, SideName

__all__ = [
    "ACCEPTANCE",
    "HOST_MEMORY",
    "MEMORY",
    "NAMES",
    "PREFILL",
    "SIDES",
    "START_UP",
    "STEP",
    "Look",
    "Margins",
    "Origin",
    "Process",
    "Quantity",
    "Side",
    "SideName",
    "TextChange",
    "TokensOf",
    "TwoBuilds",
    "Word",
]
