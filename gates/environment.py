"""Gate `environment`: could the machine be trusted while this cell was measured?

It judges the samples that were taken during the run, never the machine as it is now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import UnionType

from specgate.analysis.intervals.rounding import told_from
from specgate.analysis.machine.clock_comparison import (
    ClockShift,
    clock_shifts,
    compared_in_words,
    power_in_words,
    samples_in_words,
    untold_in_words,
    untold_parts,
)
from specgate.analysis.machine.cpu_pace import uneven
from specgate.analysis.machine.gpu_clocks import power_cap
from specgate.analysis.machine.phrases import asides, set_aside_in_words, too_many_in_words
from specgate.contract import CellResult, Rule, RunView, State, Verdict
from specgate.contract.conditions import (
    THROTTLES,
    ClockComparison,
    Conditions,
    GpuConditions,
    HostJudgement,
    HostLimits,
    MachineLimits,
    clock_events,
)
from specgate.gates.select import CellGate, verdict

MAX_GAP_S = 5.0
"""The longest time, in seconds, without a sample: ten sampling intervals. A disturbance could go unnoticed in a longer
one.
"""
USUAL_CPU_WAIT = 0.05
"""`max_cpu_wait` of a rule that does not set it."""
MUST_BE_READ = ("processes", "clock_event_reasons")
"""Readings of NVML that must be there. Without them, a disturbed machine would look like a quiet one."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A disturbance: its reason code, what was found, and what to do about it."""

    code: str
    message: str
    next_step: str


