"""`python -m specgate`, and the script `specgate`."""

import gc
import signal
import sys
from os.path import dirname, realpath


def main() -> None:
    # What is imported stays: to look it through after every 700 objects took an eighth of a command's start.
    gc.set_threshold(10_000)
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:  # not where it is ignored on purpose
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while modules are imported prints no traceback
    # Processes that a run starts import this module again, and need nothing of the command line.
    from specgate.cli import main as command_line

    signal.signal(signal.SIGINT, interrupt)
    command_line()


def leave_working_folder() -> None:
    """Import nothing from the working folder, which `python -m` puts first and the script does not: unless it is the
    checkout that specgate itself runs from.
    """
    if not sys.flags.safe_path and realpath(sys.path[0]) != dirname(dirname(realpath(__file__))):
        del sys.path[0]


if __name__ == "__main__":
    leave_working_folder()
    main()
