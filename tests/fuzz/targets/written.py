"""Files that people write: scenarios, policies, tapes, shapes, grids, trees, prompts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from tests.fuzz import seeds
from tests.fuzz.attempt import Ready
from tests.fuzz.mutation import byte_strings, json_texts, yaml_texts
from tests.fuzz.targets.shared import USAGE, gates, plain


def scenario(folder: Path) -> Ready:
    from specgate.planning.plan import COST, build_plan, estimate_seconds
    from specgate.planning.scenario import dump, find, override

    file = folder / "fuzzed.yaml"

    def read() -> None:
        result = find(str(file))
        dump(result)
        plan = build_plan([result], "fake")
        if len(plan.rounds) < 500:  # laying out a plan of 200,000 blocks takes seconds
            estimate_seconds(plan, COST["cpu"])
        override(result, warmup_runs=1, measurement_runs=4)

    texts = [seeds.SCENARIO, *seeds.shipped_texts("scenarios")]
    valid, base = seeds.SCENARIO.encode(), "scenarios/base/"  # where a mapping of a base lacks a key
    return Ready(yaml_texts(texts) | byte_strings([valid]), valid, read, file, USAGE, named=(base,))


def policy(folder: Path) -> Ready:
    from specgate.planning.gates import near_ties
    from specgate.planning.policy import find_policy, micro_scenarios

    file, known = folder / "fuzzed.yaml", gates()

    def read() -> None:
        result = find_policy(str(file), known)
        micro_scenarios(result)
        near_ties(result)

    texts = [seeds.POLICY, *seeds.shipped_texts("gates/policies")]
    valid = seeds.POLICY.encode()
    return Ready(yaml_texts(texts) | byte_strings([valid]), valid, read, file, USAGE)


def tape(folder: Path) -> Ready:
    from specgate.contract.tape import Tape

    file = folder / "fuzzed.json"

    def read() -> None:
        load = Tape.load(file)
        assert load.sha256
        for k in load.specs:
            load.accepted(k, 0, 1, 2)

    return Ready(json_texts([seeds.TAPES]), plain(seeds.TAPES), read, file, USAGE)


def gemm_shapes(folder: Path) -> Ready:
    from specgate.backends.eagle3.nouns.gemms import read_shapes, read_tuned

    file = folder / "fuzzed.json"

    def read() -> None:
        if b"tuned-gemms" in file.read_bytes():
            read_tuned(file)
        else:
            read_shapes(file)

    return Ready(json_texts([seeds.SHAPES, seeds.tuned()]), plain(seeds.tuned()), read, file, USAGE)


def sweep_grid(folder: Path) -> Ready:
    from specgate.sweep.grid import read_grid

    file = folder / "fuzzed.yaml"
    inputs = json_texts([seeds.GRID]) | yaml_texts([json.dumps(seeds.GRID)])
    return Ready(inputs, plain(seeds.GRID), lambda: read_grid(file), file, USAGE)


def draft_tree(folder: Path) -> Ready:
    """Trees of draft tokens. What is read has whole masks, sizes and places in a picture."""
    from specgate.backends.eagle3.nouns.trees.file import read_tree

    file = folder / "fuzzed.yaml"

    def read() -> None:
        import torch

        from specgate.backends.eagle3.commands.tree import places
        from specgate.backends.eagle3.lib.trees.topology import ancestors, broken_rows, pack
        from specgate.backends.eagle3.nouns.trees.sizes import Room, buffers

        shape = read_tree(file)
        parents = torch.tensor([shape.parents])
        assert not broken_rows(pack(ancestors(parents, shape.depth)), parents).any()
        assert buffers(shape, Room(2)) and len({*places(shape)}) >= len(shape.leaves)

    inputs = yaml_texts(seeds.TREES) | json_texts([{"choices": [[0], [1], [0, 0], [0, 1]]}, {"parents": [0, 1, 1, 2]}])
    return Ready(inputs, seeds.TREES[0].encode(), read, file, USAGE)


def prompts(folder: Path) -> Ready:
    """A file of prompts, in whatever format its first record tells."""
    from specgate.planning.prompt_files.formats import prompts_in, recognise

    file = folder / "fuzzed.jsonl"
    lines = [
        {"ids": [1, 2, 3], "id": 7, "category": "a"},
        {"text": "Once", "subset": "b"},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]},
        {"question_id": 81, "category": "writing", "turns": ["Compose.", "Rewrite."]},
        {"id": "x_0", "conversations": [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "Hi"}]},
        {"custom_id": "a", "body": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}},
        {"instruction": "Sum up.", "input": "Long ago."},
        {"input": "Who?", "context": "Long ago.", "dataset": "qasper", "_id": "8d0b"},
    ]
    valid = b"\n".join(json.dumps(line).encode() for line in lines[:3])

    def read() -> None:
        prompts_in(file, *recognise(file, "auto"))

    inputs = json_texts(lines) | byte_strings([valid, gzip.compress(valid, mtime=0)])
    return Ready(inputs, valid, read, file, USAGE)
