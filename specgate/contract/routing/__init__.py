"""Experts of a mixture that the target's passes reach.

counts.py  what an engine counts of a block
use.py     what follows from it for a cell: experts per pass, and how far neighbouring tokens share them
"""

from specgate.contract.routing.counts import ExpertCounts, counts_of
from specgate.contract.routing.use import ExpertUse, RowUse, SlotRows

__all__ = ["ExpertCounts", "ExpertUse", "RowUse", "SlotRows", "counts_of"]
