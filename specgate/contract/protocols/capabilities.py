"""Optional abilities of an engine or a back end. The harness asks by `isinstance` whether it can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, runtime_checkable

from specgate.contract import Budget, LogCause, PairRef, Role, Sampling, Score, TopTokens
from specgate.contract.draws import TokenLaw
from specgate.contract.load import OfferedLoad
from specgate.contract.protocols.engines import Activity, Decoded, Text
from specgate.contract.samples.spans import ShownSpans
from specgate.contract.traces import TunedProduct

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# ── engines ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@runtime_checkable
class ScriptedTrace(Protocol):
    """An engine that reports on its own decode loop, because no profiler can.

    Either it only pretends to decode (its acceptance is `scripted`), or its loop runs in a process that cannot be
    observed and it says so in `Activity.unseen`, or that process has its own profiler (`Activity.server_profiler`).

    Its traces are labelled `engine`. They can break a PERF_MODE invariant, but prove none: policies for GPUs accept no
    such engine. Only those that a server's profiler wrote for a back end of specgate's are labelled `server-profiler`.
    """

    def trace(self, role: Role, budget: Budget) -> tuple[Decoded, Activity]:
        """Decode one untimed block under `role`, and say what its loop did."""


@runtime_checkable
class ExtendsText(Protocol):
    """An engine that can decode on where the last decode run ended. Optional.

    The baseline's text has to be known as far as the longest speculative text. Without this, the engine is asked to
    decode it again from the prompt, which takes longer.
    """

    def extend(self, steps: int) -> Text:
        """Up to `steps` more steps of the `decode` that was the last call, with its role, EOS and stop tokens.

        Returns the text from the prompt's end, that of the `decode` included. A budget of tokens no longer applies.
        """


@runtime_checkable
class ShowsLogits(Protocol):
    """An engine that can show the logits which single tokens were chosen from. Optional.

    A bit-exact engine should: equal tokens may hide unequal logits, and these are compared too where it does.
    """

    def logits(self, role: Role, positions: Sequence[int]) -> tuple[tuple[tuple[int, str], ...], ...]:
        """Rewind every slot to the end of its prompt and decode greedily under `role`, EOS ignored, as `decode` does.

        Returns, per slot and for each index of `positions` (ascending, ≥ 1, where 0 is the prefill token): the token,
        and the SHA-256 of the target's logits (float32, little-endian, one per vocabulary entry) that it was chosen
        from, in hexadecimal.
        """


@runtime_checkable
class ShowsSpans(Protocol):
    """An engine that can show which cache blocks its steps write, and its trees. Optional: PERF_MODE's I4 rests on it,
    since an engine's own count of integrity failures is its word alone.
    """

    def spans(self, role: Role, budget: Budget, steps: Sequence[int]) -> ShownSpans:
        """Rewind every slot to the end of its prompt and decode under `role` and `budget` as `decode` does, up to the
        last of `steps` (ascending, from 0), stopping at each of these. It need not be fast.

        Returns what is read at these steps; fewer of them where every slot has finished before.
        """


@runtime_checkable
class StatesProducts(Protocol):
    """An engine that says how its tuned configurations have products launched. Optional: PERF_MODE's I2 compares it
    with the launches that the harness's profiler sees.
    """

    def products(self, role: Role, budget: Budget) -> tuple[TunedProduct, ...]:
        """The products of the steps that `decode` runs under `role` and `budget` over the prompts in the cache, each
        as the tuned configuration of its weight has it launched. It is asked after `decode`, outside of any block.
        """


@runtime_checkable
class ScoresTokens(Protocol):
    """An engine that can say what it thinks of a text that another engine has emitted. Optional."""

    def score(self, prompt: Sequence[int], continuation: Sequence[int], positions: Sequence[int]) -> tuple[Score, ...]:
        """One score per index of `positions` into `continuation`, ascending, with all tokens before it given.

        `continuation` begins with the token that follows the prompt. Whatever was cached before is forgotten.
        """


@runtime_checkable
class ShowsTokenLogits(Protocol):
    """An engine that scores tokens and can show the logits of several tokens at a place. Optional.

    It shows how far another engine's logits are from the target's.
    """

    def token_logits(
        self,
        prompt: Sequence[int],
        continuation: Sequence[int],
        places: Sequence[tuple[int, Sequence[int]]],
        count: int,
    ) -> tuple[TopTokens, ...]:
        """Logits (float32) at each of `places`, which are ascending: (index into `continuation`, tokens). All tokens
        of the continuation before that index are given. `values` are in the order of the tokens; of a place without
        tokens, the `count` most likely ones. Whatever was cached before is forgotten.
        """


@runtime_checkable
class DraftsAlong(Protocol):
    """An engine that scores tokens and can run the pair's own draft along the text. Optional.

    It shows how many drafts of a chain the text would have accepted, whoever claims to have drafted.
    """

    def drafted(self, starts: Sequence[int], k: int) -> tuple[int, ...]:
        """For each cycle of the text that `score` was asked about last: how many tokens, of a chain of `k` after the
        token at that index of the continuation, the text goes on with. Raises BackendError where there is no draft.
        """


@runtime_checkable
class RanksTokens(Protocol):
    """An engine that can show more than its two largest logits. Optional.

    An engine that is not bit-exact should: the gaps between them show the unit in the last place of its logits, and
    whose they are shows whether another token than the expected one was nearly as likely.
    """

    def ranked(self, slot: int, continuation: Sequence[int], count: int) -> TopTokens | None:
        """The `count` most likely tokens to follow prompt[slot] + continuation; fewer where it shows fewer, None where
        it shows none.
        """


@runtime_checkable
class RanksAgain(Protocol):
    """An engine that can rank tokens by a second pass, which rounds otherwise than that of `ranked`. Optional.

    How far the two lie apart shows how the engine rounds.
    """

    def ranked_again(self, slot: int, continuation: Sequence[int], count: int) -> TopTokens | None:
        """As `RanksTokens.ranked`. The last tokens of the continuation, up to `LED` of them, go through the decode
        kernels one by one where `ranked` prefills them. None where the engine shows no tokens that way, or cannot be
        led along the text.
        """


LED: Final = 32
"""Tokens at the end of a text that a second pass decodes. A prefill of the same text shares the rest of the cache."""


@runtime_checkable
class FollowsText(Protocol):
    """An engine that can decode plainly from any text on. Optional.

    Where a speculative text has left the baseline's at a near tie, it shows whether the text stays greedy. Where the
    baseline's own longer text has left the timed one at a near tie, it shows how the timed one goes on.
    """

    def follow(self, slot: int, continuation: Sequence[int], new_tokens: int) -> tuple[int, ...]:
        """The tokens that the baseline role decodes greedily after prompt[slot] + continuation, EOS ignored."""


@runtime_checkable
class ShowsStages(Protocol):
    """An engine that can show what every stage of its passes gives. Optional: `diagnose parity` asks for it."""

    def stages(self, prompt: Sequence[int], rows: int) -> Mapping[str, NDArray[np.float32] | NDArray[np.int64]]:
        """The stages of `specgate.checkpoints.stages.names` by name, for one prompt, for its last `rows` positions.

        Hidden states and logits are float32 [rows, width], `draft.target_ids` is int64 [draft vocabulary]. Whatever
        was cached before is forgotten. It need not be fast.
        """


@runtime_checkable
class DrawsTexts(Protocol):
    """An engine that draws independent texts after one prompt. Optional: the gate `distribution` needs it."""

    def draw(
        self, role: Role, prompt: Sequence[int], tokens: int, first: int, count: int
    ) -> tuple[tuple[int, ...], ...]:
        """The texts of `count` requests under `role`, EOS ignored, each of `tokens` tokens, the prefill token first.

        The requests have the numbers `first`, `first` + 1, …, and each draws with random numbers of its own: those of
        another number are independent of them. Whatever was cached before is forgotten.
        """


@runtime_checkable
class ShowsDistribution(Protocol):
    """An engine that can show which distribution tokens are drawn from. Optional."""

    def distribution(self, prompt: Sequence[int], continuation: Sequence[int], least: float) -> TokenLaw:
        """The distribution of the token that follows prompt + continuation: its tokens of at least the probability
        `least`. Whatever was cached before is forgotten.

        The engine that drew is asked itself, since it alone knows how it rounds and which tokens it rules out. The
        second engine is asked, too: its answer is the target's. Raises BackendError where it cannot tell.
        """


@runtime_checkable
class ServesLoad(Protocol):
    """An engine that takes requests while others run, as a server does. Optional: `kind: load` asks for it.

    Its back end says so by `OffersLoad`.
    """

    def serve(
        self,
        role: Role,
        prompts: Sequence[Sequence[int]],
        budget: Budget,
        offered: OfferedLoad,
        stop_token_ids: Sequence[int],
    ) -> Decoded:
        """Answer one whole request per prompt under `role`, sent as `offered` says, greedily.

        Returns a block with `served`. Its times count from the beginning of the block, which is the first sending of a
        closed loop and time 0 of an open one. In an open loop every request is sent in its turn and not before it is
        due (`contract.load.EARLY_NS`), and its `due_ns` is `offered.arrivals_ns` of its prompt; in a closed loop that
        is None. A request that was turned away for too much load (HTTP 429 or 503) is listed in `served.refused`, has
        no slot, and is not sent again; `served.prompts` then names the prompt of every slot. `prefill` is not called. A
        `top2` that follows is about these prompts.

        Raises BackendError where no request was answered.
        """


# ── back ends ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@runtime_checkable
class OffersLoad(Protocol):
    """Optional for a back end: its engines are `ServesLoad`. All others are refused before they load anything."""

    serves_load: Literal[True]


@runtime_checkable
class AnswersTurns(Protocol):
    """Optional for a back end: its engines have earlier turns of a conversation answered before they are timed, where a
    chat of `OpenRequest.chats` leaves them open. All others are refused such prompts.
    """

    answers_turns: Literal[True]


@runtime_checkable
class OffersSampling(Protocol):
    """Optional for a back end: its engines draw tokens as `OpenRequest.sampling` says. All others are refused a
    scenario with `sampling` before they load anything.

    Then `decode` draws, and so does everything that speaks of greedy tokens: `follow` and `extend` draw with the same
    random numbers, and the logits of `top2`, `ranked` and `score` are those whose largest is the token that is drawn.
    Of one request, with one seed, every call draws the same tokens. An engine that cannot promise that, since it is
    another program with random numbers of its own, says so in `EngineFacts.details` (`contract.OWN_NUMBERS`) and
    refuses all but `method: rejection` (`ChecksSampling`).
    """

    samples: Literal[True]


@runtime_checkable
class ChecksSampling(Protocol):
    """Optional for a back end that is `OffersSampling`: its engines cannot draw in every way."""

    def check_sampling(self, sampling: Sampling, where: str) -> None:
        """Raises UsageError for a setting that its engines cannot be asked for, before anything is loaded or started.
        `where`: what has these settings, for the message.
        """


@runtime_checkable
class StatesLogitOptions(Protocol):
    """Optional for a back end: which of its options change the target's logits beyond rounding, such as the format that
    keys and values are cached in.

    A second engine that scores the tokens gets them, too, where its back end states them as well: else it would score
    with another target.
    """

    logit_options: tuple[str, ...]


@runtime_checkable
class StatesDraftOptions(Protocol):
    """Optional for a back end: which of its options change what is drafted.

    `draft_options`: those that a second engine takes as well, where its back end states them too, so that it drafts the
        same. `other_drafts`: with one of these the drafts are no chains of the pair's own draft, or are verified
        otherwise. A back end that states nothing is taken to draft otherwise with any option.
    """

    draft_options: tuple[str, ...]
    other_drafts: tuple[str, ...]


@runtime_checkable
class SwitchesPrefixCache(Protocol):
    """Optional for a back end: `specgate diagnose cache` asks for it.

    Where it is true, the option `prefix_cache=on|off` says whether an engine may take the keys and values of a prompt
    from what it has cached of earlier requests. Blocks count such tokens as `cache_hit_tokens` (`Decoded.counters`).
    """

    @property
    def switches_prefix_cache(self) -> bool: ...


@runtime_checkable
class ExplainsLogs(Protocol):
    """Optional for a back end whose engine starts programs: know what lines of their logs mean."""

    def explain_log(self, lines: Sequence[str]) -> Sequence[LogCause]:
        """The lines that have a known cause: each cause once, with the first line that shows it."""


@runtime_checkable
class ChecksOptions(Protocol):
    """Optional for a back end: refuse options before the run folder, which stores them, is made."""

    def check_options(self, options: Mapping[str, str]) -> None:
        """Raises UsageError for an option that is wrong, or that must not be written to disk."""


@runtime_checkable
class UsesGpus(Protocol):
    """Optional for a back end whose engines may use several GPUs: how many, so that all of them are watched."""

    def gpus(self, options: Mapping[str, str]) -> int:
        """Under these options, which may be wrong: then 1. They are the first that CUDA shows."""


@runtime_checkable
class IsBitExact(Protocol):
    """Optional for a back end: speculation emits the baseline's tokens bit for bit. Then the usual policy is `seed` or
    `cpu`, which grant no near ties in bfloat16; that of other engines is `engine`.
    """

    bit_exact: Literal[True]


@runtime_checkable
class TunesItself(Protocol):
    """Optional for a back end: a command makes it faster on this machine, once for each pair."""

    def tuning(self, pair: str) -> Sequence[str]:
        """Return the words of that specgate command. It does nothing for a pair that is tuned already."""


@runtime_checkable
class HasUsualPair(Protocol):
    """Optional for a back end that needs no weights: have a pair of its own, in the place of the demo pair."""

    def usual_pair(self) -> PairRef:
        """Return the pair that is meant if neither the command line nor a scenario names another."""


@runtime_checkable
class DrivesAnotherEngine(Protocol):
    """Optional for a back end whose engine is somebody else's program, which reads checkpoints by rules of its own.

    The harness then asks no more of a target than its sizes, of any architecture.
    """

    def attaches(self, options: Mapping[str, str]) -> bool:
        """True if these options name a program that runs already, so that its weights need not be on this machine."""

    def local_ports(self, options: Mapping[str, str]) -> tuple[int, ...]:
        """The ports of this machine on which such programs listen: on its GPUs they are no strangers."""


@dataclass(frozen=True, slots=True)
class MemoryReads:
    """Timed reads of the memory that an engine decodes from. Each one reads `size` bytes once.

    `device`: as in `EngineFacts.device`.
    `gpu_uuid`: as NVML gives it; None on a CPU.
    """

    device: str
    gpu_uuid: str | None
    size: int
    elapsed_ns: tuple[int, ...]


@runtime_checkable
class ReadsMemory(Protocol):
    """Optional for a back end: time reads of its device's memory, in this process."""

    def read_memory(self, repeats: int) -> MemoryReads:
        """Read `repeats` times. Raises EnvironmentRefused where too little memory is free."""
