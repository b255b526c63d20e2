"""Check the files of any pair for the known causes of speculation that is off, without an engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from specgate.analysis.speculation.causes import findings_of
from specgate.analysis.speculation.evidence import Evidence, Finding
from specgate.contract import Budget, PairRef, Role
from specgate.errors import ExitCode
from specgate.run.smoke.pair_configs import configs_of, wrong_weights

FILES: Final = ("misfits", "wrong_target", "vocabulary", "tokenizer", "weights", "draft_positions")
"""Causes that the files of a pair show by themselves."""

UNSEEN: Final = "no weights in files here"


class PairCheck(NamedTuple):
    """Result of a check. `findings`: one for each of `FILES`. `unreadable`: why files could not be read. `warnings`:
    contradictions that do no harm.
    """

    findings: tuple[Finding, ...]
    unreadable: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def exit_code(self) -> ExitCode:
        """FAIL where something is wrong, NOT_JUDGED where the head is here and was not read."""
        if self.unreadable or any(finding.state == "found" for finding in self.findings):
            return ExitCode.FAIL
        unread = [f for f in self.findings if f.cause == "misfits" and f.state == "not checked" and f.seen != UNSEEN]
        return ExitCode.NOT_JUDGED if unread else ExitCode.PASS


def check_pair(pair: PairRef, prompt_tokens: int, k: int) -> PairCheck:
    """Check the files of `pair`. All weights of the draft are read."""
    configs = configs_of(pair)
    if pair.draft is not None:
        configs = replace(configs, weights=wrong_weights(pair.draft))
    evidence = Evidence("", Role(k), Budget(new_tokens=k + 2), prompt_tokens, configs)
    findings = {finding.cause: finding for finding in findings_of(evidence)}
    for cause, unseen in (("misfits", configs.head is None), ("weights", configs.weights is None)):
        if unseen:
            findings[cause] = replace(findings[cause], state="not checked", seen=UNSEEN)
    return PairCheck(tuple(findings[cause] for cause in FILES), configs.unreadable, evidence.warnings)
