"""Speculative configs: checked before anything is loaded, read as other engines write them, and laid side by side.

    sizes.py          the sizes of a speculative decoder, and the rules that they must keep
    terms.py          these terms, and what follows where two configs differ in one
    tables.py         tables of keys and flags, by the type of their values
    flags.py          flags of a command line, and keys of a mapping: their types, and the names that nobody knows
    files.py          files that a command line refers to
    formats/          the config formats of single engines
    sources.py        which format a file, a folder or a text on the command line has
    contents.py       two checkpoints compared by their weights and configs
    alignment.py      two configs → every difference with its consequence, and what is not known
    launch_checks.py  what is checked right before an engine is loaded or a server is started

Each of `formats/` names the releases that it was read from.
"""
