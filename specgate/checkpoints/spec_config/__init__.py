"""Speculative configs: checked before anything is loaded, read as other engines write them, and laid side by side.

    sizes.py          the sizes of a speculative decoder, and the rules that they must keep
    terms.py          these terms, and what follows where two configs differ in one
    flags.py          flags of a command line, and keys of a mapping: their types, and the names that nobody knows
    formats/          the config formats of single engines
    sources.py        which format a file, a folder or a text on the command line has
    alignment.py      two configs → every difference with its consequence
    launch_checks.py  what is checked right before an engine is loaded or a server is started

Versions whose formats are read: `formats/__init__.py`.
"""

from specgate.checkpoints.spec_config.sizes import (
    KEYS,
    SIZES,
    SpecConfig,
    broken_limits,
    broken_rules,
    check,
    differences,
)

__all__ = ["KEYS", "SIZES", "SpecConfig", "broken_limits", "broken_rules", "check", "differences"]
