"""Steps with drafts: how tokens were decoded, how often was drafted, and how long the drafts were.

More than K × steps is a contradiction: another draft length, a tree, or padding of other requests is counted. Fewer
are drafts that stop early, or that the engine does not count. Both change the acceptance rate, which is accepted over
drafted tokens; the acceptance length, which is over steps, stays what it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from specgate.analysis.prompt_acceptance import by_prompt, pooled
from specgate.analysis.tokens.repetition import repeated_ngram_share
from specgate.contract import Block, EngineFacts, Point, Run
from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.samples.counters import REPORTED_ACCEPTED
from specgate.errors import InvalidResult

TREE: Final = "draft tree"
"""The detail of an engine's facts that describes its trees of draft tokens."""


def decoding_of(run: Run, point: Point) -> str:
    """Describe how a point differs from greedy decoding with whole chains: sampling, a tree, chains that end early, a
    KV cache in fewer bits, and verification over a part of it. Empty if it does not.
    """
    facts, sampling = run.engines.get(point.key), run.scenarios[point.scenario].sampling
    details = facts.details if facts else {}
    sampled = [f"T {sampling.temperature:g} {sampling.method}"] if sampling else []
    tree = [f"tree: {details[TREE]}"] if TREE in details else []
    early = [f"chains {details['chains go on']}"] if "chains go on" in details else []
    modes = ((name, str(details[name])) for name in ("KV cache", "draft's KV cache") if name in details)
    caches = [f"{name} {mode.partition(' ')[0]}" for name, mode in modes]
    partial = [f"SpecPV {details['SpecPV']}"] if "SpecPV" in details else []
    return ", ".join((*sampled, *tree, *early, *caches, *partial))


SHORTENS: Final[Mapping[str, str]] = {
    "vllm": "num_speculative_tokens_per_batch_size",
    "sglang": "--speculative-adaptive, --speculative-accept-threshold-single",
    "trtllm": "draft_len_schedule",
    "llamacpp": "--spec-draft-p-min above 0",
}
"""Engine → what makes its drafts shorter than K, as far as it is known (versions: `checkpoints/spec_config/formats`).
"""


def refuse_beyond_k(record: AcceptanceRecord, where: str) -> None:
    """Raise InvalidResult where more draft tokens are counted than K × steps."""
    whole = record.k * record.steps
    if record.drafted > whole:
        raise InvalidResult(
            f"{where}: {record.drafted:,} draft tokens in {record.steps:,} steps with a draft, where K × steps = "
            f"{whole:,}: another draft length, a tree that no flag or spec_config names, or padding is counted"
        )


def check_draft_counts(blocks: Sequence[Block]) -> None:
    """No server's block has more draft tokens than K × steps. Raises InvalidResult. (Engines that show their steps are
    held to it step by step.)
    """
    for block in blocks:
        record = block.served.acceptance if block.served is not None else None
        if record is not None:
            refuse_beyond_k(record, f"{block.cell.key} set {block.prompt_set} round {block.round}")


def check_reported_counts(blocks: Sequence[Block]) -> None:
    """An engine's own count of accepted drafts has at most one more a step than were emitted. Raises InvalidResult."""
    for block in blocks:
        reported = block.counters.get(REPORTED_ACCEPTED)
        if reported is None or not block.role.speculative:
            continue
        record = pooled(by_prompt([block]))
        most = record.accepted + record.steps
        if not record.accepted <= reported <= most:
            raise InvalidResult(
                f"{block.cell.key} set {block.prompt_set} round {block.round}: {REPORTED_ACCEPTED} = {reported:,}, "
                f"where {record.accepted:,} accepted drafts and one more in each of {record.steps:,} steps allow "
                f"{record.accepted:,} to {most:,}"
            )


