"""`specgate machine`: make sure that this machine can measure.

doctor.py      is it fit to measure on?
calibrate.py   how small a difference can it tell?
selftest.py    do the gates see known faults?
backends.py    the engines that can be measured here
"""

from __future__ import annotations

import click

from specgate.commands.door import OpenGroup
from specgate.commands.machine.backends import backends
from specgate.commands.machine.calibrate import calibrate
from specgate.commands.machine.doctor import doctor
from specgate.commands.machine.selftest import selftest


@click.group(cls=OpenGroup, above="machine.", short_help="Check this machine, its noise and its engines.")
def machine() -> None:
    """Check this machine, its noise and its engines.

    \b
    Example: specgate machine doctor
    """


for _command in (doctor, calibrate, selftest, backends):
    machine.add_command(_command)
