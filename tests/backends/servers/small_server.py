"""A small real server for the tests of processes: it forks a helper into a session of its own, as engines do.

    python small_server.py PORT PIDFILE [--stubborn]

`--stubborn`: it and its helper ignore SIGTERM.
"""

from __future__ import annotations

import http.server
import os
import signal
import sys
from pathlib import Path


def main(port: int, pids: Path, stubborn: bool) -> None:
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    helper = os.fork()
    if helper == 0:
        os.setsid()
        while True:
            signal.pause()
    pids.write_text(f"{os.getpid()} {helper}")
    http.server.HTTPServer(("127.0.0.1", port), http.server.BaseHTTPRequestHandler).serve_forever()


main(int(sys.argv[1]), Path(sys.argv[2]), "--stubborn" in sys.argv)
