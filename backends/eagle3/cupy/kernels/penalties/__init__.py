"""Penalties on tokens that a text has: what is counted, and what it does to logits. Each has a `.cu` of the same name;
`history.cuh` is how both know a text. `launchers.py` launches its kernels.

count_tokens.cu   counts what a step has emitted
penalise_rows.cu  bias and penalties on rows of logits, and the greedy choice anew
"""
