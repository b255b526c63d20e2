"""Inject known faults into a scripted engine and check that exactly the matching gate objects.

Gates that pass a healthy engine may be sound, or may be blind. Only a fault tells the two apart.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specgate.contract import Run, State
from specgate.contract.scenarios.scenario import RunKind
from specgate.errors import ExitCode
from specgate.files.run_folder import RunFolder
from specgate.planning.request import Request
from specgate.run.calibration import calibrate
from specgate.run.session import carry_out
from specgate.selftest import stored

FOLDER: Final = Path(__file__).parent
POLICY: Final = FOLDER / "policy.yaml"
SCENARIOS: Final[Mapping[RunKind, str]] = {"micro": "scripted.yaml", "load": "loaded.yaml"}
PROCESSES: Final = 5
"""Engine processes of the calibration."""
QUICK: Final = {"step_ns": "250000", "draft_ns": "25000"}
"""The script's cycles in a quarter of their usual time: the same ratios, and a self-test that waits less."""
GREEN: Final = (State.PASS, State.IMPROVED, State.SKIPPED)
NEED_FIGURES: Final = (
    *("tokens", "invariants", "acceptance", "acceptance-drift"),
    *("speed", "tail", "since-green", "degeneracy"),
)
"""Gates that object, with the reason of `validity`, to a cell whose records contradict themselves."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a scripted engine, and the gate that must see it.

    `options`: the options of the back end `fake` that cause the fault. `gate`, `state` and `reason_code`: the verdict
    that is expected. `also`: gates that may object too, since a wrong token, for example, breaks determinism as well as
    equality. `kind`: that of the run. Neighbours of one kind with the same options share a run.
    """

    name: str
    options: Mapping[str, str]
    gate: str
    reason_code: str
    state: State = State.INVALID
    also: tuple[str, ...] = ()
    kind: RunKind = "micro"

    @property
    def run(self) -> tuple[RunKind, Mapping[str, str]]:
        """Kind and options of its run."""
        return self.kind, self.options


def costly(name: str, gate: str, reason_code: str) -> Fault:
    """A fault of a server of which every token that a step verifies takes twice as long as the step."""
    others = tuple(sorted({"load", "goodput"} - {gate}))
    return Fault(name, {"row_ns": "500000"}, gate, reason_code, State.FAIL, others, "load")


def wrong_token(name: str, options: Mapping[str, str]) -> Fault:
    """A token that the baseline does not have."""
    return Fault(name, options, "tokens", "token_mismatch", also=("invariants", "speed"))


def contradiction(name: str, options: Mapping[str, str], reason_code: str) -> Fault:
    """Records that contradict themselves."""
    return Fault(name, options, "validity", reason_code, also=NEED_FIGURES)


