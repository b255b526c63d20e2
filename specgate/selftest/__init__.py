"""The self-test: known faults, and whether the judge sees them.

faults.py        faults of the engine: each is injected into a scripted one, and exactly the matching gate must say so
demo.py          a first look: an honest scripted engine, and one with a wrong token
stored.py        faults of what surrounds a run: the machine, the files that it left, the ledger
"""
