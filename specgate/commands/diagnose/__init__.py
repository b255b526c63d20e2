"""`specgate diagnose`: find out why speculation is off, slow or wrong. No run folder is made.

pair.py      whether the files of a pair fit each other
configs.py   two engines' speculative configs side by side
parity.py    the stage at which an engine first departs from another
cache.py     a server's prefix cache, with and without speculation
trace/       kernels, copies and waits of a decode loop, from a profiler's file
"""

from __future__ import annotations

import click

from specgate.commands.diagnose.cache import cache
from specgate.commands.diagnose.configs import configs
from specgate.commands.diagnose.pair import pair
from specgate.commands.diagnose.parity import parity
from specgate.commands.diagnose.trace import trace
from specgate.commands.door import OpenGroup


@click.group(cls=OpenGroup, above="diagnose.", short_help="Find out why speculation is off, slow or wrong.")
def diagnose() -> None:
    """Find out why speculation is off, slow or wrong.

    \b
    Example: specgate diagnose configs vllm.json sglang.json
    """


for _command in (pair, configs, parity, cache, trace):
    diagnose.add_command(_command)
