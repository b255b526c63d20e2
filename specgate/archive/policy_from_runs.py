"""A policy over that of measured runs (`specgate policy init`): floors from what was measured, below it by a margin
that the samples and the noise profile allow. Everything else is inherited.

The floors are found by asking the gates themselves, so that they hold whatever the gates' statistics are: judged by the
policy, every one of the runs passes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from specgate import plugins
from specgate.analysis.verdict import overall
from specgate.archive.stored_runs import StoredRun
from specgate.contract import CellResult, Rule, Run, Scenario, State, Verdict
from specgate.errors import ExitCode, UsageError
from specgate.files.yamlfile import dump_yaml, loads
from specgate.planning.gates import floors_of, verdicts_of
from specgate.planning.policy import POLICIES, parse_policy
from specgate.planning.scenario import shipped
from specgate.promotion.claim import digests
from specgate.run.recompute import judge

NOISE_MARGIN: Final = 2.0
"""A margin is at least so many times the minimum detectable effect of the profile, as docs/statistics.md has it."""
WIDEST: Final = 0.5
"""The largest share of a measured speed-up that a floor may lie below it. Samples that prove no more say nothing."""


def policy_text(stored: Sequence[StoredRun], folder: Path, margin_pct: float) -> str:
    """A policy file for the scenarios of `stored`, over the policy of the first of them, with comments.

    Floors of that policy that the runs miss are left out.

    `folder`: where the file will lie; other files are named relative to it. `margin_pct`: how far the floors lie below
    what was measured, at least. Raises UsageError for a run from which nothing follows, for scenarios that differ
    between the runs, and for samples that prove no floor.
    """
    for one in stored:
        refuse_unusable(one)
    refuse_different(stored)
    base = base_of(stored[0], folder)
    floors = [rule for rule, _ in floors_of(stored[0].policy) if rule.required and not rule.otherwise]
    missed = [rule.id for rule in floors if not proven(rule, stored)]
    lines = [
        *heading(stored, margin_pct),
        "schema: specgate.policy/v1",
        f"base: {dump_yaml(base, flow=True).splitlines()[0]}",
        *([f"without: {flow(missed)}"] if missed else []),
        *micro_lines(stored, folder),
        "rules:",
    ]
    for scenario, role in scenario_roles(stored):
        lines += [
            *speed_lines(stored, scenario, role, margin_pct),
            *acceptance_lines(stored, scenario, role, margin_pct),
        ]
    text = "\n".join(lines) + "\n"
    check_passes(text, stored, folder)
    return text


def base_of(one: StoredRun, folder: Path) -> str:
    """Name of the policy of a run, for a file in `folder`. Raises UsageError if its file is gone."""
    policy = one.policy
    if policy.name in POLICIES.names():
        return policy.name
    file = policy.source_file.expanduser() if policy.source_file else None
    if file is None or not file.is_file():
        raise UsageError(
            f"{one.path}: the file of its policy {policy.name} is gone", hint="runs check judges it by another one"
        )
    return os.path.relpath(file, folder)


# ── what cannot be used ──────────────────────────────────────────────────────────────────────────────────────────────


def refuse_unusable(one: StoredRun) -> None:
    """Raise UsageError for a run that is not whole, that is not valid, or that has no speculation."""
    run, (state, code) = one.run, overall(one.run)
    why = None
    if run.failures or run.status != "complete":
        why = f"it is not whole: {next(iter(run.failures.values()), run.status).splitlines()[0]}"
    elif code in (ExitCode.INVALID, ExitCode.ENV_REJECTED, ExitCode.BACKEND_ERROR):
        why = f"it is {state.value}: no figure of it may be quoted"
    elif not any(r.cell.role.speculative and r.acceptance for r in run.cells):
        why = "it has no figures of speculation"
    elif run.acceptance in ("forced", "stand-in"):
        why = f"its acceptance is {run.acceptance}: it says nothing of the pair"
    if why:
        raise UsageError(f"{one.path}: no policy follows from this run: {why}", hint="give a complete, valid run")


def refuse_different(stored: Sequence[StoredRun]) -> None:
    """Raise UsageError for runs of two pairs or back ends, and for two contents of one scenario."""
    first = stored[0]
    known: dict[str, tuple[str, Path]] = {}
    for one in stored:
        for what, mine, other in (
            ("pair", one.config.pair.name, first.config.pair.name),
            ("back end", one.config.backend, first.config.backend),
        ):
            if mine != other:
                hint = "a policy for each"
                raise UsageError(f"{one.path}: its {what} is {mine}, that of {first.path} is {other}", hint=hint)
        for name, digest in digests(list(one.run.scenarios.values())).items():
            if known.setdefault(name, (digest, one.path))[0] != digest:
                hint = "measure it with the same settings"
                raise UsageError(f"{one.path}: scenario {name} is another than in {known[name][1]}", hint=hint)


def check_passes(text: str, stored: Sequence[StoredRun], folder: Path) -> None:
    """Raise UsageError if a run, judged by the policy in `text`, does not pass."""
    policy = parse_policy(loads(text, folder / "policy.yaml"), plugins.gates())
    for one in stored:
        run = judge(one.run, policy)
        state, _ = overall(run)
        if state is not State.PASS:
            red = next((v for v in run.verdicts if v.required and v.state is state), None)
            why = f"{red.rule} on {red.cell}: {red.message}" if red else "not everything in it can be judged"
            raise UsageError(f"{one.path}: judged by its own floors this run is {state.value}: {why}")


# ── the file, from top to bottom ─────────────────────────────────────────────────────────────────────────────────────


def heading(stored: Sequence[StoredRun], margin_pct: float) -> Iterator[str]:
    """Yield the runs that the policy rests on, as comments."""
    config = stored[0].config
    what = f"{config.pair.name} on {config.backend}"
    yield f"# What {what} must keep showing, at least {margin_pct:g} % below what was measured by"
    for one in stored:
        device = next((facts.device for facts in one.run.engines.values()), "no device")
        yield f"#   {one.run.id} ({device})"
    yield "# specgate policy init wrote it. Floors are what these runs prove, not what the engine could do: raise them."


def micro_lines(stored: Sequence[StoredRun], folder: Path) -> Iterator[str]:
    """The micro scenarios that must be green before a full run: those of the runs that can be found again."""
    names: list[str] = []
    lost: list[str] = []
    for scenario in {s.name: s for one in stored for s in one.run.scenarios.values() if s.kind == "micro"}.values():
        name = name_for(scenario, folder)
        (names if name else lost).append(name or scenario.name)
    if lost:
        yield f"# These micro scenarios have no file, as questions of one's own, or it is gone: {', '.join(lost)}."
    if names:
        yield "# Scenarios that must be green three times in a row before a full run."
        yield f"micro: {dump_yaml(names, flow=True, width=10_000).strip()}"
    else:
        yield "# Without a list `micro`, a full run needs all micro scenarios that the machine runs by default."


def name_for(scenario: Scenario, folder: Path) -> str | None:
    """Name of a scenario in a policy in `folder`; None if its file is gone."""
    if scenario.name in {s.name for s in shipped()}:
        return scenario.name
    file = scenario.source_file.expanduser() if scenario.source_file else None
    return os.path.relpath(file, folder) if file is not None and file.is_file() else None


def scenario_roles(stored: Sequence[StoredRun]) -> list[tuple[str, str]]:
    """(scenario, role) of every spec cell, in the order of the runs."""
    cells = [r.cell for one in stored for r in one.run.cells if r.cell.role.speculative]
    return list(dict.fromkeys((cell.point.unvaried, cell.role_name) for cell in cells))


def speed_lines(stored: Sequence[StoredRun], scenario: str, role: str, margin_pct: float) -> Iterator[str]:
    """The floor of a speed-up: the highest that every run is proven to reach, at least the margin below all of them.

    Raises UsageError where the samples prove none within `WIDEST`.
    """
    measured = [(one, r, v) for one, r in cells_of(stored, scenario, role) if (v := speedup_of(one.run, r)) is not None]
    if not measured:
        raise UsageError(f"{scenario} {role}: no run has a speed-up of it", hint="give a run whose tokens were equal")
    lowest = min(value for _, _, value in measured)
    effects = [mde for one, r, _ in measured if (mde := one.run.mde.get(r.cell.key)) is not None]
    least_margin = max(margin_pct / 100, NOISE_MARGIN * max(effects, default=0.0))
    floor = rounded_down(lowest * (1 - least_margin))
    rule = Rule(f"{scenario}-{role}-speed", "speed", True, scenario, role, {"min": floor})
    while not proven(rule, stored):
        floor = rounded_down(min(floor * 0.99, floor - 0.01))
        if floor < lowest * (1 - WIDEST) or floor <= 0:
            red = next(v for one in stored for v in judged_cells(rule, one.run) if v.state is not State.PASS)
            hint = "measure more pairs (--measurement-runs), or on a quieter machine"
            raise UsageError(f"{red.cell}: the samples prove no floor of its speed: {red.message}", hint=hint)
        rule = replace(rule, params={"min": floor})
    spans = "; ".join(dict.fromkeys(span_of(one.run, r) for one, r, _ in measured))
    reason = f"{100 * (1 - floor / lowest):.1f} % below"
    if floor < rounded_down(lowest * (1 - least_margin)):
        reason += ": the intervals prove no more"
    elif least_margin > margin_pct / 100:
        reason += f": twice the {100 * max(effects):.1f} % that this machine can tell"
    unknown = "" if effects else "; no noise profile says what the machine can tell (specgate machine calibrate)"
    slower = "; slower than plain decoding" if lowest < 1 else ""
    yield f"  # {scenario} {role}: {spans}; {reason}{unknown}{slower}."
    yield from rule_line(rule)


def acceptance_lines(stored: Sequence[StoredRun], scenario: str, role: str, margin_pct: float) -> Iterator[str]:
    """The floor of an acceptance length: below its interval over prompts, and the margin below what was measured."""
    values = [
        r.values["acceptance_length"] for _, r in cells_of(stored, scenario, role) if "acceptance_length" in r.values
    ]
    lengths = [value.value for value in values if value.value is not None]
    lows = [value.ci_low for value in values if value.ci_low is not None]
    if not lengths:
        raise UsageError(f"{scenario} {role}: no run has an acceptance length of it", hint="was the draft used?")
    floor = max(1.0, rounded_down(min(*lows, min(lengths) * (1 - margin_pct / 100), min(lengths))))
    over = f", from {min(lows):.2f} on over other prompts" if lows else ""
    yield f"  # {scenario} {role}: acceptance length {min(lengths):.2f}{over}."
    yield from rule_line(Rule(f"{scenario}-{role}-acceptance", "acceptance", True, scenario, role, {"min": floor}))


# ── what the runs say ────────────────────────────────────────────────────────────────────────────────────────────────


def cells_of(stored: Sequence[StoredRun], scenario: str, role: str) -> Iterator[tuple[StoredRun, CellResult]]:
    """The results of a scenario's role, over all runs and points."""
    for one in stored:
        for result in one.run.cells:
            if (result.cell.point.unvaried, result.cell.role_name) == (scenario, role):
                yield one, result


