"""Settings of a scenario's `sampling` that an engine's requests can express; others are refused by name.

A setting counts only where it means the same as in `specgate.sampling`: which tokens a penalty counts, and in which
order filters are applied. An engine that orders them otherwise draws from another distribution, and would be rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from specgate.contract import Sampling
from specgate.errors import UsageError

FILTERS_AND_PENALTIES: Final = (
    "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias",
)  # fmt: skip
"""The settings of `contract.Sampling` that not every engine has. All have a temperature."""
PLAIN: Final = Sampling()


@dataclass(frozen=True, slots=True)
class Expresses:
    """Sampling settings that the requests of one engine can express.

    `settings`: those of FILTERS_AND_PENALTIES that they can. `refused`: setting → why it cannot, where that is more
        than having none. `not_together`: two settings that it applies in another order.
    `seed_bits`: a request's seed is below 2**seed_bits; 0 where it takes none.
    `lists`: whether answers have the model's own log-probabilities, of as many tokens as are asked for, by their ids.
    `forbids_ends`: whether tokens that end a text have no chance where ends are ignored. Other engines go on after one.
    """

    settings: frozenset[str]
    refused: Mapping[str, str] = field(default_factory=dict)
    not_together: tuple[str, str] | None = None
    seed_bits: int = 0
    lists: bool = False
    forbids_ends: bool = False


def check_sampling(engine: str, can: Expresses, sampling: Sampling, where: str) -> None:
    """Raise UsageError for the first setting of `sampling` that `engine` has no request field for. `where`: the key
    that holds it.
    """
    if sampling.method != "rejection":
        raise UsageError(
            f"{where}.method = {sampling.method!r}: {engine} draws with random numbers of its own, so that speculation "
            "cannot be held to plain sampling's tokens",
            hint="method: rejection; the gate `distribution` judges what is drawn, in whatever way the engine verifies",
        )
    for name in FILTERS_AND_PENALTIES:
        value = getattr(sampling, name)
        if value != getattr(PLAIN, name) and name not in can.settings:
            why = can.refused.get(name, "has no such setting that is known here")
            hint = f"{engine} can be asked for: temperature{''.join(f', {s}' for s in sorted(can.settings))}"
            raise UsageError(f"{where}.{name} = {value!r}: {engine} {why}", hint=hint)
    if sampling.seed and not can.seed_bits:
        hint = "leave it out: every request is then drawn with other numbers"
        raise UsageError(f"{where}.seed = {sampling.seed}: requests to {engine} take no seed", hint=hint)
    if can.not_together and all(getattr(sampling, name) != getattr(PLAIN, name) for name in can.not_together):
        first, second = can.not_together
        raise UsageError(
            f"{where}: {first} and {second} together: {engine} does not apply one to what the other has left",
            hint="leave one of the two out",
        )


def sampling_fields(sampling: Sampling, *settings: str, seed: int | None) -> dict[str, object]:
    """Return `settings` of `sampling` as request fields, and the seed of the request if it takes one.

    Settings that filter nothing are sent, too: an engine may have other defaults, also from a model's
    generation_config.json.
    """
    return {name: getattr(sampling, name) for name in settings} | ({} if seed is None else {"seed": seed})
