"""Copy the output of an engine's process, and of the programs that it starts, to files of the run folder.

The process has no handle on the run folder. It prints into a pipe, and its programs write into a scratch folder. The
harness copies both: in whole lines, cleaned, and no more than LIMIT bytes each.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from specgate.files.writing import disk
from specgate.redaction import cleaned

LIMIT: Final = 16 << 20
"""Bytes of a log, TAIL among them."""
TAIL: Final = 64 << 10
"""Bytes at the end that are kept of a log which is longer. The end is what says why a process died."""
LONGEST_LINE: Final = 64 << 10
PIECE: Final = 1 << 20
MOST_FILES: Final = 32


class Log:
    """A log file that foreign bytes are appended to.

    `changed`: what becomes of a text before it is written. A file that cannot be written, as on a full disk, loses what
    it was to get; what the engine measures is not lost.
    """

    def __init__(self, file: Path, changed: Callable[[str], str] = cleaned, limit: int = LIMIT) -> None:
        self.file, self.changed, self.limit = file, changed, limit
        self._line, self._tail = bytearray(), bytearray()
        self._written = self._dropped = 0

    def begin(self) -> None:
        """Make the file, so that it is there even if nothing is printed."""
        with contextlib.suppress(OSError):
            self.file.touch()

    def add(self, data: bytes) -> None:
        """Write the whole lines of what has come, and keep the last, unfinished one."""
        if self.room <= 0:
            self._drop(data)
            return
        self._line += data
        whole = self._line.rfind(b"\n") + 1 or (len(self._line) if len(self._line) > LONGEST_LINE else 0)
        lines, self._line = self._as_written(self._line[:whole]), self._line[whole:]
        fitting, rest = lines[: self.room], lines[self.room :]
        self._write(fitting)
        if rest:
            self._drop(rest + self._line)
            self._line.clear()

    @property
    def room(self) -> int:
        """Bytes that are written before anything is left out."""
        return self.limit - TAIL - self._written

    def skip(self, count: int) -> None:
        """Leave out `count` bytes that were not read."""
        self._dropped += count

    def end(self) -> None:
        """Write what is left: an unfinished line, how much was left out, and the last of it."""
        line = self._as_written(self._line)
        self._line.clear()
        if len(line) > self.room > 0:
            self._drop(line)
        else:
            self._write(line)
        if self._dropped:
            left_out = self._dropped - min(len(self._tail), TAIL)
            self._write(f"\n[specgate: {left_out} bytes of this log are left out here]\n".encode() if left_out else b"")
            self._write(self._as_written(self._tail)[-TAIL:])
        self._dropped = 0
        self._tail.clear()

    def _drop(self, data: bytes) -> None:
        self._dropped += len(data)
        self._tail += data
        del self._tail[: -TAIL - LONGEST_LINE]  # whole lines, so that no credential is cut in two before it is masked

    def _as_written(self, data: bytes | bytearray) -> bytes:
        """It may be longer than `data`, since control characters become escapes."""
        return self.changed(data.decode("utf-8", "replace")).encode("utf-8", "replace") if data else b""

    def _write(self, data: bytes) -> None:
        self._written += len(data)
        if data:
            with contextlib.suppress(OSError), self.file.open("ab") as log:
                log.write(data)


class Printed:
    """Reads what a process prints, in a thread, and writes it to a log. `pipe` is the writing end, for the process."""

    def __init__(self, log: Log) -> None:
        self._log = log
        log.begin()
        self._reading, self.pipe = os.pipe()
        self._ending, end = os.pipe()
        self._end: int | None = end
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # an engine that prints should not have to wait for the harness
                fcntl.fcntl(self.pipe, fcntl.F_SETPIPE_SZ, PIECE)
        os.set_blocking(self._reading, False)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def started(self) -> None:
        """The process has its end of the pipe by now, or will never have it: close ours."""
        os.close(self.pipe)

    def end(self) -> None:
        """Write all that was printed, and read no more. Calling it again does nothing.

        A program that outlives the process may still have the pipe open, so this does not wait until it is closed.
        """
        if self._end is not None:
            os.close(self._end)
            self._thread.join()
        self._end = None

    def _read(self) -> None:
        poll = select.poll()
        for descriptor in (self._reading, self._ending):
            poll.register(descriptor, select.POLLIN)
        ending, left = False, 2 * PIECE  # as much as the pipe can hold, and no endless printing
        while left > 0:
            ending = ending or any(descriptor == self._ending for descriptor, _ in poll.poll())
            try:
                piece = os.read(self._reading, PIECE)
            except BlockingIOError:
                if ending:
                    break
                continue
            if not piece:
                break
            self._log.add(piece)
            left -= len(piece) if ending else 0
        self._log.end()
        os.close(self._reading)
        os.close(self._ending)


class Scratch:
    """A folder for the programs that an engine starts. Their files are copied to `kept` as they grow.

    Only plain files directly in the folder count, and of these MOST_FILES.
    """

    def __init__(self, logs: Path) -> None:
        self.kept = logs
        with disk(Path(tempfile.gettempdir())):
            self.folder = Path(tempfile.mkdtemp(prefix="specgate-")).resolve()
        self._logs: dict[str, tuple[Log, int]] = {}

    def renamed(self, text: str) -> str:
        """`text` with the scratch folder's files named as what they become in the run folder."""
        return text.replace(str(self.folder), str(self.kept))

    def copy(self) -> None:
        """Copy what the files have gained since the last time."""
        with contextlib.suppress(OSError):
            plain = [file for file in sorted(self.folder.iterdir()) if file.is_file() and not file.is_symlink()]
            for file in plain:
                if file.name in self._logs or len(self._logs) < MOST_FILES:
                    self._copy(file)

    def _copy(self, file: Path) -> None:
        log, done = self._logs.get(file.name) or (Log(self.kept / file.name, self._cleaned), 0)
        size = file.stat().st_size
        with file.open("rb") as written:
            while done < size:
                if log.room <= 0 and size - TAIL > done:
                    log.skip(size - TAIL - done)
                    done = size - TAIL
                written.seek(done)
                piece = written.read(min(PIECE, size - done))
                if not piece:
                    break
                log.add(piece)
                done += len(piece)
        self._logs[file.name] = log, done

    def _cleaned(self, text: str) -> str:
        return cleaned(self.renamed(text))

    def end(self) -> None:
        """Copy the rest, and remove the folder."""
        self.copy()
        for log, _ in self._logs.values():
            log.end()
        shutil.rmtree(self.folder, ignore_errors=True)