class Environment(CellGate):
    """The state ENV_REJECTED means that the machine was disturbed, so that its times prove nothing.

    `gpu`: whether the GPU is judged as well as the host; a GPU that cannot be read is then rejected.
    `max_other_cpu_share`: the share of the usable CPUs' time that other processes may use. `max_clock_shift`: how far
    apart the mean SM clocks of two roles may lie, as a share of the higher one, at the same
    times since decoding began, where the samples tell it.
    `own_power`: a role whose own work takes the GPU to its power cap, and so to a lower clock than another's, is named
    and not rejected, whichever it is: blocks of both run in turn, so nothing but the work differs, and on this GPU the
    clock is a part of what it costs.
    `max_clock_jump_s`: by how many seconds the wall clock may jump relative to the monotonic clock.
    `max_set_aside`: the host is judged block by block, and this share of the rounds may be set aside because a block of
    theirs was disturbed. Without it, others' share is judged as a mean over the samples, and nothing is set aside.
    `max_cpu_wait`: the share of a block's time for which a thread may wait for a CPU; 0.05 where it is not set.

    All cells of a point are judged by the same samples, since they are compared with each other.
    """

    name = "environment"
    needs = "readings of the machine"
    params: Mapping[str, type | UnionType] = {
        "gpu": bool,
        "max_other_cpu_share": float,
        "max_clock_shift": float,
        "own_power": bool | None,
        "max_clock_jump_s": float,
        "max_cpu_wait": float | None,
        "max_set_aside": float | None,
    }

    def machine_limits(self, rule: Rule) -> MachineLimits:
        """Return the limits that `rule` sets."""
        share, aside = float(rule.params["max_other_cpu_share"]), rule.params.get("max_set_aside")
        wait = float(rule.params.get("max_cpu_wait", USUAL_CPU_WAIT))
        host = None if aside is None else HostLimits(share, wait, float(aside))
        return MachineLimits(bool(rule.params["gpu"]), share, host)

    def judge_cell(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        key, conditions = result.cell.key, run.conditions.get(result.cell.point.key)
        # There is no advice about the GPU of a client that has none: the server may run elsewhere.
        gpu = bool(rule.params["gpu"]) and (rule.required or (conditions is not None and sees_gpu(conditions)))
        gap = unwatched(conditions) if conditions is not None else None
        if conditions is None or gap is not None:
            state = State.ENV_REJECTED if gpu else State.SKIPPED
            message = gap or "no sample of the machine was kept"
            return verdict(rule, key, state, "unwatched", message, next_step="measure again")
        findings = [*(of_gpu(rule, conditions.gpu) if gpu else ()), *of_host(rule, conditions)]
        evidence = evidence_of(rule, conditions, gpu)
        if not findings:
            state, code, message = quiet(rule, conditions, gpu)
            return verdict(rule, key, state, code, message, evidence)
        first, *others = findings
        if others:
            evidence["also"] = ", ".join(f.code for f in others)
        return verdict(rule, key, State.ENV_REJECTED, first.code, first.message, evidence, first.next_step)


def sees_gpu(conditions: Conditions) -> bool:
    """True if a GPU was read in any sample."""
    return conditions.gpu.missing < conditions.samples


def quiet(rule: Rule, conditions: Conditions, gpu: bool) -> tuple[State, str, str]:
    """(state, reason code, message) of a point that nothing rejects.

    A host of which nothing could be seen is not said to be quiet.
    """
    host = conditions.host
    state, code, message = (
        State.PASS,
        "undisturbed",
        f"nothing disturbed {conditions.blocks} blocks ({conditions.samples} samples)",
    )
    if host is not None and host.set_aside:
        code, message = (
            "set_aside",
            f"{set_aside_in_words(host)}; nothing disturbed the others ({conditions.samples} samples)",
        )
    elif host is not None and host.unjudged and conditions.other_cpu_share is None:
        state, code = (State.PASS if gpu else State.SKIPPED), "host_unseen"
        message = (
            f"nothing disturbed the GPU in {conditions.blocks} blocks"
            if gpu
            else "nothing tells what disturbed the host"
        )
    pace = uneven(conditions.cpu_pace)
    notes = [
        *(asides(host) if host else ()),
        *([pace] if pace else ()),
        *(clock_asides(rule, conditions.gpu) if gpu else ()),
    ]
    return state, code, "; ".join([message, *notes])


def clock_asides(rule: Rule, gpu: GpuConditions) -> Iterator[str]:
    """Yield notes on clocks that reject nothing: comparisons that could not be made, and the power cap."""
    limit, clocks = float(rule.params["max_clock_shift"]), gpu.common_clocks
    if untold := untold_in_words(clocks, limit):
        yield untold
    if rule.params.get("own_power"):
        yield from power_in_words(clocks, apart(gpu, clocks, limit))
    if cap := power_cap(gpu):
        yield cap


def unwatched(conditions: Conditions) -> str | None:
    """Return the reason why the samples do not cover the blocks; None if they do."""
    if conditions.watched < conditions.blocks:
        return f"{conditions.blocks - conditions.watched} of {conditions.blocks} blocks have no samples around them"
    if conditions.longest_gap_s > MAX_GAP_S:
        return f"no sample for {conditions.longest_gap_s:.1f} s"
    return None


def of_gpu(rule: Rule, gpu: GpuConditions) -> Iterator[Finding]:
    """Yield disturbances of the GPU, worst first: readings that are missing, other processes, memory errors, then
    throttling, a lowered power limit and clocks that differ between roles.
    """
    yield from missing_readings(gpu)
    if gpu.foreign:
        yield Finding("foreign_process", f"on the GPU beside the engine: {', '.join(gpu.foreign)}", "end it, or wait")
    if gpu.ecc_uncorrected:
        what = f"{gpu.ecc_uncorrected} uncorrected memory errors since the driver was loaded"
        yield Finding("ecc_error", what, "have the GPU reset by its owner, or use another")
    elif gpu.rows_in_trouble:
        yield Finding(
            "ecc_error", "memory rows wait to be remapped, or could not be", "have the GPU reset by its owner"
        )
    yield from throttling(gpu)
    if gpu.power_limit_mw and gpu.default_power_limit_mw and gpu.power_limit_mw < gpu.default_power_limit_mw:
        limit, default = gpu.power_limit_mw / 1000, gpu.default_power_limit_mw / 1000
        what = f"the power limit is lowered: {limit:.0f} W of {default:.0f} W"
        yield Finding("power_capped", what, f"nvidia-smi -i {gpu.uuid} -pl {default:.0f}")
    yield from different_clocks(gpu, float(rule.params["max_clock_shift"]), bool(rule.params.get("own_power")))


def different_clocks(gpu: GpuConditions, limit: float, own_power: bool) -> Iterator[Finding]:
    """Clocks that differ between roles by more than `limit`; by their means, where the samples do not tell what the
    clocks were at the same times. `own_power` takes a difference that the power cap explains for none.
    """
    comparison = gpu.common_clocks
    shifts = apart(gpu, comparison, limit, own_power)
    step = "measure again, longer blocks"
    if beyond := [shift for shift in shifts if shift.beyond(limit)]:
        clocks = "; ".join([compared_in_words(comparison), *power_in_words(comparison, beyond)])
        if all(shift.of_power for shift in beyond):
            step = "a policy whose rule says `own_power: true` takes it for a part of the cost"
    elif not shifts or clock_shift(gpu) <= limit:
        return
    else:
        clocks = ", ".join(f"{role} {mhz:.0f} MHz" for role, mhz in gpu.sm_clock_mhz.items())
        if gpu.prefill_clock_mhz:
            clocks += "; in prefill " + ", ".join(f"{r} {mhz:.0f} MHz" for r, mhz in gpu.prefill_clock_mhz.items())
    yield Finding("clock_shift", f"the roles ran at different SM clocks: {clocks}", step)


def apart(gpu: GpuConditions, comparison: ClockComparison, limit: float, own_power: bool = False) -> list[ClockShift]:
    """The pairs of roles whose clocks differ by more than `limit`: surely, by the samples at the same times; or, where
    these do not tell, by the means over all of the part. With `own_power` without those that the power cap explains,
    and each pair by its own means.
    """
    shifts = [s for s in clock_shifts(comparison) if not (own_power and s.of_power)]
    return [
        s
        for s in shifts
        if s.beyond(limit) or (not s.told(limit) and mean_shift(gpu, s.part, s.roles if own_power else ()) > limit)
    ]


def mean_shift(gpu: GpuConditions, part: str, roles: Collection[str] = ()) -> float:
    """Return the distance of the mean clocks of `roles` (else of all) over a part of the blocks, as a share of the
    higher; 0 if unknown.
    """
    of = gpu.sm_clock_mhz if part == "decoding" else gpu.prefill_clock_mhz
    clocks = [mhz for role, mhz in of.items() if role in roles or not roles]
    return 1 - min(clocks) / max(clocks) if len(clocks) > 1 and max(clocks) > 0 else 0.0


def clock_shift(gpu: GpuConditions) -> float:
    """Return the larger `mean_shift` of decoding and prefill, each over all of it."""
    return max(mean_shift(gpu, part) for part in ("decoding", "prefill"))


def missing_readings(gpu: GpuConditions) -> Iterator[Finding]:
    """Yield readings that NVML did not give, or gave wrongly."""
    if gpu.missing:
        what = f"{gpu.missing} samples without a GPU reading: {gpu.why_missing or 'no reason given'}"
        yield Finding("nvml_missing", what, "see `specgate machine doctor`; a policy with gpu: false does without")
        return
    if refused := [f"{name}: {gpu.unread[name]}" for name in MUST_BE_READ if name in gpu.unread]:
        yield Finding("nvml_missing", f"NVML does not tell {'; '.join(refused)}", "ask for a machine that shows it")
    if gpu.zeros:
        what = f"NVML says 0 where 0 is impossible: {', '.join(gpu.zeros)}"
        yield Finding("nvml_implausible", what, "this NVML tells nothing: use a machine with a real one")
    elif not gpu.seen_at_work:
        what = "NVML never showed the engine on the GPU, nor the GPU busy, while blocks were measured"
        yield Finding(
            "nvml_implausible", what, "what it says of others is worth as little: see `specgate machine doctor`"
        )


def throttling(gpu: GpuConditions) -> Iterator[Finding]:
    """Yield a finding if the GPU lowered its own clocks, with the reason."""
    reasons = clock_events(gpu.clock_event_reasons & THROTTLES)
    seconds = (gpu.thermal_violation_ns or 0) / 1e9
    if reasons or seconds:
        why = " and ".join([*reasons, *([f"{seconds:.2f} s of thermal violation"] if seconds else [])])
        yield Finding("throttled", f"the GPU slowed itself down: {why}", "let it cool, then measure again")


def of_host(rule: Rule, conditions: Conditions) -> Iterator[Finding]:
    """Yield disturbances of the host: a jump of the wall clock, too many disturbed blocks, or CPU time that others
    used.
    """
    if conditions.clock_jump_s > float(rule.params["max_clock_jump_s"]):
        what = f"the wall clock jumped by {conditions.clock_jump_s:.1f} s: it was set, or the machine slept"
        yield Finding("clock_jump", what, "measure again")
    host, step = conditions.host, "end what else runs on this host, or wait"
    if host is not None and host.too_many:
        yield Finding("host_loaded", "; ".join([too_many_in_words(host), *asides(host)]), step)
        return
    # The mean of a point decides where its blocks do not tell one by one.
    share, ceiling = conditions.other_cpu_share, float(rule.params["max_other_cpu_share"])
    if share is not None and share > ceiling and (host is None or host.seen.get("other_cpu_share", 0) < host.blocks):
        share_text = told_from(100 * ceiling, 100 * share, 0)
        what = f"others used {share_text}% of the CPU time (at most {100 * ceiling:g}%)"
        yield Finding("host_loaded", what, step)


def evidence_of(rule: Rule, conditions: Conditions, gpu: bool) -> dict[str, float | int | str | None]:
    evidence: dict[str, float | int | str | None] = {
        "blocks": conditions.blocks,
        "samples": conditions.samples,
        "other_cpu_share": conditions.other_cpu_share,
        "clock_jump_s": conditions.clock_jump_s,
        **(evidence_of_blocks(conditions.host) if conditions.host else {}),
        **({"cpu_slow_share": conditions.cpu_pace.slow_share} if conditions.cpu_pace else {}),
    }
    if not gpu:
        return evidence
    readings = conditions.gpu
    coolest, hottest = readings.temperature_c or (None, None)
    return {
        **evidence,
        "gpu": readings.uuid,
        "clock_events": ", ".join(clock_events(readings.clock_event_reasons)) or "none",
        **evidence_of_clocks(readings.common_clocks, float(rule.params["max_clock_shift"])),
        "thermal_violation_ns": readings.thermal_violation_ns,
        "power_violation_ns": readings.power_violation_ns,
        "ecc_uncorrected": readings.ecc_uncorrected,
        "temperature_min_c": coolest,
        "temperature_max_c": hottest,
        **(evidence_of_cap(readings) if readings.capped is not None else {}),
    }


def evidence_of_clocks(comparison: ClockComparison, limit: float) -> dict[str, float | int | str | None]:
    """The largest shift that the samples tell and what it has to exceed, as shares; None where they tell none."""
    resolved = [shift for shift in clock_shifts(comparison) if shift.told(limit)]
    largest = max(resolved, key=lambda s: s.shift or 0.0, default=ClockShift("", None, None))
    return {
        "clock_shift": largest.shift,
        "clock_shift_margin": largest.margin,
        "clock_samples": samples_in_words(comparison),
        "clocks_untold": ", ".join(untold_parts(comparison, limit)) or "none",
    }


def evidence_of_blocks(host: HostJudgement) -> dict[str, float | int | str | None]:
    return {
        "disturbed_blocks": len(host.disturbed),
        "set_aside_rounds": len(host.set_aside),
        "rounds": host.rounds,
        "other_cpu_share_max": host.other_cpu_share,
        "cpu_wait_max": host.cpu_wait,
        "cpus": host.cpus,
        "cpus_wanted": host.cpus_wanted,
        "unseen": ", ".join(host.unseen) or "none",
    }


def evidence_of_cap(gpu: GpuConditions) -> dict[str, float | int | str | None]:
    clocks = list(gpu.sm_clock_mhz.values())
    return {
        "power_capped_share": gpu.capped,
        "power_w": gpu.power_w,
        "sm_clock_mhz": min(clocks) if clocks else None,
        "max_sm_clock_mhz": gpu.max_sm_clock_mhz,
    }


GATE = Environment()
