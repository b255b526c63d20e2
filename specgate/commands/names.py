"""Names of the command line: what the first page shows under which heading, and what older names stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click

from specgate.terminal import echo

HEADINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "Measure": ("demo", "smoke", "micro", "full", "load", "ab"),
    "Stored runs": ("runs",),
    "Diagnose": ("diagnose",),
    "Set up": ("machine", "scenarios", "policy"),
    "Engine": ("engine",),
}
OLD: Final[Mapping[str, str]] = {
    "report": "runs report",
    "verify": "runs verify",
    "check": "runs check",
    "compare": "runs compare",
    "history": "runs history",
    "explain": "runs explain",
    "align": "diagnose configs",
    "parity": "diagnose parity",
    "cache": "diagnose cache",
    "trace": "diagnose trace",
    "pairs acceptance": "diagnose acceptance",
    "doctor": "machine doctor",
    "calibrate": "machine calibrate",
    "selftest": "machine selftest",
    "backends": "machine backends",
    "plan": "scenarios plan",
    "scenarios validate": "scenarios check",
    "bench": "engine bench",
    "tune": "engine tune",
    "sweep": "engine sweep",
    "tape": "engine tape",
    "tree": "engine tree",
    "pairs plant": "engine plant",
    "pairs export": "engine export",
    "pairs draft-vocab": "engine draft-vocab",
    "pairs train-draft": "engine train",
    "pairs": "engine pairs",
    "fleet micro": "micro --on gpus",
    "fleet full": "full --on gpus",
    "status": "full --status",
}
"""Older name → the command that it stands for. Of two that fit, the one with more words is meant."""


def renamed(words: Sequence[str]) -> list[str]:
    """Return the words of a command line under its present name, and say that name where an older one was typed."""
    for count in (2, 1):
        if new := OLD.get(" ".join(words[:count])):
            echo(f"note: specgate {' '.join(words[:count])} is now: specgate {new}", err=True)
            return [*new.split(), *words[count:]]
    return list(words)


class CommandLine(click.Group):
    """The first page: commands under headings. Older names work, and are not shown."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return name, command and the other words, after older names were replaced."""
        return super().resolve_command(ctx, renamed(args))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands alone: each has its options."""
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands below their headings."""
        width = formatter.width - 6 - max(map(len, self.commands))
        for heading, names in HEADINGS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(width)) for name in names])
