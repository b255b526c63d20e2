"""Texts that the stand-ins decode: tokens and accepted drafts follow from the prompt."""

from __future__ import annotations

import os
import signal
import sys
import time

VOCAB = 256
ACCEPT = (3, 1, 2, 0, 3, 2)
EOS_AFTER = "eos_after"
FAULTS = dict(part.partition("=")[::2] for part in os.environ.get("STAND_IN_FAULT", "").split(",") if part)


def token(prompt: list[int], index: int) -> int:
    return 2 + (sum(prompt) * 31 + len(prompt) * 17 + index * index * 7 + index * 13) % (VOCAB - 2)


def accepted(prompt: list[int], cycle: int, k: int) -> int:
    """Requests do not keep in step: where the cycle begins follows from the prompt."""
    if "accepts" in FAULTS:
        return min(k, int(FAULTS["accepts"]))
    return min(k, ACCEPT[(cycle + len(prompt)) % len(ACCEPT)])


def ranking(prompt: list[int], index: int) -> list[tuple[int, float]]:
    """(token, log-probability) from the likeliest on; the gaps are multiples of 1/16, as those of bfloat16 logits.
    What is decoded, at an index above 0, rounds otherwise than what is prefilled.
    """
    first = token(prompt, index)
    if "blind" in FAULTS:
        return [(first, -0.25)]
    if "strange" in FAULTS:
        return [(first, -0.25), (1 << 20, -1.75)]
    rounding = 2**-4 if index else 0.0
    others = [(2 + (first - 1 + i) % (VOCAB - 2), -1.75 - rounding * (i % 2) - i * (i + 1) / 32) for i in range(40)]
    return [(first, -0.25), *others]


def go_wrong(where: str) -> None:
    """Carry out the fault that is meant for this place."""
    fault = FAULTS.get(where)
    if fault == "raise":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if fault == "exit":
        sys.exit("engine core initialisation failed")
    if fault == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hang":
        time.sleep(600)
    if fault in ("garbage", "endless", "number"):
        answer = {"garbage": b"not a message\n", "endless": b"x" * (65 << 20), "number": b'{"ok": 7}\n'}[fault]
        while answer:
            answer = answer[os.write(int(sys.argv[2]), answer) :]
