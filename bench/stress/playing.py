"""One episode: its text by plain decoding, then by every draft length, then by plain decoding once more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench.stress.episodes import LOGITS_AT, Episode
from bench.stress.expected import cut
from bench.stress.handles.handle import Handle
from specgate.contract import BASELINE, Budget, Role
from specgate.contract.acceptance import AcceptanceRecord
from specgate.contract.protocols import Decoded, ShowsLogits
from specgate.errors import BackendError, InvalidResult


@dataclass(slots=True)
class Played:
    """Result of an episode.

    `cycles`: speculative steps. `blocks`: decode runs. `tokens`: that were held against plain decoding.
    `accepted`, `drafts`: draft tokens. `wrong`: what was not as it must be, a sentence each.
    `fault_steps`: of an episode with a fault, the steps before it.
    """

    name: str
    cycles: int = 0
    blocks: int = 0
    tokens: int = 0
    accepted: int = 0
    drafts: int = 0
    wrong: list[str] = field(default_factory=list)
    fault_steps: int | None = None


def play(handle: Handle, episode: Episode, spec: Sequence[int]) -> Played:
    """Play an episode. Raises BackendError where the engine fails in a way that was not asked for."""
    played = Played(episode.name)
    handle.engine.prefill(episode.prompts, draft=True)
    with intact_prompts(handle, played):
        free = meet_fault(handle, episode, played) if episode.kind == "fault" else texts(handle, episode, spec, played)
    if episode.kind == "fault":
        recover(handle, episode, free, played)
    return played


Texts = tuple[tuple[int, ...], ...]


@contextmanager
def intact_prompts(handle: Handle, played: Played) -> Iterator[None]:
    """Check that the cache holds the same prompts afterwards, unless the episode damages it."""
    before = handle.prompt_sum()
    yield
    if played.fault_steps is None and handle.prompt_sum() != before:
        played.wrong.append("the cache of the prompts was written to")


# ── sound caches ─────────────────────────────────────────────────────────────────────────────────────────────────────


def texts(handle: Handle, episode: Episode, spec: Sequence[int], played: Played) -> Texts:
    """Decode the episode by every role, and hold each text to what plain decoding writes."""
    whole = Budget(new_tokens=episode.new_tokens)
    free = decoded(handle, BASELINE, whole, (), played).tokens
    eos: Sequence[int] = ()
    stop: Sequence[int] = ()
    budget = whole
    if episode.kind == "ends":
        eos = handle.engine.facts().eos_token_ids
        stop, budget = stops_for(free, eos), Budget(new_tokens=episode.new_tokens, ignore_eos=False)
    expected = [cut(text, stop, eos, episode.new_tokens) for text in free]
    for role in (*map(Role, spec), BASELINE):
        compare(f"{role}", decoded(handle, role, budget, stop, played), expected, played)
    if episode.kind == "plain":
        compare_logits(handle, Role(max(spec)), played)
    return free


def stops_for(free: Sequence[Sequence[int]], eos: Sequence[int]) -> tuple[int, ...]:
    """Stop tokens that end the slots at different places: slot i at its token 2i + 1, unless another's comes before.
    The last slot gets none, so that some slot may reach its limit.
    """
    return tuple({text[min(2 * slot + 1, len(text) - 1)] for slot, text in enumerate(free[:-1])} - set(eos))


def decoded(handle: Handle, role: Role, budget: Budget, stop: Sequence[int], played: Played) -> Decoded:
    """One decode run, counted, its records held to their identities and the cache to its accounts."""
    result = handle.engine.decode(role, budget, stop)
    played.blocks += 1
    if role.speculative:
        emitted = sum(len(tokens) - 1 for tokens in result.tokens)
        record = AcceptanceRecord.from_steps(role.k, result.accepted, result.drafted, emitted, sum(result.truncated))
        played.cycles += len(result.step_ns)
        played.accepted += record.accepted
        played.drafts += record.drafted
        try:
            if record.steps:
                record.check()
        except InvalidResult as error:
            played.wrong.append(f"{role}: {error}")
    if result.counters.get("kv_integrity_failures"):
        played.wrong.append(f"{role}: kv_integrity_failures = {result.counters['kv_integrity_failures']}")
    played.wrong += [f"{role}: {complaint}" for complaint in handle.complaints()]
    return result


def compare(who: str, result: Decoded, expected: Sequence[tuple[Sequence[int], str]], played: Played) -> None:
    """Hold every token and every end to what is expected of them."""
    for slot, (tokens, finish, (text, end)) in enumerate(zip(result.tokens, result.finish, expected, strict=True)):
        played.tokens += len(text)
        if tuple(tokens) != tuple(text):
            at = next((i for i, (a, b) in enumerate(zip(tokens, text, strict=False)) if a != b), None)
            where = f"at {at}" if at is not None else f"in length: {len(tokens)} and not {len(text)}"
            played.wrong.append(f"{who}: the text of slot {slot} differs from plain decoding {where}")
        elif finish != end:
            played.wrong.append(f"{who}: slot {slot} ended for {finish} and not for {end}")


def compare_logits(handle: Handle, role: Role, played: Played) -> None:
    """The logits of some tokens are those of plain decoding, bit for bit, where the engine shows them."""
    if not isinstance(handle.engine, ShowsLogits):
        return
    plain, drafted = (handle.engine.logits(of, LOGITS_AT) for of in (BASELINE, role))
    for slot, (one, other) in enumerate(zip(plain, drafted, strict=True)):
        for at, a, b in zip(LOGITS_AT, one, other, strict=True):
            if a != b:
                played.wrong.append(f"{role}: the logits of token {at} of slot {slot} are not those of plain decoding")


# ── damaged caches ───────────────────────────────────────────────────────────────────────────────────────────────────


def meet_fault(handle: Handle, episode: Episode, played: Played) -> Texts:
    """Damage the cache, and demand that the next decode run ends with the right error. Returns its sound text."""
    assert episode.fault is not None
    fault, role, budget = handle.faults[episode.fault], Role(episode.k), Budget(new_tokens=episode.new_tokens)
    free = decoded(handle, BASELINE, budget, (), played).tokens
    played.fault_steps = 0
    with handle.damage(episode.fault):
        try:
            handle.engine.decode(role, budget, ())
        except BackendError as error:
            played.fault_steps = handle.steps_before_fault()
            if fault.said not in str(error):
                played.wrong.append(f"{role}: the error says {error.message!r} and not {fault.said!r}")
            if played.fault_steps == 0:
                played.wrong.append(f"{role}: the fault was met in the first step, and not in the middle of a run")
        else:
            played.wrong.append(f"{role}: nothing was noticed")
    if fault.mended:
        try:
            handle.engine.decode(role, budget, ())
        except BackendError:
            pass
        else:
            played.wrong.append(f"{role}: a damaged cache was decoded from once more")
    return free


def recover(handle: Handle, episode: Episode, free: Texts, played: Played) -> None:
    """The same prompts, prefilled again, have the text that they had before the fault."""
    handle.engine.prefill(episode.prompts, draft=True)
    budget = Budget(new_tokens=episode.new_tokens)
    expected = [cut(text, (), (), episode.new_tokens) for text in free]
    for role in (Role(episode.k), BASELINE):
        compare(f"{role} after the fault", decoded(handle, role, budget, (), played), expected, played)
