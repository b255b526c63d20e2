"""Gate `memory`: does speculation take no more memory, and no more of the KV cache, than the policy allows, and does
memory not grow while the run goes on?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Final

from specgate.analysis.intervals.rounding import told_from
from specgate.analysis.machine.memory import GROWTHS, LEAST_READINGS, size_in_words
from specgate.contract import BASELINE, Cell, CellResult, EngineFacts, Rule, RunView, State, Value, Verdict
from specgate.gates.select import CellGate, no_baseline, verdict

GROWTH: Final = "max_growth_share"


class MemoryGate(CellGate):
    """`max_extra_memory_bytes`: how much more memory a spec cell's processes may hold than its baseline's: of the GPU
    where one is used, else of the host.
    `max_extra_memory_share`: the same as a share of the baseline's. `max_capacity_loss`: the largest share of the
    baseline's KV cache capacity that may be lost, 0 to 1.
    `max_growth_share`: by how much the memory of a process may grow over the run's blocks, as a share of its peak: of
    the GPU and of the host. At least one of them is needed.

    PASS where every figure is at most what is asked, FAIL where one is above. The figures are readings, not estimates:
    there is no interval. Else NOT_JUDGED where one was not told, as where both roles share a process, where the engine
    does not say how large its KV cache is, or where GPU memory cannot be read, as of a server that was started
    elsewhere. A growth that was not told is SKIPPED if the rule only advises.
    """

    name = "memory"
    only_speculative = True
    params: Mapping[str, type | UnionType] = {
        "max_extra_memory_bytes": float | None,
        "max_extra_memory_share": float | None,
        "max_capacity_loss": float | None,
        GROWTH: float | None,
    }

    def problems(self, rule: Rule) -> Iterator[tuple[str, str]]:
        """Refuse a rule that limits nothing."""
        if not rule.params:
            yield "gate", f"a rule needs at least one of {', '.join(self.params)}"
        if float(rule.params.get("max_capacity_loss") or 0.0) > 1:
            yield "max_capacity_loss", "no share: it lies between 0 and 1"

    def judge_planned(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        """Skip a cell without a baseline that the rule compares with, whether it has figures or not."""
        compares = rule.params.keys() - {GROWTH}
        return (no_baseline(rule, result, run) if compares else None) or super().judge_planned(rule, result, run)

    def judge_cell(self, rule: Rule, result: CellResult, run: RunView) -> Verdict:
        key = result.cell.key
        parts = [*self.memory(rule, result, run), *self.capacity(rule, result), *self.growth(rule, result)]
        untold = [sentence for sentence, within, _ in parts if within is None]
        evidence = {name: value for _, _, figures in parts for name, value in figures.items()}
        above = [sentence for sentence, within, _ in parts if within is False]
        if not above and (untold or not parts):
            step = "start a server per role here (-o servers=together); see docs/machine.md for what engines tell"
            sentence = "; ".join(untold) or "nothing was found to judge"
            if not rule.required and rule.params.keys() == {GROWTH}:
                return verdict(rule, key, State.SKIPPED, "not_told", sentence, evidence)
            return verdict(rule, key, State.NOT_JUDGED, "not_told", sentence, evidence, step)
        if above:
            step = "a smaller draft, fewer CUDA graphs, or a larger share of the GPU for the engine"
            if rule.params.keys() == {GROWTH}:
                step = "look for what a block leaves behind: rewound cache blocks, requests' state, CUDA graphs"
            return verdict(rule, key, State.FAIL, "above_max", "; ".join(above), evidence, step)
        return verdict(rule, key, State.PASS, "at_most_max", "; ".join(sentence for sentence, _, _ in parts), evidence)

    def memory(self, rule: Rule, result: CellResult, run: RunView) -> Iterator[Judged]:
        """Judge the memory itself."""
        most, share = (rule.params.get(name) for name in ("max_extra_memory_bytes", "max_extra_memory_share"))
        if most is None and share is None:
            return
        on_gpu, engine = "peak_device_memory_bytes" in result.values, run.engines.get(result.cell.point.key)
        listening = listeners(engine)
        if not on_gpu and engine is not None and may_be_elsewhere(engine):
            who = ", ".join(map(str, listening.values())) or "a process that is not seen"
            why = f"its servers were started elsewhere, no GPU is seen here, and {who} may only pass requests on"
            yield f"what speculation adds to memory is not told: {why}", None, listening
            return
        extra = result.values.get("extra_gpu_memory_bytes" if on_gpu else "extra_host_memory_bytes")
        if extra is None or extra.value is None:
            why = "both roles share a process, or the driver does not tell processes apart"
            yield f"what speculation adds to {'GPU' if on_gpu else 'host'} memory is not told: {why}", None, listening
            return
        where = "GPU" if on_gpu else "host"
        peak = baseline_peak(result, run, f"peak_{where.lower()}_memory_bytes")
        sentence = f"{size_in_words(extra.value)} more {where} memory than baseline"
        if most is not None:
            figures: Evidence = {extra.metric: extra.value, "max_bytes": float(most), **listening}
            yield f"{sentence}, at most {size_in_words(float(most))} asked", extra.value <= float(most), figures
        if share is not None and not peak:
            yield f"{sentence}, of how much is not told: the baseline's cell has no figures", None, listening
        elif share is not None and peak:
            figures = {extra.metric: extra.value, "baseline": peak, "max_share": float(share), **listening}
            of = f"{percent(extra.value / peak, share)} of its {size_in_words(peak)}"
            yield (
                f"{sentence}, {of}, at most {100 * float(share):g} % asked",
                extra.value <= float(share) * peak,
                figures,
            )

    def capacity(self, rule: Rule, result: CellResult) -> Iterator[Judged]:
        """Judge the KV cache."""
        most, loss = rule.params.get("max_capacity_loss"), result.values.get("kv_capacity_loss")
        if most is None:
            return
        if loss is None or loss.value is None:
            yield "how much of the KV cache speculation takes is not told by this engine", None, {}
            return
        figures: Evidence = {"kv_capacity_loss": loss.value, "max_loss": float(most), **told(result.values)}
        sentence = f"{percent(loss.value, most)} of the KV cache lost, at most {100 * float(most):g} % asked"
        yield sentence, loss.value <= float(most), figures

    def growth(self, rule: Rule, result: CellResult) -> Iterator[Judged]:
        """Judge whether memory grows from block to block."""
        most = rule.params.get(GROWTH)
        if most is None:
            return
        on_gpu = "peak_device_memory_bytes" in result.values
        for metric in GROWTHS:
            where = "GPU" if metric.startswith("gpu") else "host"
            if (value := result.values.get(metric)) is None:
                if on_gpu or where == "host":
                    why = f"fewer than {LEAST_READINGS} blocks of one process, or its memory cannot be read"
                    yield f"whether {where} memory grows is not told: {why}", None, {}
                continue
            peak = result.values[f"peak_{where.lower()}_memory_bytes"].value
            assert value.value is not None and peak
            share = value.value / peak
            grew_by = f"{size_in_words(value.value)} over {value.n} blocks, {percent(share, most)}"
            figures: Evidence = {metric: value.value, "peak": peak, "max_share": float(most)}
            sentence = f"{where} memory grew by {grew_by} of its peak, at most {100 * float(most):g} % asked"
            yield sentence, share <= float(most), figures


def percent(share: float, bound: float | str | bool) -> str:
    """`share` in percent, told from the share `bound`."""
    return f"{told_from(100 * float(bound), 100 * share, 1)} %"


Evidence = dict[str, float | int | str | None]
Judged = tuple[str, bool | None, Evidence]
"""(what was found, in words; whether it is within what is asked, None where it was not told; evidence)."""


def baseline_peak(result: CellResult, run: RunView, metric: str) -> float | None:
    """The same peak of the baseline's cell."""
    baseline = run.result(Cell(result.cell.point, BASELINE).key)
    peak = baseline.values.get(metric) if baseline else None
    return peak.value if peak else None


def may_be_elsewhere(engine: EngineFacts) -> bool:
    """True if the process that listens here may be a tunnel or a proxy to an engine on a GPU that is not visible."""
    return engine.attached and not engine.on_cpu


def listeners(engine: EngineFacts | None) -> Evidence:
    """The names of the processes that listen for servers started elsewhere, as far as they are seen."""
    details = engine.details if engine else {}
    return {name: str(value) for name, value in details.items() if name.endswith(" listens as")}


def told(values: Mapping[str, Value]) -> Evidence:
    capacity = values.get("kv_capacity_tokens")
    return {"kv_capacity_tokens": capacity.value} if capacity else {}


GATE = MemoryGate()
