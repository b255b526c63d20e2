"""The nouns of specgate, frozen: values without behaviour that every room may use.

    Scenario ─► Point, Role, Cell ─► Plan ─► Block (raw samples) ─► CellResult, Comparison ─► Verdict ─► Run

    asked           roles, pairs, scenarios, points, cells, rounds, and the plan of a run
    measured        what an engine says of itself, and the raw samples of one block
    found           what the samples amount to: figures, distributions, divergences, cells, comparisons
    judged          rules, policies, verdicts, and the whole run as gates and reports see it
    acceptance      drafts, accepted drafts, and the identities that tie them together
    conditions      what the machine did while a block was timed
    traces          what a profiler saw of a block, and the PERF_MODE invariants
    metrics         every metric's name, unit and better direction
    traffic         bytes that a pass must move through memory
    cycle_budget    where the time of a cycle goes, beside the floor that its bytes set
    tape            accept counts of a run, stored to be replayed
    gemms           shapes of matrix products, and the configurations found for them
    fmha            knobs of attention, and how its tiles were used
    kernel_bench    what timing single kernels asks and finds
    contrast        one run beside another
    agreement       several engines' texts and acceptance beside a reference's
    matrix          the same cells on several back ends
    trends          one figure over many runs
    stored_keys     fields whose key in stored JSON is an older name

What the first five files define, and what that is made of, can be imported from here and is stable for authors of
plug-ins; the other files are stable under their own names. Nothing here imports an engine, reads a file or looks at a
machine.
"""

from specgate.core.acceptance import AcceptanceRecord
from specgate.core.asked import (
    BASELINE,
    PASS_ROUNDS,
    AcceptanceSource,
    Budget,
    Cell,
    Grid,
    PairRef,
    Plan,
    Point,
    Role,
    Round,
    Scenario,
    Schedule,
    Workload,
)
from specgate.core.cycle_budget import Bandwidth, CycleBudget
from specgate.core.found import CellResult, Comparison, DepthBin, Distribution, Divergence, Margin, TokenCheck, Value
from specgate.core.judged import LastGreen, Policy, Promotion, Rule, Run, State, Verdict
from specgate.core.measured import Block, EngineFacts, Finish, Served, ServedRequest
from specgate.core.traces import BlockTrace, Held, Invariant
from specgate.core.traffic import Traffic

__all__ = [
    "BASELINE",
    "PASS_ROUNDS",
    "AcceptanceRecord",
    "AcceptanceSource",
    "Bandwidth",
    "Block",
    "BlockTrace",
    "Budget",
    "Cell",
    "CellResult",
    "Comparison",
    "CycleBudget",
    "DepthBin",
    "Distribution",
    "Divergence",
    "EngineFacts",
    "Finish",
    "Grid",
    "Held",
    "Invariant",
    "LastGreen",
    "Margin",
    "PairRef",
    "Plan",
    "Point",
    "Policy",
    "Promotion",
    "Role",
    "Round",
    "Rule",
    "Run",
    "Scenario",
    "Schedule",
    "Served",
    "ServedRequest",
    "State",
    "TokenCheck",
    "Traffic",
    "Value",
    "Verdict",
    "Workload",
]
