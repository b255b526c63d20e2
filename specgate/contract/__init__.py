"""The nouns of specgate, frozen: values without behaviour that every room may use.

    Scenario ─► Point, Role, Cell ─► Plan ─► Block (raw samples) ─► CellResult, Comparison ─► Verdict ─► Run

    scenarios/         scenarios, the points and cells that they span, and the plan of a run
    samples/           an engine's facts, and the raw samples of its blocks
    results.py         figures of cells, and comparisons of cells with their baselines
    token_check.py     tokens compared with the baseline's, and with a second engine's choice
    policy.py          rules, policies and exemptions
    verdict.py         states, kinds of judgement and verdicts
    run.py             a whole run as reports see it, and the part of it that gates see
    acceptance.py      drafts, accepted drafts, and the identities that tie them together
    conditions.py      what the machine did while a block was timed
    traces.py          what a profiler saw of a block, and the PERF_MODE invariants
    metrics.py         every metric's name, unit and better direction
    traffic.py         bytes that a pass must move through memory
    cycle_budget.py    where the time of a cycle goes, beside the floor that its bytes set
    tape.py            accept counts of a run, stored to be replayed
    comparisons.py     runs laid side by side: by builds, by engines, and over a history
    routing/           which of a mixture's experts the target's passes reach
    draws.py          texts drawn at a temperature, and how well they fit the target's distribution
    load.py           the load that a server is offered, and the level up to which speculation pays
    references/        earlier runs and builds that a run is compared with
    two_builds.py      two builds of an engine, measured in turns in one session
    sweeps.py          settings of an engine, each beside the default, and the best
    protocols/         what a back end, a gate, a report and other plug-ins implement
    types.py           constraints that fields carry, and aliases that several nouns share
    reading.py         from data to a noun: every problem with its key and what would be right

What `__all__` names can be imported from here and is stable for authors of plug-ins; the other nouns are stable under
the names of their files. Nothing here imports an engine, reads a file or looks at a machine.
"""

from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.cycle_budget import Bandwidth, CycleBudget
from specgate.contract.policy import Exemption, Policy, Rule, TokenChecks
from specgate.contract.results import AcceptanceDrift, BetweenRuns, CellResult, Comparison, Distribution, Value
from specgate.contract.run import EXPLORED, LastGreen, Promotion, Run, RunView
from specgate.contract.samples.block import (
    ENGINE_DECODE_NS,
    Block,
    DecodeRun,
    Finish,
    RefusedRequest,
    Served,
    ServedRequest,
)
from specgate.contract.samples.engine_facts import (
    FORBIDS_ENDS,
    FORCED_LENGTH,
    LOSSY,
    MAY_NOT_DRAFT,
    OWN_LENGTHS,
    OWN_NUMBERS,
    PREFIX_CACHE,
    EngineFacts,
    EngineIdentity,
    LogCause,
    ServedModel,
)
from specgate.contract.samples.rescoring import BaselineText, LogitSample, RescoredText, Rescoring, Score, SecondLook
from specgate.contract.samples.time_spent import EngineStart, TimeEnd, TimeEnds
from specgate.contract.scenarios.pair import AcceptanceSource, PairRef, Rope
from specgate.contract.scenarios.plan import Cell, Plan, Point, Round
from specgate.contract.scenarios.roles import BASELINE, VARIANT_MARK, Role
from specgate.contract.scenarios.sampling import Draws, Sampling, SamplingMethod
from specgate.contract.scenarios.scenario import LatencyLimits, Machine, RunKind, Scenario, Variant
from specgate.contract.scenarios.workload import (
    LEAST_BUDGET_S,
    MOST_PAIRS,
    PASS_ROUNDS,
    Budget,
    Grid,
    Schedule,
    Workload,
)
from specgate.contract.token_check import (
    Divergence,
    DraftCheck,
    FollowCheck,
    Followed,
    LogitCheck,
    Margin,
    NearTies,
    ScoreCheck,
    TieLaw,
    TokenCheck,
    TopTokens,
)
from specgate.contract.traces import BlockTrace, Finding, Held, Invariant, LoopFigures, TraceSource
from specgate.contract.traffic import Traffic
from specgate.contract.verdict import ACCEPTANCE_LENGTH, KINDS, SPEEDUP, Floor, Gap, Kind, State, Verdict

__all__ = [
    "ACCEPTANCE_LENGTH", "BASELINE", "ENGINE_DECODE_NS", "EXPLORED", "FORBIDS_ENDS", "FORCED_LENGTH", "KINDS",
    "LEAST_BUDGET_S", "LOSSY", "MAY_NOT_DRAFT", "MOST_PAIRS", "OWN_LENGTHS", "OWN_NUMBERS", "PASS_ROUNDS",
    "PREFIX_CACHE", "SPEEDUP", "VARIANT_MARK", "AcceptanceDrift", "AcceptanceRecord", "AcceptanceSource", "Bandwidth",
    "BaselineText", "BetweenRuns", "Block", "BlockTrace", "Budget", "Cell", "CellResult", "Comparison", "CycleBudget",
    "DecodeRun", "Distribution", "Divergence", "DraftCheck", "Draws", "EngineFacts", "EngineIdentity", "EngineStart",
    "Exemption", "Finding", "Finish", "Floor", "FollowCheck", "Followed", "Gap", "Grid", "Held", "Invariant", "Kind",
    "LastGreen", "LatencyLimits", "LogCause", "LogitCheck", "LogitSample", "LoopFigures", "Machine", "Margin",
    "NearTies", "PairRef", "Plan", "Point", "Policy", "Promotion", "RefusedRequest", "RescoredText", "Rescoring",
    "Role", "Rope", "Round", "Rule", "Run", "RunKind", "RunView", "Sampling", "SamplingMethod", "Scenario", "Schedule",
    "Score", "ScoreCheck", "SecondLook", "Served", "ServedModel", "ServedRequest", "State", "TieLaw", "TimeEnd",
    "TimeEnds", "TokenCheck", "TokenChecks", "TopTokens", "TraceSource", "Traffic", "Value", "Variant", "Verdict",
    "Workload",
]  # fmt: skip