def speedup_of(run: Run, result: CellResult) -> float | None:
    comparison = run.comparison(result.cell.key)
    return comparison.speedup.value if comparison else None


def span_of(run: Run, result: CellResult) -> str:
    """`2.05x measured (1.95–2.16)`."""
    comparison = run.comparison(result.cell.key)
    assert comparison is not None
    value = comparison.speedup
    interval = "" if value.ci_low is None or value.ci_high is None else f" ({value.ci_low:.2f}–{value.ci_high:.2f})"
    return f"{value.value:.2f}x measured{interval}"


def judged_cells(rule: Rule, run: Run) -> Iterator[Verdict]:
    """Yield the verdicts of the rule's gate on the cells that it selects."""
    return (v for v in verdicts_of(rule, run) if v.state is not State.SKIPPED)


def proven(rule: Rule, stored: Sequence[StoredRun]) -> bool:
    """True if every run passes the rule."""
    return all(v.state is State.PASS for one in stored for v in judged_cells(rule, one.run))


# ── YAML ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def rounded_down(value: float) -> float:
    """To two decimals. A value within 1e-9 of the next two-decimal number above counts as that number."""
    return math.floor(value * 100 + 1e-7) / 100


def rule_line(rule: Rule) -> Iterator[str]:
    """A rule as an item of the list `rules`."""
    globs = {key: glob for key, glob in (("scenario", rule.scenario), ("role", rule.role)) if glob != "*"}
    yield f"  - {flow({'id': rule.id, 'gate': rule.gate, 'required': rule.required, **globs, **rule.params})}"


def flow(data: dict[str, object] | list[str]) -> str:
    """A mapping or list as YAML in one line."""
    return dump_yaml(data, flow=True, width=10_000).strip()
