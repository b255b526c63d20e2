"""Data classes of `specgate ab`: two builds of an engine, measured in turns in one session.

"""

from specgate.contract.two_builds import ACCEPTANCE, HOST_MEMORY, MEMORY, NAMES, PREFILL, START_UP, STEP, Look, Margins, Quantity, TextChange, TokensOf, TwoBuilds, Word
from specgate.contract.two_builds import SIDES, Origin, Process, Side, SideName

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
