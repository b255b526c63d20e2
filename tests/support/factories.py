"""Blocks and runs for tests, computed from a plan without an engine or a clock.

The text depends on prompt set, slot and index. A cycle that accepts a draft tokens emits a + 1 tokens of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from specgate.analysis.checks.contradictions import CheckFacts
from specgate.analysis.reduce import Checked, measure
from specgate.analysis.references import clocks_of
from specgate.contract import (
    BASELINE,
    AcceptanceSource,
    BaselineText,
    Block,
    Budget,
    EngineFacts,
    Exemption,
    Finish,
    Grid,
    Kind,
    Margin,
    NearTies,
    PairRef,
    Plan,
    Point,
    Policy,
    Role,
    Round,
    Rule,
    Run,
    Scenario,
    Schedule,
    Served,
    ServedRequest,
    Workload,
)
from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.references import EarlierRun
from specgate.contract.samples.spans import ShownSpans, StepSpans
from specgate.planning.plan import build_plan

ACCEPT = (3, 1, 2, 0, 3, 2)
"""Accepted draft tokens per cycle, at most k, repeated."""


def scenario(
    name: str = "demo-64",
    kind: Literal["micro", "full"] = "micro",
    *,
    context: Sequence[int] = (64,),
    batch: Sequence[int] = (1,),
    spec: Sequence[int] = (3,),
    prompt_sets: int = 4,
    rounds: int = 2,
    steps: int = 12,
) -> Scenario:
    return Scenario(
        name=name,
        question="Does it?",
        kind=kind,
        family="single",
        needs="cpu",
        pair="demo",
        dtype="float32",
        grid=Grid(tuple(context), tuple(batch), tuple(spec)),
        workload=Workload(1, prompt_sets, 1, "random"),
        budget=Budget(steps=steps),
        schedule=Schedule(rounds, 1),
        perf_mode=False,
        timeout_s=10.0,
    )


def plan_of(*scenarios: Scenario) -> Plan:
    return build_plan(scenarios or (scenario(),), "fake")


def text(prompt_set: int, slot: int, length: int) -> tuple[int, ...]:
    """Token ids that do not repeat within 49,152 positions."""
    return tuple((i * 7919 + slot * 10_007 + prompt_set * 20_011) % 49_152 for i in range(length))


def block(
    round_: Round,
    role: Role,
    *,
    steps: int = 12,
    accept: Sequence[int] = ACCEPT,
    step_ns: int = 10_000_000,
    worker_generation: int = 0,
    **changes: Any,
) -> Block:
    """A complete block of `steps` cycles. Slot s of the batch starts s steps into `accept`."""
    batch = round_.point.batch
    accepted = tuple(
        tuple(min(role.k, accept[(step + s) % len(accept)]) for s in range(batch)) for step in range(steps)
    )
    made = Block(
        point=round_.point,
        role=role,
        prompt_set=round_.prompt_set,
        round=round_.index,
        position_in_round=round_.order.index(role),
        warmup=round_.warmup,
        worker_generation=worker_generation,
        prefill_ns=50_000_000,
        elapsed_ns=steps * step_ns,
        step_ns=(step_ns,) * steps,
        tokens=tuple(text(round_.prompt_set, s, 1 + steps + sum(row[s] for row in accepted)) for s in range(batch)),
        accepted=accepted,
        drafted=((role.k,) * batch,) * steps,
        truncated=(0,) * batch,
        finish=(Finish.STEPS,) * batch,
        counters={"rewound_tokens": sum(role.k - a for row in accepted for a in row)} if role.k else {},
        phase_ns={"draft": steps * step_ns // 4, "verify": steps * step_ns * 3 // 4} if role.k else {},
    )
    return replace(made, **changes)


def served_block(
    round_: Round, role: Role, requests: Sequence[ServedRequest], record: AcceptanceRecord | None, **changes: Any
) -> Block:
    """A block of a server: whole requests, and totals in place of steps."""
    begin = min(r.chunk_ns[0] for r in requests)
    fields: dict[str, Any] = {
        "prefill_ns": begin,
        "elapsed_ns": max(r.chunk_ns[-1] for r in requests) - begin,
        "tokens": tuple(text(round_.prompt_set, s, sum(r.chunk_tokens)) for s, r in enumerate(requests)),
        "truncated": (0,) * len(requests),
        "finish": (Finish.LENGTH,) * len(requests),
        "counters": {"undrafted_steps": 0} if record else {},
        "phase_ns": {},
        "served": Served(tuple(requests), record),
    }
    return replace(block(round_, role, steps=0), **fields | changes)


def spans_of(block: Block) -> ShownSpans:
    """What an intact engine shows of `block`, which has no ends: 16 positions a block, slot s with those from 100 s."""
    shown = list[StepSpans]()
    for step in (0, 3, 9):
        lengths = tuple(
            prompt + sum(row[slot] + 1 for row in block.accepted[:step])
            for slot, prompt in enumerate(block.prompt_lengths)
        )
        ends = [length + block.role.k + 1 for length in lengths]
        tables = tuple(tuple(range(100 * slot, 100 * slot + -(-end // 16))) for slot, end in enumerate(ends))
        free = tuple(sorted(set(range(100 * len(lengths))) - {block for table in tables for block in table}))
        shown.append(StepSpans(step, lengths, tables, tuple(zip(lengths, ends, strict=True)), free))
    return ShownSpans(16, 100 * len(block.tokens), tuple(tokens[:8] for tokens in block.tokens), tuple(shown))


def blocks_of(
    plan: Plan,
    *,
    steps: int = 12,
    accept: Sequence[int] = ACCEPT,
    base_ns: int = 10_000_000,
    cycle_ns: int = 14_000_000,
    jitter: float = 0.002,
    change: Callable[[Block], Block] = lambda block: block,
) -> list[Block]:
    """Every block of `plan` in running order. Step times vary by `jitter`, from a fixed seed."""
    noise = random.Random(7)
    made = []
    for round_ in plan.rounds:
        for role in round_.order:
            step_ns = round((cycle_ns if role.speculative else base_ns) * (1 + noise.gauss(0, jitter)))
            made.append(change(block(round_, role, steps=steps, accept=accept, step_ns=step_ns)))
    return made


def corrupt(made: Block, *, at: int = 5) -> Block:
    """A measured spec block with one wrong token; other blocks as they are."""
    if not made.role.speculative or made.warmup:
        return made
    row = list(made.tokens[0])
    row[at] += 1
    return replace(made, tokens=(tuple(row), *made.tokens[1:]))


def margins_of(blocks: Sequence[Block], margin: float) -> list[Margin]:
    """A recorded top-2 margin for every divergence in `blocks`."""
    from specgate.analysis.tokens.comparison import find_divergences

    return [
        Margin(cell.key, d.prompt_set, d.round, d.slot, d.position, margin, 0.0)
        for cell, d, _ in find_divergences(blocks)
    ]


def texts_of(blocks: Sequence[Block]) -> list[BaselineText]:
    """The baseline's texts, decoded once more as far as the longest text of the same prompts goes."""
    longest: dict[tuple[Point, int], list[int]] = {}
    for each in blocks:
        lengths = longest.setdefault((each.point, each.prompt_set), [0] * len(each.tokens))
        lengths[:] = map(max, lengths, map(len, each.tokens))
    first = {(b.point, b.prompt_set): b for b in reversed(blocks) if b.role == BASELINE and not b.warmup}
    return [
        BaselineText(
            point=base.point,
            prompt_set=base.prompt_set,
            worker_generation=base.worker_generation,
            tokens=tuple(
                longer(known, text(base.prompt_set, slot, lengths[slot])) for slot, known in enumerate(base.tokens)
            ),
            finish=base.finish,
            span_ns=(0, 0),
        )
        for (point, prompt_set), base in first.items()
        if (lengths := longest[point, prompt_set])
    ]


