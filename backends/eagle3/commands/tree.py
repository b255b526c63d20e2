"""`specgate engine tree inspect FILE`: what a draft tree is, what it takes of an engine, and what it looks like."""

from __future__ import annotations

import io
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from specgate.commands.door import Group
from specgate.commands.numbers import BATCHES, count
from specgate.commands.output import OUT_OPTION, write_files
from specgate.errors import ExitCode, UsageError
from specgate.terminal import echo, echo_json

if TYPE_CHECKING:
    from specgate.backends.eagle3.nouns.trees.shape import TreeShape
    from specgate.backends.eagle3.nouns.trees.sizes import Memory, Room


LABELLED: Final = 130
"""Draft tokens up to which nodes are large enough to be labelled."""
LEVEL: Final = 0.78
"""Inches between levels."""
SETTINGS: Final = {"svg.fonttype": "none", "svg.hashsalt": "specgate", "font.size": 8}


def picture(shape: TreeShape, name: str) -> str:
    """Return the picture as the text of an SVG file, the same bytes for the same tree. `name`: of the tree, for its
    title.
    """
    from matplotlib import rc_context, rcdefaults
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    labelled = shape.nodes <= LABELLED
    across, depth = places(shape), (0, *(len(path) for path in shape.paths))
    title = f"{name}: {shape.nodes} draft tokens on {shape.depth} levels, {len(shape.leaves)} leaves"
    width = 1.5 + (0.34 if labelled else 0.13) * (len(shape.leaves) - 1)
    text = io.StringIO()
    with rc_context():
        rcdefaults()
        with rc_context(SETTINGS):
            figure = Figure(figsize=(width, 0.8 + LEVEL * shape.depth), layout="constrained")
            axes = figure.add_subplot(frameon=False)
            at = list(zip(across, depth, strict=True))
            edges = [(at[node], at[shape.parents[node]]) for node in range(1, shape.rows)]
            axes.add_collection(LineCollection(edges, colors="#9aa3ad", linewidths=1))
            fills = ["#dbe9f6" if children else "#ffffff" for children in shape.children]
            size = 190 if labelled else 20
            axes.scatter(across, depth, s=size, c=["#2f6fab", *fills[1:]], edgecolors="#2f6fab", zorder=2)
            for node in range(1, shape.rows if labelled else 1):
                axes.annotate(str(shape.paths[node - 1][-1]), at[node], ha="center", va="center", zorder=3)
            levels = range(shape.depth + 1)
            axes.set_yticks(levels, ["root", *(f"level {level}" for level in levels[1:])])
            axes.set(xticks=(), xlim=(-0.8, len(shape.leaves) - 0.2), ylim=(shape.depth + 0.4, -0.4))
            axes.tick_params(length=0, labelcolor="#6a737d")
            figure.savefig(text, format="svg", metadata={"Title": title, "Date": None, "Creator": None})
    return text.getvalue()


def places(shape: TreeShape) -> list[float]:
    """Return where each node stands across, the root first: leaves at 0, 1, 2, … as ranks order them, others above the
    middle of their children.
    """
    order = sorted(range(shape.rows), key=lambda node: shape.paths[node - 1] if node else ())
    across = [0.0] * shape.rows
    leaves = 0
    for node in order:
        if not shape.children[node]:
            across[node] = leaves
            leaves += 1
    for node in reversed(range(shape.rows)):  # children have higher numbers than their parents
        below = [across[child] for child in range(node + 1, shape.rows) if shape.parents[child] == node]
        if below:
            across[node] = (min(below) + max(below)) / 2
    return across


