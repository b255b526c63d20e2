"""Steps of trees beside steps of chains in the built-in engine, and what a tree's own kernels take.

    python -m bench.tree_steps --pair planted-llama-3.1-8b-al3.0 --context 1024 --batch 4 --rows 8 --rows 16

Weights are random, of the pair's sizes. A tree is compared with the chain that verifies as many rows, up to the eight
that a chain may have, and with one of as many levels; with `--dynamic`, so is the dynamic tree of as many rows.
Rounds alternate between the steps, and of each step the fastest round counts. Below that, per step: microseconds of
candidates, tokens, acceptance and compaction, each in a graph of its own, beside the time in which their bytes pass
through memory, and the goal for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

import click
import torch
from torch import Tensor

from specgate.backends.eagle3.cupy.bench.stage import Stage, sizes_of
from specgate.backends.eagle3.cupy.bench.synthetic import Geometry, random_pair
from specgate.backends.eagle3.cupy.device import first_gpu
from specgate.backends.eagle3.cupy.engine.graph import captured
from specgate.backends.eagle3.cupy.memory.buffers import Buffers
from specgate.backends.eagle3.cupy.memory.model import Draft, Target
from specgate.backends.eagle3.cupy.memory.sizes import DraftTree
from specgate.backends.eagle3.cupy.step.recording import Call
from specgate.backends.eagle3.cupy.stream import Stream
from specgate.backends.eagle3.cupy.tuned.gemms import Configurations
from specgate.backends.eagle3.cupy.tuned.lookup import Tuned
from specgate.backends.eagle3.cupy.tuning.steps import replayed_us
from specgate.backends.eagle3.lib.trees.asked import DEFAULT_WIDTH
from specgate.backends.eagle3.lib.trees.growing import DynamicGrowth
from specgate.checkpoints.trees.shape import TreeShape
from specgate.checkpoints.trees.sizes import likeliest_tree
from specgate.pairs.resolve import resolve_pair

GOAL_US: Final = 20
"""For a tree's own kernels per step, at batch 4 and 64 nodes."""
MOST_OF_A_CHAIN: Final = 8
SHARES: Final = (0.67, 0.14, 0.06, 0.03, 0.02)
"""How often the target's token has each rank behind a node; the trees are the best for these
(backends/eagle3/docs/trees.md).
"""
OWN: Final = ("tree_top", "tree_token", "tree_grow", "tree_choose", "tree_settle")
REPEATS: Final = 50


@dataclass(frozen=True, slots=True)
class Own:
    """What the launches of one of a tree's kernels take together, in microseconds per step; `floor_us`: their bytes."""

    name: str
    launches: int
    took_us: float
    floor_us: float


def tree_of(rows: int, levels: int) -> TreeShape:
    """The best tree of `rows` rows on at most `levels` levels."""
    return likeliest_tree(rows - 1, levels, SHARES)


def stage_of(
    geometry: Geometry,
    pair: tuple[Target, Draft | None],
    context: int,
    batch: int,
    drafts: int | DraftTree,
    tuned: Configurations,
    device: torch.device | str,
) -> Stage:
    """A step of a chain of so many tokens, or of a tree."""
    tree = None if isinstance(drafts, int) else drafts
    k = drafts if isinstance(drafts, int) else drafts.depth
    sizes = sizes_of(geometry.target, context, batch, k)
    if tree is not None:
        sizes = replace(sizes, max_rows=tree.rows, tree=tree)
    b = Buffers.allocate(geometry.target, geometry.draft, sizes, device)
    return Stage(geometry, pair, b, sizes, context, k, tuned)


