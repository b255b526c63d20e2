"""Texts of a run → its answers to questions that have a key beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgate.analysis.prompt_acceptance import prompts_of
from specgate.analysis.quality.exact_match import extracted, is_right
from specgate.contract import Block, Finish, Plan
from specgate.contract.samples.answers import Answered, AnswerKey
from specgate.contract.samples.counters import AS_TEXTS
from specgate.files.json_text import from_plain

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def answers_of(
    plan: Plan,
    prompts: Mapping[str, Mapping[str, object]],
    blocks: Iterable[Block],
    tokenizer_of: Callable[[], Tokenizer | None],
) -> Iterator[Answered]:
    """Yield the answer of every cell to every question with a key: that of its first text. A line of a file that a load
    sends again, in another place of its prompts, is the same question.

    Blocks of a fixed number of steps end in the middle of a text, so that they have none. `prompts`: point key → its
    prompts as a run stores them. `tokenizer_of`: opens the target's tokenizer; None where it has none, and then no
    text can be read.
    """
    keys = {key: keys_in(of_point) for key, of_point in prompts.items()}
    first = {key: first_places(of_point) for key, of_point in prompts.items()}
    if not any(keys.values()) or (tokenizer := tokenizer_of()) is None:
        return
    known = set[str]()
    for block in blocks:
        of_point = keys.get(block.point.key, {})
        if block.warmup or not of_point or not plan.scenarios[block.point.scenario].whole_requests:
            continue
        for slot, prompt in enumerate(prompts_of(block)):
            at = first[block.point.key].get((block.prompt_set, prompt), (block.prompt_set, prompt))
            place, key = f"{block.cell.key}#{at[0]}#{at[1]}", of_point.get(at)
            if key is None or place in known or (text := text_of(block, slot, tokenizer)) is None:
                continue
            known.add(place)
            got, cut = extracted(text, key), block.finish[slot] is Finish.LENGTH
            yield Answered(place, block.cell.key, *at, got, is_right(got, key), cut)


def keys_in(about: Mapping[str, object]) -> Mapping[tuple[int, int], AnswerKey]:
    """(prompt set, prompt) → the key of its answer."""
    sets: Any = about.get("answers", ())
    return {
        (prompt_set, prompt): from_plain(AnswerKey, key, Path("answers"))
        for prompt_set, keys in enumerate(sets)
        for prompt, key in enumerate(keys)
        if key is not None
    }


def first_places(about: Mapping[str, object]) -> Mapping[tuple[int, int], tuple[int, int]]:
    """(prompt set, prompt) → the first place of the line that is there, of a file that is sent again."""
    lines: Any = about["lines"] if about.get("repeated") else ()
    line_at = {(prompt_set, prompt): line for prompt_set, of in enumerate(lines) for prompt, line in enumerate(of)}
    first = {line: place for place, line in reversed(line_at.items())}
    return {place: first[line] for place, line in line_at.items()}


def text_of(block: Block, slot: int, tokenizer: Tokenizer) -> str | None:
    """The text of a slot; None where its tokens are no ids of the tokenizer, but were made of a server's text."""
    ids = list(block.tokens[slot])
    text: str = tokenizer.decode(ids, skip_special_tokens=True)
    if block.counters.get(AS_TEXTS) and tokenizer.encode(text, add_special_tokens=False).ids != ids:
        return None
    return text
