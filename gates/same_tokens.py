"""Gate `same-tokens`: does run B emit the same tokens as run A?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specgate.contract import Rule, State, Verdict
from specgate.contract.comparisons import Contrast, TokenContrast
from specgate.gates.select import verdict


class SameTokens:
    """PASS if every sequence is the same in both runs, up to the length of the shorter one; FAIL if one differs.

    A difference does not prove either run wrong. Whether a run kept to its own baseline is judged by its gate `tokens`.
    """

    name = "same-tokens"
    params: Mapping[str, type] = {}

    def judge(self, rule: Rule, contrast: Contrast) -> Iterator[Verdict]:
        checks = [t for t in contrast.tokens if rule.matches(t.cell)]
        if not checks:
            what = f"no cell of both runs matches scenario {rule.scenario!r} and role {rule.role!r}"
            yield verdict(rule, "", State.SKIPPED, "no_cell", what)
        for tokens in checks:
            yield self.judge_cell(rule, tokens)

    def judge_cell(self, rule: Rule, tokens: TokenContrast) -> Verdict:
        key = tokens.cell.key
        evidence = {"compared_tokens": tokens.compared_tokens, "sequences": tokens.sequences, "first": tokens.first}
        if tokens.reason_code:
            message = f"nothing was compared: {tokens.reason_code.replace('_', ' ')}"
            return verdict(rule, key, State.INCONCLUSIVE, tokens.reason_code, message, evidence)
        if tokens.differing:
            message = (
                f"{tokens.differing} of {tokens.sequences} sequences differ, the first one at token {tokens.first}"
            )
            return verdict(rule, key, State.FAIL, "tokens_differ", message, evidence)
        message = f"{tokens.compared_tokens} tokens of {tokens.sequences} sequences, all the same"
        return verdict(rule, key, State.PASS, "same_tokens", message, evidence)


GATE = SameTokens()