def longer(known: tuple[int, ...], whole: tuple[int, ...]) -> tuple[int, ...]:
    """`known`, which may be `whole` with other token ids by a constant, as far as `whole` goes."""
    return known + tuple(token + known[0] - whole[0] for token in whole[len(known) :])


def run_of(
    plan: Plan, blocks: Sequence[Block], *, margins: Sequence[Margin] = (), near_tie: float = 1e-3, **changes: Any
) -> Run:
    """The run that `blocks` amount to, without verdicts."""
    facts = EngineFacts(
        backend="fake",
        device="scripted clock",
        dtype="float32",
        vocab=49_152,
        max_positions=8192,
        eos_token_ids=(0,),
        target_sha256="a" * 64,
        draft_sha256="b" * 64,
        capture_rule="boundaries 2, 15, 27",
        has_draft=True,
        details={"threads": 2},
    )
    engines = {p.key: facts for p in plan.points}
    checked, check_facts = Checked(texts_of(blocks)), CheckFacts(engines, None)
    cells, comparisons = measure(plan, blocks, margins, NearTies(near_tie), checked, check_facts=check_facts)
    made = Run(
        id="20261121T021500Z-micro-demo-64-1a2b3c4d-9f3e21",
        kind="micro",
        status="complete",
        started="2026-11-21T02:15:00+00:00",
        ended="2026-11-21T02:19:30+00:00",
        argv=("specgate", "micro", "--scenario", "demo-64"),
        tool_version="0.1.0",
        fingerprint={"source_tree_sha256": "1a2b3c4d" * 8, "target_sha256": "a" * 64, "draft_sha256": "b" * 64},
        environment={"host": {"cpu": "A CPU", "cpus_usable": 2}, "gpus": [], "packages": {"torch": "2.13.0"}},
        scenarios=plan.scenarios,
        pair=PairRef("demo", Path("target"), Path("draft")),
        engines=engines,
        prompts={p.key: {"sha256": "c" * 64, "sources": ["one/a.py", "two/b.txt"]} for p in plan.points},
        cells=cells,
        comparisons=comparisons,
        failures={},
    )
    return replace(made, **changes)


