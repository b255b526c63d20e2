"""`python -m specgate.fleet.node FOLDER`: measure the task in FOLDER, and leave done.json there when it has ended.

Without done.json, the task is lost. Nothing is imported before it is needed: the monitor process of a run imports this
file again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path


def end_with_the_coordinator() -> None:
    """Standard input is a pipe that nothing is written into: it closes when the coordinator has ended, in any way."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGINT)


def main(folder: Path) -> None:
    from specgate.errors import SpecgateError
    from specgate.files.json_text import to_plain
    from specgate.files.writing import write_json
    from specgate.fleet.measuring import carry_out
    from specgate.fleet.tasks import DONE, Done, Stop

    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be inherited as ignored
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    threading.Thread(target=end_with_the_coordinator, daemon=True).start()
    try:
        done = carry_out(folder)
    except SpecgateError as error:
        done = Done(stopped=Stop.of(error))
    write_json(folder / DONE, to_plain(Done, done))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
