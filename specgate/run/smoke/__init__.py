"""One prompt, one minute: is multi-token speculation active on an engine, and if not, why not?

    short_run.py     opens the engine in a process of its own, decodes one prompt, and checks the known causes
    prompt.py        the prompt: a text that comes along, one's own, or one of exact length
    pair_check.py    the same checks of files alone, for `specgate diagnose pair`
    pair_configs.py  what the pair's files on this machine say

What is made of it (figures and causes) is pure: `specgate.analysis.speculation`.
"""
