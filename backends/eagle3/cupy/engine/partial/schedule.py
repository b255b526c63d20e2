"""Schedule of partial and full verifications in a decode run: decided before it begins, so that no step waits.

The host does not know how many tokens a step will emit. It takes the most for the tokens that no full verification has
seen, so that these are never more than `refresh` and one step's; and the least for the length of a request, so that a
part is read only where something is left out of every request.
"""

from __future__ import annotations

from collections.abc import Sequence

from specgate.backends.eagle3.cupy.engine.graph import STEPS_PER_GRAPH, graph_sizes
from specgate.backends.eagle3.cupy.memory.sizes import Sizes
from specgate.backends.eagle3.cupy.step.partial import FULL, PARTIAL, PLAIN, Kind


def kinds_of(sizes: Sizes, k: int, lengths: Sequence[int], steps: int) -> tuple[Kind, ...]:
    """Return how each of `steps` steps of spec-`k` verifies, behind prompts of these lengths. Where none can verify in
    part, all are plain.
    """
    plan, most = sizes.partial, sizes.partial_passes_of(k)
    kinds = list[Kind]()
    while len(kinds) < steps and plan is not None and most:
        long = plan.leaves_out(min(lengths) + len(kinds))
        kinds += [FULL, *[PARTIAL] * (most if long else 0)]
    return tuple(kinds[:steps]) if PARTIAL in kinds[:steps] else (PLAIN,) * steps


def graphs_of(kinds: Sequence[Kind]) -> list[tuple[Kind, ...]]:
    """The steps of each graph, one graph after the other: as many as a graph has at most, and no full verification but
    as the first of one. What is left over at the end of a run are graphs of one step.
    """
    runs, graphs = list[list[Kind]](), list[tuple[Kind, ...]]()
    for kind in kinds:
        if not runs or kind == FULL:
            runs.append([])
        runs[-1].append(kind)
    longest = max(map(len, runs), default=0)
    for run in runs:
        whole = run[0] == FULL and len(run) == longest  # it comes again and again
        at = 0
        for size in graph_sizes(len(run)) if not whole else [STEPS_PER_GRAPH] * -(-len(run) // STEPS_PER_GRAPH):
            graphs.append(tuple(run[at : at + size]))
            at += size
    return graphs


def looks_of(graphs: Sequence[tuple[Kind, ...]]) -> int:
    """Before so many of them it is worth asking whether anything still runs: up to the last that has several steps."""
    return max((number for number, of in enumerate(graphs, 1) if len(of) > 1), default=0)
