"""Detect the format of a file, a folder or a text on the command line, and read the config in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from os.path import exists, expanduser, isdir, isfile
from pathlib import Path
from typing import Final, NamedTuple

from specgate.checkpoints.spec_config.files import document, file_text
from specgate.checkpoints.spec_config.formats import llamacpp, lmdeploy, sglang, spec_config, trtllm, vllm
from specgate.checkpoints.spec_config.terms import StatedConfig
from specgate.checkpoints.turbomind import CONFIG, is_draft
from specgate.errors import UsageError
from specgate.files.json_text import parse_json
from specgate.files.panics import first_line

LARGEST: Final = 1 << 20
"""Bytes of a config."""


class Format(NamedTuple):
    """Readers of an engine's config: from a command line, and from a mapping."""

    flags: Callable[[Sequence[str], str], StatedConfig] | None
    mapping: Callable[[Mapping[str, object], str], StatedConfig] | None


FORMATS: Final[Mapping[str, Format]] = {
    "vllm": Format(vllm.read_flags, vllm.read_object),
    "sglang": Format(sglang.read_flags, sglang.read_object),
    "trtllm": Format(trtllm.read_flags, trtllm.read_object),
    "lmdeploy": Format(lmdeploy.read_flags, lmdeploy.read_object),
    "turbomind": Format(None, lmdeploy.read_turbomind),
    "llamacpp": Format(llamacpp.read_flags, None),
    "specgate": Format(None, spec_config.read_object),
}
HINT: Final = f"name the format: ENGINE:FILE or ENGINE:TEXT, with ENGINE one of {', '.join(FORMATS)}"
SERVERS: Final = (
    (r"(^|[/ ])vllm serve( |$)|vllm\.entrypoints\.\S*api_server", "vllm"),
    (r"sglang\.launch_server|(^|[/ ])sglang serve( |$)", "sglang"),
    (r"(^|[/ ])lmdeploy serve( |$)", "lmdeploy"), (r"(^|[/ ])llama-(server|cli|speculative)( |$)", "llamacpp"),
    (r"(^|[/ ])trtllm-(serve|bench)( |$)", "trtllm"),
)  # fmt: skip
"""Words of a command line → whose server it starts."""
UNQUOTED_JSON: Final = re.compile(r"(?<=[\s=])\{[^{}']*(?:\{[^{}']*\}[^{}']*)*\}(?=\s|$)")
"""An object on a command line whose quotes a shell has taken off already."""
UNSET: Final = re.compile(r"\$\{?\w+\}?|\$\(|\$@|\{\{.*?\}\}")
"""A variable of a shell or of a template."""
BETWEEN: Final = frozenset({"&&", "||", ";", "|", "&", ">", ">>", "<"})
"""Words of a shell that end a command."""
TELLING_FLAGS: Final = (
    ("vllm", ("--speculative-config", "-sc", "--spec-model", "--spec-tokens", "--max-num-seqs", "--max-model-len")),
    ("sglang", ("--speculative-num-steps", "--speculative-eagle-topk", "--speculative-draft-model-path",
                "--model-path")),
    ("lmdeploy", ("--speculative-draft-model", "--session-len")),
    ("llamacpp", ("--spec-type", "--spec-draft", "-md", "--model-draft", "--spec-")),
    ("sglang", ("--speculative-algorithm",)),
)  # fmt: skip
TELLING_KEYS: Final = (
    ("trtllm", {"decoding_type", "max_draft_len", "eagle_choices", "kv_cache_config", "max_decoding_draft_tokens"}),
    ("sglang", {"speculative_algorithm", "speculative_num_steps"}),
    ("turbomind", {"eagle_debug", "eagle_metrics_debug", "enable_target_tree", "enable_specpv", "capture_layers"}),
    ("specgate", {"max_path_len", "max_decoding_tokens", "max_non_leaves_per_layer"}),
    ("vllm", {"num_speculative_tokens"}),
)
"""In this order: the first engine that has one of these keys."""
OWN_KEYS: Final = (
    ("vllm", frozenset(vllm.FLAGS) | {"served_model_name"}), ("sglang", frozenset(sglang.FLAGS)),
    ("trtllm", frozenset(trtllm.FLAGS) | {"enable_autotuner"}), ("lmdeploy", frozenset(lmdeploy.FLAGS)),
)  # fmt: skip
"""Engine → keys of its files. A file is of the one engine that has all those of its keys that any has."""


def read_source(text: str) -> StatedConfig:
    """The config that `text` names or is: a draft folder of TurboMind, a JSON or YAML file, a file with
    the command line of a server, JSON, or a command line. `ENGINE:` before it names the format.

    Raises UsageError with file, key and value for what cannot be read.
    """
    engine, body = named(text)
    if isdir(place := expanduser(body)):
        return of_folder(Path(place))
    if isfile(place):
        return of_text(file_text(Path(place), LARGEST), engine, Path(place))
    if not body.lstrip().startswith(("{", "[", "-")) and len(body.split()) < 2:
        hint = "a config file, JSON, or flags such as '--speculative-num-steps 3 …'"
        raise UsageError(f"{body[:200]!r}: no such file or folder", hint=hint)
    return of_text(body, engine, None)


