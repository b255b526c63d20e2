"""Inject known faults into a scripted engine and check that exactly the matching gate objects.

Gates that pass a healthy engine may be sound, or may be blind. Only a fault tells the two apart.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specgate.contract import Run, State
from specgate.files.run_folder import RunFolder
from specgate.planning.request import Request
from specgate.run.calibration import calibrate
from specgate.run.session import carry_out
from specgate.selftest import small_chains, stored

FOLDER: Final = Path(__file__).parent
SCENARIO, POLICY = FOLDER / "scripted.yaml", FOLDER / "policy.yaml"
PROCESSES: Final = 5
"""Engine processes of the calibration."""
QUICK: Final = {"step_ns": "250000", "draft_ns": "25000"}
"""The script's cycles in a quarter of their usual time: the same ratios, and a self-test that waits less."""
GREEN: Final = (State.PASS, State.IMPROVED, State.SKIPPED)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a scripted engine, and the gate that must see it.

    `options`: the options of the back end `fake` that cause the fault. `gate`, `state` and `reason_code`: the verdict
    that is expected. `also`: gates that may object too, since a wrong token, for example, breaks determinism as well as
    equality.
    """

    name: str
    options: Mapping[str, str]
    gate: str
    reason_code: str
    state: State = State.INVALID
    also: tuple[str, ...] = ()


FAULTS: Final = (
    Fault("3 % slow-down", {"slowdown": "1.03"}, "speed", "below_min", State.FAIL),
    Fault("one wrong token", {"wrong_token_at": "9"}, "tokens", "token_mismatch", also=("invariants", "speed")),
    Fault(
        "token swapped at a near tie",
        {"wrong_token_at": "9", "margin": "0.0001"},
        "tokens",
        "token_mismatch",
        also=("invariants", "speed"),
    ),
    Fault(
        "a wrong token behind the baseline's last",
        {"wrong_token_at": "100"},
        "tokens",
        "token_mismatch",
        also=("invariants", "speed"),
    ),
    Fault(
        "tokens said to be cut off, and no end",
        {"lost_tokens": "1"},
        "validity",
        "counter_identity",
        also=("tokens", "invariants", "acceptance", "speed", "degeneracy"),
    ),
    Fault(
        "committed tokens rewound",
        {"committed_rewound": "5"},
        "validity",
        "unexpected_rewind",
        also=("tokens", "invariants", "acceptance", "speed", "degeneracy"),
    ),
    Fault("wait in the loop", {"sync_in_loop": "true"}, "invariants", "sync_in_loop"),
    Fault("copy to the host in the loop", {"d2h_in_loop": "true"}, "invariants", "d2h_in_loop"),
    Fault("allocation in the loop", {"alloc_in_loop": "true"}, "invariants", "alloc_in_loop"),
    Fault("untuned kernel", {"untuned_launches": "1"}, "invariants", "untuned_kernel"),
    Fault("GEMM fall-back", {"fallback_kernel": "cutlass_80_tensorop_gemm"}, "invariants", "fallback_kernel"),
    Fault("multi-token mode left for no reason", {"left_multi_token": "1"}, "invariants", "left_multi_token_mode"),
    Fault("cache integrity failure", {"kv_integrity_failures": "1"}, "invariants", "kv_integrity"),
    Fault("broken attention mask of a tree", {"mask_integrity_failures": "1"}, "invariants", "mask_integrity"),
    Fault("prefix-cache hit", {"cache_hit_tokens": "32"}, "validity", "cache_hit"),
    Fault(
        "speculation silently off",
        {"no_drafts": "true"},
        "validity",
        "no_drafts",
        also=("acceptance", "speed", "invariants"),
    ),
    Fault(
        "unusable draft",
        {"draft_error": "fc.weight is missing"},
        "validity",
        "draft_unusable",
        also=("acceptance", "speed"),
    ),
    Fault("acceptance inflated by loops", {"loop_period": "7"}, "degeneracy", "above_max", State.FAIL),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one fault.

    `expected`: the verdict that was expected, in words. `seen`: what the gates said. `wrong`: what should have been
    different, or None if the fault was seen and nothing else was objected to.
    """

    name: str
    expected: str
    seen: str
    wrong: str | None = None


def outcomes(folder: Path) -> Iterator[Outcome]:
    """Check the engine without a fault, then with every fault, then verifies that draw, then what surrounds a run. Runs
    go into `folder`.

    First of all, the scripted engine is calibrated, since it is the same in every process: with what is assumed of real
    ones, a slow-down of 3 % could not be told from one of 1 %.
    """
    runs = folder / "runs"  # its noise profile comes to lie beside it
    with quiet():
        calibrate(request({}, runs), margin_pct=2.0, processes=PROCESSES)
    yield clean(runs)
    unspoilt = newest(runs)
    for fault in FAULTS:
        yield injected(fault, runs)
    yield from sampling(unspoilt)
    yield from surroundings(unspoilt, runs)


