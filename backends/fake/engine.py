"""The fake engine and its back end: scripted tokens on a scripted clock, with faults to inject.

The text depends only on prompt and position, so every role emits the same
tokens. A cyclic script says how many draft tokens are accepted. The clock counts scripted nanoseconds, and every call
lasts at least as long as it says, since the harness has a clock of its own. Options (`--option key=value`) are the
fields of `script.Script`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final, Literal

from specgate.backends.fake.load import ServedLoad
from specgate.backends.fake.script import Script
from specgate.contract import Budget, EngineFacts, Finish, PairRef, Role
from specgate.contract.load import OfferedLoad
from specgate.contract.protocols import Activity, Availability, Decoded, Engine, OpenRequest
from specgate.errors import BackendError, UsageError

EOS = 1
PAIR: Final = PairRef("scripted", Path(__file__).parent / "pair", None, "planted")
"""Sizes without weights, so that nothing has to be fetched."""


class FakeBackend:
    """Always available but never the default: its rank is below that of every other engine."""

    serves_load: Literal[True] = True
    bit_exact: Literal[True] = True
    name = "fake"
    description = "scripted tokens on a scripted clock, with faults to inject: tests the harness, measures nothing"

    def available(self) -> Availability:
        return Availability(True, "needs nothing", rank=-1)

    def usual_pair(self) -> PairRef:
        return PAIR

    def check_options(self, options: Mapping[str, str]) -> None:
        """Raise UsageError for bad options."""
        Script.parse(options)

    def open(self, request: OpenRequest) -> Engine:
        script = Script.parse(request.options)
        if script.fail_open is not None:
            raise BackendError(script.fail_open, hint="asked for by the option fail_open")
        if request.max_positions > script.max_positions:
            raise UsageError(
                f"back end fake: max_positions = {script.max_positions}, but the plan needs {request.max_positions}",
                hint="choose a shorter context or a larger max_positions",
            )
        return FakeEngine(script, request)


KERNEL = "fake_step"
"""The only kernel that a scripted step launches."""


class FakeEngine:
    """An `protocols.Engine` that follows a `Script`."""

    def __init__(self, script: Script, request: OpenRequest) -> None:
        self.script, self.request = script, request
        self.seeds: list[int] = []
        self.draft_ready = False
        self.blocks = 0

    def facts(self) -> EngineFacts:
        return EngineFacts(
            backend="fake",
            device="scripted clock",
            dtype=self.request.dtype,
            vocab=self.script.vocab,
            max_positions=self.script.max_positions,
            eos_token_ids=(EOS,),
            target_sha256=_digest("target", self.script.vocab),
            draft_sha256=None if self.script.draft_error else _digest("draft", *self.script.accept),
            capture_rule=None,
            has_draft=not self.script.draft_error,
            details={key: str(value) for key, value in asdict(self.script).items()},
            acceptance="scripted",
            kernels=(KERNEL,),
            warnings=("the fake back end measures nothing: tokens, acceptance and clock are scripted",),
            draft_error=self.script.draft_error,
        )

    @property
    def draft_usable(self) -> bool:
        dead_from = self.script.draft_dies_after_blocks
        return not self.script.draft_error and (dead_from is None or self.blocks < dead_from)

    def prefill(self, prompts: Sequence[Sequence[int]], *, draft: bool) -> int:
        longest = max(map(len, prompts), default=0)
        if not 0 < len(prompts) <= self.request.max_batch or not 0 < longest < self.request.max_positions:
            raise BackendError(
                f"{len(prompts)} prompts of up to {longest} tokens, but the engine was opened for "
                f"{self.request.max_batch} slots of {self.request.max_positions} positions"
            )
        began = time.perf_counter_ns()
        self.seeds = [_hash(*prompt) for prompt in prompts]
        self.draft_ready = draft
        return _spent(began, self.script.prefill_ns * sum(map(len, prompts)))

    def decode(self, role: Role, budget: Budget, stop_token_ids: Sequence[int]) -> Decoded:
        if not self.seeds:
            raise BackendError("decode before prefill")
        if role.speculative and not self.draft_ready:
            raise BackendError(f"{role} asked for, but the prefill was made without the draft")
        self._maybe_break_down()
        began = time.perf_counter_ns()
        run = DecodeRun(self, role, budget, () if budget.ignore_eos else stop_token_ids)
        while run.running:
            run.step()
        done = run.result()
        self.blocks += 1
        _spent(began, done.elapsed_ns)
        return done

    def serve(
        self,
        role: Role,
        prompts: Sequence[Sequence[int]],
        budget: Budget,
        offered: OfferedLoad,
        stop_token_ids: Sequence[int],
    ) -> Decoded:
        """Requests that come and go. EOS is always ignored."""
        self._maybe_break_down()
        began = time.perf_counter_ns()
        self.seeds = [_hash(*prompt) for prompt in prompts]
        done = ServedLoad(self, role, prompts, budget).run(offered)
        self.blocks += 1
        assert done.prefill_ns is not None
        _spent(began, done.prefill_ns + done.elapsed_ns)
        return done

    def trace(self, role: Role, budget: Budget) -> tuple[Decoded, Activity]:
        """Decode a block, and return the profile that the script describes."""
        decoded = self.decode(role, budget, ())
        script, steps = self.script, len(decoded.step_ns)
        calls = {
            "cudaGraphLaunch": True,
            "cudaStreamSynchronize": script.sync_in_loop,
            "cudaMalloc": script.alloc_in_loop,
        }
        return decoded, Activity(
            kernels={KERNEL: steps} | ({script.fallback_kernel: steps} if script.fallback_kernel else {}),
            copies={"Memcpy DtoH (Device -> Pinned)": steps} if script.d2h_in_loop else {},
            calls={name: steps for name, made in calls.items() if made},
        )

    def top2(self, slot: int, continuation: Sequence[int]) -> tuple[float, float]:
        best = 10.0 + _hash(self.seeds[slot], len(continuation)) % 8
        return best, best - self.script.margin

    def close(self) -> None:
        self.seeds = []

    def token(self, slot: int, index: int) -> int:
        """The target's greedy token, from prompt and index. Ids 0 and EOS do not occur by chance."""
        if index == self.script.eos_at:
            return EOS
        place = index % self.script.loop_period if self.script.loop_period else index
        return 2 + _hash(self.seeds[slot], place) % (self.script.vocab - 2)

    def emitted(self, role: Role, slot: int, index: int) -> int:
        """The token that `role` emits: the greedy token, except where the fault `wrong_token_at` applies."""
        token = self.token(slot, index)
        if role.speculative and slot == 0 and index == self.script.wrong_token_at:
            return 2 + (token - 1) % (self.script.vocab - 2)
        return token

    def accepts(self, k: int, step: int, slot: int) -> int:
        """Return the number of accepted draft tokens, of `k`, in cycle `step` of a slot."""
        pattern = self.script.accept
        stale = step < self.blocks * self.script.stale_steps
        return 0 if stale else min(k, pattern[(step + slot) % len(pattern)])

    def step_ns(self, k: int, step: int) -> int:
        """Scripted nanoseconds of cycle `step` with `k` draft tokens, jitter included."""
        wobble = 1 + self.script.jitter * (_hash(self.blocks, step) % 1000) / 1000
        wobble *= 1 + self.script.prompt_jitter * (self.seeds[0] % 1000) / 1000
        cycle = (self.script.step_ns + k * self.script.draft_ns) * (self.script.slowdown if k else 1.0)
        return round(cycle * wobble)

    def _maybe_break_down(self) -> None:
        """End or hang this process where the script says so."""
        if self.blocks == self.script.die_after_blocks:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.blocks == self.script.hang_after_blocks:
            threading.Event().wait()


