"""Engines' reports of themselves, and the identity that follows: the engine's build and its settings.

Formats: vLLM 0.25.1 (`VllmConfig.__str__`, which its log and `/server_info` have; `platforms/cuda.py` and the oracles
of `fused_moe` for what it chose), SGLang 0.5.17 (`ServerArgs`, in `/server_info`), llama.cpp's `/props`. Whatever is
not there, or looks otherwise, is not told: nothing here is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from specgate.contract import EngineIdentity, Role, ServedModel
from specgate.errors import BackendError

COMMIT: Final = re.compile(r"[+.]g([0-9a-f]{7,40})\b|^b\d+-([0-9a-f]{6,40})$")
"""setuptools_scm's local part (`0.1.dev1+g1a2b3c4`), and llama.cpp's `b11434-2f3a1c`."""
LONGEST: Final = 120
LONGEST_PATH: Final = 1000

VLLM_CONFIG: Final = {
    "dtype": re.compile(r"(?<![\w.])dtype=(?:torch\.)?(\w+)"),
    "quantization": re.compile(r"(?<!\w)quantization=([\w.\-]+)"),
    "kv_cache_dtype": re.compile(r"(?<!\w)kv_cache_dtype=([\w.\-]+)"),
    "cuda_graphs": re.compile(r"cudagraph_mode'?: ?<CUDAGraphMode\.(\w+)"),
}
VLLM_CHOICES: Final = {
    "attention": re.compile(r"Using (?:AttentionBackendEnum\.)?([\w.\-]+) (?:attention )?backend(?: out of|\.)"),
    "moe": re.compile(r"Using '?([^']+?)'? (?:\w+ )?(?:\w+ )?MoE backend", re.IGNORECASE),
}
ON_CPU: Final = re.compile(r"(?<!\w)device_config=cpu\b")
METHOD: Final = re.compile(r"SpeculativeConfig\(method='([\w.\-]{1,40})'")
FLASH: Final = re.compile(r"Using FlashAttention version (\d+)")
SGLANG: Final = {
    "moe": "moe_runner_backend",
    "dtype": "dtype",
    "quantization": "quantization",
    "kv_cache_dtype": "kv_cache_dtype",
}


def commit_of(version: str) -> str | None:
    """The commit that a version states; None for one that states none, such as a release's."""
    match = COMMIT.search(version)
    return (match[1] or match[2]) if match else None


def vllm_settings(lines: Iterable[str]) -> dict[str, str]:
    """Read vLLM's log: its config, and its choices where the config says auto. The first mention counts, which is the
    target's: the draft's follows.
    """
    settings: dict[str, str] = {}
    flash: str | None = None
    for line in lines:
        is_config = " with config: " in line
        for name, pattern in (VLLM_CONFIG if is_config else VLLM_CHOICES).items():
            if name not in settings and (match := pattern.search(line)):
                settings[name] = word(None if match[1] == "None" else match[1])
        flash = flash or ((match := FLASH.search(line)) and match[1]) or None
    if flash and settings.get("attention") == "FLASH_ATTN":
        settings["attention"] = f"FLASH_ATTN {flash}"
    return settings


def vllm_answer(answer: object) -> dict[str, str]:
    """Read `/server_info` of a vLLM in development mode: the same text as in its log."""
    text = answer.get("vllm_config") if isinstance(answer, Mapping) else None
    return vllm_settings([f" with config: {text}"]) if isinstance(text, str) else {}


def vllm_on_cpu(answer: object) -> bool:
    """True if that text names the CPU as its device."""
    text = answer.get("vllm_config") if isinstance(answer, Mapping) else None
    return isinstance(text, str) and ON_CPU.search(text) is not None


def vllm_method(answer: object) -> str | None:
    """The method of speculation in that text; None if it has none."""
    text = answer.get("vllm_config") if isinstance(answer, Mapping) else None
    match = METHOD.search(text) if isinstance(text, str) else None
    return match[1] if match else None


def sglang_settings(answer: object) -> dict[str, str]:
    """Read SGLang's `/server_info`. Only known keys are taken, since the answer holds API keys too."""
    if not isinstance(answer, Mapping):
        return {}
    settings = {name: word(answer[key]) for name, key in SGLANG.items() if key in answer}
    both = answer.get("attention_backend")
    prefill, decode = (answer.get(f"{phase}_attention_backend") or both for phase in ("prefill", "decode"))
    if isinstance(prefill, str) and isinstance(decode, str):
        settings["attention"] = short(decode if prefill == decode else f"{decode} (prefill: {prefill})")
    if (graphs := sglang_graphs(answer)) is not None:
        settings["cuda_graphs"] = short(graphs)
    return settings


def sglang_graphs(answer: Mapping[object, object]) -> str | None:
    """Return the CUDA graphs that decoding and prefill use, or None if the server reports neither. `cuda_graph_config`
    counts, if it is there: the switches still say "on" on a CPU.
    """
    config, phases = answer.get("cuda_graph_config"), ("decode", "prefill")
    if isinstance(config, Mapping):
        kinds = [text_of(config.get(phase), "backend") for phase in phases]
        if None not in kinds:
            return ", ".join(
                f"{phase} {'off' if kind == 'disabled' else kind}" for phase, kind in zip(phases, kinds, strict=True)
            )
    if not isinstance(off := answer.get("disable_cuda_graph"), bool):
        return None
    return ", ".join(
        f"{phase} {'off' if off or answer.get(f'disable_{phase}_cuda_graph') is True else 'on'}" for phase in phases
    )


def word(value: object) -> str:
    return short("none" if value is None else str(value))


def short(text: str) -> str:
    return text[:LONGEST]


def text_of(answer: object, key: str) -> str | None:
    """The text below `key`, or the first of a list of texts; None where there is no such thing."""
    value = answer.get(key) if isinstance(answer, Mapping) else None
    first = value[0] if isinstance(value, list) and value else value
    return first[:LONGEST_PATH] if isinstance(first, str) and first else None


@dataclass(frozen=True, slots=True)
class ServerReport:
    """One server's report of itself. `served`: None for a server that was started here, which serves the pair.

    Of one that was started elsewhere: `listener`, the name of the process that listens, or None if it is not visible;
    and `on_cpu`, whether it says that it runs on the CPU.
    """

    role: Role
    version: str
    settings: Mapping[str, str]
    served: ServedModel | None = None
    listener: str | None = None
    on_cpu: bool = False


def identity_of(engine: str, servers: Sequence[ServerReport], build: str | None) -> EngineIdentity:
    """The identity of `servers`, which are the roles of one run. `build`: what the user says.

    Raises BackendError where two of them are of different versions: their times must not be paired.
    """
    first = servers[0]
    if other := next((s for s in servers if s.version != first.version), None):
        raise BackendError(
            f"{engine}: {first.role}'s server is version {first.version}, {other.role}'s is {other.version}",
            hint="a speed-up is one engine's against itself: start both from the same installation",
        )
    commit = commit_of(first.version)
    told_by: Literal["version", "option"] | None = "option" if build else "version" if commit else None
    differing = {s.role.name: differences(first.settings, s.settings) for s in servers[1:]}
    return EngineIdentity(
        engine=engine,
        version=first.version,
        build=build or commit,
        told_by=told_by,
        settings=dict(first.settings),
        differing={role: part for role, part in differing.items() if part},
        served={s.role.name: s.served for s in servers if s.served is not None},
    )


def differences(first: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of `other` that differ from those of `first`. Settings that only one reports are left out."""
    return {name: value for name, value in other.items() if name in first and first[name] != value}
