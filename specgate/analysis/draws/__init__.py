"""Do texts that were drawn have the target's distribution?

goodness.py   chi-square and G statistics with pooled bins, and how large they are by chance
fitting.py    texts → tests of their first token and of the tokens after each beginning
"""
