"""What, beside the pair and the draft length, changes how many drafts are accepted."""

from __future__ import annotations

from specgate.contract import Point, Run


def decoding_of(run: Run, point: Point) -> str:
    """What of a point is not greedy decoding with whole chains, in words: sampling, a tree, chains that end early, keys
    and values that are cached in fewer bits, and verification over a part of them.

    Empty where nothing is.
    """
    facts, sampling = run.engines.get(point.key), run.scenarios[point.scenario].sampling
    details = facts.details if facts else {}
    drawn = [f"T {sampling.temperature:g} {sampling.method}"] if sampling else []
    tree = [f"tree: {details['draft tree']}"] if "draft tree" in details else []
    early = [f"chains {details['chains go on']}"] if "chains go on" in details else []
    told = ((name, str(details[name])) for name in ("KV cache", "draft's KV cache") if name in details)
    caches = [f"{name} {mode.partition(' ')[0]}" for name, mode in told]
    partial = [f"SpecPV {details['SpecPV']}"] if "SpecPV" in details else []
    return ", ".join((*drawn, *tree, *early, *caches, *partial))
