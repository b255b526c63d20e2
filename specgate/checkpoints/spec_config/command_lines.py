"""Command lines in shell scripts, in `docker run`, and in the YAML of Compose and Kubernetes → the words of one server.

Variables are replaced where the same text sets them. All others stay as they are, and what they stand for is not known.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Final, NamedTuple

from specgate.errors import UsageError

UNQUOTED_JSON: Final = re.compile(r"(?<=[\s=])\{[^{}']*(?:\{[^{}']*\}[^{}']*)*\}(?=\s|$)")
"""An object on a command line whose quotes a shell has taken off already."""
WORD: Final = re.compile(
    r"""(?P<end>\n|;|&&|\|\||[|&])|(?P<blank>[ \t\r]+)|(?P<comment>\#[^\n]*)"""
    r"""|(?P<word>(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|\$\((?:[^()])*\)|[^\s'"\\;|&])+)""",
    re.DOTALL,
)
SET: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
VARIABLE: Final = re.compile(r"\$(?:\{(\w+)(?:\[[@*]\])?\}|\((\w+)\)|(\w+))")
ARRAY: Final = re.compile(r"(\w+)\+?=\((.*)", re.DOTALL)
IMAGES: Final = (
    (r"vllm/vllm-|/vllm(-openai|-cpu|-rocm)?(:|@|$)", "vllm"), (r"sglang", "sglang"), (r"tensorrt[-_]llm", "trtllm"),
    (r"lmdeploy", "lmdeploy"), (r"llama\.cpp|llama-server", "llamacpp"),
)  # fmt: skip
"""Name of a container's image → whose server starts in it."""
SHELLS: Final = frozenset({"sh", "bash", "ash", "zsh", "dash"})


class Command(NamedTuple):
    """The words of one command. `image`: engine whose container it runs in, where that is known."""

    words: tuple[str, ...]
    image: str | None = None


def commands(text: str, where: str) -> list[Command]:
    """The commands of a shell text, with the variables replaced that it sets itself.

    Raises UsageError where the words cannot be split.
    """
    joined = UNQUOTED_JSON.sub(lambda match: shlex.quote(match[0]), re.sub(r"\\\r?\n", " ", text))
    variables: dict[str, str] = {}
    result: list[Command] = []
    for words in split(joined, where):
        plain = [part for at, word in enumerate(words) for part in expanded(word, variables, at == 0)]
        if not plain:
            continue
        if (array := ARRAY.match(plain[0])) and plain[-1].endswith(")"):
            parts = [array[2], *plain[1:]]
            before = variables.get(array[1], "") if "+=" in plain[0] else ""
            variables[array[1]] = f"{before} {shlex.join(filter(None, [*parts[:-1], parts[-1][:-1]]))}".strip()
            continue
        settings = [match for word in plain if (match := SET.fullmatch(word))]
        if len(settings) == len([word for word in plain if word not in ("export", "declare", "readonly", "local")]):
            variables |= {match[1]: match[2] for match in settings}
        else:
            result += unwrapped(plain, where)
    return result


def split(text: str, where: str) -> Iterator[list[str]]:
    """The words of each command of `text`, without their quotes. Raises UsageError for a quote that does not end."""
    words: list[str] = []
    at = 0
    while at < len(text):
        match = WORD.match(text, at)
        if match is None:
            raise UsageError(f"{where}: not a command line: no closing quotation")
        at = match.end()
        if match["word"] is not None:
            words.append(unquoted(match["word"]))
        elif match["end"] is not None and words:
            yield words
            words = []
    if words:
        yield words


