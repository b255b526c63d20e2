"""specgate measures speculative decoding and judges it.

The rooms from top to bottom; each imports only from rooms below it, and `tests/test_layout.py` holds that.

    __main__.py   `python -m specgate`
    cli.py        the command line, put together; the exit code
    commands/     one file per command: its options, and what is called with them
    selftest/     known faults, and the demand that each of them is seen
    archive/      stored runs: read, verified, rendered, compared, laid side by side, followed in time
    sweep/        settings of an engine: halved by speed, the best compared with the default
    ab/           two builds of an engine in one session: which one is slower
    fleet/        one run on many machines, each point whole on one of them
    run/          one run: from request to samples, figures, verdicts and exit code
    promotion/    full runs only once the micro gates are green: ledger, green runs, claim
    planning/     what is going to be measured: scenarios, policies, prompts, the plan of blocks
    backends/     the engines that can be measured            (beside planning/; a link to the top level)
    gates/        the judges, and the policies that ask them  (likewise)
    reports/      the renderers                               (likewise)
    scenarios/    what to run, one YAML file per question     (likewise)
    machine/      the machine that is measured on: inventory, samples, fitness, noise, bandwidth
    pairs/        which target and draft are meant, and the text that prompts are cut from
    sandbox/      where engines run with `--isolate`: how one is made, and what is seen inside
    plugin_process.py  back ends from outside, asked in processes of their own
    plugins.py    the plug-in door: back ends, gates and reports by entry point, the built-in ones too
    analysis/     from samples to figures: pure functions
    checkpoints/  what a harness must read of a pair on disk
    sampling/     drawing tokens at a temperature, and verifying drafts so that nothing is lost
    terminal.py   what is printed: credentials masked, no sequence that a terminal would obey
    files/        files on disk: run folders, JSON records, YAML, the cache
    contract/     the nouns: frozen values that every room may use, and what plug-ins implement
    redaction.py  credentials masked, control characters shown
    errors.py     every error that is raised on purpose, and its exit code

Plug-in authors import `specgate.errors`, `redaction`, `contract`, `files` and `analysis`; engines and gates may also
import `specgate.sampling`, engines `specgate.checkpoints` and `machine`, and commands `terminal`, `plugins`, `pairs`,
`planning`, `archive` and `commands`. The built-in back ends, gates and reports import nothing else either.
`docs/examples/` has a package of each kind. The built-in EAGLE-3 engine is a house of its own, `backends/eagle3/`, and
a plug-in like any other.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specgate.archive.tables import RunTables

__version__ = "0.1.0"

# `backends`, `gates`, `reports` and `scenarios` live at the top level of the repository and are reached through
# links in this folder. A checkout made without link support (git's core.symlinks=false) still runs: look in the
# parent folder too.
if not (Path(__file__).parent / "backends" / "__init__.py").is_file():
    __path__.append(str(Path(__file__).parent.parent))

__all__ = ["__version__", "open_run"]


def open_run(folder: str | os.PathLike[str]) -> RunTables:
    """Return the stored run in `folder` as pandas tables: cells, figures, blocks, requests and verdicts.

    The files are read as by every command: checked against the manifest, never written. Raises
    `specgate.errors.UsageError` for what is no run folder, and `InvalidResult` for a run that was changed since.
    """
    from specgate.archive.stored_runs import load_run
    from specgate.archive.tables import RunTables

    return RunTables(load_run(Path(folder)))
