from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class RequestOutputKind(Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class SamplingParams:
    temperature: float = 1.0
    max_tokens: int | None = 16
    ignore_eos: bool = False
    stop_token_ids: list[int] | None = None
    logprobs: int | None = None
    detokenize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
