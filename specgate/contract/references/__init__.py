"""References of a run that are not part of it. It is copied into the run, so that judging needs nothing else.

earlier_run.py     the last green run of the same subject on the same machine, and anchors before it
compared_build.py  comparisons of this build with another by `specgate ab`
"""

from specgate.contract.references.compared_build import Builds, ComparedBuild, Revision
from specgate.contract.references.earlier_run import CellTimes, Earlier, EarlierRun, PromptText, StepUnit

__all__ = ["Builds", "CellTimes", "ComparedBuild", "Earlier", "EarlierRun", "PromptText", "Revision", "StepUnit"]