WIDTH = 80
SIZE = count(1, 4096)
CHECKPOINT = click.Path(path_type=Path)
ELEMENT = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Request beside the tree itself. `pair`: name and memory; `ranks`: () if no shares are given."""

    room: Room
    block_size: int
    pair: tuple[str, Memory] | None
    ranks: tuple[float, ...]


@click.group(cls=Group, short_help="Trees of draft tokens: inspect one before an engine drafts it.")
def tree() -> None:
    """Trees of draft tokens, in files such as eagle_tree.yaml.

    \b
    Example: specgate engine tree inspect FILE
    """


@tree.command(short_help="What a draft tree is, and what it takes of an engine.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--what-if", "what_if", is_flag=True, help="Also sizes, buffers and cache for the engine given below.")
@click.option("--batch", "--batch-size", type=BATCHES, help="Requests at a time (default: 1).")
@click.option("--block-size", type=SIZE, help="Positions of a cache block (default: 16).")
@click.option("--max-decoding-tokens", type=SIZE, help="Rows of the engine's verification, the root included.")
@click.option("--max-path-len", type=SIZE, help="Tokens of the engine's longest path, the root included.")
@click.option("--num-spec-tokens", "num_speculative_tokens", type=SIZE, help="The engine's draft tokens on a path.")
@click.option("--max-non-leaves", "max_non_leaves_per_layer", type=SIZE, help="The engine's nodes with children.")
@click.option("--pair", metavar="NAME|DIR", help="Pair whose cache and logits are counted in bytes.")
@click.option("--target", type=CHECKPOINT, metavar="DIR", help="Its target (HF folder), in place of --pair.")
@click.option("--draft", type=CHECKPOINT, metavar="DIR", help="Its EAGLE-3 draft (HF folder).")
@click.option("--kv-dtype", type=click.Choice(list(ELEMENT)), help="Of the cache (default: bfloat16).")
@click.option(
    "--ranks", metavar="P,P…", help="How often the target's token is the draft's likeliest, its second, …: 0.6,0.15."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--svg", is_flag=True, help="Write a picture, tree.svg.")
@OUT_OPTION
def inspect(file: Path, what_if: bool, as_json: bool, svg: bool, out: Path, **wish: Any) -> None:
    """Show the tree of FILE: draft tokens, levels, branching.

    \b
    Example: specgate engine tree inspect FILE --what-if

    FILE is YAML with `choices` (or eagle_choices, medusa_choices), a path of ranks per node, or with `parents`.

    With --what-if: the smallest sizes that hold it, the buffers of a step, and the cache that a step takes beside a
    chain's. Sizes of your engine are held against it. With --ranks: the acceptance length to expect, and the best tree
    of as many draft tokens.

    Exit code 0, 1 if the engine's sizes do not hold the tree, 2 if FILE is no tree.
    """
    from specgate.backends.eagle3.nouns.trees.file import read_tree
    from specgate.backends.eagle3.nouns.trees.sizes import too_small

    if not what_if and (unused := [name for name, value in wish.items() if value is not None]):
        raise UsageError(f"--{unused[0].replace('_', '-')} without --what-if", hint="it belongs to the what-if")
    shape = read_tree(file)
    question = wanted(shape, **wish) if what_if else None
    if as_json:
        echo_json(as_data(file, shape, question))
    else:
        echo("\n".join(lines(file, shape, question)))
    if svg:
        write_files(out, [("tree.svg", picture(shape, str(file)))])
    sys.exit(ExitCode.FAIL if question is not None and any(too_small(shape, question.room)) else ExitCode.PASS)


def wanted(
    shape: TreeShape,
    *,
    batch: int | None,
    block_size: int | None,
    pair: str | None,
    target: Path | None,
    draft: Path | None,
    kv_dtype: str | None,
    ranks: str | None,
    **sizes: int | None,
) -> WhatIf:
    """The wish of the command line. Raises UsageError and CheckpointError where it makes no sense."""
    from specgate.backends.eagle3.nouns.trees.sizes import Room, memory

    room = Room(batch or 1, **sizes)
    memory_of = None
    if pair is not None or target is not None or draft is not None:
        from specgate.backends.eagle3.lib.pair import open_draft, open_target
        from specgate.pairs.resolve import refuse_two_names, resolve_pair

        refuse_two_names(pair, target, draft)
        ref = resolve_pair(pair, target, draft)
        assert ref.draft is not None  # a pair by name or by folders has one
        geometry = open_target(ref.target).geometry
        of_draft = open_draft(ref.draft, geometry).geometry
        memory_of = ref.name, memory(shape, room, geometry, of_draft, ELEMENT[kv_dtype or "bfloat16"])
    elif kv_dtype is not None:
        raise UsageError("--kv-dtype without a pair", hint="name one: --pair, or --target and --draft")
    return WhatIf(room, block_size or 16, memory_of, shares(ranks) if ranks is not None else ())


def shares(text: str) -> tuple[float, ...]:
    """`0.6,0.15` as shares, which fall and are 1 in all at most. Raises UsageError for anything else."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    falling = all(a >= b for a, b in pairwise(values))
    if not values or not falling or not all(0 <= share <= 1 for share in values) or sum(values) > 1 + 1e-9:
        raise UsageError(
            f"--ranks {text[:80]!r}: not the shares of the ranks 0, 1, …",
            hint="such as 0.6,0.15,0.08: none above the one before, and 1 in all at most",
        )
    return values


