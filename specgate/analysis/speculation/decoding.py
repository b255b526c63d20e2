"""Describe what, beside the pair and the draft length, changes how many drafts are accepted."""

from __future__ import annotations

from specgate.contract import Point, Run


def decoding_of(run: Run, point: Point) -> str:
    """Describe how a point differs from greedy decoding with whole chains: sampling, a tree, chains that end early, a
    KV cache in fewer bits, and verification over a part of it. Empty if it does not.
    """
    facts, sampling = run.engines.get(point.key), run.scenarios[point.scenario].sampling
    details = facts.details if facts else {}
    sampled = [f"T {sampling.temperature:g} {sampling.method}"] if sampling else []
    tree = [f"tree: {details['draft tree']}"] if "draft tree" in details else []
    early = [f"chains {details['chains go on']}"] if "chains go on" in details else []
    modes = ((name, str(details[name])) for name in ("KV cache", "draft's KV cache") if name in details)
    caches = [f"{name} {mode.partition(' ')[0]}" for name, mode in modes]
    partial = [f"SpecPV {details['SpecPV']}"] if "SpecPV" in details else []
    return ", ".join((*sampled, *tree, *early, *caches, *partial))
