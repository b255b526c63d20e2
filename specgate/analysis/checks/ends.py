"""Ways in which the requests of a block may end, given the budget that was asked for.

The engines agree on this. A step verifies accepted + 1 tokens and emits them one by one, until one of them is an
end token (EOS, where these are not ignored) or fills the token limit; what is left of the step is truncated. So only a
slot that ended has truncated tokens, they are of its last step, and that step emitted one token at least. A budget of
steps ends a slot for nothing but an end token, and a budget of tokens lets none stop for its steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from specgate.contract import Block, Budget, Finish
from specgate.errors import InvalidResult


def check_ends(block: Block, budget: Budget, eos: Sequence[int], where: str) -> None:
    """Check the end of every slot of a block whose steps are known. Raises InvalidResult.

    `eos`: the engine's end tokens; () where they are not known. The harness asks for no stop tokens.
    """
    if budget.steps is not None and len(block.accepted) > budget.steps:
        raise InvalidResult(f"{where}: {len(block.accepted)} steps ran, but the budget is {budget.steps} steps")
    for slot, finish in enumerate(block.finish):
        here = f"{where} slot {slot}"
        accepted = [row[slot] for row in block.accepted if row[slot] >= 0]
        check_truncated(block.truncated[slot], finish, accepted, here)
        check_finish(finish, budget, len(block.tokens[slot]), len(accepted), here)
        if not budget.ignore_eos and eos:
            check_end_token(block.tokens[slot], finish, eos, here)


def check_truncated(truncated: int, finish: Finish, accepted: Sequence[int], here: str) -> None:
    """Only the last step of a slot that ended has truncated tokens, and it has emitted one. Raises InvalidResult."""
    if truncated and finish is Finish.STEPS:
        raise InvalidResult(f"{here}: {truncated} truncated tokens, but its finish is steps: nothing has cut it off")
    most = accepted[-1] if accepted else 0
    if truncated > most:
        raise InvalidResult(
            f"{here}: {truncated} truncated tokens, but its last step accepted {most}: it can have lost {most} at most"
        )


def check_finish(finish: Finish, budget: Budget, tokens: int, steps: int, here: str) -> None:
    """The finish is one that the budget allows, and the slot went exactly so far. Raises InvalidResult."""
    if finish in (Finish.EOS, Finish.STOP):
        if budget.ignore_eos:
            raise InvalidResult(f"{here}: its finish is {finish} after {tokens} tokens, but EOS is ignored")
        if finish is Finish.STOP:
            raise InvalidResult(f"{here}: its finish is stop after {tokens} tokens, but no stop tokens were asked for")
    elif finish is Finish.STEPS and steps != budget.steps:
        limit = f"{budget.steps} steps" if budget.steps is not None else f"{budget.new_tokens} tokens"
        raise InvalidResult(f"{here}: its finish is steps after {steps} steps, but the budget is {limit}")
    elif finish is Finish.LENGTH and tokens != budget.new_tokens:
        limit = f"{budget.new_tokens} tokens" if budget.new_tokens is not None else f"{budget.steps} steps"
        raise InvalidResult(f"{here}: its finish is length after {tokens} tokens, but the budget is {limit}")
    if budget.new_tokens is not None and tokens > budget.new_tokens:
        raise InvalidResult(f"{here}: {tokens} tokens, but the budget is {budget.new_tokens} tokens")


def check_end_token(tokens: Sequence[int], finish: Finish, eos: Sequence[int], here: str) -> None:
    """A slot that stopped at EOS has one as its last token, and no slot has gone on after one. Raises InvalidResult."""
    if finish is Finish.EOS and tokens[-1] not in eos:
        raise InvalidResult(f"{here}: its finish is eos, but its last token {tokens[-1]} is none of EOS {tuple(eos)}")
    passed = next((i for i, token in enumerate(tokens[:-1]) if token in eos), None)
    if passed is not None:
        raise InvalidResult(
            f"{here}: token {passed} is EOS ({tokens[passed]}), but {len(tokens) - 1 - passed} more follow it"
        )
