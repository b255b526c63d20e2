"""Two speculative configs → every difference with its consequence, and what only one of them can express."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from specgate.checkpoints.spec_config.terms import TERMS, Breaks, Said, StatedConfig, shown


@dataclass(frozen=True, slots=True)
class Difference:
    """One term in which two configs differ. `values`: what each says, in words, and whether it is stated.

    `breaks`: which figures cannot be compared for it.
    """

    term: str
    title: str
    values: tuple[str, str]
    breaks: Breaks
    consequence: str


@dataclass(frozen=True, slots=True)
class Alignment:
    """Two configs side by side.

    `one_sided`: what one says and the other cannot say or does not. `same`: terms in which both agree, with the value.
    `broken`: rules that one of them breaks by itself. `notes`: unknown keys and the like, per config.
    """

    first: StatedConfig
    second: StatedConfig
    differences: tuple[Difference, ...]
    one_sided: tuple[str, ...]
    same: tuple[tuple[str, str], ...]
    broken: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def aligned(self) -> bool:
        """True if figures of the two engines can be compared, as far as their configs tell."""
        return not self.broken and all(difference.breaks == "nothing" for difference in self.differences)


def align(first: StatedConfig, second: StatedConfig) -> Alignment:
    """Lay `first` and `second` side by side, term by term."""
    names = labels(first, second)
    differences: list[Difference] = []
    one_sided: list[str] = []
    same: list[tuple[str, str]] = []
    if first.speculative != second.speculative:
        differences.append(one_speculates(first, second))
    for term in TERMS:
        pair = first.terms.get(term), second.terms.get(term)
        if pair[0] is not None and pair[1] is not None:
            if undecided := unknown(term, first, second, pair[0], pair[1]):
                one_sided.append(
                    f"{TERMS[term].title}: {names[0]} {in_words(pair[0])}, {names[1]} {in_words(pair[1])}: {undecided}"
                )
            elif agree(term, first, second, pair[0], pair[1]):
                same.append((TERMS[term].title, in_words(pair[0])))
            else:
                differences.append(difference_of(term, first, second, pair[0], pair[1]))
        elif (only_one := pair[0] or pair[1]) is not None and first.speculative and second.speculative:
            haver, lacker = (0, 1) if pair[0] is not None else (1, 0)
            one_sided += lacking(term, only_one, names[haver], names[lacker], (first, second)[lacker])
    broken = [
        f"{name}: {rule}" for name, config in zip(names, (first, second), strict=True) for rule in config.broken()
    ]
    notes = [f"{name}: {note}" for name, config in zip(names, (first, second), strict=True) for note in config.notes]
    return Alignment(first, second, tuple(differences), tuple(one_sided), tuple(same), tuple(broken), tuple(notes))


def labels(first: StatedConfig, second: StatedConfig) -> tuple[str, str]:
    """Names of the two: their engines, with (A) and (B) if both are of the same engine."""
    if first.engine != second.engine:
        return first.engine, second.engine
    return f"{first.engine} (A)", f"{second.engine} (B)"


def unknown(term: str, first: StatedConfig, second: StatedConfig, a: Said, b: Said) -> str:
    """Reason that a term stated by both cannot be compared; "" if it can."""
    if "auto" in (a.value, b.value) and a.value != b.value:
        return "auto is whatever the checkpoint has"
    if term == "capture" and (first.boundaries is None) != (second.boundaries is None):
        return "with the draft's and the target's folder here, the layers themselves could be compared"
    return ""


def agree(term: str, first: StatedConfig, second: StatedConfig, a: Said, b: Said) -> bool:
    if term == "capture" and first.boundaries is not None and second.boundaries is not None:
        return first.boundaries == second.boundaries
    if isinstance(a.value, str) and isinstance(b.value, str):
        return a.value.lower() == b.value.lower()
    return a.value == b.value


def difference_of(term: str, first: StatedConfig, second: StatedConfig, a: Said, b: Said) -> Difference:
    values = in_words(a), in_words(b)
    consequence = TERMS[term].consequence
    if term == "capture":
        if first.boundaries is not None and second.boundaries is not None:
            values = f"boundaries {shown(first.boundaries)}", f"boundaries {shown(second.boundaries)}"
        else:
            consequence += "; they agree only where the draft's config has both keys (both folders here would tell)"
    if term == "k" and isinstance(a.value, int) and isinstance(b.value, int):
        consequence = f"K {a.value} against {b.value}: {consequence}"
    return Difference(term, TERMS[term].title, values, TERMS[term].breaks, consequence)


def one_speculates(first: StatedConfig, second: StatedConfig) -> Difference:
    values = ("on" if first.speculative else "off", "on" if second.speculative else "off")
    return Difference("speculation", "speculation", values, "acceptance", "one of the two does not speculate at all")


def lacking(term: str, setting: Said, haver: str, lacker: str, config: StatedConfig) -> Iterator[str]:
    """Yield a sentence about a term that only one config states; nothing if that is a mere default."""
    title = TERMS[term].title
    if setting.how != "stated":
        return
    what = f"{title}: {haver} says {shown(setting.value)}"
    if term not in config.expresses:
        yield f"{what}, {lacker} cannot express it"
    else:
        yield f"{what}, {lacker} does not say"


def in_words(setting: Said) -> str:
    return shown(setting.value) + {"stated": "", "default": " (default)", "fixed": " (always)"}[setting.how]
