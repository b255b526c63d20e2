"""Samples of two builds → what can be said of them: pure functions.

reduce.py         the journals of both sides → quantities, texts, tokens: the entry point
quantities.py     step and prefill times, acceptance, start-up and memory, each with its word
estimates.py      a difference with its standard error: over process pairs, and over prompts
interim_looks.py  how the looks at a comparison that is extended share its error
outcomes.py       differences → SLOWER, FASTER, SAME, CANNOT TELL
"""
