"""The self-test: known faults, and whether the judge sees them.

faults.py        faults of the engine: each is injected into a scripted one, and exactly the matching gate must say so
drawn_texts.py   faults of a verify at a temperature, and what the gate `distribution` says of texts drawn with them
small_chains.py  speculative sampling over small Markov chains, right and with known faults
demo.py          a first look: an honest scripted engine, and one with a wrong token
stored.py        faults of what surrounds a run: the machine, the files that it left, the ledger
"""
