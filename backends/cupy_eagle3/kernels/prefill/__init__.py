"""Kernels of a prefill: all that stands between its products and its attention. Each has a `.cu` of the same name.

They work on whole rows of a prompt, of which there are thousands, and move each row through memory once.

prefill_stream.py  the residual stream: embedded or added to, and normed
prefill_heads.py   queries and keys rotated, keys and values into the paged cache
prefill_gate.py    SiLU(gate) · up
prefill_draft.py   the draft's input
threads.py         how many threads a row is divided among
eights.cuh         a row in groups of eight elements
"""
