"""Texts that were drawn at a temperature, to judge by their distribution whether speculation loses anything.

drawn.py     how often each text was drawn, and the target's own distribution after each beginning
checked.py   how well the draws of a cell fit it
"""

from specgate.contract.draws.checked import Against, Allowance, DrawCheck, FitTest
from specgate.contract.draws.drawn import DrawnTexts, TokenLaw

__all__ = ["Against", "Allowance", "DrawCheck", "DrawnTexts", "FitTest", "TokenLaw"]
