"""The launches of a step, grouped by kernel and shape, with names, and with enough operands to outgrow a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from specgate.backends.eagle3.cupy.bench.accounts import Account, account
from specgate.backends.eagle3.cupy.bench.timing import LAUNCHES, inputs_to_rotate
from specgate.backends.eagle3.cupy.kernels.loader import Launch
from specgate.backends.eagle3.cupy.kernels.state.launchers import Commit
from specgate.backends.eagle3.cupy.step.recording import Call

SMALL: Final = 256 << 10
"""Bytes below which a launch takes as long as any: its operands come from the L2 cache, as they do in a step."""
TABLE: Final = 4
"""A tensor that is so many times larger than what a launch moves is a table, of which the launch reads a few rows."""

TAGS: Final = {
    "chain.fc": "EAGLE3_FC",
    "chain.feature_rows": "EAGLE3_FEATURES",
    "chain.input": "EAGLE3_INPUT",
    "chain.lm_head": "EAGLE3_LM_HEAD_SMALLVOC",
    "chain.token": "EAGLE3_TOKEN",
    "verify.embed": "TARGET_EMBED",
    "verify.capture": "TARGET_CAPTURE",
    "verify.lm_head": "TARGET_LM_HEAD",
    "verify.accept": "ACCEPT",
    "reserve": "KV_RESERVE",
    "commit": "COMMIT_REWIND",
}
LAYERS: Final = {"chain.extension": "EAGLE3", "chain.step": "EAGLE3", "verify.layer": "TARGET"}
PARTS: Final = {"gate_up": "FFN_GATE_UP", "down": "FFN_DOWN"}


def tag_of(path: str) -> str:
    """Of the launcher at `path` of a step; its path where it has no name of its own."""
    layer, _, part = path.rpartition(".")
    if layer in LAYERS:
        return f"{LAYERS[layer]}_{PARTS.get(part, part.upper())}"
    return TAGS.get(path, path)


@dataclass(frozen=True, slots=True)
class Group:
    """Launches of a step by one kernel on operands of one shape, and the calls that they belong to."""

    tag: str
    name: str
    account: Account
    calls: tuple[Call, ...]
    launches: tuple[Launch, ...]


def groups_of(calls: Sequence[Call], context: int) -> list[Group]:
    """The groups of a step's launches, in the order in which the step first makes them."""
    by_shape: dict[tuple[str, str, str], tuple[Account, list[Call], list[Launch]]] = {}
    for call in calls:
        accounts = account(call, context)
        for launch in call.launches:
            key = tag_of(call.path), launch.name, accounts[launch.name].shape
            _, made, launches = by_shape.setdefault(key, (accounts[launch.name], [], []))
            made.append(call)
            launches.append(launch)
    return [
        Group(tag, name, of, tuple(made), tuple(launches)) for (tag, name, _), (of, made, launches) in by_shape.items()
    ]


def rotation(group: Group, cache: int) -> list[Launch]:
    """Launches that take turns: more than `cache` bytes between two on the same operands, where these are not small.

    A commit moves its slots on, so each launch gets a state of its own that a few steps cannot exhaust.
    """
    size, own = group.account.size, list(group.launches)
    if isinstance(group.calls[0].kernel, Commit):
        return [own[0].copied(largest=1 << 30) for _ in range(LAUNCHES)]
    if size < SMALL:
        return own
    own = list({heaviest(launch, TABLE * size): launch for launch in own}.values())
    count = inputs_to_rotate(size, cache)
    more = (own[i % len(own)].copied(TABLE * size) for i in range(count - len(own)))
    return [*own[:count], *more]


def heaviest(launch: Launch, largest: int) -> int:
    """Address of its largest tensor of at most `largest` bytes: the draft's launches of a step share their weights."""
    return max((t for t in launch.tensors if t.nbytes <= largest), key=lambda t: t.nbytes).data_ptr()
