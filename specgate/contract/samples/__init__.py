"""An engine's facts, and the raw samples of its blocks.

engine_facts.py  what an engine states of itself
block.py         one timed decode run of one role
counters.py      names of an engine's counters beside acceptance
memory.py        memory in use when a block was answered
spans.py         cache spans and trees that an engine shows of drawn steps
rescoring.py     untimed samples: longer baseline texts, digests of logits, a second engine's scores
answers.py       keys of questions, and the answers that were held against them
time_spent.py    starts of engines, and points whose time was spent
"""