def earlier_of(run: Run, name: str = "demo-64", commit: str | None = None) -> EarlierRun:
    """`run` as an earlier green run of the scenario `name`."""
    facts = next(iter(run.engines.values()))
    return EarlierRun(
        run="earlier",
        time="2026-11-20T02:15:00+00:00",
        manifest_sha256="d" * 64,
        commit=commit,
        scenario=run.scenarios[name],
        target_sha256=facts.target_sha256,
        draft_sha256=facts.draft_sha256,
        device=facts.device,
        prompts={key: str(about["sha256"]) for key, about in run.prompts.items()},
        cells=run.times,
        clocks={r.cell.key: clocks_of(run, r.cell) for r in run.cells},
    )


def with_acceptance(run: Run, source: AcceptanceSource) -> Run:
    """The same run, from an engine that states this source of its acceptance."""
    return replace(run, engines={key: replace(facts, acceptance=source) for key, facts in run.engines.items()})


def judged(run: Run, policy: Policy) -> Run:
    """The run with the policy's verdicts."""
    from specgate.planning.gates import verdicts_of

    verdicts = [v for rule in policy.rules for v in verdicts_of(rule, run)]
    return replace(run, verdicts=tuple(verdicts))


def policy_of(*rules: Rule) -> Policy:
    """A policy with these rules, of which nothing else has to be judged."""
    kinds: tuple[Kind, ...] = ("validity", "tokens", "acceptance", "speed")
    return Policy("test", rules, not_judged=tuple(Exemption(kind, "a test of something else") for kind in kinds))


POLICY = policy_of(
    Rule("records-valid", "validity", True),
    Rule("tokens-equal", "tokens", True, role="spec-*", params={"near_tie_margin": 1e-3}),
    Rule("acceptance", "acceptance", True, role="spec-3", params={"min": 2.2}),
    Rule("speed", "speed", False, role="spec-3", params={"min": 1.3}),
    Rule("no-loops", "degeneracy", False, params={"max_repeated_share": 0.5}),
)
