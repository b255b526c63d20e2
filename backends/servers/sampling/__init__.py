"""Servers at temperatures above 0: what requests can ask for, and the distribution that is shown.

expresses.py   what of a scenario's `sampling` an engine's requests can say, and what is refused by name
seeds.py       a seed for every request
listed.py      log-probabilities that a server lists → the distribution that tokens are drawn from
"""