def clean(folder: Path) -> Outcome:
    """An engine without a fault must pass every gate: a gate that always objects is useless too."""
    run = scripted({}, folder)
    objections = [f"{v.rule} {v.state} {v.reason_code}" for v in run.verdicts if v.state not in GREEN]
    judged = len({v.gate for v in run.verdicts})
    return Outcome("no fault", "every gate green", f"{judged} gates green", "; ".join(objections) or None)


def injected(fault: Fault, folder: Path) -> Outcome:
    """Run the scripted engine with one fault: its gate must see it, and no gate that is not listed may object."""
    run = scripted(fault.options, folder)
    expected = f"{fault.gate} {fault.state} {fault.reason_code}"
    objections = [v for v in run.verdicts if v.state not in GREEN]
    matching = [v for v in objections if v.gate == fault.gate]
    summary = ", ".join(dict.fromkeys(f"{v.gate} {v.state} {v.reason_code}" for v in objections)) or "nothing"
    if not any(v.state is fault.state and v.reason_code == fault.reason_code for v in matching):
        return Outcome(fault.name, expected, summary, f"{fault.gate} did not see it")
    strangers = {v.gate for v in objections} - {fault.gate, *fault.also}
    return Outcome(fault.name, expected, summary, f"{', '.join(sorted(strangers))} objected too" if strangers else None)


def sampling(unspoilt: Path) -> Iterator[Outcome]:
    """Check verifies at a temperature: right ones, and those with faults. `unspoilt`: as in `surroundings`."""
    for verifies, alpha, state, code in (
        (small_chains.RIGHT, small_chains.USUAL, State.PASS, "distribution_kept"),
        (small_chains.FAULTS, small_chains.SURE, State.INVALID, "not_the_targets"),
    ):
        for name, verify in verifies.items():
            verdicts = small_chains.distribution_verdicts(unspoilt, verify, alpha)
            yield seen_as(name, "distribution", state, code, verdicts)


def surroundings(unspoilt: Path, runs: Path) -> Iterator[Outcome]:
    """Check the faults of what surrounds a run: machine, files and ledger.

    `unspoilt`: the run folder of the engine without a fault. `runs`: the folder of all runs, where their ledger is.
    """
    quiet = stored.environment_verdicts(unspoilt, lambda reading: reading)
    yield seen_as("quiet machine", "environment", State.PASS, "undisturbed", quiet)
    for disturbance in stored.DISTURBANCES:
        verdicts = stored.environment_verdicts(unspoilt, disturbance.change)
        yield seen_as(disturbance.name, "environment", State.ENV_REJECTED, disturbance.reason_code, verdicts)
    for name, grows_by, state, code in (
        ("steady memory", 0, State.PASS, "at_most_max"),
        ("memory that grows", 4 << 20, State.FAIL, "above_max"),
    ):
        yield seen_as(name, "memory", state, code, stored.memory_verdicts(unspoilt, grows_by))
    with tempfile.TemporaryDirectory() as scratch:
        summary = stored.edited_by_one_byte(unspoilt, Path(scratch))
        yield Outcome(
            "edited result file", "verify: a difference", summary or "", None if summary else "verify is content"
        )
        reported = stored.torn_line(runs, Path(scratch))
        yield Outcome(
            "torn ledger line", "ledger: torn", "torn" if reported else "", None if reported else "not noticed"
        )
        summary = stored.broken_chain(runs, Path(scratch))
        yield Outcome("edited ledger line", "ledger: broken chain", summary or "", None if summary else "not noticed")


def seen_as(name: str, gate: str, state: State, code: str, verdicts: Sequence[tuple[State, str]]) -> Outcome:
    """Return the outcome of a fault whose gate judged a stored run: `verdicts` are its verdicts, and each must be the
    same.
    """
    summary = ", ".join(f"{s} {c}" for s, c in dict.fromkeys(verdicts))
    wrong = None if set(verdicts) == {(state, code)} else f"it said {summary}"
    return Outcome(name, f"{gate} {state} {code}", summary, wrong)


def newest(folder: Path) -> Path:
    """The run folder that was created last."""
    return max((p for p in folder.iterdir() if (p / "run.json").is_file()), key=lambda p: p.stat().st_mtime_ns)


def scripted(options: Mapping[str, str], folder: Path) -> Run:
    """Run the self-test's scenario on the scripted engine. What the run prints is discarded."""
    before = set(folder.iterdir()) if folder.is_dir() else set()
    with quiet():
        carry_out(request(options, folder))
    (made,) = (path for path in set(folder.iterdir()) - before if path.is_dir())
    return RunFolder.open(made).read_run()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discard what is printed."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def request(options: Mapping[str, str], folder: Path) -> Request:
    """The self-test's scenario on the scripted engine."""
    return Request(
        kind="micro",
        argv=("selftest",),
        plain=True,
        out=folder,
        backend="fake",
        scenarios=(str(SCENARIO),),
        policy=str(POLICY),
        options={**QUICK, **options},
        reports=False,  # the gates are what is tested; drawing fifteen pages would take most of the time
    )
