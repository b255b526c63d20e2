"""specgate.prom: a run as metrics in Prometheus' text format, as node_exporter's textfile collector reads it.

What an author implements is in `specgate.contract.protocols`; the nouns are in `specgate.contract`. A report is pure:
it reads nothing but the run and the policy, so that `specgate runs verify` can render it again and compare.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from specgate.analysis.verdict import overall
from specgate.contract import CellResult, Policy, Run, State, Value
from specgate.contract.metrics import metric


class PrometheusReport:
    name = "prometheus"
    filename = "specgate.prom"
    """Of the run folder; every run writes it. None would make it a report for the terminal."""

    def render(self, run: Run, policy: Policy) -> str:
        return "".join(f"{line}\n" for line in lines(run, policy))


Samples = Iterable[tuple[Mapping[str, object], float]]
"""Labels and value of each sample of a metric."""


def lines(run: Run, policy: Policy) -> Iterator[str]:
    state, code = overall(run)
    of_run = {"run": run.id, "kind": run.kind, "policy": policy.name, "acceptance": run.acceptance, "state": state}
    yield from family("specgate_exit_code", "what the run's verdict makes a process end with", [(of_run, code)])
    counts = [({"run": run.id, "state": s}, sum(v.state is s for v in run.verdicts)) for s in State]
    yield from family("specgate_verdicts", "verdicts of the run by state", counts)
    figures: dict[str, list[tuple[CellResult, Value]]] = {}
    for result in run.cells:
        values = dict(result.values)
        if comparison := run.comparison(result.cell.key):
            values[comparison.speedup.metric] = comparison.speedup
        for name, value in values.items():
            figures.setdefault(name.partition("[")[0], []).append((result, value))
    for name, found in figures.items():
        samples = [(labels(run, r, v), v.value) for r, v in found if v.value is not None]
        about = metric(found[0][1].metric)
        yield from family(f"specgate_{name}", f"{about.definition} [{about.unit}]", samples)


def labels(run: Run, result: CellResult, value: Value) -> dict[str, object]:
    """Those of the cell; a figure by draft position, such as `acceptance_at_pos[2]`, has its position too."""
    point, index = result.cell.point, value.metric.partition("[")[2].rstrip("]")
    named: dict[str, object] = {"run": run.id, "scenario": point.scenario, "backend": point.backend}
    named |= {"context": point.context, "batch": point.batch, "role": result.cell.role}
    return named | ({"position": index} if index else {}) | ({"stat": value.stat} if value.stat != "value" else {})


def family(name: str, help_text: str, samples: Samples) -> Iterator[str]:
    """One metric with its samples; nothing where there is no sample."""
    shown = [f"{name}{{{','.join(map(pair, named.items()))}}} {float(value)!r}" for named, value in samples]
    if shown:
        yield f"# HELP {name} {escaped(help_text)}"
        yield f"# TYPE {name} gauge"
        yield from shown


def pair(item: tuple[str, object]) -> str:
    name, value = item
    quoted = escaped(str(value)).replace('"', r"\"")
    return f'{name}="{quoted}"'


def escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


REPORT = PrometheusReport()
