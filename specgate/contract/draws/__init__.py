"""Texts that were drawn at a temperature, to judge by their distribution whether speculation loses anything.

"""

from specgate.contract.draws import Against, Allowance, DrawCheck, FitTest
from specgate.contract.draws import DrawnTexts, TokenLaw

__all__ = ["Against", "Allowance", "DrawCheck", "DrawnTexts", "FitTest", "TokenLaw"]