# ── what is printed ──────────────────────────────────────────────────────────────────────────────────────────────────


def lines(file: Path, shape: TreeShape, question: WhatIf | None) -> Iterator[str]:
    """The tree for a terminal of 80 columns."""
    yield from wrapped(f"{file}: {kind(shape)}, {shape.rows} rows to verify")
    yield f"sha256 {shape.sha256}"
    yield ""
    yield f"{'level':>5} {'nodes':>7} {'with children':>14} {'most children':>14} {'tokens so far':>14}"
    tokens = 0
    for level, (nodes, having) in enumerate(zip((1, *shape.level_sizes), (*shape.non_leaves, 0), strict=True)):
        tokens += nodes if level else 0
        yield f"{level:5} {nodes:7} {having:14} {most_children(shape, level):14} {tokens:14}" + (
            "  the root" if not level else ""
        )
    mean, most = shape.branching
    yield ""
    yield from wrapped(
        f"{len(shape.leaves)} leaves. Nodes with children have {mean:.2f} on average, {most} at most. The highest rank "
        f"is {shape.highest_rank}."
    )
    if skipped := shape.skipped_ranks:
        yield from wrapped(
            f"{skipped} {'nodes have' if skipped > 1 else 'node has'} a likelier sibling that is not in the tree: it "
            "would take no more room, and be accepted more often."
        )
    if question is not None:
        yield from sizes(shape, question.room)
        yield from buffer_table(shape, question.room)
        yield from cache(shape, question)
        if question.ranks:
            yield from expectation(shape, question.ranks)


def kind(shape: TreeShape) -> str:
    tokens = f"{shape.nodes} draft token{'s' if shape.nodes > 1 else ''} on {shape.depth} level"
    return f"{'a chain, ' if shape.is_chain else ''}{tokens}{'s' if shape.depth > 1 else ''}"


def most_children(shape: TreeShape, level: int) -> int:
    """The most children of a node of a level."""
    at = (0, *(len(path) for path in shape.paths))
    return max(children for children, depth in zip(shape.children, at, strict=True) if depth == level)


def sizes(shape: TreeShape, room: Room) -> Iterator[str]:
    from specgate.backends.eagle3.nouns.trees.sizes import advised, too_small

    needed = advised(shape)
    yield ""
    yield f"{'sizes':26} {'needed':>8} {'given':>8}"
    for name in ("num_speculative_tokens", "max_path_len", "max_decoding_tokens", "max_non_leaves_per_layer"):
        own = getattr(room, name)
        yield f"{name:26} {getattr(needed, name):8} {'-' if own is None else own:>8}"
    for sentence in too_small(shape, room):
        yield from wrapped(f"TOO SMALL: {sentence}")


def buffer_table(shape: TreeShape, room: Room) -> Iterator[str]:
    from specgate.backends.eagle3.nouns.trees.sizes import buffers

    yield ""
    yield f"buffers of a step, batch {room.batch}"
    yield f"{'':13} {'shape':>16} {'dtype':>6} {'bytes':>11}"
    for buffer in buffers(shape, room):
        dimensions = " x ".join(map(str, buffer.shape))
        yield f"{buffer.name:13} {dimensions:>16} {buffer.dtype:>6} {buffer.bytes:11,}  {buffer.why}"


