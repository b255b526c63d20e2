"""TurboMind's EAGLE-3 as the fork counts and logs it: `LlamaBatch::updateEagleMetricsAndKVLengths`, `_get_metrics`."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

from rule import FAULTS

from lmdeploy.messages import SpeculativeConfig

SINGLE = "Multi-token speculative decoding is only supported for tp_size==1; multi-token behaviour will be disabled"


TILE = int(os.environ.get("TM_EAGLE3_FMHA_KV_TILE", "128"))
"""Positions of a tile of the draft's attention. Fewer than 128 make a step slower, more do not make it faster than one
without drafts: no verification is. The kernel takes multiples of 32.
"""
STEP_S = 0.0005 * max(1, 128 / TILE) ** 2
if os.environ.get("TM_GEMM_IMPORT"):
    STEP_S /= float(Path(os.environ["TM_GEMM_IMPORT"]).read_text())
if os.environ.get("TM_GEMM_TUNE") and os.environ.get("TM_GEMM_EXPORT"):
    Path(os.environ["TM_GEMM_EXPORT"]).write_text("8")


def log(text: str, level: str = "INFO") -> None:
    print(f"[TM][{level}] {text}", flush=True)


@dataclass
class Eagle:
    """The draft of one engine. `running`: its requests."""

    config: SpeculativeConfig | None
    tp: int
    running: int = 0
    tiles_logged: bool = False
    warned: bool = field(default=False, init=False)
    announced: bool = field(default=False, init=False)

    def planned(self, left: int) -> int:
        """Draft tokens of the next step of a request that may emit `left` more."""
        if self.config is None:
            return 0
        if not self.announced:
            perf = os.environ.get("LMDEPLOY_EAGLE_PERF_MODE", "0")
            steps = os.environ.get("LMDEPLOY_EAGLE_MICRO_STEPS", "0")
            log(f"[EAGLE3] perf_mode={perf} micro_steps={steps}")
        self.announced = True
        if self.tp != 1:
            if not self.warned:
                log(f"[LlamaBatch][EAGLE][fallback] {SINGLE} for this engine run.", "WARNING")
            self.warned = True
            return 1
        return min(self.config.num_speculative_tokens, left)


@dataclass
class RequestCounts:
    """`RequestMetrics` of the C++ side: sums over the steps of one request."""

    eagle: Eagle
    steps: int = 0
    draft: int = 0
    accepted: int = 0
    rewound: int = 0
    rewind_steps: int = 0
    max_tokens_per_seq: int = 0
    max_accepted_len: int = 0
    accept_ge2: int = 0
    extras: int = 0

    def add(self, planned: int, accepted: int) -> int:
        """Count a step that drafted `planned` tokens, of which the target has the first `accepted`. Return how many
        tokens it emits: the first draft token stands in the place of the step's own.
        """
        kept = max(1, min(accepted, planned))
        if TILE % 32:
            os.kill(os.getpid(), signal.SIGKILL)
        nodes = int(FAULTS.get("tree_nodes", planned))
        rewound = nodes - kept + (2 if "rewinds" in FAULTS else 0)
        self.steps += 1
        self.draft += nodes
        self.accepted += accepted
        self.max_tokens_per_seq = max(self.max_tokens_per_seq, planned)
        self.max_accepted_len = max(self.max_accepted_len, kept)
        self.accept_ge2 += kept >= 2
        self.extras += kept - 1
        self.rewound += rewound
        self.rewind_steps += rewound > 0
        self.log_step(planned, accepted, rewound)
        return kept

    def log_step(self, planned: int, accepted: int, rewound: int) -> None:
        batch = max(self.eagle.running, 1)
        if os.environ.get("LMDEPLOY_EAGLE_KV_DEBUG") and rewound:
            print(
                f"[EAGLE][KVRewind] block_size=64 batch_size={batch} max_batch_size={batch} non_zero_slots=1 "
                f"total_rewound_tokens={rewound}",
                flush=True,
            )
        if os.environ.get("TM_EAGLE3_FMHA_TILE_STATS") and not self.eagle.tiles_logged:
            self.eagle.tiles_logged = True
            log("[EAGLE3][FMHA_TILE_STATS] total=96 span_empty=12 mask_empty=4 executed=80")
        if self.eagle.config is not None and self.eagle.config.eagle_metrics_debug:
            log(
                f"[LlamaBatch][EAGLE_METRICS] step={self.steps}, batch={batch}, active_slots={batch}, "
                f"draft_tokens={planned}, accepted_tokens={accepted}, accept_per_active_slot={accepted / batch:.4f}"
            )

    def spec_info(self) -> dict[str, object] | None:
        """What Python shows of it. A count of 0 is left out."""
        if not self.steps:
            return None
        mean = self.accepted / self.steps
        shown: dict[str, object] = {
            "num_drafts": self.steps,
            "num_draft_tokens": self.draft,
            "num_accepted_tokens": self.accepted,
            "avg_accepted_per_step": mean,
            "tokens_per_seq": self.draft / self.steps,
            "accepted_len": mean,
            "committed_extras": max(0.0, mean - 1),
        }
        if self.eagle.config is not None and self.eagle.config.enable_target_tree:
            shown["tree_decode"] = {
                "num_tree_draft_tokens": self.draft,
                "num_tree_target_tokens": self.draft,
                "num_tree_accepted_tokens": self.accepted,
            }
        if self.rewound or self.rewind_steps:
            shown |= {"num_rewound_tokens": self.rewound, "rewind_steps": self.rewind_steps}
        sums = {
            "max_tokens_per_seq": self.max_tokens_per_seq,
            "max_accepted_len": self.max_accepted_len,
            "steps_accept_ge2": self.accept_ge2,
            "total_committed_extras": self.extras,
        }
        if "older" not in FAULTS:
            shown |= {name: count for name, count in sums.items() if count}
        return {name: count for name, count in shown.items() if name != FAULTS.get("lacks")}
