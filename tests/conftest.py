"""Shared fixtures, and the one place that decides whether GPU tests can run."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Reproducible and polite on small machines: the tests' models are tiny, more threads only fight each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from filelock import FileLock
from hypothesis import settings

from tests.support import in_process, outlines
from tests.support.clocks.starved import ATTEMPTS, stood_still
from tests.support.command import Cli
from tests.support.engines import house

# Deadlines measure the machine, not the code. Half the usual examples: the suite runs often, with others each time.
settings.register_profile("specgate", deadline=None, max_examples=50)
settings.load_profile("specgate")


TESTS = Path(__file__).parent
SLOW_FIXTURES = {
    "cheating": "measures",
    "cli": "measures",
    "device": "compiles kernels as C++",
    "host": "compiles kernels as C++",
    "killed_run": "a run in processes of its own",
    "pair_a": "plants a pair",
    "pair_b": "plants a pair",
    "trained": "trains a draft",
}
"""Fixture → why a test that uses it takes long."""

SLOW_PLACES = {
    "analysis/draws/test_fit_tests.py": "draws texts by the thousand",
    "analysis/two_builds/test_outcomes.py": "simulates comparisons",
    "archive/judging/test_run_folder.py": "judges runs",
    "archive/test_change_points.py": "simulates series",
    "archive/test_every_leaf.py": "verifies a run once per changed leaf",
    "archive/test_read_only.py": "verifies in processes of their own",
    "archive/test_verification.py": "verifies runs",
    "backends/offline/test_engine.py": "starts engines",
    "backends/servers/test_limits.py": "starts servers",
    "backends/servers/test_process.py": "starts servers",
    "cheats": "measures",
    "contract/test_traffic.py": "throws dice by the thousand",
    "eagle3/cupy": "compiles kernels, runs whole steps or needs a GPU",
    "eagle3/lib/planted/test_weights.py": "plants weights",
    "eagle3/pair_tools/export": "writes checkpoints",
    "eagle3/pair_tools/plant": "plants pairs",
    "eagle3/reference": "decodes",
    "eagle3/transformers": "decodes",
    "fleet/test_fleet.py": "starts nodes",
    "fuzz": "reads odd inputs by the thousand",
    "machine/test_monitor.py": "watches the machine for a while",
    "planning/prompt_files/test_records.py": "writes hundreds of megabytes",
    "reports/views/test_views.py": "renders every view",
    "run/engine_process/test_answers.py": "starts processes",
    "run/engine_process/test_logs.py": "starts processes",
    "run/test_levels.py": "simulates runs",
    "run/test_worker.py": "starts processes",
    "sampling/test_verifying.py": "draws texts by the thousand",
    "selftest/test_faults.py": "judges runs with every fault",
}
"""File or folder of tests → why it takes long."""

BY_THE_CLOCK = ("measures", "process", "runs a", "runs of", "starts", "twenty-nine runs", "watches")
"""Words of reasons: such a test hangs on this machine's clock. Where it fails, it is made again, at most three times,
and the summary names it. All others have one attempt, and so has a GPU's: a race between threads comes now and then.
"""


@cache
def why_slow(file: Path) -> str | None:
    """Return why the tests of a file take long; None where they do not."""
    places = (file, *file.parents)
    return next((why for place, why in SLOW_PLACES.items() if TESTS / place in places), None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where the engine's house is not installed, the tests that import it are left out. Files that take long are not
    even read where `not slow` is asked for.
    """
    if config.getoption("markexpr") == "not slow" and why_slow(collection_path):
        return True
    if house.is_here() or collection_path == Path(__file__).parent:
        return None
    if collection_path.is_dir():
        file = collection_path / "conftest.py"
        return (file.is_file() and house.needs_engine(file)) or None
    return (collection_path.suffix == ".py" and house.needs_engine(collection_path)) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for why in {SLOW_FIXTURES[name] for name in getattr(item, "fixturenames", ()) if name in SLOW_FIXTURES}:
            item.add_marker(pytest.mark.slow(why))
        if reason := why_slow(item.path):
            item.add_marker(pytest.mark.slow(reason))
        reasons = [] if item.get_closest_marker("gpu") else [mark.args[0] for mark in item.iter_markers("slow")]
        if any(word in reason for reason in reasons for word in BY_THE_CLOCK):
            item.add_marker(pytest.mark.flaky(reruns=3))
    if "PYTEST_XDIST_WORKER" in os.environ:
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in slow)
    for item in items:
        if item.get_closest_marker("engine") and not house.is_here():
            item.add_marker(pytest.mark.skip(reason="needs the engine's house, which is not installed"))
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU; torch sees none here"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The garbage collector does not look at what is there to the end.

    Modules and collected tests are two million objects: to go through them took half a second each time, an eighth of
    the time of tests that start no process. What tests make is collected as ever, if not after every 700 objects.
    They are not looked through at the end of collecting either.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)
        gc.enable()


