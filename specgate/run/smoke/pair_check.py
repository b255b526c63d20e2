"""Check the files of any pair for the known causes of speculation that is off, without an engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from specgate.analysis.speculation.causes import findings_of
from specgate.analysis.speculation.evidence import Evidence, Finding, Found, PairConfigs
from specgate.checkpoints.hf.draft import DraftKeys, canonical
from specgate.checkpoints.hf_keys import read_config
from specgate.contract import Budget, PairRef, Role
from specgate.errors import CheckpointError
from specgate.run.smoke.pair_configs import arrays_of, configs_of, wrong_weights

FILES: Final = ("misfits", "wrong_target", "vocabulary", "tokenizer", "weights", "draft_positions")
"""Causes that the files of a pair show by themselves."""

UNSEEN: Final[tuple[Found, str]] = ("not checked", "no weights in files here")


def check_pair(pair: PairRef, prompt_tokens: int, k: int) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return a finding for each of `FILES`, and why files could not be read. All weights of the draft are read."""
    configs = configs_of(pair)
    problems: list[str] = []
    if pair.draft is not None:
        configs = replace(configs, weights=wrong_weights(pair.draft))
        try:
            problems = list(misfits(pair.draft, configs))
        except CheckpointError as refused:
            problems = [str(refused).splitlines()[0]]
    error = f"tensors do not fit the config: {'; '.join(problems)}" if problems else None
    evidence = Evidence("", Role(k), Budget(new_tokens=k + 2), prompt_tokens, configs, error=error)
    findings = {finding.cause: finding for finding in findings_of(evidence)}
    has_weights = configs.weights is not None
    if not problems:
        fine: tuple[Found, str] = ("ruled out", "fusion layer and head have their sizes")
        state, observation = fine if has_weights else UNSEEN
        findings["misfits"] = replace(findings["misfits"], state=state, seen=observation)
    if not has_weights:
        findings["weights"] = replace(findings["weights"], seen=UNSEEN[1])
    return tuple(findings[cause] for cause in FILES), configs.unreadable


def misfits(draft: Path, configs: PairConfigs) -> Iterator[str]:
    """Yield each fault in the shapes of the draft's fusion layer and head. Raises CheckpointError for a bad config."""
    arrays = arrays_of(draft)
    if not arrays:
        return
    shapes = {canonical(name): stored.shape for name, stored in arrays.items()}
    keys = DraftKeys.of(read_config(draft))
    hidden = keys.layer.optional_count("hidden_size")
    if (fc := shapes.get("fc.weight")) is None:
        yield "missing: fc.weight"
    elif configs.boundaries and configs.target_hidden and hidden:
        expected = (hidden, len(configs.boundaries) * configs.target_hidden)
        if tuple(fc) != expected:
            layers = f"{len(configs.boundaries)} auxiliary layers of width {configs.target_hidden}"
            yield f"fc.weight is {list(fc)}, not {list(expected)} ({layers})"
    head = shapes.get("lm_head.weight")
    if head is None and configs.draft_vocab != configs.target_vocab:
        yield f"missing: lm_head.weight, of {configs.draft_vocab} rows"
    elif head is not None and hidden and configs.draft_vocab and tuple(head) != (configs.draft_vocab, hidden):
        yield f"lm_head.weight is {list(head)}, not {[configs.draft_vocab, hidden]}"
