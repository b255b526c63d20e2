"""Two speculative configs → every difference with its consequence, and what is not known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from specgate.checkpoints.spec_config.contents import other_content
from specgate.checkpoints.spec_config.formats.collect_terms import AS_THE_CHECKPOINT
from specgate.checkpoints.spec_config.formats.draft_folder import AS_THE_DRAFT_SAYS
from specgate.checkpoints.spec_config.terms import DRAFTERS, TERMS, Breaks, Said, StatedConfig, shown
from specgate.errors import ExitCode

CHECKPOINTS: Final = ("draft_model", "target")
"""Terms that name a checkpoint: compared by content where both are here, otherwise by name."""
NAMED_BY_CHECKPOINT: Final = frozenset({"auto", AS_THE_CHECKPOINT})
"""Values that stand for whatever the checkpoint has."""
FOLLOWS: Final = {"draft_tp": "tp", "draft_kv_dtype": "kv_dtype"}
"""Terms that are what another is, unless a config states them: where that one differs, they are no further difference.
"""
ONE_TYPE: Final = {
    "half": "float16", "fp16": "float16", "f16": "float16", "bf16": "bfloat16", "float": "float32", "f32": "float32",
    "fp8": "fp8_e4m3",
}  # fmt: skip
"""Other names of a dtype → its name."""
OF_FILES: Final = frozenset({"capture", "window"})
"""Terms that follow from the draft's files, and are told by them alone."""
UNQUANTIZED: Final = frozenset({"auto", "bfloat16", "float16", "float32", "bf16", "f16", "fp16", "half"})


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

    `undecided`: what was not read or is not known, and may be a difference that matters. `one_sided`: what one says and
    the other cannot say. `same`: terms in which both agree, with the value. `broken`: rules that one of them breaks by
    itself. `notes`: what else a reader should know, per config.
    """

    first: StatedConfig
    second: StatedConfig
    differences: tuple[Difference, ...]
    undecided: tuple[str, ...]
    one_sided: tuple[str, ...]
    same: tuple[tuple[str, str], ...]
    broken: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def differ(self) -> bool:
        """True if figures of the two engines cannot be compared."""
        return bool(self.broken) or any(difference.breaks != "nothing" for difference in self.differences)

    @property
    def aligned(self) -> bool:
        """True if figures of the two engines can be compared, as far as their configs tell, and all was read."""
        return not self.differ and not self.undecided

    @property
    def exit_code(self) -> ExitCode:
        """FAIL where the two differ, NOT_JUDGED where something is not known."""
        if self.differ:
            return ExitCode.FAIL
        return ExitCode.NOT_JUDGED if self.undecided else ExitCode.PASS


def align(first: StatedConfig, second: StatedConfig) -> Alignment:
    """Lay `first` and `second` side by side, term by term. Checkpoints that are both here are read whole."""
    names, sides = labels(first, second), (first, second)
    differences: list[Difference] = []
    same: list[tuple[str, str]] = []
    one_sided: list[str] = []
    undecided = [f"{name}: {text}" for name, side in zip(names, sides, strict=True) for text in not_known(side)]
    if first.speculative != second.speculative and not any(s.unclear for s in sides if not s.speculative):
        differences.append(one_speculates(first, second))
    for term in TERMS:
        a, b = first.terms.get(term), second.terms.get(term)
        if a is not None and b is not None:
            compared = of_both(term, first, second, a, b)
            if term in FOLLOWS and not same_or_stated(compared, a, b):
                continue
            if isinstance(compared, Difference):
                differences.append(compared)
            elif compared.startswith("?"):
                words = f"{TERMS[term].title}: {names[0]} {in_words(a)}, {names[1]} {in_words(b)}: {compared[1:]}"
                (one_sided if term in OF_FILES or TERMS[term].breaks == "nothing" else undecided).append(words)
            else:
                same.append((TERMS[term].title, compared))
        elif (only := a or b) is not None and only.how == "stated" and (first.speculative == second.speculative):
            haver, lacker = (0, 1) if a is not None else (1, 0)
            text = f"{TERMS[term].title}: {names[haver]} says {shown(only.value)}, {names[lacker]} "
            if term not in sides[lacker].expresses:
                one_sided.append(f"{text}cannot express it")
            else:
                (undecided if TERMS[term].breaks != "nothing" else one_sided).append(f"{text}does not say")
    undecided += others(first, second, names)
    if first.speculative and second.speculative:
        missing = [TERMS[term].title for term in CHECKPOINTS if not any(term in side.terms for side in sides)]
        one_sided += [f"{title}: neither says" for title in missing]
    broken = [f"{name}: {rule}" for name, side in zip(names, sides, strict=True) for rule in side.broken()]
    notes = [f"{name}: {note}" for name, side in zip(names, sides, strict=True) for note in side.notes]
    if first.engine != second.engine:
        notes += [f"{name}: {note}" for name, side in zip(names, sides, strict=True) for note in unread(side)]
    return Alignment(
        first, second, tuple(differences), tuple(undecided), tuple(one_sided), tuple(same), tuple(broken), tuple(notes)
    )


def not_known(config: StatedConfig) -> Iterator[str]:
    """Yield what one config leaves open by itself."""
    yield from config.undecided
    if (method := config.value("method")) is not None and method not in DRAFTERS:
        yield f"drafter {shown(method)}: none that is known"


def labels(first: StatedConfig, second: StatedConfig) -> tuple[str, str]:
    """Names of the two: their engines, with (A) and (B) if both are of the same engine."""
    if first.engine != second.engine:
        return first.engine, second.engine
    return f"{first.engine} (A)", f"{second.engine} (B)"


def same_or_stated(compared: Difference | str, a: Said, b: Said) -> bool:
    return "stated" in (a.how, b.how) or (isinstance(compared, str) and not compared.startswith("?"))


def of_both(term: str, first: StatedConfig, second: StatedConfig, a: Said, b: Said) -> Difference | str:
    """A term that both know: the difference, the value in words where they agree, or `?` and why it cannot be told."""
    if term in CHECKPOINTS:
        return checkpoints(term, first, second, a, b)
    if reason := unknown(term, first, second, a, b):
        return f"?{reason}"
    return in_words(a) if agree(term, first, second, a, b) else difference_of(term, first, second, a, b)


def checkpoints(term: str, first: StatedConfig, second: StatedConfig, a: Said, b: Said) -> Difference | str:
    """Compare the checkpoints that two configs name: by content where both are on this machine, otherwise by name. A
    draft of the same name in another place is not taken for the same.
    """
    values, places = (in_words(a), in_words(b)), (first.places.get(term, ""), second.places.get(term, ""))
    other = other_content(*places) if all(places) else None
    if other is None:
        if agree(term, first, second, a, b):
            if term == "draft_model" and all(places) and len({repository_of(place) for place in places}) > 1:
                return f"?only the names of {' and '.join(places)} are alike: with both here, their content would tell"
            return f"{values[0]} (by name)" if all(places) else values[0]
        by_name = f"{TERMS[term].consequence}, by name" if any(places) else TERMS[term].consequence
        return Difference(term, TERMS[term].title, values, TERMS[term].breaks, by_name)
    if not other:
        return f"{values[0]} (the same content)" if values[0] == values[1] else f"{' and '.join(values)}: one content"
    shown_as = values if values[0] != values[1] else places
    return Difference(term, TERMS[term].title, shown_as, TERMS[term].breaks, f"{TERMS[term].consequence}: {other}")


def repository_of(place: str) -> str:
    """The `owner/name` of a checkpoint in the cache of Hugging Face's hub; any other place as it is written."""
    cached = [part for part in PurePath(place).parts if part.startswith("models--")]
    return cached[-1].removeprefix("models--").replace("--", "/") if cached else place


