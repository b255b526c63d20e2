"""The report `junit`: junit.xml in Jenkins' xUnit schema for JUnit (10).

It has a test case for the run as a whole, one per verdict, and one for each thing that was not judged: skipped where
the policy says why, else a failure. A required verdict that is not green fails its test case:
FAIL and INCONCLUSIVE are failures, INVALID and ENV_REJECTED are errors. An advisory verdict that is not green is
reported as skipped, with its message. The schema has no properties in a test case, so the figures behind a verdict are
in its `system-out`.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence

from specgate.analysis.cell_names import cell_name
from specgate.contract import Gap, Policy, Run, State, Verdict
from specgate.contract.protocols import visible
from specgate.errors import ExitCode
from specgate.reports.common.summary import acceptance_label, gap_in_words, headline, seconds
from specgate.reports.common.tables import evidence

GREEN = (State.PASS, State.IMPROVED)
OUTCOMES = {
    State.FAIL: "failure",
    State.INCONCLUSIVE: "failure",
    State.INVALID: "error",
    State.ENV_REJECTED: "error",
    State.NOT_JUDGED: "failure",
    State.SKIPPED: "skipped",
}


class JunitReport:
    """An `protocols.Report`. It is also `protocols.Combined`: several runs become several suites of one file."""

    name = "junit"
    filename = "junit.xml"

    def render(self, run: Run, policy: Policy) -> str:
        return self.render_all([run])

    def render_all(self, runs: Sequence[Run]) -> str:
        suites = [suite(run) for run in runs]
        totals = {name: str(sum(int(s.attrib[name]) for s in suites)) for name in ("tests", "failures", "errors")}
        root = element("testsuites", name="specgate", **totals)
        root.extend(suites)
        ET.indent(root, " ")
        return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def suite(run: Run) -> ET.Element:
    """The test suite of one run."""
    gaps = (gap_case(run, gap) for gap in run.not_judged)
    cases = [verdict_case(run), *gaps, *(case(run, verdict) for verdict in run.verdicts)]
    outcomes = Counter(child.tag for c in cases for child in c)
    made = element(
        "testsuite",
        name=f"specgate {run.kind} {run.id}",
        tests=str(len(cases)),
        failures=str(outcomes["failure"]),
        errors=str(outcomes["error"]),
        skipped=str(outcomes["skipped"]),
        time=f"{seconds(run) or 0:.0f}",
        timestamp=run.started.removesuffix("+00:00"),
    )
    facts = {
        "run": run.id,
        "verdict": headline(run).state,
        "acceptance": acceptance_label(run) or "real acceptance",
        **{name: value or "unknown" for name, value in run.fingerprint.items()},
    }
    properties = ET.SubElement(made, "properties")
    properties.extend(element("property", name=name, value=value) for name, value in facts.items())
    made.extend(cases)
    return made


def case(run: Run, verdict: Verdict) -> ET.Element:
    """The test case of one verdict."""
    scenario, _, rest = verdict.cell.partition("/")
    classname = ".".join(part for part in ("specgate", run.kind, scenario) if part)
    made = element("testcase", classname=classname, name=" ".join((verdict.rule, *rest.split("/"))).strip(), time="0")
    if verdict.state not in GREEN:
        tag = OUTCOMES[verdict.state] if verdict.required else "skipped"
        advisory = "" if verdict.required or verdict.state is State.SKIPPED else f"advisory {verdict.state.value}: "
        outcome = element(tag, type=verdict.reason_code, message=advisory + verdict.message)
        outcome.text = visible(f"next: {verdict.next_step}") if verdict.next_step else None
        made.append(outcome)
    if figures := evidence(verdict):
        ET.SubElement(made, "system-out").text = visible(f"{verdict.message}\n{figures}")
    return made


def gap_case(run: Run, gap: Gap) -> ET.Element:
    """The test case of what was not judged. Its `system-out` names the cells."""
    made = element("testcase", classname=f"specgate.{run.kind}", name=f"{gap.kind} not judged", time="0")
    why = gap.why or f"no required rule judges {gap_in_words(gap, run.scenarios)}"
    made.append(element("failure" if gap.why is None else "skipped", type="not_judged", message=why))
    ET.SubElement(made, "system-out").text = visible("\n".join(gap.cells))
    return made


def verdict_case(run: Run) -> ET.Element:
    """The test case of the run as a whole. It fails if the exit code is not 0, whatever the cause."""
    head = headline(run)
    made = element("testcase", classname=f"specgate.{run.kind}", name="verdict", time="0")
    if head.code is not ExitCode.PASS:
        red = (ExitCode.FAIL, ExitCode.INCONCLUSIVE, ExitCode.NOT_JUDGED)
        tag = "failure" if head.code in red else "error"
        outcome = element(tag, type=head.state, message=head.reason)
        outcome.text = (
            visible("\n".join(f"{cell_name(where, run.scenarios)}: {why}" for where, why in run.failures.items()))
            or None
        )
        made.append(outcome)
    return made


def element(tag: str, **attributes: str) -> ET.Element:
    """An XML element. Characters that XML cannot hold are written as escapes."""
    return ET.Element(tag, {name: visible(value) for name, value in attributes.items()})


REPORT = JunitReport()
