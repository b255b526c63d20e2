"""An engine's facts, and the raw samples of its blocks.

engine_facts.py  what an engine states of itself
block.py         one timed decode run of one role
counters.py      counters of a block, and the memory in use
rescoring.py     untimed samples: longer baseline texts, digests of logits, a second engine's scores
"""
