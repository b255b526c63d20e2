"""Samples of two builds → what can be said of them: pure functions.

reduce.py         the journals of both sides → quantities, texts, tokens: the entry point
quantities.py     step and prefill times, acceptance, start-up and memory, each with its word
estimates.py      a difference with its standard error: over process pairs, and over prompts
speeds.py         tokens per second of both sides, for sweeps
outcomes.py       outcomes, and interim looks
"""
