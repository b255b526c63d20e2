"""What, beside the pair and the draft length, changes how many drafts are accepted."""

from __future__ import annotations

from specgate.core import Point, Run


def decoding_of(run: Run, point: Point) -> str:
    """What of a point is not greedy decoding with whole chains, in words: sampling, a tree, chains that end early.

    Empty where nothing is.
    """
    facts, sampling = run.engines.get(point.key), run.scenarios[point.scenario].sampling
    details = facts.details if facts else {}
    drawn = [f"T {sampling.temperature:g} {sampling.method}"] if sampling else []
    tree = [f"tree: {details['draft tree']}"] if "draft tree" in details else []
    early = [f"chains {details['chains go on']}"] if "chains go on" in details else []
    return ", ".join((*drawn, *tree, *early))
