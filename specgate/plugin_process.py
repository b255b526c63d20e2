"""Back ends from outside, whose modules run in processes of their own: the harness imports none of them.

A question (is it available, are these options right, …) starts a process, which imports the module, answers and ends.
With `--isolate` it runs in the sandbox, as the engine does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import EntryPoint
from inspect import signature
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

from specgate import errors
from specgate.contract import protocols
from specgate.contract.protocols import Availability, Backend, Engine, OpenRequest
from specgate.errors import BackendError, SpecgateError, UsageError
from specgate.sandbox.isolation import current

T = TypeVar("T")

ABILITIES: Final = (
    *(protocols.Backend, protocols.OffersLoad, protocols.OffersSampling, protocols.ChecksSampling),
    *(protocols.StatesLogitOptions, protocols.SwitchesPrefixCache, protocols.ExplainsLogs, protocols.ChecksOptions),
    *(protocols.UsesGpus, protocols.IsBitExact, protocols.TunesItself, protocols.HasUsualPair),
    *(protocols.DrivesAnotherEngine, protocols.ReadsMemory),
)
"""The protocols of back ends. Their members are all that the harness asks for."""
METHODS: Final[Mapping[str, Any]] = {
    name: member
    for ability in ABILITIES
    for name, member in vars(ability).items()
    if callable(member) and not name.startswith("_") and name != "open"
}
LISTS: Final = ("logit_options", "draft_options", "other_drafts")
"""Members that are tuples of names."""
MARKS: Final = ("name", "description", "serves_load", "samples", "switches_prefix_cache", "bit_exact", *LISTS)
"""Members that are data."""
ENGINE_LIBRARIES: Final = ("torch", "cupy", "transformers", "vllm", "sglang", "tensorrt_llm", "lmdeploy", "aiohttp")
"""Libraries that a back end may import in `open`, but not when it is loaded or asked whether it is available."""
LIMIT_S: Final = 120.0
PROGRAM: Final = """import json, sys
sys.path[:] = json.loads(sys.argv[1])
from specgate.plugin_process import answer_one
answer_one()"""


class BackendApart:
    """A back end from outside. It has the members that the plug-in has, as far as they are of `ABILITIES`.

    Raises UsageError where the plug-in cannot be loaded or is no back end, and BackendError where it fails.
    """

    name: str
    description: str
    available: Callable[[], Availability]

    def __init__(self, entry: EntryPoint) -> None:
        about: Any = asked(entry.name, entry.value, "", "[]", tuple(sys.path), current() is not None)
        self.__dict__.update(about["marks"])
        self.libraries: Sequence[str] = about["libraries"]
        self.__dict__.update((name, tuple(about["marks"][name])) for name in LISTS if name in about["marks"])
        for name in about["methods"]:
            self.__dict__[name] = partial(self._call, entry, name)

    def open(self, request: OpenRequest) -> Engine:
        """Not here: engines are opened by `run.worker`."""
        raise UsageError(f"back end {self.__dict__['name']} is opened in an engine's process only")

    @staticmethod
    def _call(entry: EntryPoint, method: str, *values: object, **named: object) -> Any:
        from specgate.contract import reading  # it imports pydantic, which takes a while

        hints = get_type_hints(METHODS[method])
        bound = signature(METHODS[method]).bind(None, *values, **named).arguments
        arguments = [reading.to_data(hints[name], value) for name, value in list(bound.items())[1:]]
        text = json.dumps(arguments, sort_keys=True)
        data = asked(entry.name, entry.value, method, text, tuple(sys.path), current() is not None)
        try:
            return reading.from_stored(hints["return"], data)
        except reading.Malformed as error:
            raise BackendError(f"back end {entry.name}: {method}() answers {error}") from None


@cache
def asked(name: str, value: str, method: str, arguments: str, path: tuple[str, ...], isolated: bool) -> Any:
    """Return the answer of the plug-in `value`, called `name`, to `method` with `arguments` (JSON), as JSON has it.

    Without `method`, what it is: its marks, its methods, and the engine libraries that asking it imports.
    """
    request = json.dumps({"name": name, "value": value, "method": method, "arguments": json.loads(arguments)})
    command = [sys.executable, "-P", "-c", PROGRAM, json.dumps([os.path.abspath(folder) for folder in path])]
    environment, isolation = dict(os.environ), current()
    box = isolation.box([Path.cwd()], [], network=False) if isolation and isolated else None
    if box is not None:
        environment = box.environment(environment)
        command = box.command(command, Path.cwd())
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    try:
        out, printed = process.communicate(request.encode(), timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise BackendError(f"plug-in {name} ({value}): no answer within {LIMIT_S:g} s") from None
    finally:
        if box is not None:
            box.end(process)
        process.kill()
        process.wait()
    try:
        answer = json.loads(out)
    except ValueError:
        last = printed.decode(errors="replace").strip().splitlines()[-1:]
        raise BackendError(
            f"plug-in {name} ({value}): its process ended without an answer", hint="".join(last)
        ) from None
    if "error" in answer:
        raise error_of(answer)
    return answer["answer"]


def error_of(answer: Mapping[str, Any]) -> SpecgateError:
    """Return the error in an answer. One of a kind that is not known becomes a BackendError."""
    kind = getattr(errors, str(answer["error"]), BackendError)
    known = isinstance(kind, type) and issubclass(kind, SpecgateError)
    return (kind if known else BackendError)(str(answer["message"]), hint=answer.get("hint"))


# ── in the process ────────────────────────────────────────────────────────────────────────────────────────────────────


def answer_one() -> None:
    """Answer the request on standard input. What the plug-in prints goes to standard error."""
    reply = os.dup(1)
    os.dup2(2, 1)
    request, before = json.load(sys.stdin), set(sys.modules)
    try:
        backend: Any = loaded(request["name"], request["value"])
        if request["method"]:
            data = called(backend, request["method"], request["arguments"])
        else:
            data = described(backend, before)
        answer = {"answer": data}
    except SpecgateError as error:
        answer = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    except Exception as error:
        message = f"plug-in {request['name']} ({request['value']}) failed: {type(error).__name__}: {error}"
        answer = {"error": "BackendError", "message": message, "hint": None}
    os.write(reply, json.dumps(answer).encode())


def loaded(name: str, value: str) -> Backend:
    """Import the plug-in `value`. Raises UsageError where that fails or it is no back end."""
    try:
        plugin = EntryPoint(name, value, "specgate.backends").load()
    except (ImportError, AttributeError) as error:
        raise UsageError(f"plug-in {name} ({value}) cannot be loaded: {error}") from error
    return checked(plugin, Backend, f"plug-in {name} ({value})")


def checked(plugin: object, kind: type[T], what: str) -> T:
    """Return `plugin`. Raises UsageError, which begins with `what`, if it is no `kind`."""
    if not isinstance(plugin, kind):
        promised = (*kind.__annotations__, *(a for a in vars(kind) if not a.startswith("_")))
        missing = [a for a in promised if not hasattr(plugin, a)]
        raise UsageError(f"{what} is not a {kind.__name__}: it lacks {', '.join(missing)}")
    return plugin


def described(backend: Any, before: set[str]) -> dict[str, object]:
    """Return marks and methods of a back end, and the engine libraries that came in since `before` was imported."""
    backend.available()
    imported = set(sys.modules) - before
    return {
        "marks": {name: getattr(backend, name) for name in MARKS if hasattr(backend, name)},
        "methods": [name for name in METHODS if hasattr(backend, name)],
        "libraries": [library for library in ENGINE_LIBRARIES if library in imported],
    }


def called(backend: Any, method: str, arguments: Sequence[object]) -> object:
    """Return what `method` of a back end returns, as JSON has it."""
    from specgate.contract import reading

    hints = get_type_hints(METHODS[method])
    names = list(signature(METHODS[method]).parameters)[1:]
    values = [reading.from_stored(hints[name], value) for name, value in zip(names, arguments, strict=False)]
    answer = getattr(backend, method)(*values)
    return reading.to_data(hints["return"], answer)
