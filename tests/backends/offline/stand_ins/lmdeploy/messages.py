from __future__ import annotations

import enum
from dataclasses import dataclass, field


@dataclass
class SpeculativeConfig:
    method: str
    model: str = ""
    num_speculative_tokens: int = 1
    max_path_len: int | None = None  # this one and the next ones: in the fork
    max_decoding_tokens: int | None = None
    eagle_metrics_debug: bool = False
    enable_target_tree: bool = False


@dataclass
class GenerationConfig:
    max_new_tokens: int = 512
    do_sample: bool = False
    top_k: int = 50
    temperature: float = 0.8
    ignore_eos: bool = False
    stop_token_ids: list[int] | None = None
    logprobs: int | None = None


@dataclass
class PytorchEngineConfig:
    dtype: str = "auto"
    session_len: int | None = None
    max_batch_size: int | None = None
    cache_max_entry_count: float = 0.8
    enable_prefix_caching: bool = False
    eager_mode: bool = False
    logprobs_mode: str | None = None
    enable_metrics: bool = False


@dataclass
class TurbomindEngineConfig:
    dtype: str = "auto"
    tp: int = 1
    session_len: int | None = None
    max_batch_size: int | None = None
    cache_max_entry_count: float = 0.8
    enable_prefix_caching: bool = False
    enable_metrics: bool = False
    speculative_config: SpeculativeConfig | None = None  # in the fork


class ResponseType(enum.Enum):
    SUCCESS = enum.auto()
    FINISH = enum.auto()
    INTERNAL_ENGINE_ERROR = enum.auto()


@dataclass
class RequestMetrics:
    token_timestamp: float = 0.0
    engine_events: list[object] = field(default_factory=list)
    spec_info: dict[str, object] | None = None
    cached_tokens: int = 0


@dataclass
class EngineOutput:
    status: ResponseType
    token_ids: list[int]
    logprobs: list[object] | None = None
    req_metrics: RequestMetrics | None = None
