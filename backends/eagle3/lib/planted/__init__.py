"""Planted pairs: weights made from a seed, whose acceptance is known because it was put there.

recipe.py            what is chosen: seed, recipe A or B, strength of the signal, share of planted errors
rows.py              random numbers by counter, and tensors filled with them block by block
tables.py            draft vocabulary, classes of tokens, the planted successor of each: integers only
target.py            the target's tensors, by name
routing.py           experts: which ones a token chooses, and how many of them its neighbours share
experts.py           experts: the tensors that a dense target does not have, and the routing coordinates
draft.py             the draft's tensors, by name
register.py          recipe B: where a token far back is remembered, by target and draft
source.py            target and draft as something that `specgate.backends.eagle3.lib.pair` can load
"""
