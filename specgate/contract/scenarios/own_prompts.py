"""A user's own prompts in words: how many of the file, as chats or as text, how long, and what was left out and why.

What is stored of them (`Run.prompts`) may have been edited by somebody, so what is not as expected is not said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

MOST: Final = 3
"""Reasons that are listed."""


def in_words(about: Mapping[str, Any]) -> str | None:
    """Return the file of the prompts, their number, form and lengths; None for prompts that come from no file.

    `about`: what a run stores of the prompts of a point.
    """
    file, length, how = (about.get(key) for key in ("file", "length_tokens", "rendered"))
    if not (isinstance(file, Mapping) and isinstance(length, Mapping) and isinstance(how, Mapping)):
        return None
    different, chosen = about.get("repeated"), sum(n for n in how.values() if isinstance(n, int))
    number = f"{chosen} requests with {different}" if is_number(different) else f"{chosen}"
    spread = ", ".join(
        f"{length[key]:,}".removesuffix(".0") for key in ("min", "median", "max") if is_number(length.get(key))
    )
    more = "".join(f"; {clause}" for clause in left_out_clauses(about, file))
    return (
        f"{number} of {file.get('prompts')} prompts from {file.get('name')} ({file.get('format')}), as "
        f"{' and '.join(forms(about, how))}: {spread} tokens (shortest, median, longest){more}"
    )


def forms(about: Mapping[str, Any], how: Mapping[str, Any]) -> Iterator[str]:
    """Yield the forms of the prompts: chats with the file of their template, text with the reason, ids."""
    words = {
        "chat template": ("chats", f"template: {about['template']}" if "template" in about else None),
        "text": ("text", about.get("text_why")),
    }
    for form, count in how.items():
        name, why = words.get(form, (str(form), None))
        number = f"{count} " if len(how) > 1 else ""
        yield f"{number}{name} ({why})" if why else f"{number}{name}"


def left_out_clauses(about: Mapping[str, Any], file: Mapping[str, Any]) -> Iterator[str]:
    """Yield what of the file is not among its prompts, or is there twice, and what warm-up repeats."""
    left_out, prompts = file.get("left_out"), file.get("prompts")
    if isinstance(left_out, Mapping) and isinstance(prompts, int) and all(map(is_number, left_out.values())):
        records = "conversations" if file.get("format") == "sharegpt" else "records"
        yield f"{prompts} of {prompts + sum(left_out.values())} {records}"
        yield left_out_in_words(left_out)
    if is_number(passed_over := file.get("passed_over")):
        yield f"{passed_over} passed over: shorter or longer than asked for"
    if is_number(answered := file.get("answered")):
        yield f"{answered} without the answer at their end"
    if is_number(later := about.get("later_turns")):
        yield f"{later} with later turns, which are not asked"
    if is_number(twice := file.get("duplicates")) and twice:
        yield f"{twice} there twice"
    if isinstance(about.get("warmup"), str):
        yield f"warm-up {about['warmup']}"


def left_out_in_words(left_out: Mapping[str, int]) -> str:
    """Return the number of records that have no prompt, with the reasons, the most frequent ones first.

    `left_out`: reason → records.
    """
    reasons = sorted(left_out.items(), key=lambda item: -item[1])
    words = [reason if len(reasons) == 1 else f"{reason} ({count})" for reason, count in reasons[:MOST]]
    if len(reasons) > MOST:
        words.append(f"other reasons ({sum(count for _, count in reasons[MOST:])})")
    return f"{sum(left_out.values())} left out: {', '.join(words)}"


def is_number(value: object) -> bool:
    """Return whether `value` is a number and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)
