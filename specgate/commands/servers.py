"""The argument of commands that measure servers that run already: their URLs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from specgate.errors import UsageError
from specgate.redaction import masked
from specgate.terminal import echo

if TYPE_CHECKING:
    from specgate.planning.attached_servers import Servers

HOST: Final = re.compile(r"(?:localhost|[\w.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}(?:/.*)?", re.ASCII)
V1: Final = re.compile(r"(?:/v1)?/*$")


class Urls(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4, and 8.1 will do
    """URLs with commas between them. Raises UsageError for anything else, which says where it belongs."""

    name = "urls"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(checked_url(part.strip()) for part in str(value).split(",") if part.strip())


def checked_url(text: str) -> str:
    """`text` without `/v1` and slashes at its end. A URL that may hold a key is not repeated in an error."""
    if (url := V1.sub("", text)).startswith(("http://", "https://")):
        return url
    shown = masked(text)[:80]
    if "@" in text or "?" in text:
        raise UsageError("an argument that is no URL, and may hold a key", hint="http://HOST:PORT")
    raise UsageError(f"{shown!r} is no URL of a server", hint=right_place(text))


def right_place(text: str) -> str:
    """What would be right in the place of an argument that is no URL."""
    from specgate import plugins
    from specgate.planning.scenario import shipped

    path = Path(text).expanduser()
    if text in plugins.registered("specgate.backends"):
        return f"--backend {text}, or http://HOST:PORT of a server that runs"
    if text in {scenario.name for scenario in shipped()} or path.suffix in (".yaml", ".yml"):
        return f"--scenario {text}"
    if path.is_dir():
        return f"--pair {text}, if it has a target and a draft in it"
    if path.is_file() or path.suffix in (".jsonl", ".json", ".txt"):
        return f"--prompts {text}"
    return f"http://{text}" if HOST.fullmatch(text) else "http://HOST:PORT; several with commas between them"


def urls_argument(command: Any) -> Any:
    """Give a command the URLs of servers as its argument."""
    return click.argument("servers", metavar="[URL[,URL]]", nargs=-1, type=Urls())(command)


def take_servers(options: dict[str, Any], *, smoke: bool = False) -> None:
    """Find out what serves at the URLs of a command line, and put that into its `options`, which lose the URLs.

    Nothing is asked of a command line that says back end, roles and tokenizer itself. Raises UsageError for a URL with
    a run to be resumed, and what `with_servers` raises.
    """
    given = dict(options["options"])
    urls = [url for part in options.pop("servers") for url in part]
    if urls and options.get("resume"):
        raise UsageError(f"--resume with {urls[0]}", hint="leave it out: the run's own folder says what it measures")
    urls += [checked_url(given.pop("url"))] if "url" in given else []
    if options.get("arrivals") == "trace" and not (options["prompts"] or options["scenarios"] or options.get("resume")):
        raise UsageError("--arrivals trace without --prompts", hint="a file of requests, each with its timestamp")
    complete = options["backend"] is not None and names_pair(options)
    if not urls and (complete or not any(key.startswith("url.") for key in given)):
        return
    line = completed(options, urls, given, smoke=smoke)
    options["options"] = dict(line.options)
    adopt(options, line)
    options["baseline"] = line.baseline or (smoke and options["baseline"])


def take_sides(options: dict[str, Any]) -> None:
    """Find out what serves at the URLs of both sides of `ab`, and put that into its `options`, which lose the URLs.

    Raises UsageError where the sides are said in another way, too, or draft otherwise; and as `take_servers`.
    """
    sides: tuple[tuple[str, ...], ...] = options.pop("servers")
    if not sides:
        return
    if len(sides) != 2 or any(options[key] for key in ("old", "new", "base", "same")):
        raise UsageError(
            f"{sides[0][0]}: two sides are needed, said in one way",
            hint="specgate ab OLD_URL NEW_URL; each may be URL,URL with its baseline",
        )
    given = options["options"]
    shown = set[str]()
    old, new = (completed(options, urls, given, sides=True, shown=shown) for urls in sides)
    parts = {"engine": "backend", "draft length": "spec", "baseline": "baseline"}
    if unlike := [what for what, key in parts.items() if getattr(old, key) != getattr(new, key)]:
        raise UsageError(
            f"{','.join(sides[0])} and {','.join(sides[1])} differ in {' and '.join(unlike)}",
            hint="specgate micro URL,URL compares one with speculation with one without",
        )
    for side, line in (("old", old), ("new", new)):
        options[side] = tuple((key, url) for key, url in line.options.items() if key.startswith("url."))
    adopt(options, old)
    options["baseline"] = old.baseline


def names_pair(options: Mapping[str, Any]) -> bool:
    return any(options[key] is not None for key in ("pair", "target", "draft", "tokenizer"))


def completed(
    options: Mapping[str, Any],
    urls: Sequence[str],
    given: Mapping[str, str],
    *,
    smoke: bool = False,
    sides: bool = False,
    shown: set[str] | None = None,
) -> Servers:
    """The part of a command line that servers decide on, completed by what they tell, which is printed, but for what
    is `shown` already. That is added to it.
    """
    from specgate.planning.attached_servers import Servers, with_servers

    of_smoke = ("context",) if smoke else ()
    line, lines = with_servers(
        Servers(
            urls=tuple(urls),
            backend=options["backend"],
            options=given,
            pair=names_pair(options),
            ids=options.get("ids") is not None,
            named=any(options.get(key) not in (None, ()) for key in ("scenarios", "only", *of_smoke)),
            smoke=smoke,
            sides=sides,
            format=options["format_"],
            every=options.get("all_prompts") is True,
            baseline=options.get("baseline") is not False or smoke,
            **{key: options.get(key) for key in ("spec", "batch", "tokenizer", "chat", "prompts", "text")},
        )
    )
    shown = set() if shown is None else shown
    for text in lines:
        if text not in shown:
            echo(text, err=True)
    shown.update(lines)
    return line


def adopt(options: dict[str, Any], line: Servers) -> None:
    """Put what servers decide on into the options of a command line, as far as the command has them."""
    options["format_"] = line.format
    for key in ("backend", "spec", "tokenizer", "prompts", "chat", "text"):
        if key in options:
            options[key] = getattr(line, key)
