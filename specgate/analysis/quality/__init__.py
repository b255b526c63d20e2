"""Exact-match scores of a model's answers, baseline beside speculation.

exact_match.py  the rule by which an answer is found in a text, and held against its key
answers.py      texts of a run → its answers, right or wrong
scores.py       answers → the score of every cell, and the difference to its baseline with an interval
"""
