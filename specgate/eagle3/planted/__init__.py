"""Planted pairs: weights made from a seed, whose acceptance is known because it was put there.

recipe    what is chosen: seed, recipe A or B, strength of the signal, share of planted errors
bits      (seed, name, index) → the same numbers on every device
tables    draft vocabulary, classes of tokens, the planted successor of each: integers only
target    the target's tensors, by name      register    recipe B: bits of old tokens, carried through the features
draft     the draft's tensors, by name       source      both, as something that `pair.py` can load
"""
