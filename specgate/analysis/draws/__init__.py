"""Do texts that were drawn have the target's distribution?

goodness_of_fit.py  how well drawn tokens fit the target's distribution, where logits are rounded
fit_tests.py        texts → tests of their first token and of the tokens after each beginning
"""
