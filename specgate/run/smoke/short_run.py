"""Open an engine in a process of its own, decode one prompt, and check the known causes of speculation that is off."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from specgate import plugins
from specgate.analysis.checks.identities import check_block
from specgate.analysis.speculation.causes import CAUSES, findings_of
from specgate.analysis.speculation.drafting import drafting_of
from specgate.analysis.speculation.evidence import Evidence, Finding, PairConfigs
from specgate.checkpoints.spec_config.sources import FORMATS
from specgate.contract import BASELINE, Block, Budget, LogCause, PairRef, Point, Role, Round
from specgate.contract.protocols import Decoded, DrivesAnotherEngine, ExplainsLogs, OpenRequest
from specgate.contract.types import DRAFT_TOKENS
from specgate.errors import BackendError, ExitCode, InvalidResult, UsageError
from specgate.machine.inventory import has_cuda_gpu
from specgate.planning.request import Request
from specgate.planning.resolution import chosen_pair, usable_backend
from specgate.run.point_blocks import make_block
from specgate.run.smoke.pair_configs import configs_of, wrong_weights
from specgate.run.smoke.prompt import PromptWish, chats_of, prompt_ids
from specgate.run.worker import EngineWorker

LOG: Final = "worker-0.log"
USUAL: Final = 3
"""Draft tokens per step of an engine that is started here."""
READ_AT_MOST: Final = 1 << 20
"""Bytes at the end of a log that are looked at."""
Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class Wish:
    """Settings of a smoke run.

    `request`: back end, its options and pair, as for a run; the demo pair where nothing is named and no server runs
    already. `k`: the draft length; None for 3, and of a server that runs already for what it drafts. `tokens`: how many
    are decoded. `timeout_s`: of one call of the engine.
    """

    request: Request
    k: int | None = None
    prompt: PromptWish = field(default_factory=PromptWish)
    tokens: int = 64
    ignore_eos: bool = False
    baseline: bool = False
    dtype: Dtype | None = None
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Smoke:
    """Result of a smoke run. `failed`: the engine did not decode, and did not go on without its draft either."""

    evidence: Evidence
    findings: tuple[Finding, ...]
    failed: bool

    @property
    def active(self) -> bool:
        """True if multi-token speculation is active."""
        drafting = self.evidence.drafting
        return not self.failed and drafting is not None and drafting.state == "active"

    @property
    def causes(self) -> tuple[Finding, ...]:
        """The causes that were found. Those that do not turn speculation off come last."""
        causes = [f for f in self.findings if f.state == "found"]
        return tuple(sorted(causes, key=lambda f: CAUSES[f.cause].harmless))

    @property
    def exit_code(self) -> ExitCode:
        """FAIL where a cause is named, also of an engine that failed; BACKEND_ERROR where it failed of no known one."""
        if self.active:
            return ExitCode.PASS
        named = any(not CAUSES[f.cause].harmless for f in self.causes)
        return ExitCode.BACKEND_ERROR if self.failed and not named else ExitCode.FAIL


def smoke(wish: Wish, logs: Path, say: Callable[[str], None] = lambda line: None) -> Smoke:
    """Carry out a smoke run; what the engine prints goes to the folder `logs`. `say` is told what happens.

    Whatever goes wrong in the engine becomes a finding. Raises UsageError for a wish that makes no sense, and
    EnvironmentRefused where the back end cannot run here.
    """
    options, backend = wish.request.options, usable_backend(wish.request)
    pair = chosen_pair(wish.request, (), backend)
    ids = prompt_ids(wish.prompt, pair)
    role, budget = Role(wish.k or USUAL), Budget(new_tokens=wish.tokens, ignore_eos=wish.ignore_eos)
    evidence = Evidence(
        backend=backend,
        role=role,
        budget=budget,
        prompt_tokens=len(ids),
        pair=configs_of(pair),
        options=options,
        stated=stated_by(backend, options),
    )
    wanted = role if wish.k is not None else Role(length_of(backend, options))
    say(f"{backend}: opening {pair.name}, drafts of up to {wanted.k} tokens, {len(ids)} prompt tokens")
    began = time.monotonic()
    try:
        evidence = decoded(evidence, wanted, wish, pair, ids, logs, say)
    except (BackendError, InvalidResult) as error:
        evidence = replace(evidence, error=str(error))
    say(f"done after {time.monotonic() - began:.0f} s")
    evidence = replace(evidence, log=known_lines(backend, logs))
    if evidence.drafting is not None and evidence.drafting.state == "next to nothing accepted":
        evidence = replace(evidence, pair=with_weights(evidence, pair))
    findings = findings_of(evidence)
    went_on = any(line.silent for line in evidence.log or ())
    return Smoke(evidence, findings, failed=evidence.drafting is None and not went_on)


def length_of(backend: str, options: Mapping[str, str]) -> int:
    """The draft length to ask for where no `--spec` names it: that of an option for one role, else at most so many of a
    server that runs already.
    """
    engine = plugins.backend(backend)
    roles = (key.partition(".")[2] for key in options if key.startswith(("url.spec-", "args.spec-")))
    attached = isinstance(engine, DrivesAnotherEngine) and engine.attaches(options)
    return max((Role.parse(role).k for role in roles), default=DRAFT_TOKENS if attached else USUAL)


def decoded(
    evidence: Evidence,
    role: Role,
    wish: Wish,
    pair: PairRef,
    ids: tuple[int, ...],
    logs: Path,
    say: Callable[[str], None],
) -> Evidence:
    """`evidence` with the engine's facts and a block of every role. `role`: what is asked for; where no draft length
    was named, the role of the result is that of the longest draft seen.

    Raises BackendError, InvalidResult, UsageError.
    """
    backend, budget = evidence.backend, evidence.budget
    request = OpenRequest(
        pair=pair,
        dtype=wish.dtype or ("bfloat16" if has_cuda_gpu() else "float32"),
        max_batch=1,
        max_positions=len(ids) + budget.longest(role.k) + role.k + 2,
        max_k=role.k,
        perf_mode=False,
        options=wish.request.options,
        logs=logs,
        baseline=wish.baseline,
        chats=chats_of(wish.prompt, pair),
    )
    with closing(EngineWorker(backend, request, wish.timeout_s, logs / LOG)) as engine:
        facts = engine.facts()
        evidence = replace(evidence, facts=facts)
        say(f"open: {facts.backend} on {facts.device}" + (f", {facts.engine_version}" if facts.engine_version else ""))
        prefill_ns = engine.prefill([ids], draft=True)
        block = block_of(backend, len(ids), role, prefill_ns, engine.decode(role, budget, facts.eos_token_ids))
        check_block(block, budget, facts)
        drafting = drafting_of(block)
        seen = role if wish.k is not None else Role(drafting.k)
        evidence = replace(evidence, block=block, drafting=drafting, role=seen)
        if wish.baseline:
            say("the baseline, for its text")
            prefill_ns = engine.prefill([ids], draft=False)
            plain = engine.decode(BASELINE, budget, facts.eos_token_ids)
            evidence = replace(evidence, baseline=block_of(backend, len(ids), BASELINE, prefill_ns, plain))
    return evidence


def block_of(backend: str, context: int, role: Role, prefill_ns: int, decoded: Decoded) -> Block:
    round_ = Round(Point("smoke", backend, context, 1), prompt_set=0, index=0, order=(role,), warmup=False)
    return make_block(round_, 0, role, 0, prefill_ns, decoded)


def stated_by(backend: str, options: Mapping[str, str]) -> Mapping[str, object]:
    """Terms of speculation that flags in the options `args` and `args.spec-K` state. Raises UsageError for bad
    values.
    """
    read = FORMATS[backend].flags if backend in FORMATS else None
    flags = [value for key, value in options.items() if key.partition(".")[0] == "args" and key != "args.baseline"]
    if read is None or not flags:
        return {}
    try:
        argv = [word for text in flags for word in shlex.split(text)]
    except ValueError as error:
        raise UsageError(f"option args: {error}") from error
    return {term: entry.value for term, entry in read(argv, "option args").terms.items() if entry.how == "stated"}


def known_lines(backend: str, logs: Path) -> tuple[LogCause, ...] | None:
    """The lines of the engine's logs that have a known cause; None where the back end knows none, or there is no log
    but that of its process.
    """
    plugin = plugins.backend(backend)
    files = sorted(file for file in logs.iterdir() if file.is_file()) if logs.is_dir() else []
    if not isinstance(plugin, ExplainsLogs) or not [file for file in files if file.name != LOG]:
        return None
    lines = [line for file in files for line in file.read_bytes()[-READ_AT_MOST:].decode(errors="replace").splitlines()]
    return tuple(plugin.explain_log(lines))


def with_weights(evidence: Evidence, pair: PairRef) -> PairConfigs:
    """The pair's configs, with a look at the values of the draft's weights, where these are files on this machine."""
    if pair.draft is None:
        return evidence.pair
    try:
        return replace(evidence.pair, weights=wrong_weights(pair.draft))
    except (BackendError, ImportError, OSError):
        return evidence.pair
