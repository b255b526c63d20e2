"""Do texts that were drawn have the target's distribution?

goodness_of_fit.py  chi-square and G statistics with pooled bins, and how large they are by chance
rounding.py         how far logits may be from those behind a distribution, by rounding alone
fit_tests.py        texts → tests of their first token and of the tokens after each beginning
"""
