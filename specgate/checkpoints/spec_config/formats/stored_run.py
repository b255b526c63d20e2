"""The speculative config that a run folder holds: what it asked the engine for, and what the engine said of itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from specgate.checkpoints.spec_config.formats import llamacpp, lmdeploy, sglang, trtllm, vllm
from specgate.checkpoints.spec_config.formats.collect_terms import Terms, fixed, name_of
from specgate.checkpoints.spec_config.terms import DRAFTERS, NAMES, How, Said, StatedConfig
from specgate.contract import EngineFacts
from specgate.errors import UsageError
from specgate.files.run_folder import RunFolder

READERS: Final[Mapping[str, Callable[[Sequence[str], str], StatedConfig]]] = {
    "vllm": vllm.read_flags,
    "sglang": sglang.read_flags,
    "lmdeploy": lmdeploy.read_flags,
    "trtllm": trtllm.read_flags,
    "llamacpp": llamacpp.read_flags,
}
"""Back end → how the flags in its option `args` are read."""
SHARES_TARGETS: Final = frozenset({"cupy"})
"""Back ends whose options `tp` and `draft_tp` say how many GPUs share a target, and among how many the draft is split.
"""
BOUNDARIES: Final = re.compile(r"boundaries[^\[]*\[([\d, ]+)\]")
ALWAYS: Final = frozenset({"method", "draft_model", "target", "k", "dtype", "prefix_cache", "forced", "max_batch"})


def read_run(folder: Path, where: str) -> StatedConfig:
    """The config of a run folder. Raises UsageError where it is none or speculates in no scenario."""
    stored = RunFolder.open(folder, read_only=True)
    config, engines = stored.read_config(), stored.engines()
    scenarios = list(config.scenarios.values())
    lengths = sorted({k for scenario in scenarios for k in scenario.grid.spec})
    if not lengths:
        raise UsageError(f"{where}: a run without speculation", hint="it must have a scenario with spec")
    terms: Terms = {
        "method": Said(method_of(config.options, next(iter(engines.values()), None)), "stated", "drafter"),
        "k": Said(lengths[0] if len(lengths) == 1 else tuple(lengths), "stated", "grid.spec"),
        "dtype": Said(one_or_all([s.dtype for s in scenarios]), "stated", "dtype"),
        "target": Said(name_of(config.pair.target), "stated", "pair"),
        "max_batch": Said(max(b for s in scenarios for b in s.grid.batch), "stated", "grid.batch"),
        "prefix_cache": Said(config.options.get("prefix_cache") == "on", "stated", "prefix_cache"),
        "forced": Said(forced_length(config.options), "stated", "force_al"),
    }
    if config.backend in SHARES_TARGETS:
        terms |= gpus_of(config.options, next(iter(engines.values()), None))
    if config.pair.draft is not None:
        terms["draft_model"] = Said(name_of(config.pair.draft), "stated", "pair")
    for k in lengths[:1] if len(lengths) == 1 else ():
        fixed(terms, path_len=k + 1, verified=k + 1, topk=1, tree="chain", varies="constant")
    (notes, undecided, unread), boundaries = options_of(terms, config.backend, config.options, where), None
    for facts in list(engines.values())[:1]:
        boundaries = facts_of(terms, facts)
    expresses = ALWAYS | {term for term, setting in terms.items() if setting.how == "stated"}
    places = {"target": str(config.pair.target)}
    if config.pair.draft is not None:
        places["draft_model"] = str(config.pair.draft)
    return StatedConfig(config.backend, where, terms, expresses, notes, boundaries, undecided, places=places,
                        unread=unread)  # fmt: skip


def method_of(options: Mapping[str, str], facts: EngineFacts | None) -> str:
    """The method of speculation that a run's engine names; EAGLE-3 where it names none, as the built-in ones."""
    named = str(facts.details.get("drafter")) if facts is not None else options.get("drafter")
    names = {name: method for method, name in reversed(list(NAMES.items()))}
    methods = {**names, **{method: method for method in DRAFTERS}}
    return named if named == "given" else methods.get(named or "", "eagle3")


def options_of(
    terms: Terms, backend: str, options: Mapping[str, str], where: str
) -> tuple[tuple[str, ...], tuple[str, ...], Mapping[str, str]]:
    """Put what flags in the option `args` say into `terms`. Returns notes, what is not known, and what was not read."""
    notes: list[str] = []
    undecided: list[str] = []
    unread: dict[str, str] = {}
    for key, text in options.items():
        if key.partition(".")[0] == "args" and backend in READERS and key != "args.baseline":
            config = READERS[backend](shlex.split(text), f"{where}: option {key}")
            terms.update({term: s for term, s in config.terms.items() if s.how == "stated"})
            notes += config.notes
            undecided += config.undecided
            unread |= config.unread
    return tuple(notes), tuple(undecided), unread


def gpus_of(options: Mapping[str, str], facts: EngineFacts | None) -> Terms:
    """Return the number of GPUs among which target and draft are divided: as the options say, else as the engine did
    it.
    """
    link = facts.traffic.link if facts and facts.traffic else None
    done = {"tp": link.gpus if link else 1, "draft_tp": link.gpus if link and link.draft_row_bytes else 1}
    gpu_terms: Terms = {}
    for name, gpus in done.items():
        text = options.get(name, str(gpus))
        how: How = "stated" if name in options else "default"
        gpu_terms[name] = Said(int(text) if text.isdigit() else text, how, name)
    return gpu_terms


def facts_of(terms: Terms, facts: EngineFacts) -> tuple[int, ...] | None:
    """Put what the engine said of itself into `terms`. Returns the boundaries that it feeds the draft."""
    terms["max_positions"] = Said(facts.max_positions, "fixed")
    if facts.capture_rule is None:
        return None
    terms["capture"] = Said(facts.capture_rule, "fixed")
    return boundaries_in(facts.capture_rule)


def boundaries_in(rule: str) -> tuple[int, ...] | None:
    """The boundaries that a sentence of `auxiliary_layers` ends with; None where it names none."""
    match = (
        BOUNDARIES.search(rule)
        or re.search(r"ids \[([\d, ]+)\] are boundaries", rule)
        or re.search(r"= \[([\d, ]+)\]", rule)
    )
    return tuple(int(n) for n in match[1].split(",")) if match else None


def one_or_all(values: Sequence[str]) -> object:
    distinct = tuple(dict.fromkeys(values))
    return distinct[0] if len(distinct) == 1 else distinct


def forced_length(options: Mapping[str, str]) -> float | None:
    """The acceptance length that the options force. Raises nothing: a stored run was checked when it began."""
    try:
        return float(options["force_al"])
    except (KeyError, ValueError):
        return None
