"""An engine's facts and identity, as it states them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from specgate.contract.scenarios.pair import AcceptanceSource
from specgate.contract.traffic import Traffic
from specgate.contract.types import HARNESS_ONLY, Counts, Finite, Integer, Size

MAY_NOT_DRAFT: Final = "may draft nothing: "
"""How a warning of an engine begins that explains a cell without drafts, if there is one."""


FORCED_LENGTH: Final = "forced acceptance length"
"""The detail of an engine's facts that has the acceptance length which it was told to show."""

PREFIX_CACHE: Final = "prefix cache"
"""The detail of an engine's facts that is `on` where prompts may come from a cache of earlier requests by option."""


OWN_NUMBERS: Final = "random numbers"
"""The detail of an engine's facts that says that it draws tokens with random numbers of its own, so that what it draws
again need not be the same.
"""


LOSSY: Final = "tokens may differ"
"""The detail of an engine's facts that says that speculation may emit other tokens than the baseline, by design, and
why.
"""


OWN_LENGTHS: Final = "draft lengths"
"""The detail of an engine's facts that says that its method sets the length of each draft, up to K: a step may have
none, as with n-grams, or fewer than another. Without it, an engine promises K drafts in every step.
"""


FORBIDS_ENDS: Final = "tokens that end a text"
"""The detail of an engine's facts that says that these are given no chance, where ends are to be ignored."""


UNKNOWN: Final = "unknown"
"""Stands in a fingerprint for what an engine does not tell of itself."""


OF_ENGINE: Final = "engine:"
"""How the keys of a fingerprint begin that state an engine's identity."""


SETTINGS: Final = ("attention", "moe", "cuda_graphs", "dtype", "quantization", "kv_cache_dtype")
"""What an engine may be set up with, or choose by itself, that changes its speed. `attention`, `moe`: the back end of
the attention and of the experts. `cuda_graphs`: what is captured, in the engine's own words.
"""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Model that a running server says it serves. It is the server's word: nothing of it was seen on this machine.

    `name`: what requests call it. `path`: where the server loaded it from. `max_positions`: its longest context.
    `architecture`, `vocab`: of its config. None where the server does not tell.
    """

    name: str
    path: str | None = None
    max_positions: Size | None = None
    architecture: str | None = None
    vocab: Size | None = None


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """Build and settings of somebody else's engine.

    `build`: the commit, or the digest of a wheel or an image; None where nobody told.
    `told_by`: where the build is known from: the engine's version, or the user's option.
    `settings`: those of `SETTINGS` that the engine tells, in its own words.
    `differing`: role name → what the server of that role says otherwise.
    `served`: role name → what a server that was attached to says that it serves.
    `environment`: its environment variables that somebody has set, as far as it is known to read them.
    """

    engine: str
    version: str | None = None
    build: str | None = None
    told_by: Literal["version", "option"] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    differing: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    served: Mapping[str, ServedModel] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def untold(self) -> tuple[str, ...]:
        """Names of the facts that are not known of it."""
        return (*(() if self.build else ("build",)), *(name for name in SETTINGS if name not in self.settings))

    @property
    def fingerprint(self) -> dict[str, str | None]:
        """Key → value, for the fingerprint of a run: another build, setting or model is another engine."""
        own = {"build": self.build, **{name: self.settings.get(name) for name in SETTINGS}}
        others = {f"{role}.{name}": setting for role, part in self.differing.items() for name, setting in part.items()}
        models = {f"{role}.serves": model.path or model.name for role, model in self.served.items()}
        variables = {f"env.{name}": value for name, value in self.environment.items()}
        return {OF_ENGINE + key: value or UNKNOWN for key, value in {**own, **others, **models, **variables}.items()}


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Facts of a loaded engine, for the fingerprint and the report.

    `target_sha256`: None where the weights are a server's, and not on this machine.
    `details`: further printable facts, in the order in which they are printed.
    """

    backend: str
    device: str
    dtype: str
    vocab: Size
    max_positions: Size
    eos_token_ids: Counts
    target_sha256: str | None
    draft_sha256: str | None
    capture_rule: str | None
    has_draft: bool
    details: Mapping[str, str | bool | Integer | Finite] = field(default_factory=dict)
    acceptance: AcceptanceSource | None = None
    """Where acceptance comes from, where that differs from the pair's `acceptance`."""
    warnings: tuple[str, ...] = ()
    """What a reader of the result must know about this engine or checkpoint."""
    tape_sha256: str | None = None
    """SHA-256 of the tape whose accept counts are replayed, where acceptance is forced by one."""
    kernels: tuple[str, ...] | None = None
    """Names of the kernels that a decode step may launch, where the engine has kernels of its own."""
    tuned_sha256: str | None = None
    """SHA-256 of the configurations that its matrix products run with, where these are tuned."""
    draft_error: str | None = None
    """Why the draft could not be used, where the engine decodes spec roles without drafting instead. `has_draft` is
    then false.
    """
    traffic: Traffic | None = None
    """What its passes must move through memory, where the engine states it."""
    least_weight_bytes: Annotated[int | None, HARNESS_ONLY] = None
    """The least bytes of target weights that a decode step reads. The harness counts them from the target's config."""
    engine_version: str | None = None
    """The engine's own version and build, where it is not part of specgate or of the plug-in: that of a server."""
    identity: EngineIdentity | None = None
    """Which build of somebody else's engine this is, and how it is set up; None for engines of specgate's own process,
    whose code and packages the fingerprint has.
    """
    follows: Annotated[bool, HARNESS_ONLY] = False
    """Whether it can decode on from any text (`protocols.FollowsText`). The harness's code beside the engine sees it.
    """

    @property
    def attached(self) -> bool:
        """True if it is a server that somebody else has started."""
        return self.details.get("servers") == "attached"

    @property
    def kv_cache(self) -> str:
        """Number format of its KV cache, as it names it; empty if it does not."""
        named = self.identity.settings.get("kv_cache_dtype") if self.identity else None
        return str(named or self.details.get("KV cache", ""))

    @property
    def sets_lengths(self) -> bool:
        """True if its method may draft fewer than K tokens in a step, or none (`OWN_LENGTHS`)."""
        return OWN_LENGTHS in self.details

    @property
    def on_cpu(self) -> bool:
        """True if it says that it computes on a CPU."""
        return self.device == "cpu" or self.details.get("servers run on") == "cpu"

    def computes_in(self, dtype: str) -> str:
        """Return the number format of its logits in a scenario whose `dtype` is this.

        A server that runs already was not told the scenario's. What it reports counts. If it reports none, it is not
        taken to be as exact as float32, which is the format of scenarios for machines without a GPU.
        """
        if not self.attached:
            return dtype
        reported = self.identity.settings.get("dtype") if self.identity else None
        if reported in ("float32", "bfloat16", "float16"):
            return reported
        return "bfloat16" if dtype == "float32" else dtype

    @property
    def target(self) -> str | None:
        """Identity of the target: the SHA-256 of its weights, or the model that a server says it serves."""
        if self.target_sha256 is not None or self.identity is None:
            return self.target_sha256
        return "; ".join(f"served {m.path or m.name}" for m in self.identity.served.values()) or None


@dataclass(frozen=True, slots=True)
class LogCause:
    """A line of a program's log that has a known cause.

    `cause`: what the line means, and what would be right.
    `silent`: whether the program went on after it, but without its draft or with a wrong one.
    `count`: how many lines have this cause; `line` is the first of them.
    """

    cause: str
    line: str
    silent: bool
    count: int = 1
