"""Random trees, as tensors, against brute force in plain Python: masks, paths, acceptance, compaction, growth.

    python -m bench.tree_oracle --trees 100000

Nine of ten are trees of 1 to 127 draft tokens on up to 12 levels, whose masks, leaves, paths, integrity, acceptance,
offsets and compaction are compared. One of ten is a dynamic tree, grown from made-up probabilities in which ties are
frequent. `tests/eagle3/lib/trees/brute_force.py` is the oracle; `tests/eagle3/lib/trees/test_tensors.py` runs a few in
CI. Exit code 1 where anything differs.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter

import click

from tests.eagle3.lib.trees.brute_force import differences, growth_differences

BATCH = 200


@click.command()
@click.option("--trees", default=10_000, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True)
def main(trees: int, seed: int) -> None:
    """Compare; print what differs and how long it took."""
    dice, began = random.Random(seed), time.perf_counter()
    found, grown, done = Counter[str](), 0, 0
    while done < trees:
        count = min(BATCH, trees - done)
        if (done // BATCH) % 10 == 9:
            levels, width = dice.randint(1, 5), dice.randint(1, 6)
            found.update(growth_differences(dice, count, levels, width, dice.randint(1, 60)))
            grown += count
        else:
            rows, levels = dice.randint(2, 128), dice.randint(1, 12)
            found.update(differences(dice, count, rows, levels))
        done += count
    seconds = time.perf_counter() - began
    print(
        f"{done} random trees, {grown} of them grown, seed {seed}: {sum(found.values())} differences, {seconds:.0f} s"
    )
    for what, times in found.most_common():
        print(f"  {what}: in {times} batches of {BATCH}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
