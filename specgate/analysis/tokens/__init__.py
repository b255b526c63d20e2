"""Are the tokens right: compared with the baseline's, with what the target would choose, and with themselves.

comparison.py     tokens of a spec cell compared with the baseline's
divergences.py    where texts diverge
rescoring.py      what a second engine says of a sample of tokens
repetition.py     loops in generated text, which inflate acceptance, and rounds that do not repeat the same tokens
"""
