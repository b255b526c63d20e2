"""A scenario with variants → the scenarios that are measured: itself, and one of each variant.

A variant is measured as a scenario of its own, called `SCENARIO+VARIANT`, on the same prompts and in an engine process
of its own, with its own baseline beside it. So its speed-up is over the baseline with the same settings, decoded in the
same process, and its tokens are held against that baseline's: with cached keys and values in another format, the
baseline of that format; at a temperature, the sampled baseline; with a tree, plain decoding, which a tree leaves as it
is. Reports put the roles of all variants beside each other: `spec-3`, `spec-3+kv-fp8`, `spec-3+t1`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from specgate.contract import VARIANT_MARK, Scenario, Variant
from specgate.errors import UsageError


def with_variants(scenario: Scenario) -> list[Scenario]:
    """The scenario itself, and then one scenario of each of its variants, in the order of the file."""
    return [replace(scenario, variants={}), *(varied(scenario, name) for name in scenario.variants)]


def varied(scenario: Scenario, name: str) -> Scenario:
    """The scenario of the variant `name`. Raises KeyError where there is none."""
    variant = scenario.variants[name]
    return replace(
        scenario,
        name=f"{scenario.name}{VARIANT_MARK}{name}",
        options={**scenario.options, **variant.options},
        sampling=variant.sampling or scenario.sampling,
        draws=variant.draws or scenario.draws,
        variants={},
    )


def refuse_double_options(scenarios: Iterable[Scenario], options: Mapping[str, str]) -> None:
    """Raise UsageError where the command line and a scenario set one option: a variant would not vary it, or would not
    be what the command line asks for.
    """
    for scenario in scenarios:
        if double := [name for name in scenario.options if name in options]:
            name = double[0]
            raise UsageError(
                f"-o {name}={options[name]}: scenario {scenario.name} sets options.{name}: {scenario.options[name]!r}",
                hint="leave one of them out; --only narrows which scenarios and variants run",
            )


def one_variant(scenario: Scenario, name: str) -> Scenario:
    """The scenario of the variant `name`. Raises UsageError with the names that there are."""
    if name not in scenario.variants:
        known = ", ".join(f"{scenario.name}{VARIANT_MARK}{known}" for known in scenario.variants) or "none"
        raise UsageError(f"scenario {scenario.name} has no variant {name!r}", hint=f"its variants: {known}")
    return varied(scenario, name)


def variants_in_words(variants: Mapping[str, Variant]) -> str:
    """`, variants kv-fp8, t1`; empty where there are none."""
    return f", variants {', '.join(variants)}" if variants else ""
