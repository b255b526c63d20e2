"""Strings that somebody might use as a name. Every report must show them as plain text."""

from __future__ import annotations

from dataclasses import replace

from specgate.contract import Run

STRINGS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "=cmd|' /C calc'!A0",
    "a | b\n| c | d |",
    "](javascript:alert(1)) ![x](http://example.org/x.png)",
    "```\n# heading\n@somebody",
    "::error title=x::y%0A::warning::z",
    "\x1b[31mred\x1b[0m \x00 \x08 \ufffe",
    "lone \udc80 surrogate",
    "]]> &amp; <!-- --> <?xml ?>",
)


def with_text(run: Run, text: str) -> Run:
    """The run with `text` in every field that comes from outside: pair, messages, reasons, warnings, command line."""
    verdicts = tuple(replace(v, message=text, next_step=text, reason_code=text) for v in run.verdicts)
    return replace(
        run,
        pair=replace(run.pair, name=text),
        argv=("specgate", "micro", text),
        verdicts=verdicts,
        warnings=(text,),
        failures={"run": text or "it stopped"},
        fingerprint={**run.fingerprint, "device": text},
        cells=tuple(replace(c, status="partial", reason=text) for c in run.cells),
    )