FAULTS: Final = (
    Fault("3 % slow-down", {"slowdown": "1.03"}, "speed", "below_min", State.FAIL),
    wrong_token("one wrong token", {"wrong_token_at": "9"}),
    wrong_token("token swapped at a near tie", {"wrong_token_at": "9", "margin": "0.0001"}),
    wrong_token("a wrong token behind the baseline's last", {"wrong_token_at": "100"}),
    contradiction("tokens said to be cut off, and no end", {"lost_tokens": "1"}, "counter_identity"),
    contradiction("committed tokens rewound", {"committed_rewound": "5"}, "unexpected_rewind"),
    Fault("wait in the loop", {"sync_in_loop": "true"}, "invariants", "sync_in_loop"),
    Fault("copy to the host in the loop", {"d2h_in_loop": "true"}, "invariants", "d2h_in_loop"),
    Fault("allocation in the loop", {"alloc_in_loop": "true"}, "invariants", "alloc_in_loop"),
    Fault("untuned kernel", {"untuned_launches": "1"}, "invariants", "untuned_kernel"),
    Fault("GEMM fall-back", {"fallback_kernel": "cutlass_80_tensorop_gemm"}, "invariants", "fallback_kernel"),
    Fault("multi-token mode left for no reason", {"left_multi_token": "1"}, "invariants", "left_multi_token_mode"),
    Fault("cache integrity failure", {"kv_integrity_failures": "1"}, "invariants", "kv_integrity"),
    Fault("broken attention mask of a tree", {"mask_integrity_failures": "1"}, "invariants", "mask_integrity"),
    Fault("prefix-cache hit", {"cache_hit_tokens": "32"}, "validity", "cache_hit"),
    Fault("speculation silently off", {"no_drafts": "true"}, "validity", "no_drafts",
          also=("acceptance", "acceptance-drift", "speed", "invariants")),
    Fault("unusable draft", {"draft_error": "fc.weight is missing"}, "validity", "draft_unusable",
          also=("acceptance", "acceptance-drift", "speed")),
    Fault("acceptance inflated by loops", {"loop_period": "7"}, "degeneracy", "above_max", State.FAIL),
    Fault("draft that goes stale", {"stale_steps": "1"}, "acceptance-drift", "falls", State.FAIL,
          also=("acceptance", "speed")),
    Fault("draft of no use", {"accept": "0,1,0,0"}, "acceptance", "below_min", State.FAIL, also=("speed",)),
    # The baseline's, too: the speed-up stays.
    Fault("every step 5 % late", {"step_ns": "262500", "draft_ns": "26250"}, "tail", "above_max", State.FAIL),
    costly("verification that costs under load", "load", "costs_before_min"),
    costly("requests that end too late", "goodput", "below_min"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one fault.

    `expected`: the verdict that was expected, in words; it begins with the gate's name. `seen`: what the gates said.
    `wrong`: what should have been different, or None if the fault was seen and nothing else was objected to.
    """

    name: str
    expected: str
    seen: str
    wrong: str | None = None


def outcomes(folder: Path) -> Iterator[Outcome]:
    """Check the engine without a fault, then with every fault, then what surrounds a run. Runs
    go into `folder`.

    First of all, the scripted engine is calibrated, since it is the same in every process: with what is assumed of real
    ones, a slow-down of 3 % could not be told from one of 1 %.
    """
    runs = folder / "runs"  # its noise profile comes to lie beside it
    with quiet():
        calibrate(request({}, runs), margin_pct=2.0, processes=PROCESSES)
    yield clean(runs)
    unspoilt = newest(runs)
    yield clean(runs, "load")
    for _, faults in itertools.groupby(FAULTS, lambda fault: fault.run):
        yield from injected(tuple(faults), runs)
    yield from surroundings(unspoilt, runs)


def clean(folder: Path, kind: RunKind = "micro") -> Outcome:
    """An engine without a fault must pass every gate: a gate that always objects is useless too."""
    run = scripted({}, folder, kind)
    objections = [f"{v.rule} {v.state} {v.reason_code}" for v in run.verdicts if v.state not in GREEN]
    judged = len({v.gate for v in run.verdicts if v.state is not State.SKIPPED})
    return Outcome(f"no fault ({kind})", "every gate green", f"{judged} gates green", "; ".join(objections) or None)


def injected(faults: Sequence[Fault], folder: Path) -> Iterator[Outcome]:
    """Run the scripted engine once with the options that `faults` share: the gate of each must see it, and no gate that
    is not listed may object.
    """
    run = scripted(faults[0].options, folder, faults[0].kind)
    objections = [v for v in run.verdicts if v.state not in GREEN]
    summary = ", ".join(dict.fromkeys(f"{v.gate} {v.state} {v.reason_code}" for v in objections)) or "nothing"
    for fault in faults:
        expected = f"{fault.gate} {fault.state} {fault.reason_code}"
        strangers = {v.gate for v in objections} - {fault.gate, *fault.also}
        wrong = f"{', '.join(sorted(strangers))} objected too" if strangers else None
        own = (fault.gate, fault.state, fault.reason_code)
        if own not in {(v.gate, v.state, v.reason_code) for v in objections}:
            wrong = f"{fault.gate} did not see it"
        yield Outcome(fault.name, expected, summary, wrong)


def surroundings(unspoilt: Path, runs: Path) -> Iterator[Outcome]:
    """Check the faults of what surrounds a run: machine, files and ledger.

    `unspoilt`: the run folder of the engine without a fault. `runs`: the folder of all runs, where their ledger is.
    """
    of = RunFolder.open(unspoilt)
    for name, gate, state, code, run in (
        ("quiet machine", "environment", State.PASS, "undisturbed", stored.disturbed(of, lambda reading: reading)),
        *(
            (fault.name, "environment", State.ENV_REJECTED, fault.reason_code, stored.disturbed(of, fault.change))
            for fault in stored.DISTURBANCES
        ),
        ("draws of the target", "distribution", State.PASS, "distribution_kept", stored.drawing(of, stored.TARGET)),
        ("draws of the draft", "distribution", State.INVALID, "not_the_targets", stored.drawing(of, stored.DRAFT)),
        ("steady memory", "memory", State.PASS, "at_most_max", stored.growing(of, 0)),
        ("memory that grows", "memory", State.FAIL, "above_max", stored.growing(of, 4 << 20)),
        ("answers as right as before", "quality", State.PASS, "loss_within_margin", stored.answering(of, 0)),
        ("a tenth of the answers lost", "quality", State.FAIL, "loss_beyond_margin", stored.answering(of, 40)),
        ("as fast as the last green run", "since-green", State.PASS, "within_margin", stored.slower(of, 1)),
        ("every step 10 % slower", "since-green", State.FAIL, "slower", stored.slower(of, 1.1)),
        ("build that is no slower", "builds", State.PASS, "same", stored.compared(of, "SAME")),
        ("slower build", "builds", State.FAIL, "slower", stored.compared(of, "SLOWER")),
    ):
        verdicts = dict.fromkeys(stored.verdicts_on(run, gate))
        summary = ", ".join(f"{s} {c}" for s, c in verdicts)
        wrong = None if [*verdicts] == [(state, code)] else f"it said {summary}"
        yield Outcome(name, f"{gate} {state} {code}", summary, wrong)
    with tempfile.TemporaryDirectory() as scratch:
        there = Path(scratch)
        for name, expected, seen, otherwise in (
            ("edited result file", "verify: a difference", stored.edited_file(unspoilt, there), "verify is content"),
            ("torn ledger line", "ledger: torn", stored.torn_line(runs, there), "not noticed"),
            ("edited ledger line", "ledger: broken chain", stored.broken_chain(runs, there), "not noticed"),
        ):
            yield Outcome(name, expected, seen or "", None if seen else otherwise)


def newest(folder: Path) -> Path:
    """The run folder that was created last."""
    return max((p for p in folder.iterdir() if (p / "run.json").is_file()), key=lambda p: p.stat().st_mtime_ns)


def scripted(options: Mapping[str, str], folder: Path, kind: RunKind = "micro") -> Run:
    """Run the self-test's scenario of a kind on the scripted engine. What the run prints is discarded."""
    before = set(folder.iterdir()) if folder.is_dir() else set()
    carried_out(request(options, folder, kind))
    (made,) = (path for path in set(folder.iterdir()) - before if path.is_dir())
    return RunFolder.open(made).read_run()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discard what is printed."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def carried_out(request: Request) -> None:
    """Carry out a run, and discard what it prints. Raises KeyboardInterrupt if it was interrupted."""
    with quiet():
        code = carry_out(request)
    if code is ExitCode.INTERRUPTED:
        raise KeyboardInterrupt


def request(options: Mapping[str, str], folder: Path, kind: RunKind = "micro") -> Request:
    """The self-test's scenario of a kind on the scripted engine."""
    return Request(
        kind=kind,
        argv=("selftest",),
        plain=True,
        out=folder,
        backend="fake",
        scenarios=(str(FOLDER / SCENARIOS[kind]),),
        policy=str(POLICY),
        options={**QUICK, **options},
        reports=False,  # the gates are what is tested; drawing fifteen pages would take most of the time
    )
