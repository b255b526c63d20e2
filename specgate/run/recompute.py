"""Compute figures and verdicts from samples: at the end of a run, and again for a stored one.

All functions are pure: the same journal, plan and policy give the same run at any later time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from specgate.analysis.cell_figures import eagle_speculation
from specgate.analysis.checks.contradictions import CheckFacts
from specgate.analysis.cycle_accounting import cycle_budgets
from specgate.analysis.draws.fit_tests import check_draws
from specgate.analysis.grouping import grouped
from specgate.analysis.load.best_draft import best_drafts
from specgate.analysis.load.max_goodput import greatest_loads
from specgate.analysis.load.sweeps import break_evens, late_clients, short_blocks
from specgate.analysis.machine.conditions import conditions_of
from specgate.analysis.machine.disturbed_blocks import judge_hosts, set_aside, timed
from specgate.analysis.machine.energy import metered, with_energy
from specgate.analysis.machine.memory import with_memory
from specgate.analysis.machine.minutes import minutes_of
from specgate.analysis.perf_invariants.certificate import certificates
from specgate.analysis.prompt_acceptance import by_prompt, category_values, length_values, once_each, position_values
from specgate.analysis.quality.scores import with_quality
from specgate.analysis.reduce import Checked, Known, measure
from specgate.analysis.references import cell_times
from specgate.analysis.rounds import whole_rounds
from specgate.analysis.speculation.uptime import requests_by_block, with_drifts
from specgate.analysis.speedup_limits import with_ceilings
from specgate.analysis.verdict import not_judged, overall
from specgate.contract import Block, CellResult, EngineFacts, Gap, Plan, Policy, Rule, Run, State, Value, Verdict
from specgate.contract.draws import DrawCheck
from specgate.contract.protocols import Sequential
from specgate.contract.verdict import NOWHERE
from specgate.errors import ExitCode, SpecgateError
from specgate.files.journal import Journal
from specgate.files.json_text import to_plain
from specgate.planning.gates import (
    draw_allowance,
    floors_of,
    kinds_of,
    lossy_cells,
    machine_limits,
    near_ties,
    needs_earlier_run,
    rules_with,
    verdicts_of,
)
from specgate.planning.rule_names import nowhere
from specgate.run import early_stop

Stopped = SpecgateError | KeyboardInterrupt | None
"""What stopped a run before its plan was done; None if nothing did."""


def ending(run: Run) -> tuple[str, ExitCode]:
    """The verdict, as a word, and the exit code that a run ends with.

    The word is the overall state, or BACKEND_ERROR if the engine failed. For a run that was stopped it is "not
    reached".
    """
    state, code = overall(run)
    if "run" in run.failures:
        return "not reached", code
    return code.name if code is ExitCode.BACKEND_ERROR else state.value, code


def with_figures(run: Run, plan: Plan, policy: Policy, journal: Journal, *, stopped_by: Policy | None = None) -> Run:
    """`run` with everything that follows from the samples in its journal; only the verdicts are left to `judge`.

    `stopped_by`: the policy that the run was made with, where that is another one. It decided where points stopped.
    """
    own, known = stopped_by or policy, Known()
    run = replace(run, required_decisions=early_stop.required_decisions(plan, own))
    left_out = {key: 0 for key, rounds in run.ended_early.items() if not rounds}
    early = {**left_out, **early_stop.ended_early(plan, run, own, journal, known)}
    if stopped_by is not None:
        run, known = replace(run, required_decisions=early_stop.required_decisions(plan, policy)), Known()
    plan, engines = early_stop.in_grid_order(early_stop.truncated_plan(plan, early)), journal.engines
    blocks = whole_rounds(plan, journal.blocks)
    stored = (journal.texts, tuple(journal.logits.values()), journal.rescorings)
    records = Checked(*stored, policy.checks, journal.followed)
    ties, check_facts = near_ties(policy), CheckFacts(engines, run.bandwidth, lossy_cells(policy, plan.cells))
    hosts = judge_hosts(plan, blocks, machine_limits(policy), engines)
    aside = set_aside(hosts)
    cells, comparisons = measure(
        plan,
        blocks,
        journal.margins,
        ties,
        records,
        forced=journal.forced,
        check_facts=check_facts,
        known=known,
        aside=aside,
        between=run.between_runs,
        ends=journal.time_ends,
    )
    cells = with_drifts(
        by_prompt_of_file(run, plan, cells, blocks), requests_by_block(journal.blocks, engines), blocks, engines
    )
    cells = with_quality(with_memory(cells, blocks), journal.answers)
    conditions = conditions_of(plan, blocks, journal.samples, hosts)
    energies = metered(plan, timed(blocks, aside), journal.samples, conditions)
    cells, comparisons = with_energy(plan, cells, comparisons, energies, run.between_runs)
    reduced = replace(
        run,
        engines=engines,
        cells=cells,
        comparisons=comparisons,
        budgets=cycle_budgets(plan, cells, comparisons, timed(blocks, aside), engines, run.bandwidth),
        certificates=certificates(plan, cells, comparisons, blocks, engines, journal.traces, ties),
        conditions=conditions,
        ended_early=early,
        check_seconds={**check_seconds(journal), **minutes_of(journal.blocks, journal.starts, plan.scenarios)},
        time_ends=journal.time_ends,
        times=cell_times(plan, cells, blocks, aside) if needs_earlier_run(policy) else {},
        draws=draw_checks(plan, policy, journal),
        break_even=break_evens(plan.scenarios, comparisons, run.between_runs),
        max_goodput=greatest_loads(plan.scenarios, cells),
        best_drafts=best_drafts(plan.scenarios, comparisons, run.between_runs),
        warnings=tuple(
            dict.fromkeys(
                (
                    *run.warnings,
                    *(w for f in engines.values() for w in warnings_of(f)),
                    *late_clients(cells),
                    *short_blocks(plan.scenarios, blocks),
                )
            )
        ),
    )
    return with_ceilings(reduced, floors_of(policy))


def draw_checks(plan: Plan, policy: Policy, journal: Journal) -> dict[str, DrawCheck]:
    """Cell key → what the texts amount to that were drawn of it."""
    allowed, by_cell = draw_allowance(policy), ((cell, journal.draws.get(cell.point.key)) for cell in plan.cells)
    return {
        cell.key: check_draws(texts, cell.role, plan.scenarios[cell.point.scenario].sampling, allowed)
        for cell, texts in by_cell
        if texts is not None
    }


def by_prompt_of_file(
    run: Run, plan: Plan, cells: Sequence[CellResult], blocks: Sequence[Block]
) -> tuple[CellResult, ...]:
    """`cells` with what the prompts' file adds to their acceptance: a prompt that was sent several times counts once in
    the intervals, and every category has figures of its own.
    """

    def extended(result: CellResult) -> CellResult:
        cell, record, about = result.cell, result.acceptance, run.prompts.get(result.cell.point.key, {})
        categories, again = of_slots(about, "categories", str), bool(about.get("repeated"))
        if record is None or not record.steps or not (categories or again):
            return result
        prompts_in_set = plan.scenarios[cell.point.scenario].prompts_in_set(cell.point.batch, cell.point.rate)
        records, more = by_prompt([b for b in blocks if b.cell == cell and not b.warmup]), list[Value]()
        if again:
            records = once_each(records, of_slots(about, "lines", int), prompts_in_set)
            values = (*length_values(records.values(), record), *position_values(records.values(), record))
            more += [replace(v, reason_code=result.values[v.metric].reason_code) for v in values]
        more += category_values(records, categories, prompts_in_set)
        return replace(result, values={**result.values, **{v.metric: v for v in more}})

    return tuple(map(extended, cells))


def of_slots(about: Mapping[str, Any], key: str, kind: type) -> dict[tuple[int, int], Any]:
    """(prompt set, slot) → what run.json has of the prompt there, if it is of that kind."""
    sets = about.get(key)
    return {
        (prompt_set, slot): value
        for prompt_set, of in enumerate(sets if isinstance(sets, list | tuple) else ())
        for slot, value in enumerate(of if isinstance(of, list | tuple) else ())
        if isinstance(value, kind)
    }


def loaded(engines: Mapping[str, EngineFacts]) -> dict[str, str | None]:
    """The part of a run's fingerprint that only a loaded engine knows: its weights, its device, its version and, of
    somebody else's engine, its build and how it is set up.
    """
    facts = next(iter(engines.values()), None)
    return {
        "target_sha256": facts.target_sha256 if facts else None,
        "draft_sha256": facts.draft_sha256 if facts else None,
        "device": facts.device if facts else None,
        **({"engine_version": facts.engine_version} if facts and facts.engine_version else {}),
        **(facts.identity.fingerprint if facts and facts.identity else {}),
    }


def check_seconds(journal: Journal) -> dict[str, float]:
    """Seconds that the harness waited for the timed blocks, and for each check of their tokens."""
    spans = {
        "blocks": [b.span_ns for b in journal.blocks if b.span_ns],
        "text": [t.span_ns for t in journal.texts],
        "logits": [s.span_ns for s in journal.logits.values()],
        "rescoring": [look.span_ns for r in journal.rescorings.values() for look in (r, r.again) if look],
    }
    if journal.draws:
        spans["draws"] = [d.span_ns for d in journal.draws.values()]
    return {name: sum(end - begin for begin, end in lengths) / 1e9 for name, lengths in spans.items()}


def speculation_blocks(run: Run, plan: Plan, journal: Journal) -> dict[str, object]:
    """Cell key → the `eagle_speculation` block that run.json holds for tools other than specgate."""
    budgets = {cell.key: plan.scenarios[cell.point.scenario].budget for cell in plan.cells}
    of = grouped(whole_rounds(plan, journal.blocks), lambda block: block.cell)
    blocks = {c.cell.key: eagle_speculation(c, of[c.cell], budgets[c.cell.key]) for c in run.cells}
    return {key: block for key, block in blocks.items() if block is not None}


def judgement(run: Run, policy: Policy, end: tuple[str, ExitCode]) -> dict[str, object]:
    """The contents of gates.json. `end`: the verdict and the exit code that the run ends with."""
    verdict, code = end
    return {
        "schema": "specgate.gates/v1",
        "run": run.id,
        "policy": to_plain(Policy, policy),
        "verdict": verdict,
        "exit_code": int(code),
        "not_judged": [to_plain(Gap, gap) for gap in run.not_judged],
        "verdicts": [to_plain(Verdict, v) for v in run.verdicts],
    }


def warnings_of(facts: EngineFacts) -> Iterator[str]:
    yield from facts.warnings
    if facts.draft_error:
        yield f"spec roles decoded plainly, since the draft could not be used: {facts.draft_error}"


def judge(run: Run, policy: Policy) -> Run:
    """`run` with the verdicts of every rule of `policy`, and with what they leave unjudged."""
    verdicts, dead = list[Verdict](), nowhere(policy, (result.cell for result in run.cells))
    for rule in policy.rules:
        verdicts += [meant_nothing(rule, dead[rule.id])] if rule.id in dead else verdicts_of(rule, run)
    judged = replace(run, verdicts=tuple(stepped_down(run, policy, verdicts)))
    return replace(judged, not_judged=not_judged(judged, policy, kinds_of(policy)))


def meant_nothing(rule: Rule, why: str) -> Verdict:
    """The verdict of a required rule that nothing could ever satisfy: what it was written for is not judged."""
    message = f"required rule {rule.id} selects nothing: {why}"
    step = f"mend the rule's scenario and role, or leave {rule.id} out of the policy"
    return Verdict(rule.id, rule.gate, "", State.NOT_JUDGED, True, NOWHERE, message, {}, step)


def stepped_down(run: Run, policy: Policy, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts after Holm's step-down: what is open is asked again with the error that the failed ones do not need.

    With m required decisions each has 1/m of the error of a FAIL. Once f of them have failed, the others have 1/(m − f)
    each, as Holm (1979) has it, and as Maurer and Bretz (2013) have it for interim looks. A verdict that is not open
    stays as it is.
    """
    rules = {rule.id: rule for rule, _ in rules_with(policy, Sequential) if rule.required}
    current, failed = list(verdicts), -1
    while failed < (failed := sum(v.rule in rules and v.state is State.FAIL for v in current)):
        left = max(run.required_decisions - failed, 1)
        open_rules = {v.rule for v in current if v.rule in rules and v.state is State.INCONCLUSIVE}
        if not failed or not open_rules:
            break
        again = {
            (v.rule, v.cell): v
            for name in open_rules
            for v in verdicts_of(rules[name], replace(run, required_decisions=left))
        }
        current = [
            again.get((v.rule, v.cell), v) if v.rule in rules and v.state is State.INCONCLUSIVE else v for v in current
        ]
    return current