def named(text: str) -> tuple[str | None, str]:
    """(the engine that a prefix `ENGINE:` names, the rest)."""
    match = re.match(r"([A-Za-z]+):(?!//)(.*)", text, re.DOTALL)
    if match is None or len(match[1]) < 2 or exists(text):
        return None, text
    if match[1].lower() not in FORMATS:
        near = get_close_matches(match[1].lower(), FORMATS, 1)
        raise UsageError(
            f"{match[1]}: is no engine whose config is known" + (f" (did you mean {near[0]}?)" if near else ""),
            hint=HINT,
        )
    return match[1].lower(), match[2].strip()


def of_folder(folder: Path) -> StatedConfig:
    if is_draft(folder):
        return lmdeploy.read_draft(folder)
    raise UsageError(f"{folder}: {CONFIG} is not in it", hint="a folder is a draft of TurboMind")


def of_text(text: str, engine: str | None, path: Path | None) -> StatedConfig:
    where = str(path) if path is not None else "the text given"
    suffix = path.suffix.lower() if path is not None else ""
    if unset := UNSET.search(text):
        raise UsageError(f"{where}: {unset[0]} is still to be filled in", hint="write its value in its place")
    if path is not None and suffix in (".yaml", ".yml"):
        return of_mapping(document(text, path), engine, where)
    if text.lstrip().startswith("{") or suffix == ".json":
        try:
            values = parse_json(text)
        except ValueError as error:
            raise UsageError(f"{where}: not readable as JSON: {first_line(error)}") from error
        if not isinstance(values, Mapping):
            raise UsageError(f"{where}: holds a {type(values).__name__}", hint="a JSON object is needed")
        return of_mapping(values, engine, where)
    return of_command(words_of(text, where), engine, where)


def words_of(text: str, where: str) -> list[str]:
    """The words of one command. Raises UsageError where they cannot be split, and for a script of several."""
    joined = UNQUOTED_JSON.sub(lambda match: shlex.quote(match[0]), re.sub(r"\\\r?\n", " ", text))
    try:
        words = shlex.split(joined, comments=True)
    except ValueError as error:
        raise UsageError(f"{where}: not a command line: {error}") from None
    if more := next((word for word in words if word in BETWEEN or word.endswith(";")), None):
        raise UsageError(f"{where}: more than a command: {more}", hint="the command line of the server alone")
    return words


def of_mapping(values: Mapping[str, object], engine: str | None, where: str) -> StatedConfig:
    """Raises UsageError where the format is not known or is none of mappings."""
    names = {key.replace("-", "_") for key in values}
    inner = next((values[key] for key in ("speculative_config", "speculative-config") if key in values), None)
    engine = engine or whose_keys(names, inner)
    if engine is None:
        keys = ", ".join(list(values)[:6]) or "none"
        raise UsageError(f"{where}: of which engine are these keys: {keys}?", hint=HINT)
    read = FORMATS[engine].mapping
    if read is None:
        raise UsageError(f"{where}: {engine} takes flags, and this is a mapping", hint=HINT)
    return read(values, where)


def whose_keys(keys: set[str], inner: object) -> str | None:
    """The engine whose keys these are; None where several have them. `inner`: what is below `speculative_config`."""
    if isinstance(inner, Mapping):
        return "trtllm" if "decoding_type" in inner or keys & {"kv_cache_config", "cuda_graph_config"} else "vllm"
    if isinstance(inner, str):
        return "vllm"
    if telling := next((engine for engine, telling in TELLING_KEYS if keys & telling), None):
        return telling
    owned = keys & frozenset().union(*(own for _, own in OWN_KEYS))
    fitting = [engine for engine, own in OWN_KEYS if owned and owned <= own]
    return fitting[0] if len(fitting) == 1 else None


def of_command(words: Sequence[str], engine: str | None, where: str) -> StatedConfig:
    """The config of a server's command line. Raises UsageError where it is not known whose it is."""
    line = " ".join(words)
    started = next((name for pattern, name in SERVERS if re.search(pattern, line)), None)
    whose = engine or started or whose_flags(words)
    if whose is None:
        raise UsageError(f"{where}: of which engine are these flags?", hint=HINT)
    read = FORMATS[whose].flags
    if read is None:
        raise UsageError(f"{where}: {whose} takes a mapping, and these are flags", hint=HINT)
    return read(words, where)


def whose_flags(argv: Sequence[str]) -> str | None:
    flags = [word.partition("=")[0].replace("_", "-") for word in argv if word.startswith("-")]
    for engine, telling in TELLING_FLAGS:
        if any(flag in telling or (flag.startswith("--spec-") and "--spec-" in telling) for flag in flags):
            return engine
        if engine == "vllm" and any(flag.startswith(("--speculative-config.", "-sc.")) for flag in flags):
            return engine
    return None