def unknown(term: str, first: StatedConfig, second: StatedConfig, a: Said, b: Said) -> str:
    """Reason that a term stated by both cannot be compared; "" if it can."""
    values = {str(a.value).lower(), str(b.value).lower()}
    if len(values) == 2 and values & NAMED_BY_CHECKPOINT and not (term.endswith("kv_dtype") and values - UNQUANTIZED):
        return "one is whatever the checkpoint has" if "weights" not in term else ""
    if len(values) == 2 and "quantization" in term and first.engine != second.engine:
        return "each engine has its own names of methods"
    if len(values) == 2 and AS_THE_DRAFT_SAYS in values:
        return "with the draft's folder here, it could be compared"
    if term == "capture" and (first.boundaries is None) != (second.boundaries is None):
        return "with the draft's and the target's folder here, the layers themselves could be compared"
    return ""


def agree(term: str, first: StatedConfig, second: StatedConfig, a: Said, b: Said) -> bool:
    if term == "capture" and first.boundaries is not None and second.boundaries is not None:
        return first.boundaries == second.boundaries
    if isinstance(a.value, str) and isinstance(b.value, str):
        names = [value.lower() for value in (a.value, b.value)]
        return names[0] == names[1] or ("dtype" in term and len({ONE_TYPE.get(name, name) for name in names}) == 1)
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


def others(first: StatedConfig, second: StatedConfig, names: tuple[str, str]) -> Iterator[str]:
    """Yield a sentence for each key without a term of its own that is not the same in both. Of two engines, keys that
    are not about speculation are notes.
    """
    alike = first.engine == second.engine
    sides = [{**side.others, **(side.unread if alike else {})} for side in (first, second)]
    for key in sorted(sides[0].keys() | sides[1].keys()):
        a, b = ((shown(side[key]) or "on") if key in side else "does not say" for side in sides)
        if a != b or not alike:
            yield f"{key}: {names[0]} {a}, {names[1]} {b}: what it changes is not known here"


def unread(config: StatedConfig) -> Iterator[str]:
    """Yield a note about the flags of a config that were not read, where there are any."""
    if config.unread:
        yield f"not read: {', '.join(f'{flag} {value}'.strip() for flag, value in config.unread.items())}"


def in_words(setting: Said) -> str:
    return shown(setting.value) + {"default": " (default)", "fixed": " (always)"}.get(setting.how, "")
