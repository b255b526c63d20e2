"""Texts that were drawn at a temperature, to judge by their distribution whether speculation loses anything.

texts.py  how often each text was drawn, and the target's own distribution after each beginning
fit.py    how well the draws of a cell fit it
"""

from specgate.contract.draws.fit import Against, Allowance, DrawCheck, FitTest
from specgate.contract.draws.texts import DrawnTexts, TokenLaw

__all__ = ["Against", "Allowance", "DrawCheck", "DrawnTexts", "FitTest", "TokenLaw"]
