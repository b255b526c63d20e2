"""The nouns of specgate, frozen: values without behaviour that every room may use.

    Scenario ─► Point, Role, Cell ─► Plan ─► Block (raw samples) ─► CellResult, Comparison ─► Verdict ─► Run

    asked.py           roles, pairs, scenarios, points, cells, rounds, and the plan of a run
    measured.py        what an engine says of itself, and the raw samples of one block
    found.py           what the samples amount to: figures, distributions, divergences, cells, comparisons; and what no
                       single run can see
    judged.py          rules, policies, verdicts, the whole run as reports see it, and the part that gates see
    acceptance.py      drafts, accepted drafts, and the identities that tie them together
    conditions.py      what the machine did while a block was timed
    traces.py          what a profiler saw of a block, and the PERF_MODE invariants
    metrics.py         every metric's name, unit and better direction
    traffic.py         bytes that a pass must move through memory
    cycle_budget.py    where the time of a cycle goes, beside the floor that its bytes set
    tape.py            accept counts of a run, stored to be replayed
    contrast.py        one run beside another
    agreement.py       several engines' texts and acceptance beside a reference's
    memory/            what an engine holds in memory
    routing/           which of a mixture's experts the target's passes reach
    draws/             texts that were drawn at a temperature, and how well they fit the target's distribution
    load/              a server under load: what it is offered, and up to which level speculation pays
    references/        what a run is held against that is not part of it
    two_builds/        two builds of an engine, measured in turns in one session
    matrix.py          the same cells on several back ends
    trends.py          one figure over many runs
    assets.py          pinned wheels that pairs and prompts are made of
    counters.py        counts of an engine beside acceptance
    protocols/         what a back end, a gate, a report and other plug-ins implement
    types.py           constraints that fields carry, and aliases that several nouns share
    reading.py         from data to a noun: every problem with its key and what would be right

What `__all__` names can be imported from here and is stable for authors of plug-ins; the other nouns are stable under
the names of their files. Nothing here imports an engine, reads a file or looks at a machine.
"""

from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.asked import (
    BASELINE,
    PASS_ROUNDS,
    VARIANT_MARK,
    AcceptanceSource,
    Budget,
    Cell,
    Draws,
    Grid,
    LatencyLimits,
    Machine,
    PairRef,
    Plan,
    Point,
    Role,
    Rope,
    Round,
    RunKind,
    Sampling,
    SamplingMethod,
    Scenario,
    Schedule,
    Variant,
    Workload,
)
from specgate.contract.cycle_budget import Bandwidth, CycleBudget
from specgate.contract.found import (
    AcceptanceDrift,
    ActiveBin,
    BetweenRuns,
    CellResult,
    Comparison,
    DepthBin,
    Distribution,
    Divergence,
    FollowCheck,
    Followed,
    LogitCheck,
    Margin,
    NearTies,
    ScoreCheck,
    TokenCheck,
    TopTokens,
    Value,
)
from specgate.contract.judged import (
    ACCEPTANCE_LENGTH,
    KINDS,
    SPEEDUP,
    AllowedLoss,
    Exemption,
    Floor,
    Gap,
    Kind,
    LastGreen,
    Policy,
    Promotion,
    Rule,
    Run,
    RunView,
    State,
    TokenChecks,
    Verdict,
)
from specgate.contract.measured import (
    ENGINE_DECODE_NS,
    FORBIDS_ENDS,
    FORCED_LENGTH,
    LOSSY,
    MAY_NOT_DRAFT,
    OWN_NUMBERS,
    BaselineText,
    Block,
    DecodeRun,
    EngineFacts,
    EngineIdentity,
    Finish,
    LogCause,
    LogitSample,
    RefusedRequest,
    RescoredText,
    Rescoring,
    Score,
    SecondLook,
    Served,
    ServedModel,
    ServedRequest,
)
from specgate.contract.traces import BlockTrace, Finding, Held, Invariant, LoopFigures, TraceSource
from specgate.contract.traffic import Traffic

__all__ = [
    "ACCEPTANCE_LENGTH",
    "BASELINE",
    "ENGINE_DECODE_NS",
    "FORBIDS_ENDS",
    "FORCED_LENGTH",
    "KINDS",
    "LOSSY",
    "MAY_NOT_DRAFT",
    "OWN_NUMBERS",
    "PASS_ROUNDS",
    "SPEEDUP",
    "VARIANT_MARK",
    "AcceptanceDrift",
    "AcceptanceRecord",
    "AcceptanceSource",
    "ActiveBin",
    "AllowedLoss",
    "Bandwidth",
    "BaselineText",
    "BetweenRuns",
    "Block",
    "BlockTrace",
    "Budget",
    "Cell",
    "CellResult",
    "Comparison",
    "CycleBudget",
    "DecodeRun",
    "DepthBin",
    "Distribution",
    "Divergence",
    "Draws",
    "EngineFacts",
    "EngineIdentity",
    "Exemption",
    "Finding",
    "Finish",
    "Floor",
    "FollowCheck",
    "Followed",
    "Gap",
    "Grid",
    "Held",
    "Invariant",
    "Kind",
    "LastGreen",
    "LatencyLimits",
    "LogCause",
    "LogitCheck",
    "LogitSample",
    "LoopFigures",
    "Machine",
    "Margin",
    "NearTies",
    "PairRef",
    "Plan",
    "Point",
    "Policy",
    "Promotion",
    "RefusedRequest",
    "RescoredText",
    "Rescoring",
    "Role",
    "Rope",
    "Round",
    "Rule",
    "Run",
    "RunKind",
    "RunView",
    "Sampling",
    "SamplingMethod",
    "Scenario",
    "Schedule",
    "Score",
    "ScoreCheck",
    "SecondLook",
    "Served",
    "ServedModel",
    "ServedRequest",
    "State",
    "TokenCheck",
    "TokenChecks",
    "TopTokens",
    "TraceSource",
    "Traffic",
    "Value",
    "Variant",
    "Verdict",
    "Workload",
]