@dataclass(frozen=True)
class Killed:
    folder: Path
    done: subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Return the folder of a name in this test run. The worker that comes first makes it; the others wait for it."""
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    shared.mkdir(exist_ok=True)

    def folder_of(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = shared / name, shared / f"{name}.done"
        with FileLock(shared / f"{name}.lock"):
            if not done.exists():
                make(folder)
                done.touch()
        return folder

    return folder_of


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    if not house.is_here():
        return house.write_configs(folder)
    from tests.pairs.tiny import write_random_pair

    return write_random_pair(folder, seed=8)


@pytest.fixture
def cli(tmp_path: Path, pair: tuple[Path, Path]) -> Cli:
    return Cli(tmp_path, *pair)


@pytest.fixture(scope="session")
def green_run(tmp_path_factory: pytest.TempPathFactory, pair: tuple[Path, Path]) -> Path:
    """The folder of a micro run on the fake engine, with the ledger beside it. Tests change copies of it."""
    cli = Cli(tmp_path_factory.mktemp("green"), *pair)
    cli.micro("--backend", "fake", code=0)
    return cli.newest()


@pytest.fixture(scope="session")
def killed_run(made_once: Callable[[str, Callable[[Path], object]], Path], pair: tuple[Path, Path]) -> Killed:
    """A run in processes of its own whose engine was killed in its 21st block; made again where the machine stood still
    meanwhile: who goes on with it would find that its clocks contradict each other.
    """

    def made(folder: Path) -> None:
        for _ in range(ATTEMPTS):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            cli = Cli(folder, *pair)
            done = cli.micro_apart("--backend", "fake", "-o", "die_after_blocks=20")
            if not stood_still(cli.newest()):
                break
        (folder / "done.json").write_text(json.dumps((done.returncode, done.stdout)))

    folder = made_once("killed", made)
    code, printed = json.loads((folder / "done.json").read_text())
    return Killed(folder, subprocess.CompletedProcess((), code, printed))


@pytest.fixture
def killed(killed_run: Killed, cli: Cli) -> Killed:
    """A copy of it among the runs of `cli`."""
    shutil.copytree(killed_run.folder / "runs", cli.folder / "runs")
    return killed_run


@pytest.fixture(scope="session", autouse=True)
def power_that_stays() -> Iterator[None]:
    """What a disk holds after a power cut no test can see; waiting for it took milliseconds per line of a journal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def source_tree_that_stays() -> Iterator[None]:
    """Reads the checkout once: each run looked at 1,300 files six times, asked git three times, and hashed the code of
    the tests' own engines. Trees and plug-ins elsewhere are read as ever.
    """
    import specgate
    from specgate.machine import inventory, plugin_code

    root, walk, git, code_of = specgate.__file__, inventory._source_files, inventory._git, plugin_code.code_of
    assert root is not None
    files, commit, codes = cache(lambda folder: tuple(walk(folder))), cache(git), cache(code_of)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inventory, "_source_files", lambda f: (files if f == os.path.dirname(root) else walk)(f))
        patch.setattr(inventory, "_git", lambda: commit() if specgate.__file__ == root else git())
        patch.setattr(plugin_code, "code_of", lambda e: (codes if e.module.startswith("tests.") else code_of)(e))
        yield


@pytest.fixture(scope="session", autouse=True)
def stubs_are_asked_often() -> Iterator[None]:
    """A stub of a server has counted as soon as it answers, where a real one needs a while. With the product's pauses,
    tests would stand still for a minute.
    """
    from specgate.backends.servers import server

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "POLL_S", 0.002)
        patch.setattr(server, "READY_POLL_S", 0.01)
        yield


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that this test makes by calling the harness start no process."""
    in_process.stay_here(monkeypatch)


@pytest.fixture
def outlined(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a module that draws, this test does not."""
    outlines.instead_of_drawing(monkeypatch)


@pytest.fixture(scope="module", autouse=True)
def outlined_pictures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Drawing takes most of the time of a small run: only modules with `DRAWS = True` draw."""
    with pytest.MonkeyPatch.context() as patch:
        if not getattr(request.module, "DRAWS", False):
            outlines.instead_of_drawing(patch)
        yield
