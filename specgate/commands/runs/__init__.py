"""`specgate runs`: what can be done with stored runs. Nothing here measures.

report.py    `show` prints a run's summary, `report` renders its pages and files
verify.py    `verify` recomputes a run from its samples, `check` judges it by another policy
compare.py   runs side by side
history.py   figures over the runs of a folder
explain.py   where the time goes, and what the gates would take
pin.py       `pin`, `unpin`: the runs that later ones are compared with
"""

from __future__ import annotations

import click

from specgate.commands.door import OpenGroup
from specgate.commands.runs.compare import compare
from specgate.commands.runs.explain import explain
from specgate.commands.runs.history import history
from specgate.commands.runs.pin import pin, unpin
from specgate.commands.runs.report import report, show
from specgate.commands.runs.verify import check, verify


@click.group(cls=OpenGroup, above="runs.", short_help="Show, verify, check, compare and explain stored runs.")
def runs() -> None:
    """Show, verify, check, compare and explain stored runs.

    \b
    Example: specgate runs show runs/RUN
    """


for _command in (show, verify, check, compare, history, explain, report, pin, unpin):
    runs.add_command(_command)