def unquoted(word: str) -> str:
    """A word of a shell without its quotes. Text in single quotes is as it stands; `$` in it is no variable."""
    parts = re.findall(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^'"\\]+""", word, re.DOTALL)
    return "".join(
        part[1:-1] if part[0] == "'"
        else re.sub(r'\\(["\\$`])', r"\1", part[1:-1]) if part[0] == '"'
        else part[1:] if part[0] == "\\" else part
        for part in parts
    )  # fmt: skip


def replaced(word: str, variables: Mapping[str, str]) -> str:
    """`word` with the `variables` that are known, as `$NAME`, `${NAME}` or `$(NAME)`."""
    return VARIABLE.sub(lambda m: variables.get(m[1] or m[2] or m[3], m[0]), word)


def expanded(word: str, variables: Mapping[str, str], first: bool) -> list[str]:
    """The words that stand in the place of `word`: several for an array, and for a variable that holds flags or, as the
    `first` word, a command.
    """
    text = replaced(word, variables)
    several = VARIABLE.fullmatch(word) and (first or "[" in word or text.startswith("-"))
    return [*unquoted_words(text)] if several and text != word else [text]


def unquoted_words(text: str) -> Iterator[str]:
    """The words of a variable's value; those between blanks where its quotes do not end."""
    try:
        yield from shlex.split(text)
    except ValueError:
        yield from text.split()


def unwrapped(words: Sequence[str], where: str) -> Iterator[Command]:
    """The commands that `words` start: those inside `bash -c`, or behind the image of `docker run`."""
    names = [word.rsplit("/", 1)[-1] for word in words]
    if (names[0] in SHELLS and "-c" in words[:-1]) or (names[0] in SHELLS and "-lc" in words[:-1]):
        yield from commands(words[next(i for i, w in enumerate(words) if w in ("-c", "-lc")) + 1], where)
    elif names[0] in ("docker", "podman", "nerdctl", "sudo") and "run" in words:
        at = next((i for i, word in enumerate(words) if i > words.index("run") and engine_of_image(word)), None)
        if at is None:
            yield Command(tuple(words))
            return
        inner = words[at + 1 :]
        variables = [w for before, w in pairwise(words) if before in ("-e", "--env")]
        entry = [w for before, w in pairwise(words) if before == "--entrypoint"]
        if inner and inner[0] in SHELLS:
            yield from unwrapped(inner, where)
        else:
            yield Command((*variables, *entry, *inner), engine_of_image(words[at]))
    else:
        yield Command(tuple(words))


def engine_of_image(image: str) -> str | None:
    """The engine in a container's image, by its name; None for a flag and for an unknown one."""
    if image.startswith("-") or "=" in image:
        return None
    return next((engine for pattern, engine in IMAGES if re.search(pattern, image, re.IGNORECASE)), None)


def containers(data: object, where: str) -> Iterator[Command]:
    """The commands of all containers in the data of a YAML file of Compose or Kubernetes.

    `command` comes before `args` (Kubernetes), `entrypoint` before `command` (Compose).
    """
    if isinstance(data, list | tuple):
        for entry in data:
            yield from containers(entry, where)
    if not isinstance(data, Mapping):
        return
    lists = [words_of(data.get(key), where) for key in ("entrypoint", "command", "args")]
    if any(lists) and ("image" in data or "name" in data or any(map(is_list, (data.get("command"), data.get("args"))))):
        variables = dict(environment(data.get("env", data.get("environment"))))
        words = [replaced(word, variables) for word in chain.from_iterable(lists)]
        settings = [f"{name}={value}" for name, value in variables.items()]
        image = engine_of_image(str(data.get("image", "")))
        for command in unwrapped(words, where):
            yield Command((*settings, *command.words), command.image or image)
        return
    for value in data.values():
        yield from containers(value, where)


def is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def words_of(value: object, where: str) -> list[str]:
    """The words of a command that is a list, or a text of a shell."""
    if isinstance(value, str):
        return [word for words in split(re.sub(r"\\\r?\n|\n", " ", value), where) for word in words]
    return [text_of(word) for word in value] if isinstance(value, list | tuple) else []


def text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def environment(value: object) -> Iterator[tuple[str, str]]:
    """(name, value) of the variables that a container is given."""
    if isinstance(value, Mapping):
        yield from ((str(name), text_of(setting)) for name, setting in value.items() if setting is not None)
    for entry in value if isinstance(value, list | tuple) else ():
        if isinstance(entry, Mapping) and "name" in entry and "value" in entry:
            yield str(entry["name"]), text_of(entry["value"])
        elif isinstance(entry, str) and (match := SET.fullmatch(entry)):
            yield match[1], match[2]