def short_of(record: AcceptanceRecord, requests: int) -> int:
    """Draft tokens that are missing from K × steps and that no end of a request explains: in the last step of each of
    `requests` there may be no draft, or in each of the last K steps no more than tokens that may still come.
    """
    last = min(record.k, -(-record.steps // max(1, requests)))
    at_an_end = max(record.k, last * record.k - last * (last + 1) // 2)
    return max(0, record.k * record.steps - record.drafted - at_an_end * requests)


SINGLE_TOKEN: Final = "single_token_mode"
SINGLE_TOKEN_MODE: Final = "single-token mode, as TurboMind falls back to with tp > 1"


def single_token(record: AcceptanceRecord, requests: int) -> bool:
    """True if no step drafted more than one token, where K is larger and the `requests` had room for more."""
    return record.k > 1 and record.drafted <= record.steps and short_of(record, requests) > 0


def promises_k(facts: EngineFacts | None) -> bool:
    """True if the engine drafts K tokens in every step: nothing is known that makes its drafts shorter on purpose."""
    if facts is None:
        return True
    known = facts.backend.removesuffix("-offline") in SHORTENS or "chains go on" in facts.details
    return not known and not facts.sets_lengths


def shortness_in_words(record: AcceptanceRecord, backend: str) -> str:
    """Clause on the effect of drafts shorter than K on the acceptance rate."""
    whole, known = record.k * record.steps, SHORTENS.get(backend.removesuffix("-offline"))
    cause = f" (known to shorten drafts: {known})" if known else ""
    return (
        f"{record.drafted:,} of {whole:,} draft tokens (K × steps), {record.drafted / record.steps:.2f} a step{cause}: "
        f"the acceptance rate {100 * record.accepted / record.drafted:.1f} % is of those that were drafted, "
        f"{100 * record.accepted / whole:.1f} % are accepted of K × steps"
    )


NEXT_TO_NOTHING: Final = 1.1
"""An acceptance length below this is what a draft gets that does not fit its target, or has no weights."""

Active = Literal["active", "single-token", "next to nothing accepted", "no drafts"]


@dataclass(frozen=True, slots=True)
class Drafting:
    """Figures of one spec block.

    `num_drafts`: request-steps with a draft. `undrafted`: those without one, None where the engine does not tell.
    `drafted`, `accepted`: draft tokens. `emitted`: tokens after the first one of each request.
    `acceptance_length`: 1 + accepted / num_drafts, in tokens; None without a draft.
    `drafted_per_step`: draft tokens per request-step with a draft.
    `steps_with_1`, `steps_with_2`: share of these steps that accepted at least 1 or 2; None where not counted.
    `accepted_at_pos[i]`: share that accepted draft token i + 1; () where not counted by position.
    `tok_s`: tokens after the first per second of decoding. One cold request: not a measurement.
    `repeated`: share of the text's 8-grams that occurred before.
    """

    k: int
    num_drafts: int
    undrafted: int | None
    drafted: int
    accepted: int
    emitted: int
    acceptance_length: float | None
    drafted_per_step: float | None
    steps_with_1: float | None
    steps_with_2: float | None
    accepted_at_pos: tuple[float, ...]
    tok_s: float | None
    repeated: float

    @property
    def state(self) -> Active:
        """`active` where several tokens are drafted per step (one, for spec-1) and more than next to nothing of them
        is accepted.
        """
        if not self.num_drafts:
            return "no drafts"
        if self.k > 1 and self.drafted <= self.num_drafts:
            return "single-token"
        return "active" if (self.acceptance_length or 1.0) >= NEXT_TO_NOTHING else "next to nothing accepted"


def drafting_of(block: Block) -> Drafting:
    """The figures of a spec block. Raises InvalidResult where its counts contradict each other."""
    check_draft_counts([block])
    record: AcceptanceRecord = pooled(by_prompt([block]))
    steps = record.steps
    seconds = block.decoding_ns / len(block.tokens) / 1e9
    return Drafting(
        k=record.k,
        num_drafts=steps,
        undrafted=block.steps_without_draft,
        drafted=record.drafted,
        accepted=record.accepted,
        emitted=block.emitted,
        acceptance_length=record.acceptance_length,
        drafted_per_step=record.drafted / steps if steps else None,
        steps_with_1=sum(record.hist[1:]) / steps if steps and record.hist else None,
        steps_with_2=record.multi_token_share,
        accepted_at_pos=tuple(n / steps for n in record.accepted_at_pos) if steps else (),
        tok_s=block.emitted / seconds if seconds > 0 else None,
        repeated=max(repeated_ngram_share(tokens) for tokens in block.tokens),
    )
