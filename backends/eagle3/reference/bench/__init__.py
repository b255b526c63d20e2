"""The parts of a step by themselves, on the CPU: what each must move, whether it is right, and how long it takes.

run.py            the benchmark: check and time every part of the steps that are asked for
parts.py          the parts: their operands at a pair's sizes, their bytes, and what they should give
oracles.py        what they should give, in float64 and by loops
memory_reads.py   how fast the host's memory can be read
"""
