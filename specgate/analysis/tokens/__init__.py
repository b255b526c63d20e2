"""Are the tokens right: compared with the baseline's, with what the target would choose, and with themselves.

comparison.py     where texts part: a spec cell's from the baseline's, a cell's from its earlier ones
checking.py       the tokens of a cell, right but for near ties
near_ties.py      the law of near ties: standardised gaps, and two tests over them
last_place.py     one unit in the last place of an engine's logits, seen in the gaps between them
continuations.py  how plain decoding goes on from a text that left the baseline's
drafts_along.py   accepted drafts that an engine claims, beside those that the pair's draft has right
rescoring.py      what a second engine says of a sample of tokens
repetition.py     loops in generated text, which inflate acceptance, and rounds that do not repeat the same tokens
"""
