"""Error rates of judgements, by simulation: the figures that docs quote, a script each (`python -m
bench.simulations.…`).
"""