def cache(shape: TreeShape, question: WhatIf) -> Iterator[str]:
    """Yield the cache that a step takes, beside a chain of as many levels."""
    from specgate.backends.eagle3.nouns.trees.sizes import blocks

    rows, chain, size = question.room.max_decoding_tokens or shape.rows, shape.depth + 1, question.block_size
    yield ""
    yield from wrapped(
        f"Cache of a step: {rows} positions per request, up to {amount(blocks(rows, size), 'block')} of {size}; "
        f"a chain of {shape.depth} takes {chain}, up to {amount(blocks(chain, size), 'block')}. All but the accepted "
        "path is given back."
    )
    if question.pair is not None:
        name, bytes_of = question.pair
        yield from wrapped(
            f"Pair {name}, batch {question.room.batch}: {bytes_of.tree / 1e6:,.2f} MB of cache "
            f"({bytes_of.position:,} bytes per position), a chain {bytes_of.chain / 1e6:,.2f} MB; "
            f"float32 logits {bytes_of.logits / 1e6:,.2f} MB."
        )


def amount(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def expectation(shape: TreeShape, ranks: Sequence[float]) -> Iterator[str]:
    from specgate.backends.eagle3.nouns.trees.shape import TreeShape
    from specgate.backends.eagle3.nouns.trees.sizes import expected_length, likeliest_tree

    best = likeliest_tree(shape.nodes, shape.depth, ranks)
    this, chain, most = (expected_length(of, ranks) for of in (shape, TreeShape.chain(shape.depth), best))
    yield ""
    yield from wrapped(
        f"Acceptance length with these shares at every node: {this:.2f}, a chain of {shape.depth} {chain:.2f}, "
        f"the best tree of {shape.nodes} tokens on {shape.depth} levels {most:.2f}. A real draft gets worse with depth."
    )
    if most > this + 1e-9:
        yield "choices of that tree:"
        yield from wrapped(f"[{', '.join(map(listed, best.paths))}]", "  ")


def listed(path: Sequence[int]) -> str:
    return f"[{','.join(map(str, path))}]"


def wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False)


# ── what is stored ───────────────────────────────────────────────────────────────────────────────────────────────────


def as_data(file: Path, shape: TreeShape, question: WhatIf | None) -> dict[str, object]:
    """The tree as data: schema `specgate.tree/v1`. Lengths in tokens, memory in bytes."""
    from specgate.backends.eagle3.nouns.trees import sizes as of_tree

    tree: dict[str, object] = {**of_tree.as_data(shape), "choices": shape.paths, "parents": shape.parents}
    data: dict[str, object] = {"schema": "specgate.tree/v1", "file": str(file), "tree": tree}
    if question is None:
        return data
    needed = of_tree.advised(shape)
    what_if: dict[str, object] = {
        "given": asdict(question.room),
        "needed": {name: getattr(needed, name) for name in asdict(question.room) if name != "batch"},
        "too_small": list(of_tree.too_small(shape, question.room)),
        "buffers": [{**asdict(buffer), "bytes": buffer.bytes} for buffer in of_tree.buffers(shape, question.room)],
        "block_size": question.block_size,
        "blocks_per_request": of_tree.blocks(question.room.max_decoding_tokens or shape.rows, question.block_size),
        "memory": {"pair": question.pair[0], **asdict(question.pair[1])} if question.pair else None,
    }
    if question.ranks:
        best = of_tree.likeliest_tree(shape.nodes, shape.depth, question.ranks)
        what_if["expected"] = {
            "ranks": question.ranks,
            "acceptance_length": of_tree.expected_length(shape, question.ranks),
            "best_choices": best.paths,
            "best_acceptance_length": of_tree.expected_length(best, question.ranks),
        }
    return {**data, "what_if": what_if}