def bytes_moved(call: Call) -> int:
    """Of a call of one of a tree's kernels: what it has to read and write at least, but for weights of norms and lists.

    Of what is accepted, the most: a whole path is moved.
    """
    named: Mapping[str, Any] = call.named
    rows = named["rows"]
    match call.kernel.spec.stem:
        case "tree_top":
            columns = int(dict(call.kernel.spec.constants)["COLUMNS"])
            return int(rows.most * columns * 4)
        case "tree_token" | "tree_grow":
            of = {name: int(value) for name, value in call.kernel.spec.constants if value.isdigit()}
            scanned = rows.most * named["maxima"].shape[1] * 4 if "maxima" in named else 0
            return int(rows.slots * of["ROWS"] * of["HIDDEN"] * (2 + 4 + 4 + 4) + scanned)
        case "tree_choose":
            return int(8 * named["pool"].candidates.numel() // 2)
        case _:
            k_pages, features = named["k_pages"], named["features"]
            path = int(named["path"].shape[1]) - 1
            cached = 2 * k_pages.shape[0] * k_pages.shape[2] * k_pages.shape[4] * k_pages.element_size()
            moved = 2 * rows.slots * path * (cached + features.shape[2] * features.element_size())
            return int(moved + rows.most * (8 + 8 + 4 + 4))


def own_kernels(stage: Stage, stream: Stream, bytes_per_us: float) -> list[Own]:
    """Of a stage that has run. The launches of a kernel are repeated on the step's own operands."""
    found = list[Own]()
    for name in OWN:
        calls = [call for call in stage.calls if call.kernel.spec.stem == name]
        if not calls:
            continue
        stage.reset()
        prepare_path(stage)

        def repeated(calls: Sequence[Call] = tuple(calls)) -> None:
            for _ in range(REPEATS):
                for call in calls:
                    call()

        took = fastest_us(captured(repeated, stream), stream) / REPEATS
        floor = sum(map(bytes_moved, calls)) / bytes_per_us
        found.append(Own(name, len(calls), took, floor))
    return found


def fastest_us(graph: Any, stream: Stream) -> float:
    """Microseconds of the fastest of ten replays, of a graph that leaves its operands as they are."""
    event: Any = torch.cuda.Event
    events = [event(enable_timing=True) for _ in range(11)]
    graph.launch(stream.cupy)
    for after in events:
        after.record(stream.torch)
        graph.launch(stream.cupy)
    stream.wait()
    return min(float(since.elapsed_time(to)) * 1e3 for since, to in pairwise(events))


def prepare_path(stage: Stage) -> None:
    """Have the path to the last node accepted, in every launch: in the tree of a file, the one that moves furthest.

    The first launch clears the target's choices. What was never a choice is token -1.
    """
    tree, drafts = stage.b.tree, stage.b.slots.drafts
    assert tree is not None
    parents = tree.parents[0].tolist()
    node, path = len(parents) - 1, list[int]()
    while node and len(path) < tree.path.shape[1]:
        path.append(node)
        node = parents[node]
    drafts.zero_()
    drafts[:, [node - 1 for node in path]] = -1


def times(stages: Mapping[str, Stage], stream: Stream, rounds: int) -> dict[str, float]:
    """Name → microseconds per step."""
    graphs = dict[str, Any]()
    for name, stage in stages.items():
        stage.reset()
        graphs[name] = captured(partial(stage.cycle, stage.b), stream)
    found = dict.fromkeys(stages, float("inf"))
    for _ in range(rounds):
        for name, stage in stages.items():
            found[name] = min(found[name], replayed_us(graphs[name], stage, stream))
    return found


def step_lines(latency_us: Mapping[str, float]) -> Iterator[str]:
    """One per step, with its time as a multiple of the first one's."""
    first = next(iter(latency_us.values()))
    for name, took in latency_us.items():
        yield f"{name:28} {took:9.1f} us/step  {took / first:6.3f}"


def own_lines(found: Sequence[Own]) -> Iterator[str]:
    """One per kernel, and their sum beside the goal."""
    for own in found:
        yield f"  {own.name:14} {own.launches:2} launches {own.took_us:7.1f} us  floor {own.floor_us:6.2f} us"
    took = sum(own.took_us for own in found)
    yield f"  {'together':14} {took:19.1f} us  ({'within' if took <= GOAL_US else 'MORE THAN'} {GOAL_US} us)"


def measured_bytes_per_us(device: torch.device, size: int = 1 << 30) -> float:
    """Bytes that pass through memory per microsecond in a copy, read and written."""
    source = torch.empty(size, dtype=torch.uint8, device=device)
    copy = Tensor.clone(source)
    event: Any = torch.cuda.Event
    since, to = event(enable_timing=True), event(enable_timing=True)
    since.record()
    for _ in range(10):
        copy.copy_(source)
    to.record()
    torch.cuda.synchronize()
    return 10 * 2 * size / (float(since.elapsed_time(to)) * 1e3)


@click.command()
@click.option("--pair", default="planted-llama-3.1-8b-al3.0", show_default=True, metavar="NAME|DIR")
@click.option("--context", default=1024, show_default=True)
@click.option("--batch", multiple=True, type=int, default=(1, 4), show_default=True)
@click.option(
    "--rows", multiple=True, type=int, default=(8, 16, 32, 64), show_default=True, help="Of a tree, with root."
)
@click.option("--levels", default=5, show_default=True, help="Of a tree, at most.")
@click.option("--dynamic", is_flag=True, help="Time dynamic trees too.")
@click.option("--width", default=DEFAULT_WIDTH, show_default=True, help="Nodes per level of a dynamic tree, at most.")
@click.option("--rounds", default=5, show_default=True)
def main(
    pair: str,
    context: int,
    batch: tuple[int, ...],
    rows: tuple[int, ...],
    levels: int,
    dynamic: bool,
    width: int,
    rounds: int,
) -> None:
    """Print microseconds per step of chains and trees, and of a tree's own kernels."""
    device, stream = first_gpu(), Stream()
    tuned = Tuned.on(torch.cuda.get_device_name(), None)
    geometry = Geometry.of(resolve_pair(pair, None, None), drafts=True)
    with torch.inference_mode(), stream.current():
        bandwidth = measured_bytes_per_us(device)
        click.echo(f"{torch.cuda.get_device_name()}, {pair}, context {context}, copies at {bandwidth / 1e6:.2f} TB/s")
        for slots in batch:
            weights = random_pair(geometry, sizes_of(geometry.target, context, slots, 7).positions, device)
            for count in rows:
                tree = tree_of(count, levels)
                equal = min(count, MOST_OF_A_CHAIN) - 1
                of = {f"baseline, batch {slots}": 0, f"chain of {tree.depth} tokens": tree.depth}
                of |= {f"chain of {equal + 1} rows": equal}
                chains = {name: stage_of(geometry, weights, context, slots, k, tuned, device) for name, k in of.items()}
                trees: dict[str, DraftTree] = {f"tree of {count} rows, {tree.depth} levels": tree}
                if dynamic:
                    growth = DynamicGrowth(tree.depth, min(width, count - 1), count - 1)
                    trees[f"dynamic, {growth.rows} rows, {growth.depth} levels"] = growth
                grown = {
                    name: stage_of(geometry, weights, context, slots, of_name, tuned, device)
                    for name, of_name in trees.items()
                }
                stages = {**chains, **grown}
                for stage in stages.values():
                    stage.run()
                for line in step_lines(times(stages, stream, rounds)):
                    click.echo(line)
                for name, stage in grown.items():
                    click.echo(f"  {name}")
                    for line in own_lines(own_kernels(stage, stream, bandwidth)):
                        click.echo(line)


if __name__ == "__main__":
    main()
