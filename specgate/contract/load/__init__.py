"""A server under load: what it is offered, and what a sweep over levels of load amounts to.


A *level* is the number of clients that wait for their answers (closed loop), or requests per second (open loop).
docs/server.md has the definitions.
"""

from specgate.contract.load import BreakEven, LevelRatio, Outcome
from specgate.contract.load import EARLY_NS, Load, OfferedLoad

__all__ = ["EARLY_NS", "BreakEven", "LevelRatio", "Load", "OfferedLoad", "Outcome"]
