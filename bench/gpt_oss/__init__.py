"""gpt-oss in the built-in engine on a GPU: right first, then how fast.

__main__.py   the command: checks, then what is asked for, as far as the seconds reach
checks.py     the kernels against float64, and a tiny planted pair against the reference
products.py   the router and the experts' two products of one layer, each on its own and in a row
prefill.py    a prefill part by part, in every way, and whole prefills of planted pairs
steps.py      prefill and whole steps of planted pairs, beside the bytes that they must read
conditions.py the GPU's clock and power while something is timed
"""
