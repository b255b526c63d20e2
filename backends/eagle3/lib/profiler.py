"""CUPTI activity of a piece of work, recorded through torch's profiler."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class TorchProfiler:
    """A `Profiler` of the harness: records what any engine in this process does on a CUDA device."""

    name = "torch"

    def unusable(self) -> str | None:
        """Return why nothing can be recorded in this process; None if something can."""
        try:
            import torch
        except ImportError:
            return "torch, whose profiler would look, is not installed"
        return None if torch.cuda.is_available() else "no CUDA device: a profiler sees no kernels here"

    def recorded(self, work: Callable[[], T]) -> tuple[T, Sequence[Mapping[str, Any]]]:
        """Do `work`. Returns its result, and the events of a Chrome trace of it, with times in microseconds."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
            result = work()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(file))
            return result, json.loads(file.read_text(encoding="utf-8"))["traceEvents"]


PROFILER = TorchProfiler()