@dataclass(slots=True)
class Slot:
    """One request. `tokens` starts with the prefill token. `finish` is None while the request runs."""

    tokens: list[int]
    finish: Finish | None
    truncated: int = 0


@dataclass(slots=True)
class DecodeRun:
    """One decode run: the cycle of a real engine, with the script in place of draft and target."""

    engine: FakeEngine
    role: Role
    budget: Budget
    stop: Sequence[int]
    slots: list[Slot] = field(init=False)
    accepted: list[tuple[int, ...]] = field(default_factory=list)
    drafted: list[tuple[int, ...]] = field(default_factory=list)
    step_ns: list[int] = field(default_factory=list)
    missing: int = field(init=False)
    """Request-steps that are still to decode without drafting, for no good reason."""

    def __post_init__(self) -> None:
        self.missing = self.engine.script.left_multi_token
        firsts = [self.engine.emitted(self.role, s, 0) for s in range(len(self.engine.seeds))]
        self.slots = [Slot([t], self._reason(t) or self._full(1)) for t in firsts]

    @property
    def running(self) -> bool:
        return any(s.finish is None for s in self.slots) and len(self.step_ns) != self.budget.steps

    @property
    def k(self) -> int:
        return self.role.k if self.engine.draft_usable and not self.engine.script.no_drafts else 0

    def step(self) -> None:
        """Accept what the script says, and emit it with the bonus token, up to an EOS, stop token or limit."""
        step, idle = len(self.step_ns), [s.finish is not None for s in self.slots]
        drafted = tuple(-1 if done else self._drafts() for done in idle)
        accepted = tuple(-1 if d < 0 else self.engine.accepts(d, step, i) for i, d in enumerate(drafted))
        for i, count in enumerate(accepted):
            if count >= 0:
                self._emit(i, count + 1)
        self.accepted.append(accepted)
        self.drafted.append(drafted)
        self.step_ns.append(self.engine.step_ns(self.k, step))

    def _drafts(self) -> int:
        if self.k == 0 or self.missing <= 0:
            return self.k
        self.missing -= 1
        return 0

    def _emit(self, index: int, verified: int) -> None:
        slot = self.slots[index]
        for n in range(1, verified + 1):
            token = self.engine.emitted(self.role, index, len(slot.tokens))
            slot.tokens.append(token)
            slot.finish = self._reason(token) or self._full(len(slot.tokens))
            if slot.finish is not None:
                slot.truncated += verified - n
                return

    def _reason(self, token: int) -> Finish | None:
        if token == EOS and not self.budget.ignore_eos:
            return Finish.EOS
        return Finish.STOP if token in self.stop else None

    def _full(self, emitted: int) -> Finish | None:
        limit = self.budget.new_tokens
        return Finish.LENGTH if limit is not None and emitted >= limit else None

    def result(self) -> Decoded:
        script, steps = self.engine.script, len(self.step_ns)
        finish = tuple(s.finish or Finish.STEPS for s in self.slots)
        draft_ns = steps * self.k * script.draft_ns
        elapsed = sum(self.step_ns)
        return Decoded(
            elapsed_ns=elapsed,
            step_ns=tuple(self.step_ns),
            tokens=tuple(tuple(s.tokens) for s in self.slots),
            accepted=tuple(self.accepted),
            drafted=tuple(self.drafted),
            truncated=tuple(s.truncated + script.lost_tokens for s in self.slots),
            finish=finish,
            counters=self._launches() | (self._counters(finish) if self.role.speculative else {}),
            phase_ns={"draft": draft_ns, "verify": elapsed - draft_ns},
        )

    def _launches(self) -> dict[str, int]:
        total, script = len(self.step_ns), self.engine.script
        return {
            "tuned_total": total,
            "tuned_hits": max(0, total - script.untuned_launches),
            "kv_integrity_failures": script.kv_integrity_failures,
            "cache_hit_tokens": script.cache_hit_tokens,
            **({"mask_integrity_failures": script.mask_integrity_failures} if script.mask_integrity_failures else {}),
        }

    def _counters(self, finish: Sequence[str]) -> dict[str, int]:
        rows = zip(self.accepted, self.drafted, strict=True)
        rewound = [d - a for accepts, drafts in rows for a, d in zip(accepts, drafts, strict=True) if a >= 0]
        return {
            "rewound_tokens": sum(rewound) + self.engine.script.committed_rewound,
            "rewind_steps": sum(r > 0 for r in rewound),
            "disabled_multitoken_eos": finish.count("eos"),
            "disabled_multitoken_stop": finish.count("stop"),
            "disabled_multitoken_length": finish.count("length"),
            "disabled_draft_error": 0 if self.engine.draft_usable else len(rewound),
        }


def _spent(began_ns: int, scripted_ns: int) -> int:
    """Wait until `scripted_ns` have passed since `began_ns`, and return them."""
    if (left := began_ns + scripted_ns - time.perf_counter_ns()) > 0:
        time.sleep(left / 1e9)
    return scripted_ns


def _hash(*numbers: int) -> int:
    return int.from_bytes(blake2b(_bytes(numbers), digest_size=7).digest())


def _digest(kind: str, *numbers: int) -> str:
    return blake2b(kind.encode() + _bytes(numbers), digest_size=32).hexdigest()


def _bytes(numbers: Iterable[int]) -> bytes:
    return b"".join(n.to_bytes(8, "little", signed=True) for n in numbers)


BACKEND = FakeBackend()
