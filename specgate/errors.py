"""Every error that specgate raises on purpose, and the exit code each one ends with.

    SpecgateError               70  (base class: only its subclasses are raised)
    ├── UsageError               2  a command line, scenario, policy or plug-in name that is wrong or contradicts itself
    ├── EnvironmentRefused       4  this machine cannot carry out the plan (no GPU, disk full, …)
    │   └── OtherVersion            a stored run of another version of specgate, which has to judge it
    ├── OrderRefused             5  `full` before the micro gates are green
    ├── NotEnded                 3  a stored run that has not ended: a command brings it to its end first
    ├── InvalidResult            6  a stored result contradicts itself: nothing in it may be quoted
    │   ├── OtherCode               a second engine loaded other source or weights than lay there before
    └── BackendError             7  the engine did not start, crashed, hung, or broke its contract
        ├── CheckpointError         a checkpoint that is missing, misshapen or not what it claims
        │   ├── UnsupportedDraft        a draft that the built-in engines cannot run, and others may
        │   ├── OtherTarget             a draft that was made for another target
        │   ├── BadMap                  a vocabulary map that is wrong
        │   └── NotReadHere             weights that are not on this machine, or that only torch reads
        ├── WorkerLost              the engine's process ended or stopped answering
        ├── LostIds                 a server's stream left out the ids of tokens that it counts
        ├── OtherForm               a server's answers or counters have another form than the releases that are known
        └── ReportedError           a server reports an error within its stream

Verdicts use further codes (1 FAIL, 3 INCONCLUSIVE, 8 NOT_JUDGED); see `ExitCode`. A message names the file, the key
and the value, and says what would be right.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the process. Errors never end with 1, the generic code of Python and click: 1 always means FAIL."""

    PASS = 0
    """every required verdict is green, or the command did its work"""
    FAIL = 1
    """a required verdict is proven red; a fault was not seen; speculation is not active; configs or stages differ"""
    USAGE = 2
    """the command line, a file or a plug-in cannot be used as it is"""
    INCONCLUSIVE = 3
    """the samples do not decide, or a stored run has not ended"""
    ENV_REJECTED = 4
    """this machine was disturbed, or lacks something"""
    ORDER_REFUSED = 5
    """`full` before the policy's micro gates are green"""
    INVALID = 6
    """tokens or records are wrong, or a stored file was changed"""
    BACKEND_ERROR = 7
    """the engine did not start, crashed, hung or broke its contract"""
    NOT_JUDGED = 8
    """nothing is red, but not everything was judged"""
    INTERNAL = 70
    """an error in specgate itself; `--debug` shows the traceback"""
    INTERRUPTED = 130
    """Ctrl-C, SIGTERM or SIGHUP; `--resume` continues"""
    BROKEN_PIPE = 141
    """the reader of the output has gone"""


class SpecgateError(Exception):
    """Base of all errors below.

    `message` says what is wrong. `hint`, where there is one, says in one sentence what would be right.
    """

    exit_code: ExitCode = ExitCode.INTERNAL

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Errors come from processes that compile kernels; keyword-only arguments need this to survive pickling.
        return _rebuild, (type(self), self.message, self.hint)


def _rebuild(cls: type[SpecgateError], message: str, hint: str | None) -> SpecgateError:
    return cls(message, hint=hint)


class UsageError(SpecgateError):
    """A command line, scenario, policy or plug-in name that is wrong or contradicts itself."""

    exit_code = ExitCode.USAGE


class EnvironmentRefused(SpecgateError):
    """This machine cannot carry out the plan."""

    exit_code = ExitCode.ENV_REJECTED


class OtherVersion(EnvironmentRefused):
    """A stored run was made by another version of specgate, and only that one can judge it."""


class OrderRefused(SpecgateError):
    """A full run was asked for before the micro gates were green."""

    exit_code = ExitCode.ORDER_REFUSED


class NotEnded(SpecgateError):
    """A stored run has not ended, or its ending was cut. The message has the command that brings it to its end."""

    exit_code = ExitCode.INCONCLUSIVE


class InvalidResult(SpecgateError):
    """A record breaks an identity, so no figure derived from it may be quoted."""

    exit_code = ExitCode.INVALID


class OtherCode(InvalidResult):
    """A second engine loaded another source or other weights than were there before the first engine."""


class BackendError(SpecgateError):
    """The engine did not start, crashed, or broke its contract."""

    exit_code = ExitCode.BACKEND_ERROR


class CheckpointError(BackendError):
    """A checkpoint is missing, misshapen, or not what its configuration claims."""


class UnsupportedDraft(CheckpointError):
    """A draft of a kind that the built-in engines do not run. Other engines may."""


class WorkerLost(BackendError):
    """The engine's process ended or stopped answering."""
