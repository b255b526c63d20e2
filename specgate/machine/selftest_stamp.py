"""Record of the self-test's last green run, in a file beside the run folders. Every run records it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from specgate.files.json_text import read_json
from specgate.files.panics import first_line
from specgate.machine import inventory

NAME: Final = "selftest.json"


def write(runs: Path, checks: int) -> None:
    """Record that all `checks` came out right, with this source tree, now."""
    runs.mkdir(parents=True, exist_ok=True)
    stamp = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "source_tree_sha256": inventory.source_tree_sha256(),
    }
    (runs / NAME).write_text(json.dumps({**stamp, "checks": checks}) + "\n", encoding="utf-8")


def last_green(runs: Path) -> str:
    """One sentence for a run's page: when the self-test was last green, and on which source tree."""
    try:
        stamp = read_json(runs / NAME)
        if not isinstance(stamp, dict):
            raise ValueError("a JSON object is needed")
        time, tree, checks = stamp["time"], stamp["source_tree_sha256"], stamp["checks"]
    except FileNotFoundError:
        return "never beside these runs"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{NAME} cannot be read: {first_line(error)}"
    same = "this source tree" if tree == inventory.source_tree_sha256() else f"another source tree, {str(tree)[:8]}"
    return f"green {time}: all {checks} checks, {same}"
