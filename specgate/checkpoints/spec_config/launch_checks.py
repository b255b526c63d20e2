"""Check an engine's sizes against the role, right before it is loaded or a server is started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from specgate.checkpoints.geometry import DraftGeometry, TargetSizes
from specgate.checkpoints.spec_config.sizes import SpecConfig, check
from specgate.checkpoints.spec_config.sources import FORMATS, read_source
from specgate.checkpoints.spec_config.terms import NAMES, StatedConfig
from specgate.errors import UsageError

OPTION = "spec_config"
"""The option of a back end that names a config which the engine's is to agree with."""


def check_chain(
    k: int,
    where: str,
    options: Mapping[str, str],
    *,
    target: TargetSizes | None = None,
    draft: DraftGeometry | None = None,
    positions: int | None = None,
    tp: int | None = None,
    most_tp: int = 1,
) -> None:
    """Check spec-`k` as a chain by every rule of `sizes`, against the limits of a pair, and against the config that the
    option `spec_config` names. `tp`: GPUs per model, where the engine knows; `most_tp`: with how many it drafts several
    tokens. Raises UsageError with what is broken.
    """
    chain = SpecConfig.chain(k, tp=tp or 1)
    check(chain, where, target=target, draft=draft, positions=positions, most_tp=most_tp)
    if OPTION in options:
        where = f"option {OPTION} = {options[OPTION]}"
        config = read_source(options[OPTION])
        if (tree := tree_in(config, k)) is not None:
            raise UsageError(f"{where}: {tree}", hint=f"spec-{k} is a chain of {k} draft tokens here")
        refuse_other(config, k, where, tp)


def check_named(text: str, k: int) -> str | None:
    """Check the config that the option `spec_config` of a server of spec-`k` names.

    Returns the shape of its tree (`tree_in`). Raises UsageError as `check_command` does.
    """
    config = read_source(text)
    refuse_other(config, k, f"option {OPTION} = {text}")
    return tree_in(config, k)


def check_command(engine: str, argv: Sequence[str], k: int, where: str, own: Sequence[str] = ()) -> str | None:
    """Check the command line that a server of spec-`k` (0: the baseline) is about to be started with.

    Flags of the user come last on it and win, so that they can ask for another draft length than the role's. `own`: the
    command without them. Returns the shape of the tree that they ask for (`tree_in`). Raises UsageError for another
    length, for another target or draft than the pair's, for broken rules, for values of the wrong type, and for a
    baseline that speculates.
    """
    read = FORMATS[engine].flags if engine in FORMATS else None
    if read is None:
        return None
    config = read(argv, where)
    pair = read(own, where).places if own else config.places
    if other := next((term for term, place in config.places.items() if pair.get(term, place) != place), None):
        raise UsageError(
            f"{where}: {by(config, other)} = {config.places[other]}, the pair has {pair[other]}",
            hint="--target DIR and --draft DIR name the pair: what the results say is of these",
        )
    if config.unclear:
        raise UsageError(f"{where}: {'; '.join(config.undecided)}", hint="it must be known whether a server speculates")
    if k:
        refuse_other(config, k, where)
    elif config.speculative:
        raise UsageError(f"{where}: its flags ask for speculation", hint="-o args.spec-K=… is for spec roles alone")
    elif config.undecided:
        hint = "a baseline must be known not to speculate; -o args.spec-K=… is for spec roles alone"
        raise UsageError(f"{where}: {'; '.join(config.undecided)}", hint=hint)
    return tree_in(config, k)


def stated_method(engine: str, argv: Sequence[str], where: str) -> tuple[str | None, str | None]:
    """Return (the method of speculation by its name in the field, the place of its draft) that a server's command line
    states. None for what it does not state.
    """
    read = FORMATS[engine].flags if engine in FORMATS else None
    config = read(argv, where) if read is not None else None
    if config is None or not config.speculative:
        return None, None
    method = config.value("method")
    return (NAMES.get(method, method) if isinstance(method, str) else None), config.places.get("draft_model")


def check_mapping(engine: str, values: Mapping[str, object], k: int, where: str) -> str | None:
    """As `check_command`, of the speculative config that a library of spec-`k` is about to be opened with."""
    read = FORMATS[engine].mapping
    assert read is not None
    config = read(values, where)
    refuse_other(config, k, where)
    return tree_in(config, k)


def tree_in(config: StatedConfig, k: int) -> str | None:
    """Describe the tree that `config` drafts, whose paths have `k` draft tokens; None for a chain, and where it is not
    known.
    """
    shape, topk, verified = config.value("tree"), config.count("topk"), config.count("verified")
    if shape == "chain" or (shape is None and topk in (None, 1) and (verified is None or verified <= k + 1)):
        return None
    nodes = f" of up to {verified - 1} draft tokens" if verified is not None else ""
    return f"{shape or 'tree'}{nodes}"


def refuse_other(config: StatedConfig, k: int, where: str, tp: int | None = None) -> None:
    """Raise UsageError where paths of `config` have not `k` draft tokens, on `tp` GPUs, or where it breaks a rule."""
    wrong = [*config.broken(), *other_sizes(config, k, tp)]
    if wrong:
        on = f" on {tp} GPUs" if tp is not None and tp > 1 else ""
        stated = config.count("k")
        other = f"; --spec {stated} measures what it states" if stated not in (None, k) else ""
        if not config.speculative:
            other = f"; flags in -o args.spec-{k}='…' choose the method of a server that is started here"
        raise UsageError(f"{where}: {'; '.join(wrong)}", hint=f"spec-{k} drafts {k} tokens on a path{on}{other}")


def other_sizes(config: StatedConfig, k: int, tp: int | None = None) -> Iterator[str]:
    """One sentence for each size of `config` that `k` draft tokens on a path have not. `tp`: GPUs, where known."""
    if not config.speculative:
        yield "it does not ask for speculation"
        return
    stated = config.count("k")
    if stated is not None and stated != k and config.value("method") != "ngram":
        yield f"{by(config, 'k')} = {stated}, the role asks for {k}"
    verified = config.count("verified")
    if stated == k and verified is not None and verified != k + 1 and config.count("topk") == 1:
        yield f"{by(config, 'verified')} = {verified}, a chain of {k} drafts has {k + 1} tokens to verify"
    gpus = config.stated_count("tp")
    if tp is not None and gpus is not None and gpus != tp:
        yield f"{by(config, 'tp')} = {gpus}, the engine runs with tp = {tp}"


def by(config: StatedConfig, term: str) -> str:
    return config.terms[term].by or term
