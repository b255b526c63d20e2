"""The schema of run.json, and which version added which field."""

from __future__ import annotations

from collections.abc import Mapping

SCHEMA = "specgate.result/v1"
SCHEMA_VERSION = "1.20.0"
LATER_FIELDS: Mapping[str, tuple[str, ...]] = {
    "1.1.0": (
        "bandwidth",
        "budgets",
        "engines.*.traffic",
        "engines.*.tuned_sha256",
        "last_green",
        "files",
        "cells*.by_depth",
        "cells*.distributions",
        "cells*.values.*acceptance_at_pos*.ci_low",
        "cells*.values.*acceptance_at_pos*.ci_high",
        "conditions.*.timeline",
    ),
    "1.2.0": ("cells*.acceptance.totals",),
    "1.3.0": (
        "bandwidth.cache_bytes",
        "cells*.reason_code",
        "cells*.values.undrafted_steps",
        "engines.*.least_weight_bytes",
        "engines.*.engine_version",
        "comparisons*.tokens.emitted_tokens",
        "comparisons*.tokens.whole_sets",
        "comparisons*.tokens.logits",
        "cells*.rescored",
        "sampled_after",
        "check_seconds",
        "reports",
    ),
    "1.4.0": (
        "not_judged",
        "between_runs",
        "required_decisions",
        "scenarios.*.statistics",
        "scenarios.*.schedule.extended",
        "scenarios.*.definitions",
        "scenarios.*.goodput",
        "comparisons*.beside",
        "cells*.set_aside",
        "conditions.*.host",
        "conditions.*.gpu.max_sm_clock_mhz",
        "conditions.*.gpu.power_w",
        "conditions.*.gpu.capped",
    ),
    "1.5.0": ("times", "earlier", "builds", "between_runs.*.least_process_sd", "comparisons*.even_prefill"),
    "1.6.0": (
        "break_even",
        "cells*.cell.point.rate",
        "comparisons*.cell.point.rate",
        "scenarios.*.load",
        "engines.*.identity",
        "pair.weights",
        "scenarios.*.baseline",
        "scenarios.*.workload.file",
        "scenarios.*.workload.shared_prefix",
        "comparisons*.tokens.sequences",
        "comparisons*.tokens.followed",
        "comparisons*.tokens.divergences*.unit",
        "conditions.*.gpu.prefill_clock_mhz",
    ),
    "1.7.0": (
        "cells*.drift",
        "cells*.values.drafted_share",
        "cells*.values.asked_again",
        "cells*.values.client_clock_ratio",
        "cells*.values.repeat_near_ties",
        "cells*.values.p*_send_lag_ms",
        "engines.*.follows",
        "budgets.*.experts",
        "budgets.*.lengths",
        "budgets.*.ceilings*.needed_overlap",
    ),
    "1.8.0": ("conditions.*.gpu.common_clocks",),
    "1.9.0": ("draws", "scenarios.*.sampling", "scenarios.*.draws"),
    "1.10.0": ("scenarios.*.options", "scenarios.*.variants"),
    "1.11.0": ("comparisons*.tokens.lossy",),
    "1.12.0": (),  # samples/environment.jsonl: `clocks`
    "1.13.0": ("cells*.by_active", "cells*.values.joined_outputs"),
    "1.14.0": ("engines.*.traffic.link", "budgets.*.link_bytes"),
    "1.15.0": ("engines.*.traffic.link.draft_row_bytes",),
    # and of samples/rescored.jsonl `again`
    "1.16.0": ("cells*.rescored.again", "cells*.rescored.settled", "cells*.rescored.unsettled"),
    "1.17.0": ("conditions.*.cpu_pace",),  # and `host.work_ns` of samples/environment.jsonl and env.json
    "1.18.0": ("conditions.*.timeline.slow_cpu_share",),
    "1.19.0": (),  # samples/blocks.jsonl: `began_ns`
    "1.20.0": (
        "verdicts*.covers",  # and of gates.json
        "verdicts*.judges",
        "verdicts*.floor",
        "*.workload.format",
        "*.workload.chat",
        "*.workload.min_tokens",
        "*.workload.max_tokens",
        "*.workload.sha256",
        "*.rope.*",
    ),
}
"""Schema version → fields of run.json that it added (`fnmatch` patterns). In an older file such a field is missing or
null.
"""
